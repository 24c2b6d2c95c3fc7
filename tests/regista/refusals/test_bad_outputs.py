"""Outputs that cannot be written are refused before the work, and a failed write leaves the old file."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import TINY, Command

from planner.ir.files import load_trace
from tests.regista.refusals.refusal import assert_refused


@pytest.mark.parametrize("verb", ["plan", "simulate", "run", "compare", "gantt", "export", "calibrate"])
@pytest.mark.parametrize("where", ["folder", "missing", "inside a file", "device", "no space for files"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    command: Command, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, where: str
):
    (tmp_path / "file").write_text("")
    places = {
        "folder": (tmp_path, "it is a folder; give the name of a file"),
        "missing": (tmp_path / "no" / "x.png", "No such file or directory; give a path in an existing, writable folder"),
        "inside a file": (tmp_path / "file" / "x.png", "Not a directory"),
        "device": (Path("/dev/null"), "not a regular file"),
        # Even root cannot make files there.
        "no space for files": (Path("/proc/x.png"), "give a path in an existing, writable folder"),
    }
    for work in (
        "regista.api.plan",
        "regista.calibrate.calibrate_machine",
        "regista.verbs.running.run.load_plan",
        "regista.verbs.showing.compare.load_steps",
        "regista.verbs.showing.simulate.load_plan",
        "regista.verbs.showing.traces.load_trace",
    ):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("the work was begun"))
    arguments = {
        "plan": [TINY, "--cluster", "local:2"],
        "simulate": [made["plan"]],
        "run": [made["plan"]],
        "compare": [made["sim"], made["run"]],
        "gantt": [made["sim"]],
        "export": [made["sim"]],
        "calibrate": [],
    }[verb]
    path, says = places[where]
    assert_refused(command, tmp_path, verb, *arguments, "-o", path, says=says)


def test_an_output_never_replaces_an_input_or_another_output(command: Command, made: dict[str, Path], tmp_path: Path):
    plan = tmp_path / "plan.json"
    plan.write_bytes(made["plan"].read_bytes())
    (tmp_path / "link").symlink_to(plan)
    for name in (plan, tmp_path / "." / "plan.json", tmp_path / "link"):
        assert_refused(command, tmp_path, "simulate", plan, "-o", name, says="the same command reads or writes that file")
    one = tmp_path / "one.png"
    assert_refused(command, tmp_path, "compare", made["sim"], made["run"], "-o", one, "--gantt", one, says="reads or writes that file")


def test_a_picture_of_unknown_format_is_refused_before_anything_is_written(command: Command, made: dict[str, Path], tmp_path: Path):
    goal = ("compare", made["sim"], made["run"], "-o", tmp_path / "c.json", "--gantt", tmp_path / "g.xyz")
    assert_refused(command, tmp_path, *goal, says="format 'xyz' is not among .*; name it .png or .svg")
    assert_refused(command, tmp_path, "gantt", made["sim"], "-o", tmp_path / "g", says="without suffix")


def test_demo_refuses_its_folder_and_model_before_it_measures(command: Command, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert_refused(command, tmp_path, "demo", "--out", tmp_path / "file", says="cannot make folder")
    (tmp_path / "out").mkdir()
    assert_refused(command, tmp_path, "demo", "--out", tmp_path / "out", "--model", "zoo:nope", says="the zoo has no 'nope'")


def test_a_link_is_written_through_and_a_failed_write_leaves_the_old_file(
    command: Command, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert_refused(command, tmp_path, "simulate", made["plan"], "-o", tmp_path / "link.json", says="No space left on device")
    assert command("simulate", made["plan"], "-o", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    load_trace(str(tmp_path / "real.json"))
