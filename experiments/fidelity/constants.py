"""A machine: what its data sheet says, and the constants that say how much of it training gets; from both, the seconds of every row of a Work.

(1) product    t = max(flop / (peak f_p  k/(k + k0)  w/(w + w0)), bytes / (memory f_s)),  w = tiles of 128 x 128 / units
(2) compute    t = sum of (1) + sweep bytes / (memory f_s)
(3) update     t = u parameters / (memory f_s)
(4) link       b = max(sent / (port f_n), sent crossing / (nic f_c))       crossing: devices of a node that send out of it at once
(5) passed     t = a (p - 1)^g r/2 + b among p devices; once per step: t = b (they travel in one buffer)    r: turns of the ring, an all-reduce has 2
(6) transfer   t = h + b
(7) host       a stage's passes take at least l per kernel: with r that over (2) and (5) of the stage, its acts are (1 + r^4)^(1/4) times slower
               (the host launches ahead of the device and of its collectives, or the device waits for it)
(8) step       T = the Plan's makespan under (1)-(7) + s

Names of the constants: CONSTANTS.  A file (clusters/NAME.toml) holds values, bounds and where they come from.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.fidelity.works import Floats, Row, Work
from planner.ir.errors import InvalidFile
from planner.ir.text import save_text
from simulator.compiled.event_kernel import play_events

__all__ = ["CONSTANTS", "Constant", "Machine", "load_machine", "row_times", "save_constants", "step_s"]

TILE = 128
UNFUSED = 3.0
"""Kernels more per product of the attention where heads x sequences of a device are no multiple of 4: there Megatron's own kernel for scale,
mask and softmax does not serve, and torch's ops do it (Megatron-LM, fused_softmax.py)."""
SHARP = 4.0
"""Host and device take (host^4 + device^4)^(1/4) together: the larger where they differ, a fifth more where they are equal and jitter."""
CLUSTERS = Path(__file__).parent / "clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """What a constant means, its unit and between which bounds it is physical.  start: where a fit begins."""

    symbol: str
    meaning: str
    unit: str
    low: float
    high: float
    start: float


def _constants(*rows: tuple[str, str, str, str, float, float, float]) -> Mapping[str, Constant]:
    return {n: Constant(symbol=s, meaning=w, unit=u, low=a, high=b, start=x) for n, s, w, u, a, b, x in rows}


CONSTANTS = _constants(
    ("product_share", "f_p", "peak flop/s that long matrix products reach", "1", 0.3, 1.0, 0.9),
    ("inner_half", "k0", "inner extent at which a product reaches half of that", "elements", 1, 1000, 60),
    ("wave_half", "w0", "waves of tiles at which a product reaches half of that", "waves", 0.01, 10, 1),
    ("sweep_share", "f_s", "memory bandwidth that elementwise kernels reach", "1", 0.2, 1.2, 0.65),
    ("launch_us", "l", "host time per kernel", "us", 1, 100, 55),
    ("passed_latency_us", "a", "latency of a tensor-parallel all-reduce of two", "us", 1, 400, 80),
    ("latency_growth", "g", "how that grows with the group", "1", 0.01, 1.0, 0.3),
    ("node_share", "f_n", "port bandwidth inside a node that collectives reach beside training", "1", 0.1, 1.0, 0.6),
    ("nic_share", "f_c", "network bandwidth of a node that is reached beside training", "1", 0.05, 1.0, 0.6),
    ("transfer_latency_us", "h", "latency of a message between stages", "us", 1, 2000, 100),
    ("update_bytes", "u", "memory traffic of the mixed-precision update per parameter", "bytes", 10, 300, 30),
    ("step_ms", "s", "once per iteration: data, gradient norm, loss scale, logging", "ms", 0.01, 100, 5),
)
"""Name, symbol, meaning, unit, least and largest physical value, and where a fit begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """peak_flop_per_s, memory_bytes_per_s, units (streaming multiprocessors), node_bytes_per_s (a device's port): data sheet.

    group_bytes_per_s: devices that meet -> a port's bandwidth, where it depends on them (no switch: the links between them count).
    nics: name of a cluster -> bytes/s of one node's network ports together.   values: of CONSTANTS.
    """

    name: str
    source: str
    peak_flop_per_s: float
    memory_bytes_per_s: float
    units: int
    node_bytes_per_s: float
    group_bytes_per_s: Mapping[int, float]
    nics: Mapping[str, float]
    values: Mapping[str, float]

    def with_values(self, values: Mapping[str, float]) -> Machine:
        return replace(self, values=dict(self.values) | dict(values))


def load_machine(name: str, folder: Path = CLUSTERS) -> Machine:
    """Read clusters/NAME.toml; constants that it does not have stand at their start.

    Raises:
        InvalidFile: missing, or without a key.
    """
    path = folder / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        sheet = data["sheet"]
        values = {key: float(data.get("constants", {}).get(key, {}).get("value", c.start)) for key, c in CONSTANTS.items()}
        return Machine(
            name=name,
            source=str(data["source"]),
            peak_flop_per_s=1e12 * float(sheet["peak_TFLOPs"]),
            memory_bytes_per_s=1e9 * float(sheet["memory_GBps"]),
            units=int(sheet["units"]),
            node_bytes_per_s=1e9 * float(sheet["node_GBps"]),
            group_bytes_per_s={int(key): 1e9 * float(rate) for key, rate in data.get("group_GBps", {}).items()},
            nics={key: 1e9 * float(rate) for key, rate in data["nic_GBps"].items()},
            values=values,
        )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InvalidFile(f"{path}: {error!r}; a machine has source, [sheet] and [nic_GBps], see {CLUSTERS.name}/a100.toml") from None


