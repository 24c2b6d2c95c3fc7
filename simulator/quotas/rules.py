"""Rules of thumb for quotas, as baselines.  i: stage from 0 of p; m: micro-batches; F, B: seconds of an act; c: of a link.

(1) one_f_one_b   p - i                                 1F1B (PipeDream-Flush)           SEMANTICS 3.8
(2) gpipe         m                                     GPipe
(3) link_aware    1 + ceil((p-1-i)(1 + 2c/(F+B)))       1F1B that hides its links        SEMANTICS 3.8
(4) two_s         2 p where p is not the last stage, 1 there; d - s on a boundary from stage s to d       OneFlow's PipelineBufferPass
(5) two           2 everywhere

for what waits from forward to backward; never more than the blocks of a step.  The rest gets what a lowered Plan has (a double buffer between
streams), except under (4), which gives 1, and (5).

Sources: Narayanan et al. 2021, arXiv 2104.04473 (1); Huang et al. 2019, arXiv 1811.06965 (2); OneFlow, pipeline_buffer_pass.cpp (4).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import ceil

from planner.ir.plan import Plan, Regst, RegstKind, TaskKind
from planner.ir.protocols import CostModel
from simulator.rules.prices import CheckedPrices

__all__ = ["QuotaRule", "link_aware_quota", "rule_quotas", "waits_for_backward"]


class QuotaRule(Enum):
    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    LINK_AWARE = "link-aware"
    TWO_S = "2S"
    TWO = "2 everywhere"


def link_aware_quota(num_stages: int, stage: int, forward_s: float, backward_s: float, link_s: float) -> int:
    """(3) Blocks that stage i needs so that links of ``link_s`` seconds (there and back) cost nothing; without links it is (1).

    >>> link_aware_quota(4, 0, 1.0, 2.0, 0.0), link_aware_quota(4, 0, 1.0, 2.0, 0.3)
    (4, 5)
    """
    later = num_stages - 1 - stage
    return 1 + ceil(later * (1 + 2 * link_s / (forward_s + backward_s)) - 1e-9)


def waits_for_backward(plan: Plan, regst: Regst) -> bool:
    """Whether its blocks wait from a forward act (or a delivery before one) for a backward act."""
    if regst.kind is RegstKind.STATE or regst.producer is None:
        return False
    kinds = {task.kind for task, _ in plan.consumers[regst.id]}
    forward_too = plan.task[regst.producer].kind is TaskKind.FORWARD or TaskKind.FORWARD in kinds
    return TaskKind.BACKWARD in kinds and forward_too


def rule_quotas(plan: Plan, rule: QuotaRule, cost: CostModel) -> Mapping[str, int]:
    """Regst id -> blocks by a rule, for all Regsts that are not state.

    Args:
        plan: its placements are the stages, in order.   cost: says F, B and c of the slowest stage and link, for (3).
    """
    stages = [p.id for p in plan.placements]
    forward_s, backward_s, link_s = _times(plan, cost)
    quota_of: dict[str, int] = {}
    for regst in plan.regsts:
        if regst.kind is RegstKind.STATE or regst.producer is None:
            continue
        producer = plan.task[regst.producer]
        blocks = producer.acts // next(p.acts_per_block for p in producer.produces if p.regst == regst.id)
        stage, stash = stages.index(regst.placement), waits_for_backward(plan, regst)
        delivered = 0 if producer.kind is TaskKind.FORWARD else 1
        match rule:
            case QuotaRule.TWO:
                wanted = 2
            case QuotaRule.TWO_S if stash:
                wanted = 2 * len(stages) if stage < len(stages) - 1 else 1
            case QuotaRule.TWO_S:
                crosses = producer.kind is TaskKind.TRANSFER and any(t.kind is TaskKind.FORWARD for t, _ in plan.consumers[regst.id])
                wanted = max(1, stage - stages.index(producer.placement)) if crosses else 1
            case _ if not stash:
                same_stream = all(t.stream == producer.stream for t, _ in plan.consumers[regst.id])
                wanted = 1 if same_stream else 2
            case QuotaRule.ONE_F_ONE_B:
                wanted = len(stages) - stage + delivered
            case QuotaRule.GPIPE:
                wanted = blocks
            case QuotaRule.LINK_AWARE:
                wanted = link_aware_quota(len(stages), stage, forward_s, backward_s, link_s) + delivered
        quota_of[regst.id] = max(1, min(blocks, wanted))
    return quota_of


def _times(plan: Plan, cost: CostModel) -> tuple[float, float, float]:
    """F, B and c in seconds: the longest of each."""

    prices = CheckedPrices(plan, cost)

    def longest(kind: TaskKind) -> float:
        return max((prices.meeting_s(task, plan.ranks_of(task)) for task in plan.tasks if task.kind is kind), default=0.0)

    forward_s, backward_s = longest(TaskKind.FORWARD), longest(TaskKind.BACKWARD)
    return forward_s, max(backward_s, 1e-30), longest(TaskKind.TRANSFER)
