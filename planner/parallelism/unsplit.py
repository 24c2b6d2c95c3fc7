"""What a ZeRO level asked to split and what stayed whole, because the number of devices divides none of its dims."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind
from planner.ir.plan import Plan, TaskKind
from planner.ir.units import show_bytes
from planner.search.zero import num_splits

__all__ = ["UnsplitStates", "ZeroUnmet", "check_zero"]


class ZeroUnmet(UserWarning):
    """A ZeRO level left states whole on every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsplitStates:
    """States that a level should have split and did not.

    names: in the order of the plan.   size_bytes: theirs on one device.   asked, asked_bytes: how many states the level is about, and their bytes.
    devices: of the largest mesh that holds some.
    """

    level: int
    names: tuple[str, ...]
    size_bytes: int
    asked: int
    asked_bytes: int
    devices: int

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (f" and {len(self.names) - 3} more" if len(self.names) > 3 else "")
        split = "splits nothing" if len(self.names) == self.asked else f"leaves {len(self.names)} of {self.asked} states whole"
        if not self.asked:
            return f"ZeRO level {self.level} splits nothing: the optimizer keeps no state; leave --zero out"
        if self.devices == 1:
            return f"ZeRO level {self.level} splits nothing: each stage has one device; leave --zero out, or use fewer stages"
        return (
            f"ZeRO level {self.level} {split} on each of {self.devices} devices, {show_bytes(self.size_bytes)} of "
            f"{show_bytes(self.asked_bytes)}: the devices divide no dim of {shown}; use a mesh whose extent divides one"
        )


def check_zero(plan: Plan, level: int) -> UnsplitStates | None:
    """What the level left whole; None: nothing.  Scalars (a step count) are no matter.

    Raises:
        Unsupported: there are states and devices to split over, and nothing is split.
    """
    kinds = {InputKind.OPTIMIZER_STATE}
    if level == 3:
        kinds |= {InputKind.PARAMETER, InputKind.WORKING_COPY}
    copied = {state.copy_of for state in plan.states}
    passes = {
        (read.regst, read.index) for task in plan.tasks if task.kind.is_compute and task.kind is not TaskKind.UPDATE for read in task.reads
    }
    names, sizes, asked, extents = [], [], [], [1]
    for state in plan.states:
        regst = plan.regst[state.regst]
        tensor, placement = regst.tensors[state.index], plan.placement[regst.placement]
        is_master = state.name in copied and (state.regst, state.index) not in passes  # updates alone read it
        if (state.kind not in kinds and not is_master) or not tensor.shape:
            continue
        asked.append(math.prod(tensor.shape) * tensor.dtype.size_bytes)
        extents.append(math.prod(placement.mesh))
        if not num_splits(tensor.sbp):
            names.append(state.name)
            sizes.append(tensor.local_bytes(placement))
    unmet = UnsplitStates(
        level=level, names=tuple(names), size_bytes=sum(sizes), asked=len(asked), asked_bytes=sum(asked), devices=max(extents)
    )
    if asked and unmet.devices > 1 and len(names) == len(asked):
        raise Unsupported(str(unmet))
    return unmet if names or not asked else None
