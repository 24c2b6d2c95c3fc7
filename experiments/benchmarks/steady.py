"""Speed of the steady state: graph, liveness proof and Howard's period, beside the simulation of the same Plan in one run.

    python -m experiments.benchmarks.steady [--actors 100000] [--repeats 7]

Plans: a layered random DAG of actors, each on a stream of its own; and a 1F1B pipeline with written orders, one actor per layer and pass.
Times are medians with (fastest - slowest) after a warm-up that compiles; the Plans are made before the clock starts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from experiments.common.actor_plans import actor_plan, actor_regst, actor_task, compute_streams, ports
from experiments.common.table_prices import TablePrices
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import (
    Placement,
    Plan,
    Port,
    Regst,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.units import show_s
from simulator.engine import Engine, simulate
from simulator.steady.cycle_ratio import max_cycle_ratio
from simulator.steady.graph import MarkedGraph, marked_graph
from simulator.steady.liveness_proof import is_live
from simulator.steady.state import steady_graph

__all__ = ["layered", "main", "one_f_one_b"]


def layered(actors: int, seed: int = 0, width: int = 100) -> tuple[Plan, TablePrices]:
    """``actors`` tasks of one act per step in layers of ``width``, 1-3 inputs each from the layer before, quotas 1-3, prices 0.5-1.5 s."""
    rng = random.Random(seed)
    consumes: list[tuple[Port, ...]] = []
    for i in range(actors):
        layer = i // width
        before = range((layer - 1) * width, layer * width) if layer else range(0)
        chosen = rng.sample(before, min(len(before), rng.randint(1, 3)))
        consumes.append(tuple(Port(regst=f"r{j}") for j in sorted(chosen)))
    tasks = tuple(actor_task(f"t{i}", f"s{i}", 1, consumes[i], ports(f"r{i}")) for i in range(actors))
    regsts = tuple(_regst(f"r{i}", "dev", f"t{i}", rng.randint(1, 3)) for i in range(actors))
    streams = compute_streams([f"s{i}" for i in range(actors)])
    plan = actor_plan("bench", _cluster(1), streams, regsts, tasks, 1, cost_model="bench")
    return plan, TablePrices({t.id: rng.uniform(0.5, 1.5) for t in tasks})


def one_f_one_b(stages: int, layers_per_stage: int, micro_batches: int) -> tuple[Plan, TablePrices]:
    """1F1B with quotas p - i and written orders; each layer is one forward and one backward task of its stage's compute stream.

    Stages stand on one rank each and pass blocks by TRANSFERs on streams of their own.
    """
    p, v, m = stages, layers_per_stage, micro_batches
    tasks: list[Task] = []
    regsts: list[Regst] = []
    streams: list[Stream] = []
    for i in range(p):
        at = f"s{i}"
        warm = min(m, p - i)
        forward, backward = [f"F{i}.{k}" for k in range(v)], [f"B{i}.{k}" for k in reversed(range(v))]
        middle = [name for _ in range(m - warm) for name in (*backward, *forward)]
        order = (*forward * warm, *middle, *backward * warm)
        streams.append(Stream(id=f"{at}.compute", kind=StreamKind.COMPUTE, placement=at, order=tuple(order)))
        arrives = None if i == 0 else f"act{i}"
        for k in range(v):
            below = f"x{i}.{k - 1}" if k else arrives
            outs = [f"x{i}.{k}", f"keep{i}.{k}"]
            tasks.append(actor_task(forward[k], f"{at}.compute", m, ports(below), ports(*outs), placement=at))
            regsts += [_regst(outs[0], at, forward[k], 2), _regst(outs[1], at, forward[k], p - i)]
        for k in reversed(range(v)):
            above = f"g{i}.{k + 1}" if k < v - 1 else (f"dact{i}" if i < p - 1 else f"x{i}.{v - 1}")
            name = f"B{i}.{k}"
            tasks.append(
                actor_task(name, f"{at}.compute", m, ports(above, f"keep{i}.{k}"), ports(f"g{i}.{k}"), placement=at, kind=TaskKind.BACKWARD)
            )
            regsts.append(_regst(f"g{i}.{k}", at, name, 2))
        for there, name, src, dst in ((i + 1, f"send{i}", f"x{i}.{v - 1}", f"act{i + 1}"), (i - 1, f"back{i}", f"g{i}.0", f"dact{i - 1}")):
            if 0 <= there < p:
                streams.append(Stream(id=f"{at}.{name}", kind=StreamKind.LINK, placement=at))
                tasks.append(
                    actor_task(name, f"{at}.{name}", m, ports(src), ports(dst), placement=at, kind=TaskKind.TRANSFER, moves=(src, dst))
                )
                regsts.append(_regst(dst, f"s{there}", name, 2))
    placements = tuple(Placement(id=f"s{i}", ranks=(i,), mesh=(1,)) for i in range(p))
    plan = actor_plan("bench", _cluster(p), streams, regsts, tasks, m, placements=placements, cost_model="bench")
    times = {TaskKind.FORWARD: 1e-3, TaskKind.BACKWARD: 2e-3, TaskKind.TRANSFER: 1e-4}
    return plan, TablePrices({t.id: times[t.kind] for t in tasks})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    for label, (plan, cost) in (
        (f"layered DAG, {asked.actors} actors", layered(asked.actors)),
        ("1F1B, 16 stages x 8 layers, 64 micro-batches", one_f_one_b(16, 8, 64)),
    ):
        graph = marked_graph(plan, cost)
        state = steady_graph(graph)  # the first call compiles
        print(f"{label}: {graph.num_nodes} acts per step, {graph.num_arcs} waits")
        print(f"  graph, once {_timed(partial(marked_graph, plan, cost), 1)}")
        print(f"  liveness  {_timed(partial(is_live, graph), asked.repeats)}")
        print(f"  period    {_timed(partial(_period, graph), asked.repeats)}; {state.ratio.rounds} rounds of Howard")
        steady = _timed(partial(steady_graph, graph), asked.repeats)
        print(f"  all of it {steady} (liveness, period, proof, text; without the graph)")
        print(f"  theory: period {state.period_s:.6g} s, proved to {state.ratio.upper_bound_s - state.period_s:.2g} s: {state.text[:100]}")
        simpy = _timed(partial(simulate, plan, cost, steps=1, engine=Engine.SIMPY), 1)
        print(f"  SimPy, one step once: {simpy}; {simpy.work_s[0] / steady.work_s[0]:.0f} x the work of the steady state")


def _period(graph: MarkedGraph) -> object:
    return max_cycle_ratio(graph.num_nodes, graph.src, graph.dst, graph.weight_s, graph.tokens)


@dataclass(frozen=True)
class _Times:
    """Medians with (fastest - slowest): by the clock on the wall, and this thread's own work, which a busy machine does not lengthen."""

    wall_s: tuple[float, float, float]
    work_s: tuple[float, float, float]

    def __str__(self) -> str:
        wall, work = (f"{show_s(middle)} ({show_s(low)} - {show_s(high)})" for middle, low, high in (self.wall_s, self.work_s))
        return f"{wall}, work {work}"


def _timed(call: Callable[[], object], repeats: int) -> _Times:
    wall_s, work_s = [], []
    for _ in range(repeats):
        begin, worked = time.perf_counter(), time.thread_time()
        call()
        wall_s.append(time.perf_counter() - begin)
        work_s.append(time.thread_time() - worked)
    return _Times(*((statistics.median(t), min(t), max(t)) for t in (wall_s, work_s)))


def _regst(name: str, at: str, producer: str, quota: int) -> Regst:
    return actor_regst(name, producer, quota, name, 4, placement=at)


def _cluster(num_devices: int) -> Cluster:
    device = DeviceSpec(kind="cpu", memory_bytes=10**12, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
    return Cluster(name="bench", source="made up", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


if __name__ == "__main__":
    main()
