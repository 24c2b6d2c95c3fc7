"""Whether acts of a Plan can meet on a link between nodes and together want more than it has: then their prices alone are not their times.

(1) a task's share of a link = bytes of its acts by all its groups at once / (bandwidth x their price)           simulator.network.link_shares
(2) a link is crowded if two tasks that can act at once, on other streams or on other ranks, have shares that add up to more than 1

Groups of one task are priced together, so a task alone never crowds a link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.ir.collective import Collective
from planner.ir.plan import Boxing, Plan, Task, TaskKind
from planner.ir.protocols import AloneOnLinks, CostModel
from simulator.network.fabric import Machine
from simulator.network.link_shares import point_to_point

__all__ = ["crowded_links", "prices_are_alone"]

_FULL = 1.0 + 1e-9


def prices_are_alone(cost: CostModel) -> bool:
    """Whether acts priced by a cost model can slow each other on a link."""
    return isinstance(cost, AloneOnLinks) and cost.alone_on_links


def crowded_links(plan: Plan, cost: CostModel) -> tuple[str, ...]:
    """The links between nodes that two tasks together can want more of than there is, sorted; none where prices are not of acts alone.

    The time is that of a route per communicating task and rank.
    """
    if not prices_are_alone(cost) or plan.cluster.nic is None or plan.cluster.num_nodes == 1:
        return ()
    machine = Machine(plan.cluster)
    bandwidth = {link.name: link.bandwidth_bytes_per_s for link in machine.links if not link.name.startswith("device:")}
    largest: dict[str, dict[tuple[str, str], float]] = {}
    for task in plan.tasks:
        price_s = cost.act_s(plan, task, plan.ranks_of(task)[0]) if _communicates(task) else 0.0
        if price_s > 0:
            for link, size_bytes in _bytes_over(plan, task, machine, bandwidth).items():
                of_link = largest.setdefault(link, {})
                key = task.stream, task.placement
                of_link[key] = max(of_link.get(key, 0.0), min(size_bytes / (bandwidth[link] * price_s), 1.0))
    return tuple(sorted(link for link, shares in largest.items() if sum(sorted(shares.values())[-2:]) > _FULL and len(shares) > 1))


def _communicates(task: Task) -> bool:
    return task.kind is TaskKind.TRANSFER or (isinstance(task.body, Boxing) and task.body.collective is not Collective.LOCAL)


def _bytes_over(plan: Plan, task: Task, machine: Machine, bandwidth: Mapping[str, float]) -> dict[str, float]:
    over: dict[str, float] = {}
    for group in _groups(plan, task):
        for src, dst, size_bytes in point_to_point(plan, task, group):
            for link in machine.route(src, dst).links:
                if link in bandwidth:
                    over[link] = over.get(link, 0.0) + size_bytes
    return over


def _groups(plan: Plan, task: Task) -> Iterator[tuple[int, ...]]:
    """The ranks that act together: lines of a collective's axis, or each sender by itself."""
    ranks = plan.ranks_of(task)
    if not isinstance(task.body, Boxing):
        yield from ((rank,) for rank in ranks)
        return
    placement = plan.placement[task.placement]
    yield from dict.fromkeys(placement.axis_ranks(task.body.axis, rank) for rank in ranks)