def save_constants(machine: Machine, provenance: Mapping[str, str], folder: Path = CLUSTERS) -> None:
    """Write the constants into the machine's file, with bounds, units and where they come from; what stands before them is kept."""
    path = folder / f"{machine.name}.toml"
    sheet = path.read_text(encoding="utf-8").partition("[provenance]")[0].rstrip()
    lines = [sheet, "", "[provenance]", *(f"{key} = {json.dumps(text)}" for key, text in provenance.items())]
    for name, c in CONSTANTS.items():
        lines += ["", f"[constants.{name}]  # {c.symbol}: {c.meaning}", f"value = {machine.values[name]:.4g}  # {c.unit}"]
        lines.append(f"bounds = [{c.low:g}, {c.high:g}]")
    save_text(path, "\n".join(lines) + "\n")


def row_times(work: Work, machine: Machine, nic: str) -> Floats:
    """Seconds of one act of each row, shape [rows]: equations (1) to (6)."""
    v = machine.values
    memory = machine.memory_bytes_per_s * v["sweep_share"]
    row, count, batch, m, n, k = work.product.T.astype(np.float64)
    waves = batch * np.ceil(m / TILE) * np.ceil(n / TILE) / machine.units
    reached = v["product_share"] * k / (k + v["inner_half"]) * waves / (waves + v["wave_half"])
    flop_s = 2 * batch * m * n * k / (machine.peak_flop_per_s * reached)
    product_s = count * np.maximum(flop_s, 2 * batch * (m * k + k * n + m * n) / memory)
    busy_s = np.bincount(row.astype(np.int64), weights=product_s, minlength=len(work.kind)) + work.sweep_bytes / memory
    port = np.full(len(work.kind), machine.node_bytes_per_s)
    for size, rate in machine.group_bytes_per_s.items():
        port[work.group == size] = rate
    link_s = np.maximum(
        work.sent_bytes / (port * v["node_share"]),
        work.sent_bytes * work.crossing / (machine.nics[nic] * v["nic_share"]),
    )
    return np.select(
        [work.kind == kind for kind in (Row.COMPUTE, Row.UPDATE, Row.PASSED, Row.ONCE, Row.TRANSFER)],
        [
            busy_s,
            work.parameters * v["update_bytes"] / memory,
            link_s + 1e-6 * v["passed_latency_us"] * np.maximum(work.group - 1, 1) ** v["latency_growth"] * work.turns / 2,
            link_s,
            link_s + 1e-6 * v["transfer_latency_us"],
        ],
        0.0,
    )


def step_s(work: Work, machine: Machine, nic: str) -> float:
    """Seconds of one iteration: equations (7) and (8)."""
    row_s = row_times(work, machine, nic)
    slower = _host_bound(work, row_s, 1e-6 * machine.values["launch_us"])
    kind = work.kind[work.actor_row]
    per_pass = (kind == Row.COMPUTE) | (kind == Row.PASSED)
    duration_s = row_s[work.actor_row] * np.where(per_pass, slower[work.tables.rank_class], 1.0)
    # Of a collective all members take the time of the slowest.
    group = work.tables.group
    slowest = np.zeros(int(group.max(initial=-1)) + 1)
    np.maximum.at(slowest, group[group >= 0], duration_s[group >= 0])
    duration_s = np.where(group >= 0, slowest[group], duration_s) if len(slowest) else duration_s
    played = play_events(work.tables._replace(duration_s=duration_s), 1, work.classes, full=False)
    assert played.complete, "a verified Plan ends"
    return float(played.end_s.max()) + 1e-3 * machine.values["step_ms"]


def _host_bound(work: Work, row_s: Floats, launch_s: float) -> Floats:
    """Equation (7): by how much the acts of a rank class's passes are slower, at least 1, shape [classes]."""
    kind, acts, rank_class = work.kind[work.actor_row], work.tables.acts, work.tables.rank_class

    def summed(rows: Floats, *kinds: Row) -> Floats:
        weights = np.where(np.isin(kind, kinds), acts * rows[work.actor_row], 0.0)
        return np.asarray(np.bincount(rank_class, weights=weights, minlength=work.classes), dtype=np.float64)

    row, count, batch = work.product[:, :3].T
    unfused = np.bincount(row, weights=np.where((batch > 1) & (batch % 4 > 0), UNFUSED * count, 0.0), minlength=len(work.kind))
    host_s = launch_s * summed(work.kernels + unfused, Row.COMPUTE)
    device_s = summed(row_s, Row.COMPUTE, Row.PASSED)
    share = host_s / np.maximum(device_s, 1e-12)
    return np.asarray((1.0 + share**SHARP) ** (1.0 / SHARP))
