"""What a validation proves, in numbers, and what it leaves open."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ValidationReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """What was proven of a Plan.

    tasks, ops, tensors: of the Plan, each of them executed symbolically; a tensor is what a task writes into a Regst, whatever the number of ranks.
    states: after a step, each is what the program makes of it.   gradients, outputs: likewise.
    not_checked: what the proof takes for granted in this Plan beyond the trusted base, in words; empty: nothing.
    """

    tasks: int
    ops: int
    tensors: int
    states: int
    gradients: int
    outputs: int
    micro_batches: int
    not_checked: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"computes its program: {self.tasks} tasks, {self.ops} ops and {self.tensors} tensors, the loss, {self.gradients} gradients, "
            f"{self.states} states and {self.outputs} outputs in {self.micro_batches} micro-batches"
        )
        return text if not self.not_checked else f"{text}; not checked: {'; '.join(self.not_checked)}"
