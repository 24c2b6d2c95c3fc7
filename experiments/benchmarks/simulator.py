"""Speed of the two engines of the simulator, in one run.  python -m experiments.benchmarks.simulator [--quick]

Kernels of simulator.compiled beside SimPy on one chain (they alternate), two Plans whose acts share links between nodes, Megatron's 1T
configuration (megatron_1t.py) on 512 and on 3,072 GPUs, one evaluation of a Plan as a search asks for it, and what loading and compiling the
kernels costs a process.

Times are medians with (fastest .. slowest) of the wall clock; "on its core" is the same by the process' own CPU time, which other programs of
a busy machine do not lengthen.  Every figure is checked: both engines must give the same ends before a time is taken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numba
import simpy

import regista
from experiments.common.actor_plans import actor_plan, actor_regst, actor_task, compute_streams, ports
from experiments.common.megatron_1t import Megatron, megatron_1t
from experiments.common.table_prices import TablePrices
from planner.cost.analytic import AnalyticCost
from planner.ir.plan import (
    Plan,
    RegstKind,
)
from planner.ir.units import show_s
from regista.clusters import resolve_cluster
from simulator import Engine, simulate
from simulator.compiled import CompiledPlan, compile_plan, times, trace
from simulator.compiled.event_kernel import play_events
from simulator.compiled.recurrence_kernel import play_recurrence
from simulator.network.act_flows import contention_of

__all__ = ["Line", "lines", "main"]

GPT = "zoo:gpt2?layers=12&batch=16&seq=128"
WARM_UP = """
import time
from experiments.benchmarks.simulator import chain
plan, cost = chain(2, 2)
from simulator.compiled import compile_plan, times, trace
begin, core = time.perf_counter(), time.process_time()
compiled = compile_plan(plan, cost)
trace(compiled, steps=1); times(compiled, steps=1)
print(time.perf_counter() - begin, time.process_time() - core)
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One measured figure: what, its median, its spread."""

    what: str
    value: str
    spread: str


def chain(actors: int, acts: int) -> tuple[Plan, TablePrices]:
    """actors tasks in a row, each on its own stream, 2 blocks between neighbours, prices 1.00 to 1.06 s."""
    names = [f"a{i}" for i in range(actors)]
    tasks = [
        actor_task(name, name, acts, ports(f"r{before}" if before else None), ports(f"r{name}"))
        for before, name in zip(["", *names], names, strict=False)
    ]
    regsts = [actor_regst(f"r{name}", name, 2, "x", 256) for name in names]
    cluster = resolve_cluster("local:1")
    plan = actor_plan(f"chain of {actors}", cluster, compute_streams(names), regsts, tasks, acts, cost_model="chain")
    return plan, TablePrices({name: 1.0 + 0.01 * (i % 7) for i, name in enumerate(names)})


@dataclass(frozen=True, slots=True)
class _Timed:
    wall_s: tuple[float, ...]
    core_s: tuple[float, ...]

    def line(self, what: str) -> Line:
        value = f"{show_s(median(self.wall_s))} ({show_s(median(self.core_s))} on its core)"
        return Line(what, value, f"{show_s(min(self.wall_s))} .. {show_s(max(self.wall_s))}, n = {len(self.wall_s)}")

    def rate(self, what: str, count: int) -> Line:
        slow, mid, quick = (f"{count / pick(self.wall_s):,.3g}" for pick in (max, median, min))
        return Line(what, f"{mid} ({count / median(self.core_s):,.3g} on its core)", f"{slow} .. {quick}, n = {len(self.wall_s)}")


def _alternating(repeats: int, *works: Callable[[], object]) -> list[_Timed]:
    """Each work once to warm up, then A B C A B C ..."""
    for work in works:
        work()
    pairs_of: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(repeats):
        for work, pairs in zip(works, pairs_of, strict=True):
            wall, core = time.perf_counter(), time.process_time()
            work()
            pairs.append((time.perf_counter() - wall, time.process_time() - core))
    return [_Timed(tuple(w for w, _ in pairs), tuple(c for _, c in pairs)) for pairs in pairs_of]


def _kernels(repeats: int) -> list[Line]:
    """Firings per second on one core, a chain of 64 actors with quota 2."""
    plan, cost = chain(64, 50)
    compiled = compile_plan(plan, cost)
    steps, few = 300, 4
    expected = simulate(plan, cost, steps=few, engine=Engine.SIMPY)
    assert times(compiled, steps=few).step_ends_s == expected.step_ends_s(plan)
    assert replace(trace(compiled, steps=few), about=expected.about) == expected
    classes = compiled.ranks.num_classes
    recurrence, events, full, slow = _alternating(
        repeats,
        lambda: play_recurrence(compiled, steps, full=False),
        lambda: play_events(compiled.tables, steps, classes, full=False),
        lambda: play_events(compiled.tables, steps, classes, full=True),
        lambda: simulate(plan, cost, steps=few, engine=Engine.SIMPY),
    )
    per_step = sum(task.acts for task in plan.tasks)
    ratios = [(s / few) / (r / steps) for s, r in zip(slow.wall_s, recurrence.wall_s, strict=True)]
    ratios_full = [(s / few) / (r / steps) for s, r in zip(slow.wall_s, full.wall_s, strict=True)]
    return [
        recurrence.rate("firings/s, recurrence (fixed orders, times only), chain of 64", steps * per_step),
        events.rate("firings/s, events (any Plan, times only), same chain", steps * per_step),
        full.rate("firings/s, events with ready, start and live bytes, same chain", steps * per_step),
        slow.rate("acts/s, SimPy with its Trace, same chain", few * per_step),
        Line("recurrence over SimPy", f"{median(ratios):,.0f}", f"{min(ratios):,.0f} .. {max(ratios):,.0f}, {repeats} pairs"),
        Line(
            "events with bytes over SimPy",
            f"{median(ratios_full):,.0f}",
            f"{min(ratios_full):,.0f} .. {max(ratios_full):,.0f}, {repeats} pairs",
        ),
    ]


def _megatron(repeats: int) -> list[Line]:
    """One iteration of the 1T configuration: with the orders of 1F1B, with quotas and priorities alone, and on 3,072 GPUs."""
    measured = []
    for ordered in (True, False):
        plan, cost = megatron_1t(ordered=ordered)
        compiled = compile_plan(plan, cost)
        performed = times(compiled, steps=1)
        what = "recurrence" if ordered else "events: streams choose"
        assert performed.kernel == what.split(":")[0]
        (spent,) = _alternating(repeats, lambda: times(compiled, steps=1))  # noqa: B023
        measured.append(spent.line(f"Megatron 1T, 512 GPUs, one iteration, {performed.num_firings:,} firings, {what}"))
    plan, cost = megatron_1t(Megatron(copies=6))
    last_compiled: list[CompiledPlan] = []

    def whole() -> None:
        last_compiled[:] = [compile_plan(plan, cost, sizes=False)]
        times(last_compiled[0], steps=1)

    building, both = _alternating(repeats, lambda: compile_plan(plan, cost, sizes=False), whole)
    ranks = last_compiled[0].ranks
    folded = f"{len(ranks.of):,} GPUs folded to {ranks.num_classes}"
    acts = times(last_compiled[0], steps=1).num_acts
    return [
        *measured,
        building.line(f"Megatron 1T, {folded}: prices of all ranks, folding, arrays"),
        both.line(f"Megatron 1T, {folded}: the same and one iteration ({acts:,} acts)"),
    ]


def _shared(repeats: int) -> list[Line]:
    """Firings per second where acts share links between nodes, beside the same Plan with links of its own."""
    cluster = resolve_cluster("dgx-a100:4")
    cost = AnalyticCost(cluster)
    measured = []
    for stages, mesh in ((4, (8,)), (2, (16,))):
        plan = regista.plan(GPT.replace("batch=16", "batch=64"), cluster, stages=stages, mesh=mesh, micro_batches=8)
        contention = contention_of(plan, cost)
        assert contention is not None and contention.shares_links
        compiled, alone = compile_plan(plan, cost, contention=contention), compile_plan(plan, cost)
        few, classes, alone_classes = 3, compiled.ranks.num_classes, alone.ranks.num_classes
        expected = simulate(plan, cost, steps=few, engine=Engine.SIMPY)
        assert replace(trace(compiled, steps=few), about=expected.about) == expected
        firings, alone_firings = (int(c.tables.acts.sum()) for c in (compiled, alone))
        flows = float(compiled.tables.acts[compiled.flows.flow >= 0].sum()) / firings if compiled.flows is not None else 0.0
        steps = 2_000_000 // firings
        shared, full, own = _alternating(
            repeats,
            lambda: play_events(compiled.tables, steps, classes, full=False, flows=compiled.flows),  # noqa: B023
            lambda: play_events(compiled.tables, steps, classes, full=True, flows=compiled.flows),  # noqa: B023
            lambda: play_events(alone.tables, steps, alone_classes, full=False),  # noqa: B023
        )
        what = f"GPT-2 of 12 layers, {stages} stages x {mesh[0]} on 32 GPUs folded to {classes}"
        measured += [
            shared.rate(f"firings/s, events, links shared ({flows:.0%} of firings are on them), {what}", steps * firings),
            full.rate(f"firings/s, the same with ready, start and live bytes, {what}", steps * firings),
            own.rate(f"firings/s, the same Plan with links of its own, {what}", steps * alone_firings),
        ]
    return measured


def _evaluation(repeats: int) -> list[Line]:
    """A Plan as a search would ask for it: priced, made into arrays, played for 4 steps."""
    cluster = resolve_cluster("dgx-a100:1")
    plan = regista.plan(GPT, cluster, stages=4, mesh=(2,), micro_batches=8)
    cost = AnalyticCost(cluster)
    compiled = compile_plan(plan, cost)
    assert times(compiled).step_ends_s == simulate(plan, cost, engine=Engine.SIMPY).step_ends_s(plan)
    quotas = {regst.id: regst.quota + 1 for regst in plan.regsts if regst.kind is not RegstKind.STATE}
    fresh, again, slow = _alternating(
        repeats,
        lambda: times(compile_plan(plan, cost, sizes=False)),
        lambda: times(compiled.with_quotas(quotas)),
        lambda: simulate(plan, cost, engine=Engine.SIMPY),
    )
    size = f"GPT-2 of 12 layers, 4 stages x 2, {len(plan.tasks)} tasks, {times(compiled).num_acts:,} acts in 4 steps"
    return [
        fresh.line(f"plan evaluation, {size}: compile_plan + times"),
        again.line("plan evaluation, other quotas on the same arrays: with_quotas + times"),
        slow.line("plan evaluation, the same by SimPy, with its Trace"),
    ]


def _warm_up() -> list[Line]:
    """First trace and times of a fresh process: with an empty cache of kernels, then with what that one compiled."""

    def first_s(cache: str) -> tuple[float, float]:
        env = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", WARM_UP], env=env, check=True, capture_output=True, text=True)
        wall_s, core_s = map(float, done.stdout.split())
        return wall_s, core_s

    with tempfile.TemporaryDirectory() as cache:
        compiling, *loading = [first_s(cache) for _ in range(4)]
    return [
        _Timed((compiling[0],), (compiling[1],)).line("warm-up: compiling both kernels, once per machine"),
        _Timed(tuple(w for w, _ in loading), tuple(c for _, c in loading)).line("warm-up: loading them from the cache, once per process"),
    ]


def lines(*, quick: bool) -> list[Line]:
    """All figures; ``quick``: few repeats."""
    repeats = 3 if quick else 9
    return [*_kernels(repeats), *_shared(repeats), *_megatron(repeats), *_evaluation(3 * repeats), *_warm_up()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it works")
    table = lines(quick=parser.parse_args().quick)
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores with a load of {load:.1f}, Python {sys.version.split()[0]}, numba {numba.__version__}, SimPy {simpy.__version__}"
    )
    width = max(len(line.what) for line in table)
    for line in table:
        print(f"{line.what:<{width}}  {line.value:<34}  {line.spread}")


if __name__ == "__main__":
    main()
