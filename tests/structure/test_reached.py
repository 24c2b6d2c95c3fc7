"""What code needs is found from its text alone: never less than what runs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType

import pytest
from matrix import program, read_plan

from planner.validate import validate
from tests.structure.reached import reached
from tests.structure.trusted_base import trusted_code

ROOT = Path(__file__).resolve().parents[2]


def functions(tmp_path: Path, files: dict[str, str], prices: Collection[str] = ()) -> set[str]:
    """The functions that ``begin`` of the first file needs."""
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = reached(tmp_path, [f"{next(iter(files))}.begin"], prices)
    return {f"{path.stem}.{name}" for path, needed in found.items() for name in needed.functions}


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("def begin(): return f()\ndef f(): return g\ndef g(): pass\ndef other(): pass", {"f", "g"}),
        ("def begin(): return TABLE[0]\nTABLE = [f]\ndef f(): pass", {"f"}),
        ("def begin(a: A): return a.f()\nclass A:\n    def f(self): pass\n    def g(self): pass", {"A.f"}),
        ("def begin(a): return a.f()\nclass A:\n    def f(self): pass", set()),
        ("def begin(): A()\nclass A:\n  def __post_init__(self): f()\n  def __str__(self): g()\ndef f(): 0\ndef g(): 0", {"A.__post_init__", "f"}),
        ("def begin(a: A): a.b.f()\nclass A:\n  b: B\n  c: C\nclass B:\n  def f(self): 0\nclass C:\n  def f(self): 0", {"B.f"}),
        ("def begin(): raise ValueError(text())\ndef text(): pass", set()),
        ("def begin(a):\n    what = text()\n    if a: raise ValueError(what)\ndef text(): pass", set()),
        ("def begin(a):\n    what = f()\n    if what: raise ValueError(what)\ndef f(): pass", {"f"}),
        ("def begin(a):\n    a, b = f(), text()\n    if a: raise ValueError(b)\ndef f(): pass\ndef text(): pass", {"f"}),
        ("def begin(a):\n    b = a.pop()\n    raise ValueError(b)\nclass A:\n    def pop(self): pass\nbegin(A())", {"A.pop"}),
        ("def begin(): return Row(rule=f, flop=g)\ndef f(): pass\ndef g(): pass\nclass Row:\n    rule: int\n    flop: int = g", {"f"}),
    ],
)  # fmt: skip
def test_what_a_function_needs(tmp_path: Path, text: str, needed: set[str]) -> None:
    assert functions(tmp_path, {"a": text}, ["flop"]) == {"a.begin"} | {f"a.{name}" for name in needed}


def test_names_are_followed_through_imports_of_names_and_of_modules(tmp_path: Path) -> None:
    files = {
        "a": "from b import f as first\nimport c\nfrom d import h\ndef begin(): return first(), c.g(), h()",
        "b": "def f(): pass",
        "c": "def g(): pass\ndef f(): pass",
        "d": "from e import h",
        "e": "def h(): pass",
    }
    assert functions(tmp_path, files) == {"a.begin", "b.f", "c.g", "e.h"}


def test_a_price_that_is_read_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'flop'"):
        functions(tmp_path, {"a": "def begin(a): return a.flop"}, ["flop"])


def test_lines_are_those_of_code_without_texts_of_errors(tmp_path: Path) -> None:
    body = '"""A text."""\n    # why\n\n    if a:\n        raise ValueError(\n            "long"\n        )\n    return 1'
    text = f"def begin(a):\n    {body}\n\ndef other(): pass\n"
    (tmp_path / "a.py").write_text(text)
    (needed,) = reached(tmp_path, ["a.begin"]).values()
    assert needed.lines(text) == 5  # def, if, raise, its closing bracket, return
    assert needed.holds((9, 4), (9, 12))
    assert not needed.holds((7, 12), (7, 18))
    assert not needed.holds((11, 0), (11, 17))


def test_all_that_a_validation_runs_is_trusted() -> None:
    plan, traced = read_plan("mlp", "pipeline2_data2", "fp32"), program("mlp", "fp32")
    traced.graph(plan.micro_batches)
    texts = {"__str__", "__repr__", "where", "refusal", "shown_facts", "_each", "shown", "at", "_ranks"}
    run: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT / "planner")):
            run.add((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    sys.setprofile(note)
    try:
        validate(plan, traced)
    finally:
        sys.setprofile(None)
    trusted = {(str(path), name) for path, needed in trusted_code(ROOT).items() for name in needed.functions}
    outside = {(path, name) for path, name in run if "<" not in name and name.rpartition(".")[2] not in texts} - trusted
    assert not {pair for pair in outside if not pair[0].startswith("planner/frontend")}
    assert len(run & trusted) > 100
