"""Ops without a rule in a step: which they are, what their whole inputs on every device cost, and the refusal of a strict plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.ir.errors import UnknownOp
from planner.ir.graph import LogicalGraph
from planner.opset import flop, how_to_add, known_targets, traffic_bytes

__all__ = ["Replicated", "ReplicatedWork", "refuse_ops_without_rule", "replicated_work"]


class Replicated(UserWarning):
    """A step has ops that every device of their placement performs with whole inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedWork:
    """The ops of a step that have no rule, and their share of its work on one device.

    targets: target -> how many ops.   flop_share, bytes_share: of the step's flop, and of the bytes that its ops read and write; 0 to 1.
    """

    targets: Mapping[str, int]
    flop_share: float
    bytes_share: float

    def __str__(self) -> str:
        named = ", ".join(f"{target} ({count})" if count > 1 else target for target, count in self.targets.items())
        return (
            f"no SBP rule for {named}: every device of the stage performs such ops with whole inputs, "
            f"{self.flop_share:.1%} of the step's flop and {self.bytes_share:.1%} of its bytes; --strict (strict=True) refuses them"
        )


def replicated_work(graph: LogicalGraph, micro_batches: int) -> ReplicatedWork | None:
    """What the graph's ops without a rule are and cost; None where every op has one.

    Args:
        graph: one step at micro-batch size.   micro_batches: how often a step performs the ops that act per micro-batch.
    """
    known = known_targets()
    missing = Counter(op.target for op in graph.ops if op.target not in known)
    if not missing:
        return None
    flops, moved = {True: 0, False: 0}, {True: 0, False: 0}
    for op in graph.ops:
        times = micro_batches if op.role.per_micro_batch else 1
        flops[op.target in known] += times * flop(op, graph.values)
        moved[op.target in known] += times * traffic_bytes(op, graph.values)
    flop_share, bytes_share = (work[False] / max(work[False] + work[True], 1) for work in (flops, moved))
    return ReplicatedWork(targets=dict(sorted(missing.items())), flop_share=flop_share, bytes_share=bytes_share)


def refuse_ops_without_rule(graph: LogicalGraph) -> None:
    """What a strict plan asks for.

    Raises:
        UnknownOp: the first op without a rule, and how to add one.
    """
    known = known_targets()
    for op in graph.ops:
        if op.target not in known:
            raise UnknownOp(how_to_add(op))
