"""What a write in place makes of a tensor and of its views (views.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from planner.frontend.tracing.recorder.traced import Aliases, NotRecordable, Traced
from planner.frontend.tracing.recorder.views import Call, View, inverse

__all__ = ["renew", "replace", "take_shape"]


def replace(old: Traced, new: Traced, twin: OpOverload, graph: fx.Graph, call: Call) -> None:
    """Overwrite ``old`` by ``new``, the result of ``twin``, and the part of the base tensor that ``old`` is a view of.

    Args:
        graph: that is written.   call: works an op out, below autograd and composite ops.

    Raises:
        NotRecordable: it is a view by an op that has no inverse, or is of another graph.
    """
    aliases, value = old.aliases, new
    if old.chain:
        bases = [_base(aliases, graph)]
        for view in old.chain[:-1]:
            bases.append(_seen_by(view, bases[-1], aliases, call))
        for view, base in zip(reversed(old.chain), reversed(bases), strict=True):
            value = inverse(view, base, value, call)  # type: ignore[assignment]
            if not isinstance(value, Traced):
                raise NotRecordable(f"a tensor is written through {view.func}, which has no inverse")
    if torch.Tag.nondeterministic_seeded in twin.tags and not old.chain:
        value.node.meta["val"] = aliases.meta.example  # a draw has the strides of what it is drawn into
    else:
        aliases.moved |= value.meta is not aliases.meta
        aliases.meta = value.meta
    aliases.node = value.node
    aliases.generation += 1
    renew(old, graph, call)


def renew(traced: Traced, graph: fx.Graph, call: Call) -> None:
    """Recompute a view whose base has been written since the view was made.

    Raises:
        NotRecordable: it is of another graph, or asks for strides that the written tensor has not any more.
    """
    seen = _base(traced.aliases, graph)
    for view in traced.chain:
        seen = _seen_by(view, seen, traced.aliases, call)
    traced.made, traced.meta, traced.generation = seen.made, seen.meta, traced.aliases.generation


def _base(aliases: Aliases, graph: fx.Graph) -> Traced:
    """The current value of the base tensor, as a tensor with aliases of its own."""
    if aliases.node is None or aliases.node.graph is not graph:
        raise NotRecordable("a tensor of the step before, written through a view")
    return Traced.make(aliases.meta, aliases.node)


def _seen_by(view: View, base: Traced, aliases: Aliases, call: Call) -> Traced:
    base.aliases.moved = aliases.moved
    made = call(view.func, base, *view.args, **view.kwargs)
    seen = made if view.place is None else made[view.place]  # type: ignore[index]
    assert isinstance(seen, Traced)
    return seen


def take_shape(tensor: object, view: object, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Change a tensor's shape in place, as squeeze_ and transpose_ do.

    Args:
        view: what it becomes.   func, args, kwargs: the op and its operands behind the tensor.
    """
    assert isinstance(tensor, Traced) and isinstance(view, Traced)
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)  # the shape that C++ knows it by, as of any subclass [return_and_correct_aliasing]
    try:
        with no_dispatch():
            func(tensor, *args, **kwargs)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)
    tensor.made, tensor.meta, tensor.aliases, tensor.chain, tensor.generation = (
        view.made,
        view.meta,
        view.aliases,
        view.chain,
        view.generation,
    )
    return tensor
