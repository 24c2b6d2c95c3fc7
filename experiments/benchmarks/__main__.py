"""make bench: how fast planning, predicting and performing are.  Medians with their spread; against rivals only ratios taken in one run.

The two sides of a ratio alternate (A B A B ...), so that a machine whose speed drifts slows both.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

import regista
from experiments.benchmarks import simulator as engines_speed
from experiments.benchmarks.steady import layered, one_f_one_b
from experiments.common.megatron_1t import Megatron, megatron_1t
from experiments.rivals import __main__ as rivals
from planner.ir.actors.actor import build_actors
from planner.ir.plan import Plan
from planner.ir.units import show_s
from regista.analysis.outlook import look
from regista.api import program_of
from regista.clusters import resolve_cluster
from simulator.steady.graph import marked_graph
from simulator.steady.liveness_proof import is_live
from simulator.steady.state import steady_graph

__all__ = ["main"]

MODEL = "zoo:gpt"
PAPER_MODELS = {
    "GPT-2, 12 layers": "zoo:gpt?layers=12&width=768&heads=12&vocab=50257&batch=16&seq=128",
    "GPT-3 175B, 96 layers": "zoo:gpt?layers=96&width=12288&heads=96&vocab=51200&batch=16&seq=2048",
}
MESHES = (
    ("GPT-2, 12 layers", "zoo:gpt2?layers=12&batch=16&seq=128", "dgx-a100:1", (8,)),
    ("GPT-2, 12 layers", "zoo:gpt2?layers=12&batch=16&seq=128", "dgx-a100:4", (4, 8)),
    ("GPT-3 175B, 96 layers, memory without limit", "zoo:gpt3?batch=1024", "dgx-a100:128", (128, 8)),
)
LARGEST = "zoo:gpt3?batch=1536&dtype=bf16"


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    value: str
    spread: str


def timed(work: Callable[[], object], repeats: int) -> list[float]:
    times_s = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start)
    return times_s


def seconds(what: str, times_s: Sequence[float]) -> Row:
    return Row(what, show_s(median(times_s)), f"{show_s(min(times_s))} .. {show_s(max(times_s))}, n = {len(times_s)}")


def front_half(repeats: int) -> tuple[list[Row], Plan]:
    """Trace, plan and simulate times of the demo's model."""
    cluster = resolve_cluster("local:2")
    program = program_of(MODEL)
    plan = regista.plan(program, cluster)
    fresh = iter([program_of(MODEL) for _ in range(repeats)])  # a Program keeps its trace
    tracing = timed(lambda: next(fresh).graph(1), repeats)
    planning = timed(lambda: regista.plan(program, cluster), repeats)
    simulating = timed(lambda: regista.simulate(plan), repeats)
    acts = len(regista.simulate(plan).acts)
    rows = [
        seconds(f"trace {MODEL} (forward, loss, backward, AdamW)", tracing),
        seconds("search + lower + verify", planning),
        seconds(f"simulate 4 steps ({acts} acts)", simulating),
        Row("simulated acts per second", f"{acts / median(simulating):,.0f}", ""),
    ]
    return rows, plan


def trace_rates(repeats: int) -> list[Row]:
    """From a module to the logical graph, for a small and for the largest of the GPT papers; on the meta device, so nothing is allocated."""
    rows = []
    for name, model in PAPER_MODELS.items():
        programs = [program_of(model) for _ in range(repeats)]  # a Program keeps its trace
        times_s = [timed(partial(program.graph, 1), 1)[0] for program in programs]
        rows.append(seconds(f"trace {name} ({len(programs[-1].graph(1).ops):,} ops)", times_s))
    return rows


def plan_rates(repeats: int) -> list[Row]:
    """From a module to a certified Plan on a fixed mesh, construction of the module included."""
    rows = []
    for name, model, preset, mesh in MESHES:
        cluster = resolve_cluster(preset)
        if "without limit" in name:
            cluster = replace(cluster, device=replace(cluster.device, memory_bytes=10**13))
        plans: list[Plan] = []
        times_s = timed(lambda: plans.append(regista.plan(program_of(model), cluster, mesh=mesh)), repeats)  # noqa: B023
        assert all(plan.search.lower_bound_s == plan.search.objective_s for plan in plans)
        rows.append(seconds(f"module to Plan, gap 0: {name}, mesh {','.join(map(str, mesh))}", times_s))
    plans = []
    cluster = resolve_cluster("dgx-a100:128")
    times_s = timed(lambda: plans.append(regista.plan(program_of(LARGEST), cluster, stages=None, micro_batches=None)), 1)
    gap = 1 - plans[0].search.lower_bound_s / plans[0].search.objective_s
    rows.append(seconds(f"module to Plan, gap {gap:.2%}: {LARGEST} on 1,024 devices, shape searched", times_s))
    return rows


