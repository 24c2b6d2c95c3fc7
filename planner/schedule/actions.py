"""A pipeline schedule as data: per device, the passes that it performs in order, each with its stage and its micro-batch.

    F   forward                              needs F of the stage before
    B   backward, both parts in one act      needs F of its own stage and the gradient from the stage after
    I   backward, input part                 the same; its result goes to the stage before (the zero-bubble paper calls this part B)
    W   backward, weight part                needs I of its own stage; no pass of the step needs it

Stages count from 0 in the order of the model.  With p devices and v stages on each, stage s lies on device s mod p (interleaving).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

__all__ = ["Action", "Pass", "PipelineSchedule"]


class Pass(Enum):
    """The letters are those of torch's pipelining files."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    @property
    def sends_gradient(self) -> bool:
        """Whether the stage before needs its result."""
        return self in (Pass.BACKWARD, Pass.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Action:
    """One act of a pipeline; written as torch does, e.g. ``2F0``."""

    stage: int
    kind: Pass
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """``orders[d]``: the acts that device d performs in one step, in order.

    >>> print(PipelineSchedule("1f1b", ((Action(0, Pass.FORWARD, 0), Action(0, Pass.BACKWARD, 0)),)))
    0F0 0B0
    """

    name: str
    orders: tuple[tuple[Action, ...], ...]

    @property
    def num_devices(self) -> int:
        return len(self.orders)

    @cached_property
    def num_stages(self) -> int:
        return 1 + max((action.stage for action in self.actions()), default=-1)

    @cached_property
    def micro_batches(self) -> int:
        return 1 + max((action.micro_batch for action in self.actions()), default=-1)

    @cached_property
    def device_of(self) -> tuple[int, ...]:
        """Stage -> the first device that performs one of its passes; planner.schedule.legality refuses a second one."""
        first_device: dict[int, int] = {}
        for device, order in enumerate(self.orders):
            for action in order:
                first_device.setdefault(action.stage, device)
        return tuple(first_device.get(stage, -1) for stage in range(self.num_stages))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether some backward pass is performed in two parts."""
        return any(action.kind is Pass.BACKWARD_WEIGHT for action in self.actions())

    def actions(self) -> Iterator[Action]:
        for order in self.orders:
            yield from order

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, order)) for order in self.orders)
