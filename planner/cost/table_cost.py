"""The CostModel of one device whose kernels were measured one by one: fragments are the sum of their kernels, all else as the cluster says.

(1) fragment   overhead + max(sum of the kernels' times, launches of the host)      KernelTable.work_s -> TableCost.act_s
(2) copy       overhead + the copy as measured, of what a COPY task brings to the device
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.analytic import AnalyticCost
from planner.cost.kernels.table import KernelTable
from planner.ir.errors import Mismatch
from planner.ir.plan import Fragment, Plan, Task, TaskKind
from planner.ir.text import content_id

__all__ = ["TableCost"]


@dataclass(frozen=True)
class TableCost:
    """See the module's text.   others: prices what the table does not hold."""

    table: KernelTable
    others: AnalyticCost

    @property
    def id(self) -> str:
        return f"{self.table.id}-{content_id(self.others.cluster)}"

    @property
    def alone_on_links(self) -> bool:
        return self.others.alone_on_links

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return self.others.message_s(src_rank, dst_rank)

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        """Raises Mismatch: the Plan's fragments list no kernels, or the table has none of a kind and dtype."""
        overhead_s = self.others.cluster.device.act_overhead_s
        if isinstance(task.body, Fragment) and task.body.flop + task.body.traffic_bytes > 0:
            kernels = task.body.kernels
            if not kernels and task.body.flop:
                raise Mismatch(
                    f"plan {plan.plan_id} lists no kernels, as it was planned for a cluster without 'kernels' in its file; plan it anew for one that "
                    f"has them, or measure its acts with 'regista calibrate PLAN'"
                )
            device_s = sum(work.times * self.table.work_s(work) for work in kernels)
            return overhead_s + max(device_s, self.table.launch_s * sum(work.times for work in kernels))
        if task.kind is TaskKind.COPY:
            placement = plan.placement[task.placement]
            written = sum(plan.regst[a.regst].tensors[a.index].local_bytes(placement) for a in task.writes)
            return overhead_s + self.table.copy_s(written, to_device=True)
        return self.others.act_s(plan, task, rank)
