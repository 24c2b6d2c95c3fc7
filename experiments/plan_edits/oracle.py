"""What an edited Plan computes, beside the Plan that it was made from: losses, states, gradients and outputs of two steps.

State and optimizer state are drawn, so that no two values are equal by chance: a Plan is wrong if it is wrong for some values.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from unittest import mock

import torch
from torch import Tensor

import backend
from backend.run_folder import Outcome
from experiments.fuzz_plans import Endless, deadline
from planner.frontend import Program
from planner.ir.errors import RegistaError
from planner.ir.graph import InputKind, Mode
from planner.ir.plan import Plan
from regista import programs

__all__ = ["DEADLINE_S", "Oracle", "Performed", "Verdict"]

STEPS = 2
DEADLINE_S = 30.0
"""Seconds of this process's own work for one Plan; the unedited ones take less than one."""
_TOLERANCE = 2e-5
_TOLERANCE_MIXED = 0.05


class Performed(Enum):
    EQUAL = "equal"
    DIFFERENT = "different"
    REFUSED = "refused"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """error: the largest difference of a value, relative to its largest element.   what: where it is, or what was said."""

    performed: Performed
    error: float = 0.0
    what: str = ""


class Oracle:
    """Performs Plans of one program.

    Args:
        plan: the Plan that is right.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.program: Program = programs.planned_program(plan)
        precise = all(t.dtype.value not in ("bfloat16", "float16") for r in plan.regsts for t in r.tensors)
        self._tolerance = _TOLERANCE if precise else _TOLERANCE_MIXED
        self._expected: dict[int, Outcome] = {}

    def verdict(self, edited: Plan, draw: int = 0) -> Verdict:
        """What becomes of an edited Plan, in a process of its own: kernels given other shapes than they are made for may end it.

        Args:
            draw: number of the drawn state.
        """
        self._right(draw)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "wb") as pipe:
                    pickle.dump(self.verdict_here(edited, draw), pipe)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        if status:
            return Verdict(performed=Performed.CRASHED, what=f"the process ended with code {os.waitstatus_to_exitcode(status)}")
        verdict = pickle.loads(said)
        assert isinstance(verdict, Verdict)
        return verdict

    def verdict_here(self, edited: Plan, draw: int = 0) -> Verdict:
        """The same in this process."""
        expected = self._right(draw)
        try:
            with deadline(DEADLINE_S):
                with mock.patch.object(programs, "validate"):  # whose word is asked for by itself
                    programs.check_program(edited, self.program, self._state(draw))
                outcome = self._perform(edited, draw)
        except RegistaError as error:
            return Verdict(performed=Performed.REFUSED, what=f"{type(error).__name__}: {error}")
        except (Exception, Endless) as error:
            return Verdict(performed=Performed.CRASHED, what=f"{type(error).__name__}: {error}")
        worst, where = max(_differences(outcome, expected), key=lambda pair: pair[0])
        performed = Performed.DIFFERENT if worst > self._tolerance else Performed.EQUAL
        return Verdict(performed=performed, error=worst, what=where)

    def _right(self, draw: int) -> Outcome:
        if draw not in self._expected:
            self._expected[draw] = self._perform(self.plan, draw)
        return self._expected[draw]

    def _perform(self, plan: Plan, draw: int) -> Outcome:
        batches = self.program.batches(self.plan.micro_batches)
        numbers = self.program.step_numbers
        return backend.perform(plan, self._state(draw), batches, STEPS, gradients=plan.mode is Mode.TRAIN, numbers=numbers)

    def _state(self, draw: int) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(draw)
        kinds = self._kinds
        return {name: _drawn(value, kinds.get(name), generator) for name, value in self._first.items()}

    @cached_property
    def _first(self) -> Mapping[str, Tensor]:
        return self.program.initial_state(self.plan.micro_batches)

    @cached_property
    def _kinds(self) -> Mapping[str, InputKind]:
        return {entry.name: entry.kind for entry in self.plan.states}


def _drawn(value: Tensor, kind: InputKind | None, generator: torch.Generator) -> Tensor:
    """A value near the first one, whose elements all differ; positive where it was, since variances must be."""
    if not value.is_floating_point() or kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.OPTIMIZER_STATE):
        return value
    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
    if kind is InputKind.OPTIMIZER_STATE:
        return value if value.ndim == 0 else value + 1e-6 * (0.5 + noise)
    return value * (1 + 0.2 * noise) + 0.05 * (noise - 0.5) * (value == 0)


def _differences(outcome: Outcome, expected: Outcome) -> Iterator[tuple[float, str]]:
    yield _error(torch.tensor(outcome.losses), torch.tensor(expected.losses)), "loss"
    for what, made, wanted in (("state", outcome.states, expected.states), ("gradient", outcome.gradients, expected.gradients)):
        yield from _by_name(what, made, wanted)
    for step, (made, wanted) in enumerate(zip(outcome.outputs, expected.outputs, strict=True)):
        yield from _by_name(f"step {step}: output", made, wanted)


def _by_name(what: str, made: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[tuple[float, str]]:
    for name in made.keys() ^ wanted.keys():
        yield float("inf"), f"{what} {name} is there in one alone"
    for name in made.keys() & wanted.keys():
        yield _error(made[name], wanted[name]), f"{what} {name}"


def _error(made: Tensor, wanted: Tensor) -> float:
    if made.shape != wanted.shape:
        return float("inf")
    a, b = made.double(), wanted.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    error = ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
    return error if error == error else float("inf")
