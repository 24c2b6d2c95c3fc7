"""Predicted, then measured: 13 Plans on one device, from acts that ran alone and, where fragments list kernels, from the kernel table.

step        median of the counted steps, beside the simulator's
timeline    mean |start or end of an act, predicted - measured|, in a step counted from its first start, as a share of the step
peak        what torch's allocator held at most, beside what was counted before: registers, workspace, libraries
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import torch

from backend.memory.options import DEFAULT_MEMORY
from backend.placing import owned_bytes
from experiments.gpu.alone import SKIPPED, Predicted, predict_then_run
from experiments.gpu.bench import Bench, Fed, Row, gpt_program, row
from experiments.gpu.plans import listing_cluster
from planner.cost import AnalyticCost
from planner.cost.kernels.table import KernelTable, load_kernels
from planner.cost.table_cost import TableCost
from planner.frontend import Program
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.errors import Mismatch
from planner.ir.plan import Fragment, Plan
from planner.ir.traces.trace import Trace
from planner.parallelism.make import PlanOptions, make_plan
from regista.views.pictures.gantt import gantt
from simulator import simulate
from zoo import ZOO

__all__ = ["peaks", "predicted", "predicted_row", "timeline_error"]


def predicted_row(
    bench: Bench, part: str, setting: str, plan: Plan, fed: Fed, ranks: Mapping[int, str], *, graphs: bool = False
) -> tuple[list[Row], Predicted]:
    """The rows of one Plan: step and timeline."""
    with bench.devices(ranks) as devices:
        made = predict_then_run(plan, fed.state, fed.batches, devices, steps=bench.scale.steps, graphs=graphs)
        owned = owned_bytes(plan, devices, DEFAULT_MEMORY)
    made = replace(made, owned=owned)
    bench.save(part, setting, plan, made)
    rows = [row(part, setting, "step", "s", made.sim_step_s, made.run_steps_s)]
    rows.append(row(part, setting, "timeline error", "of a step", None, (timeline_error(plan, made.sim, made.outcome.trace),)))
    return rows, made


def peaks(part: str, setting: str, made: Predicted) -> Iterator[Row]:
    """Registers as both kinds of trace count them; and per device what was counted by owner beside what the allocator held."""
    counted = max(made.outcome.trace.register_bytes.values())
    yield row(part, setting, "register peak", "B", float(max(made.sim.register_bytes.values())), (float(counted),))
    for name, owned in made.owned.items():
        for owner, size_bytes in (("registers", owned.registers), ("workspace", owned.workspace), ("libraries", owned.libraries)):
            yield row(part, setting, f"counted for {owner} of {name}", "B", None, (float(size_bytes),))
        if made.peak_bytes.get(name):
            yield row(part, setting, f"peak of {name}", "B", float(owned.total), (float(made.peak_bytes[name]),))


def timeline_error(plan: Plan, sim: Trace, run: Trace) -> float:
    """See the module's text; of the counted steps, acts by task, rank and number within their step."""
    both = [_within_steps(plan, trace) for trace in (sim, run)]
    step_s = median(run.step_times_s(plan)[SKIPPED:])
    apart = [abs(a - b) for key, spans in both[0].items() if key in both[1] for a, b in zip(spans, both[1][key], strict=True)]
    return fmean(apart) / step_s


