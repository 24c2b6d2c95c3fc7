"""Prices from a cluster description alone.

(1) act      = overhead + max(flop / rate, traffic / memory bandwidth)          roofline     -> AnalyticCost.act_s, op_s
(2) boxing   = alpha + sent bytes / beta, sent bytes from SEMANTICS 2           alpha-beta   -> boxing_s
(3) transfer = alpha + largest sender's bytes / beta                                         -> AnalyticCost.act_s
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.cluster import Cluster
from planner.ir.collective import Collective, sent_bytes
from planner.ir.plan import Boxing, Fragment, Plan, Task, TaskKind
from planner.ir.text import content_id

__all__ = ["AnalyticCost", "boxing_s", "op_s"]


def op_s(cluster: Cluster, flop: float, traffic_bytes: float) -> float:
    """Equation (1) without the overhead, which is paid per act and not per op."""
    device = cluster.device
    return max(flop / device.rate_flop_per_s, traffic_bytes / device.memory_bandwidth_bytes_per_s)


def boxing_s(cluster: Cluster, collective: Collective, total_bytes: float, ranks: tuple[int, ...], *, bucketed: bool = False) -> float:
    """Equation (2): ``total_bytes`` is what the ranks of the axis hold together.

    bucketed: the tensor shares its collective with many others (gradients, parameters), so the latency is not its own.
    """
    if collective is Collective.LOCAL or len(ranks) == 1:
        return 0.0
    link = cluster.link_between(ranks)
    sent = sent_bytes(collective, total_bytes, len(ranks))
    return sent / link.bandwidth_bytes_per_s if bucketed else link.time_s(sent)


@dataclass(frozen=True)
class AnalyticCost:
    """The CostModel of a cluster nobody has measured yet."""

    cluster: Cluster

    @property
    def id(self) -> str:
        return f"analytic-{content_id(self.cluster)}"

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        overhead_s = self.cluster.device.act_overhead_s
        match task.body:
            case Fragment(flop=flop, traffic_bytes=traffic_bytes):
                return overhead_s + op_s(self.cluster, flop, traffic_bytes)
            case Boxing(axis=axis, collective=collective):
                total_bytes = sum(self._axis_bytes(plan, task, i) for i in range(len(task.reads)))
                return overhead_s + boxing_s(self.cluster, collective, total_bytes, plan.placement[task.placement].axis_ranks(axis, rank))
        if task.kind is TaskKind.TRANSFER:
            target = plan.regst[task.produces[0].regst]
            ranks = (rank, plan.placement[target.placement].ranks[0])
            return overhead_s + self.cluster.link_between(ranks).time_s(plan.block_bytes(target))
        return overhead_s

    def _axis_bytes(self, plan: Plan, task: Task, index: int) -> int:
        """Bytes of the tensor that the axis' ranks hold together: the larger of its local size before and after."""
        placement = plan.placement[task.placement]
        read, write = task.reads[index], task.writes[index]
        return max(plan.regst[a.regst].tensors[a.index].local_bytes(placement) for a in (read, write))
