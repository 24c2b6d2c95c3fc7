"""The table of a training reads back as it was written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile
from regista.training.history import History, load_history
from regista.views.pictures.training import draw_training


def history(steps: int = 5) -> History:
    made = History(("loss", "accuracy"))
    for step in range(1, steps + 1):
        made.add_step(step, epoch=step / 3, learning_rate=1e-3 / step, train_loss=1 / 3 / step)
    made.add_evaluation(3, {"loss": 0.1, "accuracy": 1.0})
    return made


def test_a_table_reads_back_to_the_bit_and_can_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    history().save(path)
    assert path.read_text().splitlines()[:2] == [
        "step,epoch,learning_rate,train_loss,eval_loss,eval_accuracy",
        f"1,{1 / 3!r},0.001,{1 / 3!r},,",
    ]
    again = load_history(path, ("loss", "accuracy"))
    assert again.losses() == history().losses() and again.evaluations() == {3: {"loss": 0.1, "accuracy": 1.0}}
    text = path.read_text()
    again.save(path)
    assert path.read_text() == text
    assert list(again.up_to(2).rows) == [1, 2] and again.up_to(2).evaluation(3) is None


def test_losses_that_are_no_numbers_are_kept(tmp_path: Path) -> None:
    made = History(())
    made.add_step(1, epoch=math.nan, learning_rate=0.1, train_loss=math.inf)
    made.add_step(2, epoch=math.nan, learning_rate=0.1, train_loss=math.nan)
    made.save(tmp_path / "m.csv")
    first, second = load_history(tmp_path / "m.csv", ()).losses().values()
    assert first == math.inf and math.isnan(second)


def test_a_table_of_another_job_or_with_a_hole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    history().save(path)
    with pytest.raises(InvalidFile, match="this job has step, epoch, learning_rate, train_loss, eval_loss; give another folder"):
        load_history(path, ("loss",))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    with pytest.raises(InvalidFile, match="line 3: step 3 stands where 2 is due"):
        load_history(path, ("loss", "accuracy"))
    with pytest.raises(InvalidFile, match="no such file"):
        load_history(tmp_path / "none.csv", ())


def test_a_picture_of_two_trainings_is_drawn(tmp_path: Path) -> None:
    draw_training({"ours": history(40), "theirs": history(40)}, tmp_path / "curve.png", title="both")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