def _within_steps(plan: Plan, trace: Trace) -> dict[tuple[str, int, int], tuple[float, float]]:
    """(task, rank, number in its step) -> median start and end, from the first start of what computes or moves in that step."""
    begins: dict[int, float] = defaultdict(lambda: float("inf"))
    acts = [(act, act.number // plan.task[act.task].acts) for act in trace.acts if not plan.task[act.task].kind.is_loading]
    for act, step in acts:
        begins[step] = min(begins[step], act.start_s)
    spans: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for act, step in acts:
        if SKIPPED <= step < trace.steps:
            key = act.task, act.rank, act.number % plan.task[act.task].acts
            spans[key].append((act.start_s - begins[step], act.end_s - begins[step]))
    return {key: (median(s for s, _ in values), median(e for _, e in values)) for key, values in spans.items()}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    micro_batches: int = 1
    recompute: bool = False
    stages: int = 1
    precision: str = "fp32"
    graphs: bool = False
    dropout: float = 0.0


GPT = (
    _Setting("gpt"),
    _Setting("gpt, 2 micro-batches", micro_batches=2),
    _Setting("gpt, 4 micro-batches", micro_batches=4),
    _Setting("gpt, recomputed", micro_batches=2, recompute=True),
    _Setting("gpt, bf16-mixed", precision="bf16-mixed"),
    _Setting("gpt, bf16-mixed, 2 micro-batches", micro_batches=2, precision="bf16-mixed"),
    _Setting("gpt, dropout", dropout=0.1),
    _Setting("gpt, 2 virtual stages", micro_batches=4, stages=2),
    _Setting("gpt, graphs", graphs=True),
    _Setting("gpt, bf16-mixed, graphs", precision="bf16-mixed", graphs=True),
)
CONVOLUTIONS = (
    _Setting("resnet"),
    _Setting("resnet, 2 micro-batches", micro_batches=2),
    _Setting("resnet, graphs", graphs=True),
)


def predicted(bench: Bench) -> Iterator[Row]:
    """Each setting by itself: one that fails is a row that says so, and the next one follows."""
    table, sources = bench.out.parent / "kernels" / "kernels.json", dict[tuple[bool, str, float], Program]()
    for setting in (*GPT, *CONVOLUTIONS):
        if setting.graphs and bench.name == "cpu":
            continue  # a CPU has no graphs
        key = setting in CONVOLUTIONS, setting.precision, setting.dropout
        source = sources[key] = sources.get(key) or _source(bench, setting)
        fed, plan = Fed.of(source, setting.micro_batches), _planned(source, setting)
        ranks = dict.fromkeys(range(plan.num_ranks), "device")
        rows, made = predicted_row(bench, "predicted", setting.name, plan, fed, ranks, graphs=setting.graphs)
        yield from rows
        if table.exists():
            yield from _from_table(setting.name, plan, str(table), made)
        yield from peaks("predicted", setting.name, made)
        yield from _allocator(bench, setting.name)
        if setting in (GPT[0], GPT[7]):
            gantt(plan, (made.sim, made.outcome.trace), bench.out / f"gantt-{setting.stages}.png")


def _source(bench: Bench, setting: _Setting) -> Program:
    if setting not in CONVOLUTIONS:
        return gpt_program(bench, dropout=setting.dropout, precision=setting.precision)
    large = {"batch": 32} if bench.scale.is_large else {"batch": 4, "image": 32, "classes": 8, "layers": 26, "width": 4}
    return ZOO["resnet50"](**large)


def _planned(source: Program, setting: _Setting) -> Plan:
    options = PlanOptions(stages=setting.stages, micro_batches=setting.micro_batches, recompute=setting.recompute)
    graph = source.graph(setting.micro_batches)
    return make_plan(graph, model=source.name, batch_size=source.batch_size, cluster=listing_cluster(setting.stages), options=options)


def _from_table(name: str, plan: Plan, table: str, made: Predicted) -> Iterator[Row]:
    """The step by the kernel table, where every fragment lists kernels that it has."""
    kernels = load_kernels(table)
    cost = TableCost(kernels, AnalyticCost(_of_one_device(plan.cluster, kernels)))
    try:
        sim = simulate(plan, cost, steps=made.outcome.trace.steps)
    except Mismatch:
        return
    yield row("predicted", name, "step by the kernel table", "s", median(sim.step_times_s(plan)[SKIPPED:]), made.run_steps_s)
    listed = sum(work.times for task in plan.tasks if isinstance(task.body, Fragment) for work in task.body.kernels)
    yield row("predicted", name, "kernels listed", "kernels", None, (float(listed),))


def _of_one_device(cluster: Cluster, kernels: KernelTable) -> Cluster:
    """Ranks that share the device of the table: what one sends to another is read and written in its memory."""
    bandwidth = kernels.bandwidth_bytes_per_s
    link = LinkSpec(latency_s=kernels.launch_s, bandwidth_bytes_per_s=bandwidth / 2)
    return replace(cluster, node=link, device=replace(cluster.device, memory_bandwidth_bytes_per_s=bandwidth))


def _allocator(bench: Bench, name: str) -> Iterator[Row]:
    """torch's own account, on a GPU."""
    if not bench.is_gpu:
        return
    cuda: Any = torch.cuda
    stats = cuda.memory_stats(torch.device(bench.name))
    for key in ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "inactive_split_bytes.all.peak"):
        yield row("predicted", name, f"allocator {key}", "B", None, (float(stats[key]),))
