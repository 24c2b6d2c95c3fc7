"""A small mixture of experts, and its Plans under loads of experts."""

from __future__ import annotations

from functools import cache

from traffic import cluster

from planner.cost.routing import ExpertLoad, Routing
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

__all__ = ["EXPERTS", "EXPERTS_CUT", "ROWS", "load_of", "mixture", "plan_under"]

EXPERTS, ROWS = 8, 128
"""Of the one layer of experts: 16 samples of 32 tokens, two experts each, on 8 experts are 128 places per expert."""
EXPERTS_CUT = ("h.1.mlp.w_*=S(0)",)


@cache
def mixture() -> Program:
    return ZOO["moe"](layers=2, width=64, heads=4, experts=EXPERTS, hidden=512, vocab=64, batch=16, seq=32, optimizer="sgd")


def load_of(routing: str, *, capacity_factor: float | None = None, top_k: int = 2, seed: int = 0) -> ExpertLoad:
    return ExpertLoad(routing=Routing.parse(routing), top_k=top_k, capacity_factor=capacity_factor, seed=seed)


@cache
def plan_under(routing: str | None, pins: tuple[str, ...] = (), mesh: tuple[int, ...] = (4,), micro_batches: int = 1) -> Plan:
    """The Plan on a mesh whose device takes as long for 1e9 flop as its link for 1e8 bytes."""
    load = None if routing is None else load_of(routing)
    source, devices = mixture(), 1
    for extent in mesh:
        devices *= extent
    return make_plan(
        source.graph(micro_batches),
        model="moe",
        batch_size=source.batch_size,
        cluster=cluster(devices),
        options=PlanOptions(mesh=mesh, pins=pins, load=load, micro_batches=micro_batches),
    )
