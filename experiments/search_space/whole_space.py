"""Certified plans of random small problems beside every choice there is: cuts, device groups, micro-batches, recomputation, layouts, within memory.

    python -m experiments.search_space.whole_space [--count N] [--minutes M]      add to results/whole_space.csv until it has N

Instances are perceptrons of two or three layers on two or four devices, drawn from their seed; the case follows from the seed, too:

equal     two equal devices, enough memory             kinds     a node of one or two quick devices, and one of as many slow ones
memory    two equal devices with less memory than the unlimited plan needs

An instance whose space is too large to be enumerated is left out and named; the next seed takes its place.

Columns (seconds are ``theory``: the planner's own prices):

objective_s, lower_bound_s    of the plan that the search over everything made
covered_s                     the least step of the space that the certificate names: every shape, with and without recomputation, every layout, at
                              the planner's own cut; where memory binds, of choices whose bytes, as far as the model counts them, fit (so covered_s may
                              belong to a choice that does not)
every_cut_s                   the least of this and all cuts between layers, and of both orders of two kinds of device
bound_share                   the largest bound of any kind on any shape over the least step of that shape: at most 1, or a bound is wrong
choices                       combinations of shape, cut, order, recomputation and layouts, at most; a power of ten
auto_sim_s, named_sim_s       a pipeline of all devices under --schedule auto, and the quickest of the schedules asked for by name (``sim``)

A row holds if lower_bound_s <= covered_s, bound_share <= 1, objective_s >= covered_s, and, unless memory binds, covered_s is within the search's
gap of objective_s.  every_cut_s below lower_bound_s is no fault of the bound, which names the planner's cut: the column shows what it leaves out.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, count, pairwise
from math import inf, log10, prod
from pathlib import Path
from time import perf_counter

import pandas as pd
import torch
from torch import nn

import regista
from experiments.benchmarks.schedules import steps_by_name
from experiments.search_space.least_step import least_step_s
from experiments.search_space.rows import known_rows
from planner.cost import AnalyticCost
from planner.frontend.program import Program
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster
from planner.ir.cluster.cluster import Between
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.kinds import least_step_s as least_of_kinds_s
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.one_shape import staged_graph
from planner.parallelism.shape import Shape, shapes
from planner.schedule import Schedule, in_flight
from planner.search import build_model
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.search.model import SearchModel
from planner.solve.problem import NotFoundInTime
from regista.clusters import resolve_cluster
from simulator.analysis.forecast import forecast

__all__ = ["CASES", "GAP", "Instance", "checked", "holds", "instance", "main"]

CSV = Path(__file__).parents[1] / "results/whole_space.csv"
CASES = ("equal", "kinds", "memory")
GAP = 0.01
"""What the search over shapes leaves unproven."""
_EPSILON = 1e-9
_MEMORY_EVERY, _SCHEDULES_EVERY = 50, 5
"""Every so many seeds: with memory the enumeration takes half a minute, and schedules are played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """case: one of CASES.   widths: of the values between the layers, in elements."""

    seed: int
    case: str
    widths: tuple[int, ...]
    program: Program
    batch: int
    cluster: Cluster


def instance(seed: int, case: str = "") -> Instance:
    """The instance of a seed; its case follows from the seed, too, unless it is given."""
    rng, case = random.Random(seed), case or ("memory" if seed % _MEMORY_EVERY == 0 else CASES[seed % 2])
    widths = tuple(rng.choice((4, 64, 1024)) for _ in range(3 if case == "memory" else rng.choice((3, 4))))
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    batch = 2 if case == "memory" else rng.choice((2, 4))
    program = Program(nn.Sequential(*layers), (torch.zeros(batch, widths[0]),), lambda y: y.square().mean())
    pair = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=2)
    pair = replace(pair, node=replace(pair.node, latency_s=pair.node.latency_s * rng.choice((0.01, 1.0))))
    if case == "kinds":
        cluster = _of_two_kinds(pair, rng.choice((1, 1, 1, 2)), rng.choice((2.0, 4.0, 10.0)))
    elif case == "memory":
        plan = _searched(program, batch, pair)
        cluster = _least_that_fits(program, batch, pair, max(device_bytes(plan).values()), rng.choice((0.5, 0.7, 0.9)))
    else:
        cluster = pair
    return Instance(seed=seed, case=case, widths=widths, program=program, batch=batch, cluster=cluster)


