"""A trace of some steps of a long run says which they are, obeys the laws between what it holds, and is read where steps follow each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stories import TableCost, pipeline

from planner.ir.errors import InvalidTrace, Unsupported
from planner.ir.files import load_trace, save_trace
from planner.ir.traces.held import StepSelection, consecutive
from planner.ir.traces.trace import Trace, check_trace
from regista.analysis.comparison import summarise
from simulator import simulate

PLAN = pipeline(2, 3)
STEPS = 12
WHOLE = simulate(PLAN, TableCost(latency_s=0.25), steps=STEPS)


def some(*spans: tuple[int, int]) -> Trace:
    """WHOLE without the acts of the other steps."""
    steps = {step for first, end in spans for step in range(first, end)}
    return replace(WHOLE, held_steps=spans, acts=tuple(a for a in WHOLE.acts if a.number // PLAN.task[a.task].acts in steps))


@pytest.mark.parametrize(
    ("text", "steps", "spans"),
    [
        ("first:20,last:20,every:1000", 5000, ((0, 20), (999, 1000), (1999, 2000), (2999, 3000), (3999, 4000), (4980, 5000))),
        ("first:2", 5, ((0, 2),)),
        ("last:2", 5, ((3, 5),)),
        ("every:2", 5, ((1, 2), (3, 4))),
        ("every:1", 3, ((0, 3),)),
        ("first:9,last:9", 5, ((0, 5),)),
        ("first:3,every:2", 6, ((0, 4), (5, 6))),
        ("last:1, first:1", 1, ((0, 1),)),
    ],
)
def test_a_selection_names_these_steps_of_a_run(text: str, steps: int, spans: tuple[tuple[int, int], ...]):
    StepSelection.parse(text).check(steps)
    assert StepSelection.parse(text).ranges(steps) == spans


@pytest.mark.parametrize(
    "text", ["", "first", "first:0", "last:-1", "every:x", "some:3", "first:1,first:2", "first:1,", "first:1.5", "first:²"]
)
def test_what_is_no_selection_is_refused_with_an_example(text: str):
    with pytest.raises(Unsupported, match="for example first:20,last:20,every:1000"):
        StepSelection.parse(text)


def test_a_selection_that_names_no_step_of_the_run_is_refused():
    with pytest.raises(Unsupported, match="every:1000 name no step of a run of 20 steps; give 20 or less"):
        StepSelection.parse("every:1000").check(20)


def test_a_trace_of_some_steps_keeps_the_laws_and_comes_back_from_its_file(tmp_path: Path):
    trace = some((0, 2), (5, 6), (9, 12))
    check_trace(PLAN, trace)
    save_trace(PLAN, trace, str(tmp_path / "trace.json"))
    assert load_trace(str(tmp_path / "trace.json")) == (PLAN, trace)


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (replace(some((0, 2), (5, 6)), held_steps=((0, 2),)), "law 1: .* in the 2 steps that it holds"),
        (replace(some((0, 2)), held_steps=((0, 2), (5, 6))), "law 1: .* in the 3 steps that it holds"),
        (replace(some((0, 2)), held_steps=((1, 3),)), "law 1: .* in the 2 steps"),
        (replace(some((0, 2)), held_steps=((10, 13),)), "within its 12 steps"),
        (replace(some((0, 2)), held_steps=((1, 2), (0, 1))), "they are ascending"),
        (replace(some((0, 2)), held_steps=()), "law 1: .* in 12 steps"),
    ],
)
def test_a_trace_that_does_not_hold_what_it_says_breaks_law_1(trace: Trace, says: str):
    with pytest.raises(InvalidTrace, match=says):
        check_trace(PLAN, trace)


def test_steps_in_a_row_are_read_as_the_same_steps_of_the_whole_trace():
    part = consecutive(PLAN, some((0, 2), (5, 9), (11, 12)))
    check_trace(PLAN, part)
    assert part.steps == 4
    assert part.step_times_s(PLAN)[1:] == WHOLE.step_times_s(PLAN)[6:9]
    assert part.losses == WHOLE.losses[5:9]
    assert part.about["trace steps"] == "5 to 8 of 12; held are 0 to 1, 5 to 8, 11"
    assert consecutive(PLAN, WHOLE) is WHOLE


def test_what_needs_all_steps_or_two_in_a_row_refuses_to_do_without_them():
    with pytest.raises(InvalidTrace, match="holds steps 0 to 1, 5 of 12, and this needs all"):
        summarise(PLAN, some((0, 2), (5, 6)))
    with pytest.raises(InvalidTrace, match=r"no two steps in a row \(1, 5 of 12\)"):
        consecutive(PLAN, some((1, 2), (5, 6)))