def message_rate(plan: Plan, steps: int = 400) -> Row:
    """Messages per second through the state machines that the worker loop steps: gates, counters, ready and ack; no data, no sockets."""
    actors, gates = build_actors(plan, steps)
    count = 0
    start = time.perf_counter()
    busy = True
    while busy:
        busy = False
        for gate in gates.values():
            while (actor := gate.choose()) is not None:
                busy = True
                gate.start(actor)
                gate.finish()
                for message in actor.end():
                    actors[message.receiver].receive(message)
                    count += 1
    spent_s = time.perf_counter() - start
    return Row("actor messages per second, state machines", f"{count / spent_s:,.0f}", f"{count:,} messages in {spent_s:.2f} s")


def worker_overhead(steps: int) -> list[Row]:
    """What the real worker adds per act: a model so small that hardly anything is computed."""
    tiny = "zoo:mlp?batch=4&width=4&hidden=4&depth=2"
    program = program_of(tiny)
    plan = regista.plan(program, resolve_cluster("local:2"), stages=2, micro_batches=4)
    outcome = regista.run(plan, program, steps=steps)
    actors, _ = build_actors(plan, 1)
    per_step = sum(
        a.task.acts // p.acts_per_block * len(links)
        for a in actors.values()
        for p, links in [*((p, p.acked) for p in a.outputs.values()), *((p, p.received) for p in a.inputs.values())]
    )
    acts = len(outcome.trace.acts) / steps
    step_s = median(outcome.trace.step_times_s(plan)[steps // 4 :])
    return [
        Row(
            "actor messages per second, worker loop of 2 processes",
            f"{per_step / step_s:,.0f}",
            f"{per_step} messages per step of {show_s(step_s)}",
        ),
        Row("act of the tiny pipeline, all in (compute, loop, sockets)", show_s(2 * step_s / acts), f"{acts:.0f} acts per step on 2 ranks"),
    ]


def steady_state(repeats: int, *, actors: int) -> list[Row]:
    """Period and critical cycle without simulation: a random DAG of so many actors, and a pipeline of 16 stages."""
    rows = []
    for name, (plan, cost) in (("layered DAG", layered(actors)), ("1F1B, 16 stages x 8 layers, 64 micro-batches", one_f_one_b(16, 8, 64))):
        graph = marked_graph(plan, cost)
        steady_graph(graph)  # compiles
        size = f"{name}, {graph.num_nodes:,} acts per step, {graph.num_arcs:,} waits"
        rows += [
            seconds(f"steady state of {size}", timed(partial(steady_graph, graph), repeats)),
            seconds("   of which liveness", timed(partial(is_live, graph), repeats)),
            seconds("   its marked graph, before that", timed(partial(marked_graph, plan, cost), max(1, repeats // 3))),
        ]
    return rows


def one_screen(repeats: int) -> Row:
    """All figures of ``regista simulate``, without reading the file."""
    plan, cost = megatron_1t(Megatron(copies=6))
    look(plan, cost)  # compiles
    return seconds(f"regista simulate, its figures: Megatron 1T, {plan.num_ranks:,} GPUs", timed(partial(look, plan, cost), repeats))


def simulator_rows(*, quick: bool) -> list[Row]:
    """The two engines, the steady state, and what the user waits for."""
    engines = [Row(line.what, line.value, line.spread) for line in engines_speed.lines(quick=quick)]
    return [*engines, *steady_state(3 if quick else 7, actors=100_000), one_screen(1 if quick else 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it works")
    parser.add_argument("--only", choices=["simulator"], help="only these rows")
    asked = parser.parse_args()
    quick = asked.quick
    rows: list[Row] = []
    if asked.only is None:
        rows, plan = front_half(3 if quick else 7)
        rows += [
            *trace_rates(3 if quick else 5),
            *plan_rates(1 if quick else 3),
            message_rate(plan, 50 if quick else 400),
            *worker_overhead(40 if quick else 200),
            *(Row(*line) for line in rivals.lines(1 if quick else rivals.PAIRS)),
        ]
    rows += simulator_rows(quick=quick)
    table = Table(
        "what",
        "median",
        "spread",
        title=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}",
    )
    for row in rows:
        table.add_row(row.what, row.value, row.spread)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
