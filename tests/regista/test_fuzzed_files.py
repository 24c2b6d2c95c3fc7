"""Damaged files of every kind end in a result or in one sentence, whichever verb reads them.  ``python -m experiments.fuzz_files`` tries more."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from experiments import fuzz_files
from experiments.fuzz_files import FileKind, damaged_file, fate, file_kinds, fuzz, to_toml
from experiments.fuzz_plans import deadline

FOUND = {
    "claims": (5, 15, 44),  # texts where sections are
    "schedule": (14,),  # a stage of 5,000 digits
    "manifest": (86, 180, 498),  # a mesh of 5,000 digits; a figure of an option
    "plan": (15, 1709),  # an op with more operands than its program's; an option that is no number
    "cost": (1452,),  # acts whose times add up to more than a float holds
    "contest": (1608, 4669),  # an interval that ends beyond 64 bits
}
"""Numbers of damages that once ended in a traceback."""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileKind]:
    return file_kinds(tmp_path_factory.mktemp("right"))


@pytest.mark.thorough
def test_right_files_of_every_kind_are_read_to_the_end(kinds: dict[str, FileKind], tmp_path: Path):
    for name, kind in kinds.items():
        assert fate(kind, kind.text, tmp_path) == "done", name


@pytest.mark.parametrize("name", sorted(FOUND))
def test_what_once_ended_in_a_traceback_is_refused(kinds: dict[str, FileKind], name: str, tmp_path: Path):
    for number in FOUND[name]:
        assert fate(kinds[name], damaged_file(kinds[name], number), tmp_path) in ("refused", "done")


@pytest.mark.thorough
def test_quotas_of_a_plan_of_1800_acts_end_near_their_seconds(kinds: dict[str, FileKind], tmp_path: Path):
    with deadline(30.0):
        assert fate(kinds["plan"], damaged_file(kinds["plan"], 4991), tmp_path) in ("refused", "done")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_damaged_file_is_read_or_refused_in_one_sentence(kinds: dict[str, FileKind]):
    light = {name: kind for name, kind in kinds.items() if name not in ("plan", "trace", "manifest")}
    fates, findings = fuzz(light, range(40))
    few, more = fuzz({name: kinds[name] for name in ("plan", "trace")}, range(15))
    assert not findings + more, (findings + more)[:5]
    for name in kinds:
        if name != "manifest":
            assert (fates + few)[f"{name} refused"] > 0, name


def test_a_traceback_a_refusal_without_words_and_a_file_left_behind_would_be_found(
    kinds: dict[str, FileKind], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def crash(*_: object) -> int:
        raise KeyError("deep inside")

    def speechless(*_: object) -> int:
        return 2

    for fault in (crash, speechless):
        with monkeypatch.context() as patch:
            patch.setattr(fuzz_files, "command_line", fault)
            _, findings = fuzz({"cluster": kinds["cluster"]}, range(3))
            assert len(findings) == 3

    def leaves(argv: list[str]) -> int:
        Path(argv[-1]).write_text("half")
        print("a sentence that is long enough", file=sys.stderr)
        return 2

    with monkeypatch.context() as patch:
        patch.setattr(fuzz_files, "command_line", leaves)
        with pytest.raises(AssertionError, match="left"):
            fate(kinds["cluster"], b"", tmp_path)


def test_a_damage_is_named_by_its_number_and_toml_is_written_as_it_is_read(kinds: dict[str, FileKind]):
    for kind in kinds.values():
        some = [damaged_file(kind, number) for number in range(12)]
        assert some == [damaged_file(kind, number) for number in range(12)]
        assert sum(text != kind.text for text in some) >= 8
    data = {"a": 1, "b c": {"d": [1.5, "x", True]}, "e": [{"f": "\n"}]}
    assert tomllib.loads(to_toml(data)) == data
