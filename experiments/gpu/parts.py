"""The parts of ``make gpu`` that measure.  Each gives rows; predictions and measurements stand in columns of their own.

actors     load -> H2D -> compute -> D2H with RegstNum 1, 2, 3 [Yuan et al. 2021, figure 6]
recompute  a GPT with its activations kept, and made again: step time, peak memory
offload    the same GPT with parameters' masters and optimizer state on the host
stages     two virtual pipeline stages on one device against one stage
hetero     stage 0 on the CPU, stage 1 on the device
overhead   per-act cost of the runtime, with CUDA graphs and without
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

import pandas as pd
import torch

from backend.acts.act import Batches
from backend.devices.device import CpuDevice, Device
from backend.devices.fake import FakeStreamDevice
from backend.devices.opening import open_device
from backend.devices.options import DeviceOptions
from backend.inprocess import run
from experiments.gpu.alone import SKIPPED, Predicted, predict_then_run
from experiments.gpu.overhead import idle_act_s
from experiments.gpu.plans import four_actors, offloaded, roomy_cluster
from planner.frontend import Program
from planner.ir.errors import Unsupported
from planner.ir.files import save_trace
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

__all__ = ["PARTS", "Bench", "Row", "Scale", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the models are: on a GPU large enough that acts take milliseconds, in tests as small as possible."""

    width: int
    products: int
    steps: int
    batch: int
    layers: int
    dim: int
    heads: int
    length: int
    vocabulary: int


