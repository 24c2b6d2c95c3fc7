"""The parts of ``make gpu`` that measure.  Each gives rows, as soon as they are known; predictions and measurements stand in columns of their own.

kernels        what each kernel costs there: a kernel table and a cluster (regista calibrate --device)
transparency   Plans on 1, 2 and 4 ranks of the device: fp32, dropout, bf16-mixed                                        experiments.gpu.compared
gpt2, resnet50 against eager PyTorch, torch.compile and CUDA graphs, in one run                                          experiments.gpu.compared
predicted      13 Plans, predicted from acts that ran alone and from the kernel table: step, timeline, peak              experiments.gpu.compared
actors         load -> H2D -> compute -> D2H with RegstNum 1, 2, 3 [Yuan et al. 2021, figure 6]
overhead       per-act cost of the runtime, with CUDA graphs and without
offload        a GPT with parameters' masters and optimizer state on the host
hetero         stage 0 on the CPU, stage 1 on the device
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch

from backend.devices.options import DeviceOptions
from backend.inprocess import run
from experiments.gpu.alone import SKIPPED
from experiments.gpu.bench import BESIDE_CPU, LARGE, SMALL, Bench, Fed, Row, gpt_of, row
from experiments.gpu.compared import gpt2, peaks, predicted, predicted_row, resnet50, transparency
from experiments.gpu.overhead import idle_act_s
from experiments.gpu.plans import four_actors, offloaded, roomy_cluster
from planner.cost.kernels.table import save_kernels
from planner.frontend import Program
from planner.ir.cluster import save_cluster
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from regista.device_times import Size, calibrate_device, cluster_of, host_of

__all__ = ["KERNELS_S", "PARTS", "measure"]

KERNELS_S = 60.0
"""For the kernels of one device; what is left out by then is said."""


def _planned(source: Program, devices: int, micro_batches: int, *, stages: int = 1) -> Plan:
    return make_plan(
        source.graph(micro_batches),
        model="gpt",
        batch_size=source.batch_size,
        cluster=roomy_cluster(devices),
        options=PlanOptions(stages=stages, micro_batches=micro_batches),
    )


def kernels(bench: Bench) -> Iterator[Row]:
    name = "fake:0" if bench.name == "fake" else bench.name
    table = calibrate_device(name, Size.FULL if bench.scale.is_large else Size.SMALL, budget_s=KERNELS_S)
    save_kernels(table, str(bench.out / "kernels.json"))
    devices, memory_bytes = host_of(name)
    save_cluster(cluster_of(table, devices=devices, memory_bytes=memory_bytes), bench.out / "cluster.toml")
    flat = [
        {
            "target": t.target,
            "kind": t.work.kind.value,
            "dtype": t.work.dtype and t.work.dtype.value,
            "shape": " ".join(map(str, t.work.shape)),
            "flop": t.work.flop,
            "bytes": t.work.size_bytes,
            "seconds": t.seconds,
            "low_s": t.low_s,
            "high_s": t.high_s,
        }
        for t in table.times
    ]
    pd.DataFrame(flat).to_csv(bench.out / "kernels.csv", index=False)
    yield row("kernels", "launch", "host time", "s", None, (table.launch_s,))
    yield row("kernels", f"{len(table.times)} kernels", "memory bandwidth", "B/s", None, (table.bandwidth_bytes_per_s,))
    for copy in table.copies[-2:]:
        way = "H2D" if copy.to_device else "D2H"
        yield row("kernels", f"{way} of {copy.size_bytes} B", "bandwidth", "B/s", None, (copy.size_bytes / copy.seconds,))


def actors(bench: Bench) -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    width = bench.scale.width
    x, w = (torch.randn(width, width, generator=generator) / width**0.5 for _ in range(2))
    for quota in (1, 2, 3):
        plan = four_actors(quota, width, bench.scale.products)
        rows, made = predicted_row(bench, "actors", f"RegstNum {quota}", plan, Fed({"w": w}, lambda step: (x,)), {0: "host", 1: "device"})
        yield from rows
        if quota == 1:  # what can hide behind what: a step of one block each is their sum
            for task, seconds in sorted(made.alone.items()):
                yield row("actors", task, "act alone", "s", None, (seconds,))


def offload(bench: Bench) -> Iterator[Row]:
    source, fed = gpt_of(bench, 2)
    plan = _planned(source, 1, 2)
    for setting, placed, ranks in (("on the device", plan, {0: "device"}), ("on the host", offloaded(plan), {0: "device", 1: "host"})):
        rows, made = predicted_row(bench, "offload", setting, placed, fed, ranks)
        yield from rows
        yield from peaks("offload", setting, made)


def hetero(bench: Bench) -> Iterator[Row]:
    bench = Bench(bench.name, BESIDE_CPU, bench.out) if bench.scale.is_large else bench
    source, fed = gpt_of(bench, 4)
    rows, _ = predicted_row(bench, "hetero", "stage 0 cpu", _planned(source, 2, 4, stages=2), fed, {0: "host", 1: "device"})
    yield from rows


def overhead(bench: Bench) -> Iterator[Row]:
    """Acts that do nothing; and the step time of a model so small that launching is what takes time, divided by its acts.  Nothing is
    predicted."""
    empty, x = four_actors(2, 8, 1), torch.zeros(8, 8)
    with bench.devices({0: "host", 1: "device"}) as devices:
        idle = [idle_act_s(empty, {"w": x}, lambda step: (x,), devices, 10 * bench.scale.steps) for _ in range(9)]
    yield row("overhead", "acts that do nothing", "wall / acts", "s", None, tuple(idle))
    tiny = Bench(bench.name, SMALL, bench.out)
    source, fed = gpt_of(tiny, 4)
    plan = _planned(source, 1, 4)
    acts = sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    # A CPU has no graphs, and an option that would be ignored is refused.
    for setting, graphs in (("without graphs", False), ("with graphs", True))[: 1 if bench.name == "cpu" else 2]:
        with bench.devices({0: "device"}) as devices:
            steps = SKIPPED + 10 * bench.scale.steps
            outcome = run(
                plan, fed.state, fed.batches, steps, devices=devices, options=DeviceOptions(graphs=graphs), timeout_s=60, allow_nan=True
            )
        times = outcome.trace.step_times_s(plan)[SKIPPED:]
        yield row("overhead", setting, "step / acts", "s", None, tuple(time_s / acts for time_s in times))


PARTS: Mapping[str, Callable[[Bench], Iterable[Row]]] = {
    "kernels": kernels,
    "transparency": transparency,
    "gpt2": gpt2,
    "resnet50": resnet50,
    "predicted": predicted,
    "actors": actors,
    "overhead": overhead,
    "offload": offload,
    "hetero": hetero,
}


def measure(part: str, device: str, out: Path, *, small: bool = False) -> Path:
    """Run one part; returns the CSV of its rows, each of which is there as soon as it was measured.

    Raises:
        Unsupported: a part or a device that is not there.
    """
    if part not in PARTS:
        raise Unsupported(f"part {part!r} is not known; choose from {', '.join(PARTS)}")
    out.mkdir(parents=True, exist_ok=True)
    path, rows = out / "rows.csv", list[Row]()
    for made in PARTS[part](Bench(device, SMALL if small else LARGE, out)):
        rows.append(made)
        pd.DataFrame([asdict(each) for each in rows]).to_csv(path, index=False)
    return path
