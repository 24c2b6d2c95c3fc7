"""One method of a performer carries out each kind of task.

A new kind is added to this table; mypy then names the performers that lack its method.

kind                                 method      reads            writes                        ranks
SOURCE, STEP_INPUT, PREPARE          load        nothing or raw   what the host makes of it     one by one
COPY                                 copy        values           the same values               one by one
FORWARD, BACKWARD, WEIGHT, UPDATE    compute     values           its fragment's results        one by one
BOXING                               box         parts            parts in another layout       all of an axis together
TRANSFER                             transfer    parts            blocks of the receivers       sender by sender
FETCH                                fetch       the loss         nothing: the caller has it    one by one
SAVE                                 save        the state        nothing: files have it        one by one
OUTPUT                               output      the outputs      nothing: the caller has them  one by one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, assert_never

from torch import Tensor

from backend.acts.act import Batches, prepared_parts, source_parts
from backend.acts.step_inputs import StepNumbers, step_input_parts
from planner.ir.plan import Plan, Task, TaskKind

__all__ = ["Performer", "copied_values", "loaded_parts", "method_of"]

_Act = TypeVar("_Act", contravariant=True)
_Done = TypeVar("_Done", covariant=True)


class Performer(Protocol[_Act, _Done]):
    """Who performs acts: what ``_Act`` says of one and what ``_Done`` comes of it is the performer's own."""

    def load(self, act: _Act) -> _Done: ...
    def copy(self, act: _Act) -> _Done: ...
    def compute(self, act: _Act) -> _Done: ...
    def box(self, act: _Act) -> _Done: ...
    def transfer(self, act: _Act) -> _Done: ...
    def fetch(self, act: _Act) -> _Done: ...
    def save(self, act: _Act) -> _Done: ...
    def output(self, act: _Act) -> _Done: ...


def method_of(performer: Performer[_Act, _Done], kind: TaskKind) -> Callable[[_Act], _Done]:
    """The performer's method for tasks of a kind."""
    match kind:
        case TaskKind.SOURCE | TaskKind.STEP_INPUT | TaskKind.PREPARE:
            return performer.load
        case TaskKind.COPY:
            return performer.copy
        case TaskKind.FORWARD | TaskKind.BACKWARD | TaskKind.WEIGHT | TaskKind.UPDATE:
            return performer.compute
        case TaskKind.BOXING:
            return performer.box
        case TaskKind.TRANSFER:
            return performer.transfer
        case TaskKind.FETCH:
            return performer.fetch
        case TaskKind.SAVE:
            return performer.save
        case TaskKind.OUTPUT:
            return performer.output
    assert_never(kind)


def loaded_parts(
    plan: Plan, task: Task, rank: int, act: int, values: Sequence[Tensor], batches: Batches, numbers: StepNumbers
) -> list[Tensor]:
    """What a task of ``load`` writes in one act, counted from the run's first step.

    Args:
        values: what it reads.   batches, numbers: step -> what comes from outside in it.

    Raises:
        InvalidPlan, InvalidProgram, InvalidFile: see backend.acts.act and backend.acts.step_inputs.
    """
    if task.kind is TaskKind.STEP_INPUT:
        return step_input_parts(task, act, numbers)
    if task.kind is TaskKind.PREPARE:
        return prepared_parts(plan, task, rank, values, batches)
    return source_parts(plan, task, rank, act, batches)


def copied_values(values: list[Tensor], slots: Sequence[Tensor | None]) -> list[Tensor]:
    """What a COPY stores: copies, which storing into memory of their own (slots) makes anyway."""
    return values if slots else [value.clone() for value in values]
