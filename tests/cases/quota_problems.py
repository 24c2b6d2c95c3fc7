"""Small quota problems at random, and answers by trying everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from math import inf

import numpy as np

from experiments.quotas.instances import Draft
from simulator.quotas.period import shortest_period_s
from simulator.quotas.problem import Buffer, Ints, QuotaProblem, Ring

__all__ = ["exhaustive", "howard_s", "small"]


def small(rng: random.Random, blocks: int) -> QuotaProblem:
    """A live problem of a few actors; with ``blocks`` > 1 each acts so often per period, its acts in a ring.  Some Regsts have two readers."""
    draft = Draft()
    actors = rng.randint(2, 4)
    acts: list[list[int]] = []
    for _ in range(actors):
        duration_s = rng.choice((0.5, 1.0, 1.5, 2.0, rng.uniform(0.1, 3.0)))
        nodes = [draft.node(duration_s) for _ in range(blocks)]
        for j, node in enumerate(nodes):
            draft.arcs.append((node, nodes[(j + 1) % blocks], int(j == blocks - 1), duration_s))
        acts.append(nodes)
    for _ in range(rng.randint(1, 4)):
        source = rng.randrange(actors - 1)
        sinks = sorted({rng.randrange(source + 1, actors) for _ in range(rng.randint(1, 2))})
        rings = []
        for sink in sinks:
            draft.arcs += [(u, v, 0, draft.duration_s[u]) for u, v in zip(acts[source], acts[sink], strict=True)]
            rings.append(Ring(tuple(acts[source]), tuple(acts[sink]), draft.duration_s[acts[sink][0]] + rng.choice((0.0, 0.25))))
        places = (rng.choice("AB"),)
        draft.buffers.append(
            Buffer(
                name=f"r{len(draft.buffers)}",
                block_bytes=rng.randint(1, 9),
                upper=4,
                rings=tuple(rings),
                copies=rng.randint(1, 2),
                places=places,
            )
        )
    return draft.problem()


def howard_s(problem: QuotaProblem, quotas: Ints) -> float:
    """The period of some quotas."""
    return shortest_period_s(problem.num_nodes, problem.arcs(quotas))


def exhaustive(problem: QuotaProblem, period_s: float, budgets: Mapping[str, int] | None = None) -> float:
    """Least bytes over all quotas between the bounds, judged by Howard; inf if none reach the period within the budgets."""
    best = inf
    for quotas in itertools.product(*(range(b.lower, b.upper + 1) for b in problem.buffers)):
        size = problem.total_bytes(quotas)
        held = problem.place_bytes(quotas)
        if size >= best or any(held.get(place, 0) > budget for place, budget in (budgets or {}).items()):
            continue
        if howard_s(problem, np.array(quotas, dtype=np.int64)) <= period_s * (1 + 1e-9):
            best = size
    return best
