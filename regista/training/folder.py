"""What a training leaves in its folder.

DIR/plan.json          the Plan, made once; a training that is resumed performs the same
DIR/eval_plan.json     the Plan of its evaluations
DIR/checkpoints/       as 'regista run --checkpoint' writes them
DIR/metrics.csv        a row per step (regista.training.history)
DIR/curve.png          the picture of it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoint.folder import make_folder, steps_of
from backend.checkpoint.owner import Owner, check_free, held
from planner.ir.errors import InvalidFile
from planner.ir.files import save_plan
from planner.ir.plan import Plan

__all__ = ["TrainFolder"]


@dataclass(frozen=True, slots=True)
class TrainFolder:
    """The files of one training."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def eval_plan(self) -> Path:
        return self.path / "eval_plan.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @property
    def saved_steps(self) -> int | None:
        """Of the newest checkpoint; None: there is none."""
        steps = steps_of(self.checkpoints)
        return steps[-1] if steps else None

    def check_new(self) -> None:
        """Raises InvalidFile: the folder holds a training already, or is a file."""
        if self.path.exists() and not self.path.is_dir():
            raise InvalidFile(f"{self.path} is a file; give a folder for the training")
        if self.saved_steps is not None or self.metrics.exists():
            saved = f"saved after {self.saved_steps} steps" if self.saved_steps is not None else "without a checkpoint"
            raise InvalidFile(f"{self.path} holds a training, {saved}; go on with it (--resume), or give another folder")

    def check_free(self) -> None:
        """Raises InvalidFile: another training goes on here, or another run saves into the checkpoints."""
        check_free(self.path)
        check_free(self.checkpoints)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other trainings out, between runs too.  Raises InvalidFile: another one is here, or the folder cannot be made."""
        with held(self.path, Owner.here(f"of training {self.path.name}")):
            yield

    def save(self, plan: Plan, path: Path) -> None:
        """Save a plan of the training; the folder is made if need be.  Raises InvalidFile: the system refuses."""
        make_folder(self.path)
        save_plan(plan, str(path))
