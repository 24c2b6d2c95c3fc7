"""What each kind of task does is said once: every kind has its method, and the performers are told by nothing else."""

from __future__ import annotations

import pytest

from backend.acts.kinds import method_of
from backend.inprocess.body import ProcessBody
from backend.reference import ReferencePerformer
from backend.worker.rank import RankBody
from planner.ir.plan import TaskKind

METHODS = ("load", "copy", "compute", "box", "transfer", "fetch", "save", "output")


class Recorder:
    """A performer whose methods say their own names."""

    def load(self, act: str) -> str:
        return f"load {act}"

    def copy(self, act: str) -> str:
        return f"copy {act}"

    def compute(self, act: str) -> str:
        return f"compute {act}"

    def box(self, act: str) -> str:
        return f"box {act}"

    def transfer(self, act: str) -> str:
        return f"transfer {act}"

    def fetch(self, act: str) -> str:
        return f"fetch {act}"

    def save(self, act: str) -> str:
        return f"save {act}"

    def output(self, act: str) -> str:
        return f"output {act}"


def test_every_kind_of_task_has_one_method_and_every_method_a_kind() -> None:
    performed = {kind: method_of(Recorder(), kind)("x").split()[0] for kind in TaskKind}
    assert set(performed.values()) == set(METHODS)
    assert {kind for kind, method in performed.items() if method == "compute"} == {kind for kind in TaskKind if kind.is_compute}
    assert {kind for kind, method in performed.items() if method in ("box", "transfer")} == {k for k in TaskKind if k.is_communication}
    assert performed[TaskKind.STEP_INPUT] == performed[TaskKind.SOURCE] == performed[TaskKind.PREPARE] == "load"


@pytest.mark.parametrize("performer", [ReferencePerformer, ProcessBody, RankBody])
def test_each_performer_has_every_method(performer: type) -> None:
    assert all(callable(getattr(performer, method)) for method in METHODS)
