"""The front of the simulator: who plays a Plan, and what its acts feel of each other.

simulate         as the cost model says: links are shared where prices are of acts alone and a link between nodes is crowded, computing is
                 slower beside communication where the prices say so (simulator.network.act_flows)
simulate_shared  as the caller says

simulator.game      SimPy, written to be read: the meaning
simulator.compiled  the same on arrays, act for act and bit for bit, some hundred times as fast
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from planner.ir.errors import DeadLock, InvalidPlan, Unsupported
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Trace
from simulator.game import by_simpy
from simulator.network.act_flows import Contention, contention_of, contention_with
from simulator.network.crowded import crowded_links
from simulator.network.links import Sharing
from simulator.rules.prices import Factor

__all__ = ["Engine", "simulate", "simulate_shared"]

_LOG = logging.getLogger(__name__)


class Engine(Enum):
    """Who plays the game.  Both give the same trace, event for event.

    SIMPY: simulator.game, to be read and trusted.   COMPILED: simulator.compiled, some hundred times as fast.
    AUTO: SimPy up to AUTO_ACTS acts, which take less time than loading compiled code, else compiled.
    """

    AUTO = "auto"
    SIMPY = "simpy"
    COMPILED = "compiled"


AUTO_ACTS = 20_000
"""Acts of all ranks and steps; SimPy performs them in the time that the compiled kernels take to load from their cache [measured]."""

ALONE = "each act has its links to itself: where acts meet on a link between nodes, times are lower bounds"
"""What a trace says under ``links`` where a link is crowded and its caller did not want it shared."""


def simulate(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    max_acts: int | None = None,
    factor: Factor | None = None,
    on_act: Callable[[Act], None] | None = None,
    engine: Engine = Engine.AUTO,
    fold: bool = True,
) -> Trace:
    """Perform ``steps`` steps of a Plan on the clock of a cost model.

    Acts that meet on a crowded link between nodes share it, where prices are of acts alone (planner.ir.protocols.AloneOnLinks), and computing
    is slower beside communication where the prices say so (Contended), whoever plays; ``about`` says both.

    Args:
        plan: a verified Plan.
        cost: seconds per act and per message; asked once per task and rank.
        steps: training steps; the fill of the pipeline is part of the first.
        max_acts: refuse a game of more acts than this (all ranks, all steps); None: no limit.
        factor: times the price, act by act (stragglers, noise); None: every act takes its price.
        on_act: told of every act when it ends, in that order (progress, partial traces); what it raises ends the simulation.
        engine: who plays; the trace's ``about`` says who it was.  ``factor`` and ``on_act`` are for SimPy, so AUTO takes it for them; where AUTO
            cannot take the compiled engine for another reason, it is logged and stands under ``not_compiled`` in ``about``.
        fold: the compiled engine plays one of each class of equal ranks and copies it; SimPy always plays all.

    Returns:
        A SIM trace, acts sorted by start; peak_bytes per rank: state + blocks between first write and last ack + running workspaces.

    Raises:
        InvalidPlan: steps < 1.   Unsupported: more than max_acts acts; engine COMPILED with factor or on_act, on blocks of 2^60 bytes or on
            2^28 firings.
        InvalidCluster: a price that is negative or not finite, or times beyond a float.
        DeadLock: some act can never start (SEMANTICS 4.1); the message names the cycle.

    Source: SEMANTICS 3, oneflow.md 1.1 and 1.2.
    """
    _check(plan, steps, max_acts)
    return _played(plan, cost, contention_of(plan, cost), steps, factor, on_act, engine, fold)


def simulate_shared(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    sharing: Sharing = Sharing.MAX_MIN,
    compute_slowdown: float = 1.0,
    factor: Factor | None = None,
    on_act: Callable[[Act], None] | None = None,
    engine: Engine = Engine.SIMPY,
    fold: bool = True,
) -> Trace:
    """As simulate, with the contention that the caller says.

    Args:
        plan, cost, steps, factor, on_act, engine, fold: as in simulate; prices are those of acts alone.
        sharing: MAX_MIN: acts share every link of the Plan's cluster; NONE: they do not feel each other on links.
        compute_slowdown: how many times as long compute takes while its rank sends or receives; 1: it does not feel communication.

    Raises:
        Unsupported: sharing FIFO, or a slow-down below 1 or not finite.   InvalidPlan, InvalidCluster, DeadLock: as simulate.
    """
    _check(plan, steps, None)
    if sharing is Sharing.FIFO:
        raise Unsupported("acts of a Plan under FIFO: the lines of an axis are priced together and would queue; use max_min or none")
    if not (math.isfinite(compute_slowdown) and compute_slowdown >= 1):
        raise Unsupported(f"compute_slowdown = {compute_slowdown}; it is how many times as long compute takes, so at least 1")
    contention = contention_with(plan, cost, sharing=sharing is Sharing.MAX_MIN, slowdown=compute_slowdown)
    trace = _played(plan, cost, contention, steps, factor, on_act, engine, fold)
    alone = sharing is Sharing.NONE and crowded_links(plan, cost)
    return replace(trace, about={**trace.about, "links": ALONE}) if alone else trace


def _check(plan: Plan, steps: int, max_acts: int | None) -> None:
    if steps < 1:
        raise InvalidPlan(f"steps = {steps}; a simulation performs at least 1 step")
    total = _total(plan, steps)
    if max_acts is not None and total > max_acts:
        raise Unsupported(
            f"{steps} steps of this plan are {total} acts, more than max_acts = {max_acts}; simulate fewer steps or raise max_acts"
        )


def _total(plan: Plan, steps: int) -> int:
    return steps * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)


def _played(
    plan: Plan,
    cost: CostModel,
    contention: Contention | None,
    steps: int,
    factor: Factor | None,
    on_act: Callable[[Act], None] | None,
    engine: Engine,
    fold: bool,
) -> Trace:
    watched = factor is not None or on_act is not None
    if engine is Engine.COMPILED and watched:
        raise Unsupported(
            "the compiled engine takes one price per task and tells nobody of acts; leave out factor and on_act or use engine simpy"
        )
    if engine is Engine.SIMPY or watched or (engine is Engine.AUTO and _total(plan, steps) <= AUTO_ACTS):
        return by_simpy(plan, cost, steps, contention, factor, on_act)
    from simulator import compiled  # numba takes some tenths of a second to load, so only where it is used

    try:
        return compiled.trace(compiled.compile_plan(plan, cost, fold=fold, contention=contention), steps=steps)
    except DeadLock:
        # Only actors as objects can tell who waits for whom.  They stop where the arrays stopped, so SimPy raises too.
        return by_simpy(plan, cost, steps, contention)
    except Unsupported as error:
        if engine is Engine.COMPILED:
            raise
        return _not_compiled(by_simpy(plan, cost, steps, contention), str(error))


def _not_compiled(trace: Trace, reason: str) -> Trace:
    """The trace of a game that AUTO left to a slower engine: the reason is logged, and stands in ``about``."""
    _LOG.warning("%s plays every rank act by act, as the compiled engine cannot play this: %s", trace.about["engine"], reason)
    return replace(trace, about={**trace.about, "not_compiled": reason})
