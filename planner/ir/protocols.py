"""What is injected across floors: prices for the simulator, an evaluator for the search."""

from __future__ import annotations

from typing import Protocol

from planner.ir.plan import Plan, Task

__all__ = ["CostModel", "Evaluator"]


class CostModel(Protocol):
    """Durations, which are never part of a Plan: one Plan can be priced for many machines."""

    @property
    def id(self) -> str:
        """Content id of the table behind the prices."""
        ...

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        """Seconds of one act on ``rank``, without waiting for blocks, peers or the stream."""
        ...

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        """Seconds from the end of an act until the receiver of its message may react (0-byte latency)."""
        ...


class Evaluator(Protocol):
    """Seconds per step of a candidate Plan; the front door injects the simulator here."""

    def __call__(self, plan: Plan) -> float: ...
