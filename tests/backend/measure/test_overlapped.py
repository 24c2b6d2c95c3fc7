"""The slow-down of computing beside communication: measured back from traces that were made with it, and 1 from traces without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Story, TableCost

from backend.measure.overlapped import compute_slowdown
from planner.ir.collective import Collective
from planner.ir.plan import Placement, Plan, TaskKind
from simulator import simulate_shared
from simulator.network import Sharing

STEPS = 4


def chain_beside_collectives(num: int) -> Plan:
    """On two ranks ``num`` backwards in a row; each but the last begins an all-reduce that the next one is beside."""
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    story.regst("given0", "load")
    story.task("load", produces=["given0"], kind=TaskKind.SOURCE)
    for n in range(num):
        story.regst(f"given{n + 1}", f"backward{n}", 2)
        story.task(f"backward{n}", [f"given{n}"], [f"given{n + 1}"], kind=TaskKind.BACKWARD, stream="compute")
        if n < num - 1:
            story.regst(f"sum{n}", f"reduce{n}")
            story.task(f"reduce{n}", [f"given{n + 1}"], [f"sum{n}"], collective=Collective.ALL_REDUCE, stream="comm")
    return story.freeze()


def alone(plan: Plan, cost: TableCost) -> dict[tuple[str, int], float]:
    return {(task.id, rank): cost.act_s(plan, task, rank) for task in plan.tasks for rank in plan.ranks_of(task)}


@given(
    slowdown=st.floats(1.0, 2.0),
    then=st.floats(0.5, 2.0),
    backwards_s=st.lists(st.floats(1.0, 4.0), min_size=4, max_size=6),
    reduces_s=st.lists(st.floats(1.0, 2.0), min_size=5, max_size=5),
)
def test_the_slow_down_a_trace_was_made_with_is_found_whatever_speed_the_machine_had(slowdown, then, backwards_s, reduces_s):
    plan = chain_beside_collectives(len(backwards_s))
    own = {f"backward{n}": s for n, s in enumerate(backwards_s)}
    reduces = {f"reduce{n}": s for n, s in enumerate(reduces_s)}
    trace = simulate_shared(
        plan,
        TableCost({name: then * s for name, s in own.items()} | reduces, default_s=0.0),
        steps=STEPS,
        sharing=Sharing.NONE,
        compute_slowdown=slowdown,
    )
    assert compute_slowdown(plan, trace, alone(plan, TableCost(own, default_s=0.0))) == pytest.approx(slowdown, rel=1e-6)


def test_steps_of_the_warm_up_do_not_count():
    plan = chain_beside_collectives(4)
    cost = TableCost({f"reduce{n}": 0.5 for n in range(3)}, default_s=1.0)
    trace = simulate_shared(
        plan, cost, steps=STEPS, sharing=Sharing.NONE, compute_slowdown=1.5, factor=lambda task, rank, act: 1 + 9 * (act == 0)
    )
    assert compute_slowdown(plan, trace, alone(plan, cost), warmup=1) == pytest.approx(1.5)


def test_computing_that_is_hardly_ever_beside_communication_tells_nothing():
    plan = chain_beside_collectives(4)
    cost = TableCost({f"reduce{n}": 0.04 for n in range(3)}, default_s=1.0)
    trace = simulate_shared(plan, cost, steps=STEPS, sharing=Sharing.NONE, compute_slowdown=2.0)
    assert compute_slowdown(plan, trace, alone(plan, cost)) == 1.0


def test_acts_that_are_all_beside_communication_alike_tell_nothing():
    plan = chain_beside_collectives(1)
    cost = TableCost(default_s=1.0)
    trace = simulate_shared(plan, cost, steps=STEPS, sharing=Sharing.NONE)
    assert compute_slowdown(plan, trace, alone(plan, cost)) == 1.0


@pytest.mark.parametrize(("factor", "expected"), [(0.25, 1.0), (6.0, 2.0)])
def test_what_no_second_thread_can_do_is_not_believed(factor, expected):
    # Acts beside communication that are quicker, or six times slower, than alone.
    plan = chain_beside_collectives(4)
    cost = TableCost({f"reduce{n}": 0.25 for n in range(3)}, default_s=1.0)
    beside = {"backward1", "backward2"}
    trace = simulate_shared(plan, cost, steps=STEPS, sharing=Sharing.NONE, factor=lambda task, rank, act: factor if task in beside else 1.0)
    assert compute_slowdown(plan, trace, alone(plan, cost)) == expected
