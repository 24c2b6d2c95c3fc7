"""The two examples of the OneFlow texts, literally: actors make the pipeline, quotas make the back-pressure."""

from __future__ import annotations

from textwrap import dedent

import pytest
from stories import TableCost, chain, picture

from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace, check_trace
from simulator import simulate
from simulator.theory import chain_period_s


def log(plan: Plan, trace: Trace, until: int) -> list[str]:
    """One line per unit time in the words of the text: which block each actor reads and writes, and in which slot it lies."""
    lines = []
    for time in range(until):
        said = []
        for task in plan.tasks:
            for act in trace.acts:
                if act.task != task.id or act.start_s != time:
                    continue
                reads = "".join(f" reads {port.regst}_{act.number}," for port in task.consumes)
                (out,) = task.produces
                said.append(f"{task.id}{reads} writes {out.regst}_{act.number} in slot {act.number % plan.regst[out.regst].quota}")
        lines.append(f"Time{time}: {'; '.join(said)}")
    return lines


def test_three_unit_actors_with_two_blocks_each_work_at_the_same_time_from_time2_on():
    plan = chain("abc", 2, acts=4)
    trace = simulate(plan, TableCost(), steps=1)
    check_trace(plan, trace)
    # Regst_a_2 of the text is the third block; with two slots it lies where Regst_a_0 lay, which b has given back.
    assert log(plan, trace, 3) == [
        "Time0: a writes Regst_a_0 in slot 0",
        "Time1: a writes Regst_a_1 in slot 1; b reads Regst_a_0, writes Regst_b_0 in slot 0",
        "Time2: a writes Regst_a_2 in slot 0; b reads Regst_a_1, writes Regst_b_1 in slot 1; c reads Regst_b_0, writes Regst_c_0 in slot 0",
    ]
    assert (
        picture(plan, trace, 6)
        == dedent("""
        a 0123..
        b .0123.
        c ..0123
    """).strip()
    )


def test_with_one_block_each_neighbours_take_turns_and_leave_gaps():
    plan = chain("abc", 1, acts=4)
    trace = simulate(plan, TableCost(), steps=1)
    check_trace(plan, trace)
    assert (
        picture(plan, trace, 9)
        == dedent("""
        a 0.1.2.3..
        b .0.1.2.3.
        c ..0.1.2.3
    """).strip()
    )


STAGES = ("data_load", "preprocess", "copy_h2d", "train")
COST = TableCost({"data_load": 1.0, "preprocess": 2.0, "copy_h2d": 1.0, "train": 4.0})


def starts(trace: Trace, task: str) -> list[float]:
    return [act.start_s for act in trace.acts if act.task == task]


def test_with_regst_num_2_the_longest_stage_sets_the_pace_of_all_four():
    plan = chain(STAGES, 2, acts=10)
    trace = simulate(plan, COST, steps=1)
    check_trace(plan, trace)
    # The early stages rush ahead until their two blocks are full, then each waits for the train actor's acks (back-pressure).
    assert (
        picture(plan, trace, 32)
        == dedent("""
        data_load  01.2.3.4.5.6...7...8...9........
        preprocess .0011223344..55..66..77..88..99.
        copy_h2d   ...0.1..2...3...4...5...6...7...
        train      ....0000111122223333444455556666
    """).strip()
    )


def test_after_the_fill_all_four_stages_advance_in_lock_step_with_the_longest():
    trace = simulate(chain(STAGES, 2, acts=12), COST, steps=1)
    for stage in STAGES:
        gaps = [after - before for before, after in zip(starts(trace, stage)[6:], starts(trace, stage)[7:], strict=False)]
        assert gaps == [4.0] * 5, stage
    # Back-pressure: data_load never runs more than the blocks between it and train (3 Regsts of 2) ahead.
    for number, start_s in enumerate(starts(trace, "data_load")):
        trained = sum(1 for act in trace.acts if act.task == "train" and act.end_s <= start_s)
        assert number - trained <= 3 * 2


@pytest.mark.parametrize(("regst_num", "period_s"), [(1, 5.0), (2, 4.0), (3, 4.0)])
def test_the_period_of_the_four_stages_is_that_of_the_closed_form(regst_num: int, period_s: float):
    trace = simulate(chain(STAGES, regst_num, acts=40), COST, steps=1)
    train = starts(trace, "train")
    assert train[-1] - train[-2] == period_s == chain_period_s([1.0, 2.0, 1.0, 4.0], regst_num)


@pytest.mark.parametrize("quotas", [(1, 2, 3, 1), (2, 1, 1, 1), (3, 1, 2, 1)])
def test_the_closed_form_holds_for_unequal_quotas(quotas: tuple[int, ...]):
    durations_s = (3.0, 2.0, 5.0, 4.0)
    trace = simulate(chain("abcd", quotas, acts=60), TableCost(dict(zip("abcd", durations_s, strict=True))), steps=1)
    last = starts(trace, "d")
    # A period of k acts may be uneven inside when quotas are > 1; over 6 acts (the least common multiple) it is even.
    assert (last[-1] - last[-7]) / 6 == pytest.approx(chain_period_s(durations_s, quotas))