def _of_two_kinds(pair: Cluster, devices: int, times: float) -> Cluster:
    """So many devices of the pair beside as many with a part of their rates."""
    quick = replace(pair, name="quick", devices_per_node=devices)
    device = quick.device
    rates = {"rate_flop_per_s": device.rate_flop_per_s / times, "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s / times}
    slow = replace(quick, name="slow", device=replace(device, **rates))
    return mixed_cluster("two kinds", "", (quick, slow), (Between(kinds=("quick", "slow"), link=pair.node),))


def _least_that_fits(program: Program, batch: int, pair: Cluster, needed_bytes: int, share: float) -> Cluster:
    """The pair with a share of the bytes that the unlimited plan needs, or the next share of which a plan fits."""
    for _ in range(20):
        tight = replace(pair, device=replace(pair.device, memory_bytes=int(share * needed_bytes)))
        with suppress(OutOfMemory):
            _searched(program, batch, tight)
            return tight
        share += 0.05
    return pair


def _searched(program: Program, batch: int, cluster: Cluster) -> Plan:
    options = PlanOptions(stages=None, micro_batches=None)
    return search_plans(program.graph, model="net", batch_size=batch, cluster=cluster, options=options).plan


class TooMany(Exception):
    """The space of this instance is larger than can be enumerated here."""


@dataclass(slots=True)
class _Space:
    """What was seen of the space so far.   choices: combinations."""

    covered_s: float = inf
    every_cut_s: float = inf
    bound_share: float = 0.0
    choices: float = 0.0


def checked(one: Instance, *, schedules: bool = True) -> dict[str, object]:
    """One row.   schedules: with the columns of --schedule auto, which play several Plans."""
    began, space = perf_counter(), _Space()
    plan = _searched(one.program, one.batch, one.cluster)
    limit = one.cluster.device.memory_bytes if one.case == "memory" else inf
    bounds = ShapeBounds(one.program.graph, one.batch, one.cluster, ())
    for shape in shapes(one.batch, one.cluster, most_stages=2):
        graph = one.program.graph(shape.micro_batches)
        for recompute in (False, True):
            same = replace(shape, recompute=recompute)
            for cluster in _orders(one.cluster):
                for cut in dict.fromkeys([(), *_cuts(one, shape)]):
                    try:
                        model = _model(graph, same, cut, cluster, limit)
                    except Unsupported:  # nothing to recompute
                        continue
                    step_s = least_step_s(model, limit)
                    if step_s is None:
                        raise TooMany(f"{one.case} {one.seed}: too many partial choices at once in {shape}")
                    space.choices += prod(len(costs) for costs in model.problem.costs)
                    space.every_cut_s = min(space.every_cut_s, step_s)
                    of_kinds_s = least_of_kinds_s(graph, cluster, same) if cluster.parts else 0.0
                    shares = [bound_s / step_s for bound_s in (of_kinds_s, _whole_s(model, limit))]
                    if not cut and cluster == one.cluster:
                        space.covered_s = min(space.covered_s, step_s)
                        shares += [] if cluster.parts else [bound_s / step_s for bound_s in _bounds_s(bounds, same, limit)]
                    space.bound_share = max(space.bound_share, *shares)
    return {
        "instance": f"{one.case} {one.seed}",
        "seed": one.seed,
        "case": one.case,
        "layers": len(one.widths) - 1,
        "batch": one.batch,
        "choices": f"1e{log10(space.choices):.1f}",
        "objective_s": plan.search.objective_s,
        "lower_bound_s": plan.search.lower_bound_s,
        "covered_s": space.covered_s,
        "every_cut_s": space.every_cut_s,
        "bound_share": space.bound_share,
        **(_played(one) if schedules and one.case != "memory" and one.cluster.num_devices < len(one.widths) else {}),
        "seconds_run": round(perf_counter() - began, 2),
    }


def _cuts(one: Instance, shape: Shape) -> Sequence[tuple[str, ...]]:
    """All between layers, each a module of its number; the planner's own may also lie behind the last layer."""
    return [tuple(map(str, borders)) for borders in combinations(range(1, len(one.widths) - 1), shape.stages - 1)]


def _orders(cluster: Cluster) -> Sequence[Cluster]:
    if not cluster.parts:
        return (cluster,)
    return cluster, mixed_cluster(cluster.name, "", cluster.parts[::-1], cluster.between)


def _model(graph: LogicalGraph, shape: Shape, cut: tuple[str, ...], cluster: Cluster, limit_bytes: float) -> SearchModel:
    options = PlanOptions(stages=shape.stages, micro_batches=shape.micro_batches, cuts=cut, recompute=shape.recompute)
    staged = staged_graph(graph, options, cluster)
    flight = [in_flight(Schedule.ONE_F_ONE_B, s, shape.stages, shape.micro_batches) for s in range(shape.stages)]
    return build_model(staged, shape.mesh, cluster, (), shape.micro_batches, limit_bytes=limit_bytes, in_flight=flight)


def _whole_s(model: SearchModel, limit_bytes: float) -> float:
    """The bound of the whole model, the larger of two multipliers where memory is limited."""
    prices: list[tuple[float, ...]] = [(0.0,) * model.staged.num_stages, (1e-12,) * model.staged.num_stages] if limit_bytes < inf else [()]
    return max(bound_s for price in prices for bound_s in whole_model_bounds(model, s_per_byte=price, memory_bytes=limit_bytes))


def _bounds_s(bounds: ShapeBounds, shape: Shape, limit_bytes: float) -> Iterator[float]:
    """The bounds that the search over shapes takes from the pieces of the model."""
    share = bounds.of(shape)
    yield from (bounds.roofline_s(shape), bounds.forward_part_s(shape), bounds.largest_piece_s(shape), share.unlimited_s)
    with suppress(NotFoundInTime, OutOfMemory):
        yield share.bound_within(min(limit_bytes, 1e12))[0]


def _played(one: Instance) -> Mapping[str, object]:
    """A pipeline of one device per stage: --schedule auto beside the schedules by name."""
    stages = one.cluster.num_devices
    session = regista.PlannerSession(one.program)
    chosen = session.plan(one.cluster, schedule="auto", stages=stages, mesh=(1,), micro_batches=one.batch)
    by_name = steps_by_name(session, one.cluster, stages=stages, micro_batches=one.batch)
    return {
        "auto_sim_s": forecast(chosen, AnalyticCost(one.cluster)).step_s,
        "named_sim_s": min(played.step_s for played in by_name.values()),
    }


def holds(row: Mapping[str, object]) -> bool:
    """Whether a row keeps the laws of the module's text."""
    objective_s, bound_s, covered_s = (float(str(row[name])) for name in ("objective_s", "lower_bound_s", "covered_s"))
    return (
        bound_s <= covered_s * (1 + _EPSILON)
        and float(str(row["bound_share"])) <= 1 + _EPSILON
        and covered_s <= objective_s * (1 + _EPSILON)
        and (row["case"] == "memory" or objective_s * (1 - GAP) <= covered_s * (1 + _EPSILON))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=210, help="instances, of seeds 1 and on (default 210)")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes")
    asked, began = parser.parse_args(), perf_counter()
    rows = known_rows(CSV)
    for seed in count(1):
        if any(row["seed"] == seed for row in rows):
            continue
        if len(rows) >= asked.count or perf_counter() - began > 60 * asked.minutes:
            break
        try:
            rows.append(row := checked(instance(seed), schedules=seed % _SCHEDULES_EVERY == 1))
        except TooMany as error:
            print(f"left out: {error}", flush=True)
            continue
        print("" if holds(row) else "BROKEN", row, flush=True)
        pd.DataFrame(rows).sort_values("seed").to_csv(CSV, index=False, lineterminator="\n")
    broken = [row["seed"] for row in rows if not holds(row)]
    print(f"{len(rows)} instances, {len(broken)} break a law: seeds {broken}" if broken else f"{len(rows)} instances hold")
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
