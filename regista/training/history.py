"""The table of a training: a row per step, with the figures of an evaluation where there was one.

    step,epoch,learning_rate,train_loss,eval_loss,eval_accuracy
    1,0.02,0.001,2.3025851249694824,,

``step`` counts steps that are done.  Numbers are written so that they read back as they were; nothing in it depends on the machine's speed, so the
table of a training that was interrupted and resumed is that of an undisturbed one, byte for byte.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_csv
from planner.ir.text import save_text

__all__ = ["History", "load_history"]

_FIXED = ("step", "epoch", "learning_rate", "train_loss")
_EVAL = "eval_"


@dataclass(slots=True)
class History:
    """names: of what evaluations measure, in order.   rows: step -> its figures by column; those of steps 1, 2, ... without a gap."""

    names: tuple[str, ...]
    rows: dict[int, dict[str, float]] = field(default_factory=dict)

    def add_step(self, step: int, *, epoch: float, learning_rate: float, train_loss: float) -> None:
        self.rows[step] = {"step": step, "epoch": epoch, "learning_rate": learning_rate, "train_loss": train_loss}

    def add_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        self.rows[step] |= {_EVAL + name: values[name] for name in self.names}

    def evaluation(self, step: int) -> dict[str, float] | None:
        """What was measured after ``step`` steps; None: nothing."""
        row = self.rows.get(step, {})
        return {name: row[_EVAL + name] for name in self.names} if self.names and _EVAL + self.names[0] in row else None

    def evaluations(self) -> dict[int, dict[str, float]]:
        """Step -> what was measured after it."""
        evaluations = {step: self.evaluation(step) for step in sorted(self.rows)}
        return {step: values for step, values in evaluations.items() if values is not None}

    def losses(self) -> dict[int, float]:
        """Step -> its training loss."""
        return {step: self.rows[step]["train_loss"] for step in sorted(self.rows)}

    def up_to(self, step: int) -> History:
        """Without what came after ``step`` steps."""
        return History(self.names, {number: row for number, row in self.rows.items() if number <= step})

    def save(self, path: Path) -> None:
        """Write the table, whole or not at all.  Raises InvalidFile: it cannot be written."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = _columns(self.names)
        writer.writerow(columns)
        for step in sorted(self.rows):
            row = self.rows[step]
            writer.writerow(
                ["" if name not in row or (math.isnan(row[name]) and name == "epoch") else _text(row[name]) for name in columns]
            )
        save_text(path, text.getvalue())


def load_history(path: Path, names: Sequence[str]) -> History:
    """A table that was saved.

    Raises:
        InvalidFile: it cannot be read, or it is of a job with other metrics.
    """
    rows = read_csv(path, "give the metrics of a job (CSV), or another folder")
    columns = _columns(names)
    if not rows or tuple(rows[0]) != columns:
        raise InvalidFile(
            f"{path} has the columns {', '.join(rows[0]) if rows else 'of nothing'}, this job has {', '.join(columns)}; give another folder"
        )
    history = History(tuple(names))
    for number, cells in enumerate(rows[1:], start=1):
        try:
            row = {name: float(cell) for name, cell in zip(columns, cells, strict=True) if cell}
            if int(row["step"]) != number:
                raise ValueError(f"step {cells[0]} stands where {number} is due")
        except (KeyError, ValueError) as error:
            raise InvalidFile(f"{path}, line {number + 1}: {error}; remove the file's last lines, or give another folder") from error
        history.rows[number] = {"epoch": math.nan} | row
    return history


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    return _FIXED + tuple(_EVAL + name for name in names)


def _text(number: float) -> str:
    return str(int(number)) if isinstance(number, int) or (number.is_integer() and abs(number) < 1e15) else repr(number)
