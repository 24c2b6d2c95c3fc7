"""Questions about one traced node: is it nothing but its operand, is it legal, and what does the IR call it?"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.frontend.tracing.stamp import STAMP, Stamp
from planner.ir.errors import Unsupported
from planner.opset import known_targets

__all__ = [
    "RENAMED",
    "STRIDED",
    "VANISHING",
    "is_no_op",
    "only_part",
    "refusal",
    "same_earlier_view",
    "target_of",
    "undone_transpose",
    "where",
]

aten = torch.ops.aten

# They return their operand's value under another name; SSA needs no copies.
VANISHING = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift_fresh_copy.default})
# No-ops when the type does not change.
_IDENTITY_IF_SAME_TYPE = frozenset({aten.view.default, aten._unsafe_view.default, aten.expand.default, aten._to_copy.default})
# Where a value lies in memory is the runtime's business: a view on a rank is a reshape.
RENAMED = {
    aten._unsafe_view.default: aten.view.default,
    aten.reshape.default: aten.view.default,
    aten.zero.default: aten.zeros_like.default,
    aten.fill.Scalar: aten.full_like.default,
    # memory that is not written yet holds anything; zeros keep the step a function
    aten.empty.memory_format: aten.zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
    aten.new_empty.default: aten.new_zeros.default,
    aten._efficientzerotensor.default: aten.zeros.default,
    # "unsafe" asks autograd not to watch for writes in place; there are none here
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
    # the same operation with a number instead of a tensor
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
}
STRIDED = frozenset({aten.as_strided.default, aten.as_strided_scatter.default, aten.new_empty_strided.default, aten.empty_strided.default})
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int})


def where(node: fx.Node) -> str:
    """How an error message names the place of a node."""
    stamp = node.meta.get(STAMP)
    return f"module {stamp.module!r}" if isinstance(stamp, Stamp) and stamp.module else "the root module or the loss"


def _fake(node: object) -> Tensor:
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _same_type(a: object, b: object) -> bool:
    return _fake(a).shape == _fake(b).shape and _fake(a).dtype == _fake(b).dtype


def is_no_op(node: fx.Node) -> bool:
    """True when the node's value is its first operand's."""
    if node.target is aten.clone.default:
        # a clone that changes strides carries a transpose out: it costs time and memory, so it stays
        return _fake(node.args[0]).stride() == _fake(node).stride()
    return node.target in VANISHING or (node.target in _IDENTITY_IF_SAME_TYPE and _same_type(node.args[0], node))


def undone_transpose(node: fx.Node) -> fx.Node | None:
    """The operand of a transpose of a transpose (weights are turned in forward, their gradients back)."""
    inner = node.args[0] if node.target in _TRANSPOSES else None
    if not isinstance(inner, fx.Node) or inner.target is not node.target:
        return None
    ndim = max(_fake(node).ndim, 1)
    dims, inner_dims = ({int(str(d)) % ndim for d in n.args[1:]} for n in (node, inner))
    origin = inner.args[0]
    return origin if dims == inner_dims and isinstance(origin, fx.Node) else None


def only_part(node: fx.Node) -> fx.Node | None:
    """The one operand of a concatenation that is not empty: transformers puts keys behind a cache that is empty in training."""
    if node.target is not aten.cat.default or not isinstance(node.args[0], list | tuple):
        return None
    parts = [part for part in node.args[0] if _fake(part).numel()]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], fx.Node) and _same_type(parts[0], node) else None


def same_earlier_view(node: fx.Node) -> fx.Node | None:
    """Going up a chain of views, the first tensor of the same shape: unfolding and folding again is nothing."""
    origin: object = node
    while isinstance(origin, fx.Node) and origin.target in _VIEWS:
        origin = origin.args[0]
        if _same_type(origin, node):
            assert isinstance(origin, fx.Node)
            return origin
    return None


def target_of(node: fx.Node) -> OpOverload:
    """The operator that the IR names.

    Raises:
        Unsupported: the node calls something else than an operator, or writes into a tensor that is not part of the step
            (functionalization turned all other writes into values).
    """
    target = node.target
    if not isinstance(target, OpOverload):
        raise Unsupported(f"{where(node)} calls {target}, which is not a tensor operator; write it with torch operators")
    if target._schema.is_mutable:
        raise Unsupported(
            f"{where(node)} writes in place ({target}) into a tensor that is neither a buffer nor computed in the step; "
            "register it as a buffer, or compute a new tensor"
        )
    target = RENAMED.get(target, target)
    return target if str(target) in known_targets() else _as_copy(target)


def _as_copy(target: OpOverload) -> OpOverload:
    """Of a view without a rule the op that copies: the planner knows which memory is shared only of the views in its table."""
    if not any(result.alias_info is not None for result in target._schema.returns):
        return target
    copying = getattr(torch.ops.aten, f"{target.overloadpacket.__name__}_copy", None)
    overload = getattr(copying, target._overloadname, target)
    assert isinstance(overload, OpOverload)
    return overload


def refusal(node: fx.Node) -> str | None:
    """Why no plan can carry the node out, or None: randomness and addresses."""
    target = node.target
    assert isinstance(target, OpOverload)
    if torch.Tag.nondeterministic_seeded in target.tags:
        return (
            f"{where(node)} draws random numbers ({target}) that no counter gives, so they would differ between shardings; "
            "draw by bernoulli, uniform or normal"
        )
    if target in STRIDED:
        return f"{where(node)} addresses memory by strides ({target}); write it with view, transpose, slice or gather"
    return None
