"""Parameters that are cut alike, in one row: names that differ in their numbers only (h.0.mlp.w, h.1.mlp.w), of one shape and layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from planner.ir.graph import InputKind
from planner.ir.plan import PlacedTensor, Placement, Plan
from planner.ir.sbp import Split
from regista.analysis.answer.roles import Role

__all__ = ["Pattern", "patterns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """name: numbers in it are written as ``*``.   shape: of the logical tensor.   layout: in words.   stages: placements, in the order of the Plan.

    total_bytes: of the logical tensors together.   part_bytes: of one of them, on one device.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    layout: str
    stages: tuple[str, ...]
    total_bytes: int
    part_bytes: int


def patterns(plan: Plan, roles: Mapping[str, tuple[Role, ...]]) -> tuple[Pattern, ...]:
    """Of all parameters, the largest in sum first."""
    groups: dict[tuple[str, tuple[int, ...], str, int], list[tuple[str, PlacedTensor]]] = {}
    for state in plan.states:
        if state.kind is not InputKind.PARAMETER:
            continue
        regst = plan.regst[state.regst]
        tensor, placement = regst.tensors[state.index], plan.placement[regst.placement]
        key = re.sub(r"\d+", "*", state.name), tensor.shape, _layout(tensor, placement, roles[placement.id]), tensor.local_bytes(placement)
        groups.setdefault(key, []).append((placement.id, tensor))
    rows = [
        Pattern(
            name=name,
            count=len(held),
            shape=shape,
            layout=layout,
            stages=tuple(dict.fromkeys(where for where, _ in held)),
            total_bytes=sum(tensor.dtype.size_bytes * prod(tensor.shape) for _, tensor in held),
            part_bytes=part_bytes,
        )
        for (name, shape, layout, part_bytes), held in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_bytes, row.name, row.layout)))


def _layout(tensor: PlacedTensor, placement: Placement, roles: tuple[Role, ...]) -> str:
    cuts = [
        f"dim {sbp.dim} by {roles[axis].value} {placement.mesh[axis]}"
        for axis, sbp in enumerate(tensor.sbp[axis] for axis in range(len(placement.mesh)))
        if isinstance(sbp, Split) and placement.mesh[axis] > 1
    ]
    return ", ".join(cuts) or "whole"
