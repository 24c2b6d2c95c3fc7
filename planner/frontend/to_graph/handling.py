"""What becomes of an operator of torch: it has a rule, is opened into others, is performed with whole inputs, or is refused, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch._ops import OpOverload

from planner.frontend.to_graph.simplify import RENAMED, STRIDED, VANISHING
from planner.frontend.tracing.decomp import decomposition_table
from planner.frontend.tracing.values import usual_rewrite
from planner.opset import known_targets

__all__ = ["Handled", "Handling", "core_operators", "handled"]


class Handling(Enum):
    RULE = "rule"
    OPENED = "opened"
    WHOLE = "whole inputs"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """how: of the operator.   reason: why it is refused, and the usual rewrite; else empty."""

    how: Handling
    reason: str = ""


def handled(op: OpOverload) -> Handled:
    """What becomes of an operator in a traced step."""
    if str(RENAMED.get(op, op)) in known_targets():
        return Handled(how=Handling.RULE)
    if (
        op in decomposition_table()
        or op in VANISHING
        or torch._C._dispatch_has_kernel_for_dispatch_key(_name(op), "CompositeImplicitAutograd")
    ):
        return Handled(how=Handling.OPENED)
    if torch.Tag.nondeterministic_seeded in op.tags:
        return Handled(how=Handling.REFUSED, reason="draws random numbers")
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return Handled(how=Handling.REFUSED, reason=f"a value decides the shape or what is computed; {usual_rewrite(str(op))}")
    if op in STRIDED:
        return Handled(how=Handling.REFUSED, reason="addresses memory by strides; write it with view, transpose, slice or gather")
    return Handled(how=Handling.WHOLE)


def _name(op: OpOverload) -> str:
    name: str = op.name()  # type: ignore[no-untyped-call]
    return name


def core_operators() -> tuple[OpOverload, ...]:
    """The operators that torch tags as Core ATen, sorted by name; those that write into operands are not among them."""
    core = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten":
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if torch.Tag.core in op.tags and not op._schema.is_mutable:
                core.append(op)
    return tuple(core)