LARGE = Scale(width=4096, products=3, steps=30, batch=16, layers=8, dim=1024, heads=16, length=512, vocabulary=8192)
BESIDE_CPU = Scale(width=0, products=0, steps=20, batch=8, layers=4, dim=256, heads=8, length=128, vocabulary=2048)
"""A stage on one core computes about 0.1 TFLOP/s, so it gets little to do."""
SMALL = Scale(width=32, products=2, steps=4, batch=4, layers=2, dim=16, heads=2, length=8, vocabulary=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """sim: predicted before the run, from acts that ran alone.   run, run_low, run_high: median and quartiles of the measurement."""

    part: str
    setting: str
    quantity: str
    unit: str
    sim: float | None = None
    run: float | None = None
    run_low: float | None = None
    run_high: float | None = None
    rounds: int = 0


class Bench:
    """Where a part measures and what it leaves behind.

    Args:
        device: ``cuda:0``, ``cpu``, or ``fake`` (lanes without hardware).   out: folder for traces; it exists.
    """

    def __init__(self, device: str, scale: Scale, out: Path) -> None:
        self.name, self.scale, self.out = device, scale, out

    @contextmanager
    def devices(self, ranks: Mapping[int, str]) -> Iterator[dict[int, Device]]:
        """Rank -> its device: ``host`` is the CPU, ``device`` the one that is measured."""
        names = {rank: "cpu" if what == "host" else self.name for rank, what in ranks.items()}
        opened: dict[int, Device]
        if self.name != "fake":
            opened = {rank: open_device(name) for rank, name in names.items()}
        else:
            opened = {rank: CpuDevice() if name == "cpu" else FakeStreamDevice(f"fake:{rank}") for rank, name in names.items()}
        try:
            yield opened
        finally:
            for device in opened.values():
                device.close()

    def save(self, part: str, setting: str, plan: Plan, predicted: Predicted) -> None:
        """Both traces, each with its Plan."""
        stem = f"{part}-{setting}".replace(" ", "_")
        save_trace(plan, predicted.sim, str(self.out / f"{stem}.sim.json"))
        save_trace(plan, predicted.outcome.trace, str(self.out / f"{stem}.run.json"))


def _row(part: str, setting: str, quantity: str, unit: str, sim: float | None, values: tuple[float, ...]) -> Row:
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Row(
        part=part,
        setting=setting,
        quantity=quantity,
        unit=unit,
        sim=sim,
        run=median(values),
        run_low=low,
        run_high=high,
        rounds=len(values),
    )


def _predicted(bench: Bench, part: str, setting: str, plan: Plan, program: _Fed, ranks: Mapping[int, str]) -> tuple[list[Row], Predicted]:
    with bench.devices(ranks) as devices:
        predicted = predict_then_run(plan, program.state, program.batches, devices, steps=bench.scale.steps)
    bench.save(part, setting, plan, predicted)
    return [_row(part, setting, "step", "s", predicted.sim_step_s, predicted.run_steps_s)], predicted


@dataclass(frozen=True, slots=True)
class _Fed:
    state: Mapping[str, torch.Tensor]
    batches: Batches


def _gpt(bench: Bench, micro_batches: int) -> tuple[Program, _Fed]:
    """A GPT with AdamW, fed with one batch again and again."""
    size = bench.scale
    source = ZOO["gpt"](layers=size.layers, width=size.dim, heads=size.heads, vocab=size.vocabulary, batch=size.batch, seq=size.length)
    one = source.batch(0)
    return source, _Fed(source.initial_state(micro_batches), lambda step: one)


def _planned(bench: Bench, source: Program, devices: int, micro_batches: int, *, stages: int = 1, recompute: bool = False) -> Plan:
    return make_plan(
        source.graph(micro_batches),
        model="gpt",
        batch_size=source.batch_size,
        cluster=roomy_cluster(devices),
        options=PlanOptions(stages=stages, micro_batches=micro_batches, recompute=recompute),
    )


def actors(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    generator = torch.Generator().manual_seed(0)
    width = bench.scale.width
    x, w = (torch.randn(width, width, generator=generator) / width**0.5 for _ in range(2))
    for quota in (1, 2, 3):
        plan = four_actors(quota, width, bench.scale.products)
        step_rows, _ = _predicted(bench, "actors", f"RegstNum {quota}", plan, _Fed({"w": w}, lambda step: (x,)), {0: "host", 1: "device"})
        rows += step_rows
    return rows


def _peaks(part: str, setting: str, predicted: Predicted) -> list[Row]:
    planned = max(predicted.outcome.trace.register_bytes.values())
    rows = [_row(part, setting, "register peak", "B", float(max(predicted.sim.register_bytes.values())), (float(planned),))]
    rows += [
        _row(part, setting, f"allocated peak of {name}", "B", None, (float(peak),)) for name, peak in predicted.peak_bytes.items() if peak
    ]
    return rows


def recompute(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    source, fed = _gpt(bench, 2)
    for setting, again in (("kept", False), ("made again", True)):
        plan = _planned(bench, source, 1, 2, recompute=again)
        step_rows, predicted = _predicted(bench, "recompute", setting, plan, fed, {0: "device"})
        rows += step_rows + _peaks("recompute", setting, predicted)
    return rows


def offload(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    source, fed = _gpt(bench, 2)
    plan = _planned(bench, source, 1, 2)
    for setting, placed, ranks in (("on the device", plan, {0: "device"}), ("on the host", offloaded(plan), {0: "device", 1: "host"})):
        step_rows, predicted = _predicted(bench, "offload", setting, placed, fed, ranks)
        rows += step_rows + _peaks("offload", setting, predicted)
    return rows


def stages(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    source, fed = _gpt(bench, 4)
    for setting, count in (("1 stage", 1), ("2 virtual stages", 2)):
        plan = _planned(bench, source, count, 4, stages=count)
        step_rows, _ = _predicted(bench, "stages", setting, plan, fed, dict.fromkeys(range(count), "device"))
        rows += step_rows
    return rows


def hetero(bench: Bench) -> list[Row]:
    bench = bench if bench.scale is SMALL else Bench(bench.name, BESIDE_CPU, bench.out)
    source, fed = _gpt(bench, 4)
    plan = _planned(bench, source, 2, 4, stages=2)
    rows, _ = _predicted(bench, "hetero", "stage 0 cpu", plan, fed, {0: "host", 1: "device"})
    return rows


def overhead(bench: Bench) -> list[Row]:
    """Acts that do nothing; and the step time of a model so small that launching is what takes time, divided by its acts.  Nothing is
    predicted."""
    rows: list[Row] = []
    empty, x = four_actors(2, 8, 1), torch.zeros(8, 8)
    with bench.devices({0: "host", 1: "device"}) as devices:
        idle = [idle_act_s(empty, {"w": x}, lambda step: (x,), devices, 10 * bench.scale.steps) for _ in range(9)]
    rows.append(_row("overhead", "acts that do nothing", "wall / acts", "s", None, tuple(idle)))
    tiny = Bench(bench.name, SMALL, bench.out)
    source, fed = _gpt(tiny, 4)
    plan = _planned(tiny, source, 1, 4)
    acts = sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    # A CPU has no graphs, and an option that would be ignored is refused.
    for setting, graphs in (("without graphs", False), ("with graphs", True))[: 1 if bench.name == "cpu" else 2]:
        with bench.devices({0: "device"}) as devices:
            steps = SKIPPED + 10 * bench.scale.steps
            outcome = run(
                plan, fed.state, fed.batches, steps, devices=devices, options=DeviceOptions(graphs=graphs), timeout_s=60, allow_nan=True
            )
        times = outcome.trace.step_times_s(plan)[SKIPPED:]
        rows.append(_row("overhead", setting, "step / acts", "s", None, tuple(time_s / acts for time_s in times)))
    return rows


PARTS: Mapping[str, Callable[[Bench], list[Row]]] = {
    "actors": actors,
    "recompute": recompute,
    "offload": offload,
    "stages": stages,
    "hetero": hetero,
    "overhead": overhead,
}


def measure(part: str, device: str, out: Path, *, small: bool = False) -> Path:
    """Run one part; returns the CSV of its rows.

    Raises:
        Unsupported: a part or a device that is not there.
    """
    if part not in PARTS:
        raise Unsupported(f"part {part!r} is not known; choose from {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    rows = PARTS[part](Bench(device, SMALL if small else LARGE, out))
    path = out / "rows.csv"
    pd.DataFrame([asdict(row) for row in rows]).to_csv(path, index=False)
    return path
