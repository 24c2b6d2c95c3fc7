"""The readers of each value on each stage, and the values that are saved there for the backward part."""

from __future__ import annotations

from planner.ir.graph import Op, Role
from planner.stages import Staged
from planner.stages.blocks import unshard_unit

__all__ = ["Readers"]


class Readers:
    """Readers of a staged graph's values.

    saved: (value, stage) of values that the forward part makes or reads and that the stage's backward part reads later; empty if memory is
        not counted.
    """

    def __init__(self, staged: Staged, *, is_limited: bool) -> None:
        graph = staged.graph
        self._ops: dict[tuple[str, int], list[Op]] = {}
        self._replaced: dict[tuple[str, int], list[str]] = {}
        self._roles: dict[tuple[str, int], set[Role]] = {}
        self._stages: dict[str, set[int]] = {}
        self._units: dict[tuple[str, int], set[str]] = {}
        self._last_unit: dict[int, str] = {}
        by_id = {op.id: op for op in graph.ops}
        for op in graph.ops:
            stage = staged.stage[op.id]
            for value in dict.fromkeys(op.inputs):
                self._stages.setdefault(value, set()).add(stage)
                self._ops.setdefault((value, stage), []).append(op)
                self._roles.setdefault((value, stage), set()).add(op.role)
                if op.role is Role.FORWARD and value in graph.updates:
                    self._last_unit[stage] = unshard_unit(op, by_id)
                    self._units.setdefault((value, stage), set()).add(self._last_unit[stage])
        for old, new in graph.updates.items():
            self._stages.setdefault(new, set()).add(staged.state_stage(old))
            self._replaced.setdefault((new, staged.state_stage(old)), []).append(old)
        forward = {value for op in graph.ops if op.role is Role.FORWARD for value in op.outputs if value}
        self.saved = frozenset(
            (value, stage)
            for (value, stage), roles in self._roles.items()
            if is_limited and Role.BACKWARD in roles and (value in forward or (value in graph.updates and Role.FORWARD in roles))
        )

    def stages(self, value: str) -> list[int]:
        """The stages, ascending, on which the value is read or replaces a state."""
        return sorted(self._stages.get(value, ()))

    def ops(self, value: str, stage: int) -> list[Op]:
        """The ops of a stage that read the value."""
        return self._ops.get((value, stage), [])

    def replaced(self, value: str, stage: int) -> list[str]:
        """The states stored on a stage that the value replaces."""
        return self._replaced.get((value, stage), [])

    def num_passes(self, value: str, stage: int) -> int:
        """The number of passes of a micro-batch (forward, backward) in which a stage reads the value."""
        return len(self._roles.get((value, stage), set()) & {Role.FORWARD, Role.BACKWARD})

    def begins_backward(self, value: str, stage: int) -> bool:
        """Whether the last unit of the stage's forward part reads this state; the backward part begins with that unit."""
        return self._last_unit.get(stage) in self._units.get((value, stage), ())
