"""Quota problems made at random or by a formula, on plain arrays: for measuring, and to hold the optimiser against.

layered    sparse random DAG: short-lived Regsts, quotas 1 .. 5; the hard kind, its relaxation is loose
training   forward DAG and its mirror backward: what is kept for the backward pass lives long, as in a pipeline
"""

from __future__ import annotations

import random

import numpy as np

from simulator.quotas.problem import Buffer, QuotaProblem, Ring

__all__ = ["Draft", "layered", "training"]


class Draft:
    """Nodes that run one act at a time, and Regsts between them."""

    def __init__(self) -> None:
        self.duration_s: list[float] = []
        self.arcs: list[tuple[int, int, int, float]] = []
        self.buffers: list[Buffer] = []

    def node(self, duration_s: float) -> int:
        number = len(self.duration_s)
        self.duration_s.append(duration_s)
        self.arcs.append((number, number, 1, duration_s))
        return number

    def regst(self, source: int, sinks: list[int], block_bytes: int, upper: int, places: tuple[str, ...] = ()) -> None:
        for sink in sinks:
            self.arcs.append((source, sink, 0, self.duration_s[source]))
        rings = tuple(Ring((source,), (sink,), self.duration_s[sink]) for sink in sinks)
        self.buffers.append(Buffer(name=f"r{len(self.buffers)}", block_bytes=block_bytes, upper=upper, rings=rings, places=places))

    def problem(self) -> QuotaProblem:
        tail, head, tokens, weight_s = zip(*self.arcs, strict=True)
        return QuotaProblem(
            num_nodes=len(self.duration_s),
            tail=np.array(tail, dtype=np.int64),
            head=np.array(head, dtype=np.int64),
            tokens=np.array(tokens, dtype=np.int64),
            weight_s=np.array(weight_s, dtype=np.float64),
            buffers=tuple(self.buffers),
        )


def layered(actors: int, regsts: int, seed: int, width: int = 20, skip: int = 3) -> QuotaProblem:
    """Actors in layers, each Regst to a later layer, at most ``skip`` on; durations 0.1 .. 2 s, so every period from 2 s on is possible."""
    rng, draft = random.Random(seed), Draft()
    nodes = [draft.node(rng.uniform(0.1, 2.0)) for _ in range(actors)]
    layers = [nodes[i : i + width] for i in range(0, actors, width)]
    edges: set[tuple[int, int]] = set()
    while len(edges) < regsts:
        here = rng.randrange(len(layers) - 1)
        there = min(len(layers) - 1, here + 1 + min(int(rng.expovariate(1.0)), skip - 1))
        edges.add((rng.choice(layers[here]), rng.choice(layers[there])))
    for source, sink in sorted(edges):
        draft.regst(source, [sink], rng.randrange(1, 1000), 1000)
    return draft.problem()


def training(actors: int, seed: int, width: int = 4, fan: int = 2) -> QuotaProblem:
    """A forward DAG in layers and its mirror image backward; what a forward actor keeps waits for its mirror, the longer the earlier it is.

    Regsts: per forward actor what it keeps, and per edge one forward and one backward.
    """
    rng, draft = random.Random(seed), Draft()
    half = actors // 2
    forward = [draft.node(rng.uniform(0.1, 1.0)) for _ in range(half)]
    backward = [draft.node(2 * draft.duration_s[node]) for node in forward]
    for place, node in enumerate(forward):
        layer = place // width
        if layer:
            before = range((layer - 1) * width, layer * width)
            for other in sorted(rng.sample(before, min(fan, width))):
                draft.regst(forward[other], [node], rng.randrange(1, 100), 10**5)
                draft.regst(backward[place], [backward[other]], rng.randrange(1, 100), 10**5)
        draft.regst(node, [backward[place]], rng.randrange(100, 1000), 10**5)
    return draft.problem()
