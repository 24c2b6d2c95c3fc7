"""Certified plans of random small problems beside every choice there is: shapes, device groups, recomputation, layouts, memory.

    python -m experiments.search_space.whole_space [--count N] [--minutes M]      add to results/whole_space.csv until it has N rows

Instances are those of experiments.search_space.small_instances; what they cost is stated a second time in experiments.search_space.choices, and every
combination is tried as arrays (experiments.search_space.brute_force), 24 to 10^6 in all: prices are shared with the planner, the search, the solver,
its reductions and its bounds are not.  A seed whose space is larger or smaller gives no instance; the next one takes its place.

Columns (seconds are ``theory``: the planner's own prices):

answer                        plan; none: the planner refuses, and bounds prove that nothing fits; none found: it refuses, and says that it is no proof
objective_s, lower_bound_s    of the plan, as ``plan --json`` has them
covered_s                     the least step of the space that the plan's own record names (search.covers); where memory binds, of choices whose bytes,
                              as far as the search counts them, fit (so it may belong to a choice that does not)
covered                       combinations in it
free_s                        the least step of them whatever they hold; equals covered_s where memory is not limited
elsewhere_s                   the least step outside of it: other cuts between blocks, the other order of two kinds of device, other divisors of the
                              batch; empty: there is nothing else, or it is too large
untied_s                      covered_s without the 10 ns per split of a stored state by which the prices break ties
bound_share                   the largest bound of any kind on any shape over the least step of that shape: at most 1, or a bound is wrong
bytes_share                   the largest lower bound on bytes of any shape over the least bytes of that shape: at most 1
other_share                   the bound on all other shapes (the runner-up's) over their least step: at most 1
below                         where memory is limited: choices quicker than the bound (of a refusal: all), which must not fit
tried                         those of them that were lowered: of each shape the 12 quickest, and the 12 that hold least
quicker_fit                   those of these that fit a device: 0, or the bound is wrong, unless the answer is none found
auto_sim_s, named_sim_s       a pipeline of all devices under --schedule auto, and the quickest of the schedules asked for by name (``sim``): the record
                              says that no bound covers them

The laws are ``broken``: a row without a word in it holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from time import process_time

import pandas as pd

import regista
from experiments.benchmarks.schedules import steps_by_name
from experiments.search_space.bounds_beside import bounds_s, bytes_bounds
from experiments.search_space.choices import TooMany
from experiments.search_space.covered_space import Point, Space, least_bytes
from experiments.search_space.rows import known_rows
from experiments.search_space.small_instances import Instance, drawn, with_memory, with_pins
from planner.cost import AnalyticCost
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import OutOfMemory, Unsupported
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import FoundPlans, search_plans
from planner.parallelism.one_shape import UNPROVEN
from planner.search.pins import parse_pins
from simulator.analysis.forecast import forecast

__all__ = ["GAP", "broken", "checked", "instance", "main"]

CSV = Path(__file__).parents[1] / "results/whole_space.csv"
GAP = 0.01
"""What the search over shapes leaves unproven."""
_EPSILON = 1e-9
_LEAST = 24
"""Combinations of an instance: with fewer there is nothing to search."""
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99, 1.0)
"""Of the bytes that the plan without a limit needs."""
_SCHEDULES_EVERY = 10
"""Every so many seeds schedules are played, too."""
_TRIED = 12
"""Choices that are lowered, per shape."""


class TooFew(Exception):
    """The space has next to no choices."""


def instance(seed: int) -> Instance:
    """The instance of a seed, with as few of its pins as make the space small enough, and its memory.

    Of every fourth seed the memory is as drawn, though nothing may fit; of the others it is raised until a plan fits.

    Raises:
        TooMany: its space is too large with all of them.   TooFew: it is too small.
    """
    one, last = drawn(seed), None
    for count in range(len(one.pinnable) + 1):
        pinned = with_pins(one, count)
        try:
            with suppress(Unsupported):  # a pin that does not split evenly
                space = Space(pinned)
                if space.covered:
                    break
        except TooMany as error:
            last = error
    else:
        raise last or TooMany(f"seed {seed}: no pins allow a choice")
    if space.count < _LEAST:
        raise TooFew(f"seed {seed}: {space.count} combinations")
    if pinned.memory_share == inf:
        return pinned
    with suppress(OutOfMemory, Unsupported):
        needed = max(device_bytes(found(pinned).plan).values())
        for share in sorted({pinned.memory_share, *(s for s in _SHARES if s > pinned.memory_share)}):
            limited = with_memory(pinned, max(1, int(share * needed)))
            Space(limited)
            with suppress(OutOfMemory):
                found(limited)
                return limited
            if seed % 4 == 0:
                return limited
    return pinned


def found(one: Instance, *, runner_up: bool = False) -> FoundPlans:
    """What the planner finds."""
    return search_plans(one.program.graph, model="net", batch_size=one.batch, cluster=one.cluster, options=one.options, runner_up=runner_up)


def checked(one: Instance, *, schedules: bool = False) -> dict[str, object]:
    """One row.   schedules: with the columns of --schedule auto, which play several Plans."""
    began = process_time()
    row: dict[str, object] = {
        "seed": one.seed,
        "model": one.model,
        "batch": one.batch,
        "devices": "+".join(str(part.num_devices) for part in one.cluster.parts or (one.cluster,)),
        "pins": ";".join(one.options.pins),
        "memory_bytes": one.cluster.device.memory_bytes if one.memory_share < inf else nan,
    }
    answer = "plan"
    try:
        both = found(one, runner_up=True)
    except OutOfMemory as error:
        both, answer = None, "none found" if UNPROVEN in str(error) else "none"
    space = Space(one, None if both is None else both.plan)
    row |= {"answer": answer, "shapes": len(space.covered), "covered": space.count}
    best = {point: space.least_s(point) for point in space.covered}
    row["covered_s"] = min(best.values())
    row["free_s"] = min(space.free_s(point) for point in space.covered)
    row["untied_s"] = min(space.least_s(point, untied=True) for point in space.covered)
    row["elsewhere_s"] = min((space.least_s(point) for point in space.elsewhere), default=nan)
    row |= _bound_shares(one, space, best)
    bound_s = inf
    if both is not None:
        search = both.plan.search
        bound_s = search.lower_bound_s
        own = space.point_of(both.plan)
        others = [step_s for point, step_s in best.items() if replace(point.shape, recompute=own.shape.recompute) != own.shape]
        other_s = min(others, default=inf)
        row |= {"objective_s": search.objective_s, "lower_bound_s": bound_s}
        row["other_share"] = 0.0 if other_s == inf or space.is_limited else both.least_other_s / other_s
    below_s = bound_s * (1 - _EPSILON)
    tried = space.tried(below_s, _TRIED) if space.is_limited else []
    row |= {"below": space.below(below_s) if space.is_limited else 0, "tried": len(tried), "quicker_fit": sum(tried)}
    if schedules and one.blocks > 1 and not one.options.pins and one.memory_share == inf and one.program.mode.value == "train":
        row |= _played(one)
    row["seconds_run"] = round(process_time() - began, 2)
    return row | {"broken": broken(row)}


def _bound_shares(one: Instance, space: Space, best: Mapping[Point, float]) -> Mapping[str, float]:
    """The largest bounds on steps and on bytes, over the least of their shape."""
    bounds = ShapeBounds(one.program.graph, one.batch, one.cluster, parse_pins(one.options.pins))
    limit = space.limit_bytes
    shares = [bound_s / best[point] for point in space.covered for bound_s in bounds_s(one, bounds, point, limit)]
    held = {point: least_bytes(space, point) for point in space.covered} if space.is_limited else {}
    of_bytes = [bound / held[point] for point in held if held[point] for bound in bytes_bounds(bounds, point)]
    return {"bound_share": max(shares), "bytes_share": max(of_bytes, default=0.0)}


def _played(one: Instance) -> Mapping[str, object]:
    """A pipeline of one device per stage: --schedule auto beside the schedules by name."""
    stages = one.cluster.num_devices
    if stages > one.blocks or one.batch % stages:
        return {}
    session = regista.PlannerSession(one.program)
    chosen = session.plan(one.cluster, schedule="auto", stages=stages, mesh=(1,), micro_batches=one.batch)
    by_name = steps_by_name(session, one.cluster, stages=stages, micro_batches=one.batch)
    return {
        "auto_sim_s": forecast(chosen, AnalyticCost(one.cluster)).step_s,
        "named_sim_s": min(played.step_s for played in by_name.values()),
    }


def broken(row: Mapping[str, object]) -> str:
    """The laws of the module's text that a row breaks, in words; empty: it holds."""
    number = {name: float(str(value)) for name, value in row.items() if isinstance(value, (int, float))}
    over = 1 + _EPSILON
    laws = [
        ("a bound on a shape is above its least step", number["bound_share"] > over),
        ("a bound on a shape's bytes is above its least bytes", number["bytes_share"] > over),
        ("a choice below the bound fits", number["quicker_fit"] > 0 and row["answer"] != "none found"),
        ("choices are below the bound, and none was tried", number["below"] > 0 and number["tried"] == 0),
    ]
    if row["answer"] != "plan":
        return "; ".join(words for words, is_broken in laws if is_broken)
    is_limited = number["memory_bytes"] == number["memory_bytes"]  # then a choice of covered_s need not fit
    return "; ".join(
        words
        for words, is_broken in (
            *laws,
            (
                "the lower bound is above the least step of what it covers",
                not is_limited and number["lower_bound_s"] > number["covered_s"] * over,
            ),
            ("the plan is quicker than every choice", number["objective_s"] * over < number["free_s"]),
            ("the lower bound is above the plan's step", number["lower_bound_s"] > number["objective_s"] * over),
            (
                "the plan is not proven within the gap",
                not is_limited and number["objective_s"] * (1 - GAP) > number["lower_bound_s"] * over,
            ),
            ("the plan is not the best within the gap", not is_limited and number["objective_s"] * (1 - GAP) > number["covered_s"] * over),
            ("the bound on other shapes is above their least step", number["other_share"] > over),
            ("--schedule auto is slower than a schedule by name", number.get("auto_sim_s", 0) > number.get("named_sim_s", inf) * over),
        )
        if is_broken
    )


def seeds(rows: list[dict[str, object]]) -> Iterator[int]:
    """Those that no row has, from 1 on."""
    seed, known = 0, {row["seed"] for row in rows}
    while True:
        seed += 1
        if seed not in known:
            yield seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=320, help="instances, of seeds 1 and on (default 320)")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes of the processor")
    asked, began = parser.parse_args(), process_time()
    rows, large, small = known_rows(CSV), 0, 0
    for seed in seeds(rows):
        if len(rows) >= asked.count or process_time() - began > 60 * asked.minutes:
            break
        try:
            rows.append(row := checked(instance(seed), schedules=seed % _SCHEDULES_EVERY == 1))
        except TooMany:
            large += 1
            continue
        except TooFew:
            small += 1
            continue
        if row["broken"]:
            print("BROKEN", row, flush=True)
        pd.DataFrame(rows).sort_values("seed").to_csv(CSV, index=False, lineterminator="\n")
    bad = [row["seed"] for row in rows if row["broken"] and row["broken"] == row["broken"]]
    says = f": seeds {bad}" if bad else ""
    print(f"{len(rows)} instances (seeds left out now: {large} too large, {small} too small), {len(bad)} break a law{says}")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
