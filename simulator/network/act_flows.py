"""What acts of a Plan feel of each other: the flows that they are on shared links, and computing beside communication.

    all_reduce of gradients   |=====-----------=====|      --- at half speed while another act needs the same nic
    send to the next stage          |----------|
    backward (compute)        |~~~~~~~~~~~~~~~~~~~~~|##    ~~~ slower by ``slowdown`` while its rank communicates

An act has as much work as the cost model gives it seconds, done at speed 1 when alone.

(1) a link carries acts whose shares (simulator.network.link_shares), each times its act's speed, add up to 1 at most; no act is faster than 1
(2) within that, speeds are max-min fair (simulator.network.sharing)                                                          -> speeds()
(3) an act that computes has speed 1 / slowdown while its rank sends or receives, else 1
(4) speeds follow from who is under way when an instant is over; where a speed changes, left -= seconds since the last change x speed,
    and the act ends at now + left / speed: exactly at start + price where nobody disturbs it

Links on which the shares of all acts that can be under way at once stay within 1 bind nobody, and are left out.
Both engines do this: simulator.pacing on objects, to be read, and simulator.compiled.

Source: fluid sharing as in simulator.network.flows; slow-down of compute: Isaev et al. 2023, "Calculon" (the processor time that
communication takes).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TypeVar

from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from simulator.network.crowded import FULL, crowded_links
from simulator.network.fabric import Machine
from simulator.network.link_shares import acting_together, link_shares, point_to_point
from simulator.network.sharing import filled_rates
from simulator.rules.prices import CheckedPrices, slowdown_of

__all__ = ["ActFlow", "Contention", "Together", "contention_of", "contention_on", "contention_with", "speeds"]

Together = tuple[str, tuple[int, ...]]
"""(task, ranks that act together)"""
K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ActFlow:
    """shares: link -> share of it while the act runs alone, of links that can be crowded.   talking: ranks that send or receive."""

    shares: Mapping[str, float]
    talking: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """flows: of the acts that others can slow down, or that slow computing down.   slowdown: (3), 1: computing feels nothing.

    shares_links: whether some link can be crowded.
    """

    flows: Mapping[Together, ActFlow]
    slowdown: float = 1.0

    @property
    def shares_links(self) -> bool:
        return any(flow.shares for flow in self.flows.values())

    @property
    def text(self) -> str:
        """What acts feel, in words."""
        links = ["links between nodes are shared, max-min fair"] if self.shares_links else []
        slowed = [f"computing takes {self.slowdown:.3g} times as long beside communication"] if self.slowdown != 1 else []
        return "; ".join(links + slowed)

    @property
    def about(self) -> dict[str, str]:
        """What a trace says of it."""
        words = {"links": "shared, max-min fair"} if self.shares_links else {}
        return words | ({"compute_slowdown": str(self.slowdown)} if self.slowdown != 1 else {})


def contention_of(plan: Plan, cost: CostModel) -> Contention | None:
    """What acts feel at these prices; None: nothing, every act takes its price.

    Links are shared where prices are of acts alone and a link between nodes is crowded (simulator.network.crowded).
    """
    return contention_with(plan, cost, sharing=bool(crowded_links(plan, cost)), slowdown=slowdown_of(cost))


def contention_with(plan: Plan, cost: CostModel, *, sharing: bool, slowdown: float) -> Contention | None:
    """The same, where the caller says whether links are shared and how computing slows.

    Raises:
        InvalidCluster: a price that is negative or not finite.
    """
    if not sharing and slowdown == 1:
        return None
    prices, machine = CheckedPrices(plan, cost), Machine(plan.cluster)
    shares: dict[Together, Mapping[str, float]] = {}
    talking: dict[Together, frozenset[int]] = {}
    for task in plan.tasks:
        for ranks in acting_together(plan, task):
            price_s = prices.meeting_s(task, ranks)
            if price_s == 0:
                continue
            shares[task.id, ranks] = link_shares(plan, task, ranks, price_s, machine) if sharing else {}
            talking[task.id, ranks] = (
                frozenset(r for sent in point_to_point(plan, task, ranks) for r in sent[:2]) if slowdown != 1 else frozenset()
            )
    return contention_on(plan, shares, talking, slowdown)


def contention_on(
    plan: Plan, shares: Mapping[Together, Mapping[str, float]], talking: Mapping[Together, frozenset[int]], slowdown: float = 1.0
) -> Contention | None:
    """Of acts whose shares of links are known, what binds somebody; None: nothing does.

    Args:
        shares: act -> link -> its share of it while it runs alone.   talking: act -> ranks whose computing it slows.   Where an act has none, {}.
    """
    most: dict[str, dict[tuple[str, int], float]] = {}
    for (task, ranks), here in shares.items():
        for link, share in here.items():
            lanes = most.setdefault(link, {})
            lane = plan.task[task].stream, ranks[0]
            lanes[lane] = max(lanes.get(lane, 0.0), share)
    binding = {link for link, lanes in most.items() if fsum(lanes.values()) > FULL}
    flows = {
        together: ActFlow({link: share for link, share in here.items() if link in binding}, talking.get(together, frozenset()))
        for together, here in shares.items()
    }
    flows = {together: flow for together, flow in flows.items() if flow.shares or flow.talking}
    return Contention(flows=flows, slowdown=slowdown) if flows else None


def speeds(users: Mapping[L, Sequence[tuple[K, float]]]) -> dict[K, float]:
    """(1), (2): the speeds of acts on crowded links; who is not named has speed 1.

    Args:
        users: link -> (act, share) of those under way; an act stands there once for each that is as fast as it.
    """
    crowded = {link: acts for link, acts in users.items() if fsum(share for _, share in acts) > FULL}
    alone: dict[object, Sequence[tuple[K, float]]] = {("alone", act): ((act, 1.0),) for acts in crowded.values() for act, _ in acts}
    links: dict[object, Sequence[tuple[K, float]]] = {**alone, **{("link", link): acts for link, acts in crowded.items()}}
    return filled_rates(links, dict.fromkeys(links, 1.0))
