"""Relations of manifests: what they mean, what they refuse, and that nothing of their text is ever run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.errors import InvalidFile
from regista.sweep.check import Row, check_relation, select
from regista.sweep.relation import Condition, parse_conditions, parse_plain_condition, parse_relation

COLUMNS = ("label", "stages", "schedule", "status", "sim_throughput_per_s", "sim_step_s", "paper_throughput_per_s")
ROWS: list[Row] = [
    {"stages": 1.0, "schedule": "1f1b", "status": "ok", "sim_throughput_per_s": 10.0, "sim_step_s": 0.5, "paper_throughput_per_s": 11.0},
    {"stages": 1.0, "schedule": "gpipe", "status": "ok", "sim_throughput_per_s": 9.0, "sim_step_s": 0.6, "paper_throughput_per_s": 8.0},
    {"stages": 2.0, "schedule": "1f1b", "status": "ok", "sim_throughput_per_s": 20.0, "sim_step_s": 0.3, "paper_throughput_per_s": 21.0},
    {"stages": 2.0, "schedule": "gpipe", "status": "ok", "sim_throughput_per_s": 8.0, "sim_step_s": 0.7, "paper_throughput_per_s": 7.0},
]


def verdict(text: str, rows: list[Row] = ROWS, axes: tuple[str, ...] = ("stages", "schedule")) -> tuple[bool, str]:
    checked = check_relation(parse_relation(text), rows, axes, COLUMNS)
    return checked.held, checked.says


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("throughput[stages == 2, schedule == '1f1b'] > 1.9 * throughput[stages == 1, schedule == '1f1b']", True),
        ("throughput[stages == 2, schedule == '1f1b'] > 2 * throughput[stages == 1, schedule == '1f1b']", False),
        ("0.2 < step_time < 0.8", True),
        ("0.2 < step_time < 0.6", False),
        ("max(throughput) - min(throughput) == 12", True),
        ("-1 * throughput < 0", True),
        ("(1 + 2) * 3 == 9", True),
        ("2 - 1 - 1 == 0", True),
        ("abs(0 - throughput) == throughput", True),
        ('status == "ok"', True),
        ('status[stages == 1] != "ok"', False),
        ("count(throughput[stages == 7]) == 0", True),
        ("count(throughput) == 4", True),
        ("spread(throughput) == 2.5", True),
        ("rising(throughput[schedule == '1f1b']) == 1", True),
        ("rising(throughput[schedule == 'gpipe']) == 1", False),
        ("throughput[stages > 1, schedule != 'gpipe'] == 20", True),
        ("quantile(step_time, 0.9) == 0.67", True),
        ("rank_correlation(throughput, paper) == 1", True),
        ("rank_correlation(throughput, step_time) == -1", True),
        ("where_least(throughput, step_time) == 20", True),
    ],
)
def test_a_relation_means_what_arithmetic_says(text: str, held: bool) -> None:
    assert verdict(text) == (held, "")


def test_two_selections_meet_point_by_point_on_the_axes_that_no_condition_fixed() -> None:
    assert verdict("throughput[stages == 2] > 0.5 * throughput[stages == 1]") == (True, "")
    held, _ = verdict("throughput[stages == 2] > throughput[stages == 1]")
    assert not held, "gpipe is slower with 2 stages"
    checked = check_relation(parse_relation("throughput[stages == 2] > throughput[stages == 1]"), ROWS, ("stages", "schedule"), COLUMNS)
    assert (checked.left, checked.right, checked.where, checked.points) == ("8", "9", "schedule=gpipe", 2)


def test_orders_are_equal_only_if_every_place_is() -> None:
    assert verdict("order(throughput) == order(paper)") == (True, "")
    swapped = [row | {"paper_throughput_per_s": 8.5} if row["paper_throughput_per_s"] == 7.0 else row for row in ROWS]
    assert verdict("order(throughput) == order(paper)", swapped) == (False, "")


def test_a_missing_value_breaks_a_relation_and_says_which_point_lacks_it() -> None:
    rows: list[Row] = [
        *ROWS[:3],
        {"stages": 2.0, "schedule": "gpipe", "status": "OutOfMemory", "says": "99 GiB", "sim_throughput_per_s": None},
    ]
    held, says = verdict("throughput > 0", rows)
    assert not held and "stages=2, schedule=gpipe" in says and "OutOfMemory 99 GiB" in says
    assert verdict("throughput[status == 'ok'] > 0", rows) == (True, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("throughput[stages == 3] > 0", "no point has stages == 3"),
        ("throughput[schedule == '1f1b'] > throughput[stages == 1]", "do not match"),
        ("order(throughput[stages == 1, schedule == '1f1b']) == order(paper)", "fewer than two"),
        ("order(throughput) > order(paper)", "not by >"),
        ("status + 1 > 0", "needs numbers"),
        ("1 / (2 - 2) > 0", "division by 0"),
    ],
)
def test_what_cannot_be_compared_is_unchecked_and_says_why(text: str, says: str) -> None:
    held, why = verdict(text)
    assert not held and says in why


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("throughput", "a comparison"),
        ("throughput > ", "invalid syntax"),
        ("throughput > (1 + 2", "never closed"),
        ("throughput[stages=2] > 1", "conditions are written mesh == 8"),
        ("__import__('os') > 1", "no function '__import__'"),
        ("exec(1) > 1", "no function 'exec'"),
        ("throughput.__class__ > 1", "is not of the language"),
        ("max(throughput).real > 1", "is not of the language"),
        ("throughput[stages == 2][0] > 1", "is not of the language"),
        ("[1, 2] == [1, 2]", "is not of the language"),
        ("(lambda: 1)() > 1", "is not of the language"),
        ("2 ** 9 ** 9 > 1", "is not of the language"),
        ("abs(*throughput) > 1", "is not of the language"),
        ("max(throughput, key=abs) > 1", "is not of the language"),
        ("f'{throughput}' == 'x'", "is not of the language"),
        ("True == 1", "is not of the language"),
        ("medain(throughput) > 1", "did you mean median"),
        ("rank_correlation(throughput) > 1", "takes two columns"),
        ("count(1 + throughput) > 1", "takes one column"),
        ("throughput[stages] > 1", "write COLUMN == VALUE"),
        ("throughput[stages == max(stages)] > 1", "write COLUMN == VALUE"),
        ("throughput > 1 1", "invalid syntax"),
        ("throughput in paper", "a comparison is one of"),
        (" + ".join(["1"] * 200) + " > 0", "more than 200 parts"),
        ("(" * 900 + "1" + ")" * 900 + " > 0", "relation"),
        ("1 < 2 and 3 < 4", "write two statements as two relations"),
    ],
)
def test_a_text_outside_the_language_is_refused_where_it_leaves_it(text: str, says: str) -> None:
    with pytest.raises(InvalidFile, match=re.escape(says)):
        parse_relation(text)


@given(st.text(max_size=60))
def test_any_text_is_a_relation_or_is_refused_in_our_words(text: str) -> None:
    try:
        relation = parse_relation(text)
    except InvalidFile:
        return
    assert len(relation.sides) == len(relation.comparisons) + 1


NUMBERS = st.floats(min_value=0.001, max_value=1000.0)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.lists(st.sampled_from("+-*/"), min_size=5, max_size=5))
def test_arithmetic_has_the_precedence_of_python(values: list[float], signs: list[str]) -> None:
    text = f"{values[0]!r}" + "".join(f" {sign} {value!r}" for sign, value in zip(signs, values[1:], strict=False))
    assert verdict(f"{text} == {eval(text)!r}") == (True, "")  # the oracle; ``text`` is made of numbers and + - * / alone


def test_conditions_keep_what_a_pin_is_written_with() -> None:
    first, second = parse_conditions("pins == 'wide.weight=S(0); deep.weight=B', stages >= -1")
    assert (first.column, first.value, second.value) == ("pins", "wide.weight=S(0); deep.weight=B", -1.0)
    assert parse_conditions(" ") == ()


@pytest.mark.parametrize("text", ["stages=2", "stages == 2", "stages>1", "schedule=gpipe", "schedule!=1f1b"])
def test_a_condition_of_a_command_line_selects_what_the_same_condition_in_brackets_does(text: str) -> None:
    plain = parse_plain_condition(text)
    quoted = f"{plain.value!r}" if isinstance(plain.value, str) else f"{plain.value:g}"
    assert [plain] == list(parse_conditions(f"{plain.column} {plain.comparison} {quoted}"))
    assert 0 < len(select(ROWS, [plain], COLUMNS)) < len(ROWS)


@pytest.mark.parametrize(
    ("comparison", "met"), [("==", {1.0}), ("<=", {1.0}), (">=", {1.0, 2.0}), ("<", set()), (">", {2.0}), ("!=", {2.0, None})]
)
def test_an_empty_cell_meets_no_condition_but_not_equal(comparison: str, met: set[float | None]) -> None:
    rows: list[Row] = [{"stages": None}, {"stages": 1.0}, {"stages": 2.0}]
    assert {row["stages"] for row in select(rows, [Condition("stages", comparison, 1.0)], COLUMNS)} == met
