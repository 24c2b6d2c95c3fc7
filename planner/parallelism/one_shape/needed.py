"""The bytes that a Plan needs of its fullest device, counted once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.cost import AnalyticCost
from planner.ir.actors.peak import live_bytes
from planner.ir.actors.verify import device_bytes
from planner.ir.plan import Plan
from planner.parallelism.one_shape.job import Job

__all__ = ["NeededBytes"]


@dataclass(slots=True)
class NeededBytes:
    """Of the Plans of a job; what was found of the Plan last asked about is not worked out again."""

    job: Job
    _played: tuple[Plan, Mapping[int, int]] | None = None
    _counted: tuple[Plan, int] | None = None

    def of(self, plan: Plan) -> int:
        """Bytes that the fullest device needs.

        They are those of all blocks of its Regsts, if these fit; else what it holds at once at most, where acts take the same time or the cluster's,
        whichever is more.
        """
        if self._counted is None or self._counted[0] is not plan:
            self._counted = plan, self._count(plan)
        return self._counted[1]

    def live(self, plan: Plan) -> Mapping[int, int]:
        """Per rank, the bytes that it holds at most in the job's dry run without prices."""
        assert self.job.dry_run is not None
        if self._played is None or self._played[0] is not plan:
            self._played = plan, self.job.dry_run(plan)
        return self._played[1]

    def played(self, plan: Plan) -> Mapping[int, int] | None:
        """``live`` of the Plan last asked about, if this is it but for its record; None: it was another."""
        return self._played[1] if self._played is not None and self._played[0].streams is plan.streams else None

    def _count(self, plan: Plan) -> int:
        cluster = self.job.cluster
        if (whole_bytes := max(device_bytes(plan).values())) <= cluster.device.memory_bytes:
            return whole_bytes
        cost = AnalyticCost(cluster)
        if self.job.dry_run is not None:
            live, priced = self.job.dry_run.at(plan, (None, cost))
            self._played = plan, live
            return max(*live.values(), *priced.values())
        return max(*live_bytes(plan).values(), *live_bytes(plan, cost.folded_s(plan)).values())
