"""A machine: its data sheet, the constants fitted to published steps, and where those come from.

NAME.toml     source, [sheet], [provenance], [constants], [environments.NAME] (constants of one software and host, in place of those);
              like = "OTHER": constants and environments that the file does not have are those of OTHER, since few steps of this machine are published
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.ir.errors import InvalidCluster, InvalidFile
from planner.ir.text import save_text
from regista.jobs.job import Precision

__all__ = ["CONSTANTS", "Constant", "Machine", "load_machine", "machine_names", "save_constants"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """What a constant means, its unit, between which bounds it is physical, where a fit begins, and how far (in logarithms) it may be from there."""

    meaning: str
    unit: str
    low: float
    high: float
    start: float
    spread: float


def _constants(*rows: tuple[str, str, str, float, float, float, float]) -> Mapping[str, Constant]:
    return {n: Constant(meaning=w, unit=u, low=a, high=b, start=x, spread=s) for n, w, u, a, b, x, s in rows}


CONSTANTS = _constants(
    ("product_share", "speed of products in training against the kernel alone", "1", 0.5, 1.3, 0.95, 0.1),
    ("attention_share", "the same of fused attention, forward", "1", 0.3, 1.5, 0.9, 0.2),
    ("attention_backward", "the same, backward", "1", 0.3, 1.5, 0.9, 0.2),
    ("flash_gain", "speed of FlashAttention 2 against the fused kernel of the device's library", "1", 0.4, 1.2, 0.75, 0.2),
    ("send_us", "host and wire latency of a message between stages", "us", 1, 100000, 50, 1.5),
    ("sweep_share", "memory bandwidth that elementwise kernels reach", "1", 0.2, 1.1, 0.7, 0.3),
    ("low_gain", "how many times faster products are in 8 bits, casts aside", "1", 1.0, 2.2, 1.8, 0.15),
    (
        "four_gain",
        "how many times faster products are in 4 bits than in 8 where the sheet says 2, casts aside; of 8 rows of Megatron-Bridge on GB200",
        "1",
        1.0,
        2.0,
        1.8,
        0.2,
    ),
    ("launch_us", "host time per kernel", "us", 0.5, 300, 6, 1.0),
    ("meet_us", "what the hosts of two ranks wait for each other before a collective; more ranks as the logarithm", "us", 1, 5000, 20, 1.0),
    ("node_share", "speed of collectives inside a node in training against NCCL alone", "1", 0.1, 1.5, 0.9, 0.3),
    ("nic_share", "the same of collectives that leave a node", "1", 0.05, 1.2, 0.8, 0.4),
    ("beside_share", "share of an overlapped tensor-parallel collective that still shows", "1", 0.02, 1.0, 0.3, 0.7),
    ("growth", "how much longer computing takes per doubling of the devices beyond 8", "1", 1e-5, 0.05, 0.002, 1.0),
    ("jax_gain", "speed of XLA's fused kernels and products against Transformer Engine's", "1", 0.5, 1.5, 1.0, 0.15),
    (
        "expert_gain",
        "speed of experts' products against those of a dense layer: uneven loads, one kernel after the other",
        "1",
        0.3,
        1.1,
        0.9,
        0.2,
    ),
    ("update_bytes", "memory traffic of the update per parameter", "bytes", 10, 300, 34, 0.4),
    ("step_ms", "once per step: data, gradient norm, logging", "ms", 0.01, 300, 10, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """interconnect: whose NCCL times stand for the machine's.   measured_bytes_per_s: a port's there; where the machine has another, a collective
    inside a node takes what one of more or fewer bytes takes there."""

    interconnect: str
    measured_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """peak_flop_per_s: by precision; one that the device does not have is missing.   domain: devices that the fast links join.

    node_bytes_per_s, nic_bytes_per_s: one device's port, one direction.   workspace_bytes: libraries' own, allocated for good.
    like: the machine whose constants stand where it has none of its own; None: all are its own.
    values: of CONSTANTS.   environments: name -> constants that differ there.   provenance: of the constants.
    """

    name: str
    source: str
    peak_flop_per_s: Mapping[Precision, float]
    memory_bytes_per_s: float
    memory_bytes: int
    units: int
    domain: int
    node_bytes_per_s: float
    nic_bytes_per_s: float
    wires: Wires
    workspace_bytes: int
    values: Mapping[str, float]
    environments: Mapping[str, Mapping[str, float]]
    like: str | None
    provenance: Mapping[str, object]

    def with_values(self, values: Mapping[str, float]) -> Machine:
        return replace(self, values=dict(self.values) | dict(values))

    def within(self, environment: str) -> Machine:
        """The machine with the constants of an environment and of what it is part of: ``ci.host`` has those of ``ci`` where it has none of its own."""
        parts = environment.split(".")
        named = [self.environments.get(".".join(parts[: i + 1]), {}) for i in range(len(parts))]
        return self.with_values({name: value for values in named for name, value in values.items()})

    def peak(self, precision: Precision) -> float:
        """flop/s of the data sheet.

        Raises:
            InvalidCluster: the device has no rate for the precision.
        """
        rate = self.peak_flop_per_s.get(precision)
        if rate is None:
            known = ", ".join(p.value for p in self.peak_flop_per_s)
            raise InvalidCluster(
                f"precision: {self.name} has no rate for {precision.value}; it has {known}: choose one of them or another device"
            )
        return rate


def machine_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_machine(name: str, folder: Path = FOLDER) -> Machine:
    """Read NAME.toml; constants that it does not have stand at their start.

    Raises:
        InvalidCluster: no such machine.   InvalidFile: a key is missing.
    """
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise InvalidCluster(f"hardware: {name!r} is no machine that predictions know; known are {', '.join(machine_names())}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        sheet, like = data["sheet"], data.get("like")
        other = {} if like is None else tomllib.loads((folder / f"{like}.toml").read_text(encoding="utf-8"))
        given, environments = (other.get(part, {}) | data.get(part, {}) for part in ("constants", "environments"))
        return Machine(
            name=name,
            source=str(data["source"]),
            peak_flop_per_s={p: 1e12 * float(sheet[f"{p.value}_TFLOPs"]) for p in Precision if f"{p.value}_TFLOPs" in sheet},
            memory_bytes_per_s=1e9 * float(sheet["memory_GBps"]),
            memory_bytes=int(1e9 * float(sheet["memory_GB"])),
            units=int(sheet["units"]),
            domain=int(sheet["domain"]),
            node_bytes_per_s=1e9 * float(sheet["node_GBps"]),
            nic_bytes_per_s=1e9 * float(sheet["nic_GBps"]),
            wires=Wires(
                interconnect=str(sheet["interconnect"]),
                measured_bytes_per_s=1e9 * float(sheet.get("interconnect_GBps", sheet["node_GBps"])),
            ),
            workspace_bytes=int(2**20 * float(sheet["workspace_MiB"])),
            values={key: float(given.get(key, c.start)) for key, c in CONSTANTS.items()},
            environments={k: {n: float(v) for n, v in e.items()} for k, e in environments.items()},
            like=like,
            provenance=other.get("provenance", {}) | data.get("provenance", {}),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise InvalidFile(f"{path}: {error!r}; a machine has source and [sheet], see h100.toml") from None


def save_constants(machine: Machine, provenance: Mapping[str, object], folder: Path = FOLDER) -> None:
    """Write the constants into the machine's file, with where they come from; what stands before them is kept."""
    path = folder / f"{machine.name}.toml"
    sheet = path.read_text(encoding="utf-8").partition("[provenance]")[0].rstrip()
    lines = [sheet, "", "[provenance]", *(f"{key} = {json.dumps(value)}" for key, value in provenance.items()), "", "[constants]"]
    for name, c in CONSTANTS.items():
        lines.append(f"{name} = {machine.values[name]:.4g}  # {c.unit}: {c.meaning}; bounds {c.low:g} to {c.high:g}")
    for environment, values in sorted(machine.environments.items()):
        lines += ["", f"[environments.{json.dumps(environment)}]", *(f"{name} = {value:.4g}" for name, value in values.items())]
    save_text(path, "\n".join(lines) + "\n")
