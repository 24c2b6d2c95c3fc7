"""Faults are slips of the program, never of its texts; and the check tells what a test catches from what none does."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.faults import changes_program, faults_of
from tests.mutation.results import scores
from tests.mutation.tree import ROOMS


@pytest.mark.parametrize(
    ("source", "kind", "slip"),
    [
        ("c = a < b", "comparison", "c = (a <= b)"),
        ("c = a is None", "comparison", "c = (a is not None)"),
        ("c = a + b", "arithmetic", "c = (a - b)"),
        ("c = -a", "arithmetic", "c = (a)"),
        ("c = a and b", "junction", "c = (a or b)"),
        ("c = a[1:]", "constant", "c = a[(2):]"),
        ("c = f(fold=True)", "constant", "c = f(fold=(False))"),
        ("if ready: go()", "condition", "if (not ready): go()"),
        ("c = min(a)", "function", "c = (max(a))"),
        ("c = sorted(a, key=b)", "function", "c = (list(a))"),
        ("c = f(a, b, k=d)", "arguments", "c = (f(b, a, k=d))"),
        ("for a in b: break", "jump", "for a in b: continue"),
        ("def f(a): return a", "result", "def f(a): return None"),
        ("a.b = c", "statement", "pass"),
        ("a[0] += c", "statement", "a[0] -= c"),
        ("a.f()", "statement", "pass"),
        ("raise ValueError(a)", "statement", "pass"),
    ],
)
def test_each_kind_of_slip_is_among_the_faults(source: str, kind: str, slip: str) -> None:
    assert (kind, slip) in [(fault.kind, fault.planted(source)) for fault in faults_of("m.py", source)]


@pytest.mark.parametrize(
    "source",
    [
        '"""One of 2 texts."""',
        'raise_it = f"{a + 1} acts"',
        "assert a < 3",
        "a: Sequence[3] | None",
        "@order(3)\ndef f(a: x | y) -> z | None: ...",
        '__all__ = ["a", "b"][:2]',
        "def __repr__(self): return a + b",
        "if TYPE_CHECKING: a = 3",
        "for a in zip(b, strict=True): pass",
        "a: int = field(repr=False)",
        "logger.info(a, b)",
    ],
)
def test_what_no_behaviour_hangs_on_has_no_faults(source: str) -> None:
    assert faults_of("m.py", source) == []


def test_only_the_place_of_a_fault_changes_and_columns_count_bytes() -> None:
    source = 'x = "→", a < b  # why\ny = 2\n'
    (fault,) = [fault for fault in faults_of("m.py", source) if fault.kind == "comparison"]
    assert fault.planted(source) == 'x = "→", (a <= b)  # why\ny = 2\n'


def test_two_faults_of_one_line_are_told_apart() -> None:
    faults = [fault for fault in faults_of("m.py", "a = b[0] + c[0]") if fault.before == "0"]
    assert len({fault.key for fault in faults}) == 2 == len(faults)


def test_a_fault_that_leaves_the_bytecode_as_it_is_is_none() -> None:
    (swapped,) = [fault for fault in faults_of("m.py", "c = f(a, a)") if fault.kind == "arguments"]
    assert not changes_program(swapped, "c = f(a, a)")


def test_the_score_is_per_room_and_names_the_survivors() -> None:
    row = {
        "room": "r",
        "module": "m.py",
        "line": "3",
        "kind": "comparison",
        "before": "a < b",
        "after": "a <= b",
        "tests": "2",
        "of_tests": "4",
    }
    rows = {("1",): row | {"caught_by": "test_a"}, ("2",): row | {"caught_by": ""}}
    assert scores(rows).splitlines() == [
        "r                       1 of    2 caught   50.0%",
        "all                     1 of    2 caught   50.0%",
        "survives 2 of 4 tests: m.py:3 comparison: a < b  ->  a <= b",
    ]


@pytest.mark.thorough
def test_a_fault_that_a_test_sees_is_caught_and_one_that_none_sees_survives(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    files = {
        "planner/__init__.py": "",
        "planner/solve/small.py": "def is_small(a):\n    return a < 3\n\n\ndef is_large(a):\n    return a > 3\n",
        **{part: "" for parts in ROOMS.values() for part in parts if part.endswith(".py")},
        "tests/test_small.py": "from planner.solve.small import is_large, is_small\n\n\n"
        "def test_three_is_not_small():\n    assert is_small(2) and not is_small(3)\n\n\n"
        "def test_four_is_large():\n    assert is_large(4)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "small"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    check = [sys.executable, "-m", "tests.mutation", "--workers", "1"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{root}", "OMP_NUM_THREADS": "1"}
    subprocess.run(check, cwd=tmp_path, env=environment, check=True, capture_output=True)
    with (tmp_path / "out/mutation.csv").open() as file:
        caught_by = {(row["line"], row["after"]): row["caught_by"] for row in csv.DictReader(file)}
    small, large = "tests/test_small.py::test_three_is_not_small", "tests/test_small.py::test_four_is_large"
    assert caught_by == {
        **{("2", after): small for after in ("a <= 3", "4", "return None")},
        ("6", "a >= 3"): "",
        **{("6", after): large for after in ("4", "return None")},
    }
