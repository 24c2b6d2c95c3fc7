"""Whether acts of a Plan can meet on a link between nodes and together want more than it has: then their prices alone are not their times.

(1) a task's share of a link = bytes of its acts by all its groups at once / (bandwidth x their price)           simulator.network.link_shares
(2) a link is crowded if tasks that can act at once, on other streams or on other ranks, have shares that add up to more than 1

Groups of one task are priced together, so a task alone never crowds a link.
"""

from __future__ import annotations

from planner.ir.plan import Plan
from planner.ir.protocols import AloneOnLinks, CostModel
from simulator.network.fabric import Machine
from simulator.network.link_shares import acting_together, point_to_point

__all__ = ["FULL", "crowded_links", "prices_are_alone"]

FULL = 1.0 + 1e-9
"""What a link carries: acts that were priced together may add up to a little more than 1, by rounding."""


def prices_are_alone(cost: CostModel) -> bool:
    """Whether acts priced by a cost model can slow each other on a link."""
    return isinstance(cost, AloneOnLinks) and cost.alone_on_links


def crowded_links(plan: Plan, cost: CostModel) -> tuple[str, ...]:
    """The links between nodes that tasks together can want more of than there is, sorted; none where prices are not of acts alone.

    The time is that of a route per communicating task and rank.
    """
    if not prices_are_alone(cost) or plan.cluster.nic is None or plan.cluster.num_nodes == 1:
        return ()
    machine = Machine(plan.cluster)
    largest: dict[str, dict[tuple[str, str], float]] = {}
    for task in plan.tasks:
        over: dict[str, float] = {}
        for group in acting_together(plan, task):
            for src, dst, size_bytes in point_to_point(plan, task, group):
                for link in machine.links_between(src, dst):
                    over[link] = over.get(link, 0.0) + size_bytes
        price_s = cost.act_s(plan, task, plan.ranks_of(task)[0]) if over else 0.0
        for link, size_bytes in over.items() if price_s > 0 else ():
            if not link.startswith("device:"):
                of_link = largest.setdefault(link, {})
                key = task.stream, task.placement
                of_link[key] = max(of_link.get(key, 0.0), min(size_bytes / (machine.bandwidth_bytes_per_s[link] * price_s), 1.0))
    return tuple(sorted(link for link, shares in largest.items() if sum(shares.values()) > FULL and len(shares) > 1))
