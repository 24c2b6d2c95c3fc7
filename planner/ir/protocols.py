"""Protocols of what is injected across floors: prices for the simulator, a dry run for the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from planner.ir.plan import Plan, Task

__all__ = ["AloneOnLinks", "Contended", "CostModel", "DryRun", "EqualOnRanks"]


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


@runtime_checkable
class Contended(Protocol):
    """A CostModel of a machine whose communication takes processor time from computing."""

    @property
    def compute_slowdown(self) -> float:
        """How many times as long an act computes while its rank sends or receives; 1: it does not feel that."""
        ...


@runtime_checkable
class AloneOnLinks(Protocol):
    """A CostModel that prices every act as if nobody else were on the links of the Plan's cluster."""

    @property
    def alone_on_links(self) -> bool:
        """Whether acts that meet on a link therefore take longer than their prices."""
        ...


@runtime_checkable
class EqualOnRanks(Protocol):
    """A CostModel that knows which acts take equally long on all ranks of their task, so that it is asked for one of them."""

    def equal_on_ranks(self, plan: Plan, task: Task) -> bool:
        """Whether ``act_s`` is the same for every rank of the task."""
        ...


class DryRun(Protocol):
    """A dry run of a Plan: plays its token game; the front door injects the simulator's compiled engine here."""

    def __call__(self, plan: Plan, cost: CostModel | None = None) -> Mapping[int, int]:
        """Live bytes per rank at the worst moment; without prices every act takes a second.

        Raises:
            DeadLock: some act can never start.
        """
        ...

    def at(self, plan: Plan, costs: Sequence[CostModel | None]) -> tuple[Mapping[int, int], ...]:
        """The same at several prices, in less time than one by one."""
        ...
