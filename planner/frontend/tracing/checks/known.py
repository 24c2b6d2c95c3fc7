"""Values that are known while a step is traced: what is computed of constants alone, as of ``torch.tensor([4, 4])`` in forward.

A Plan repeats its constants, so that a question to them has one answer: ``sizes.tolist()``, ``int(t)``, ``if t > 0``.  So has one to state that
no step changes (kept.py), as long as it is not changed: who asks for it says so (``state=True``), and the step then checks it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["CONSTANT", "STATE", "known", "known_equality", "known_number", "known_numbers", "node_of", "of_known", "without_masks"]

CONSTANT = "constant"
"""Key of a get_attr node's meta: the tensor that it names, where the recorder made the node."""
STATE = "state"
"""Key of a placeholder's meta: the Kept that it stands for."""
_MOST_NODES, _MOST_ELEMENTS = 1000, 1_000_000


class _Unknown(Exception):
    """A tensor that is not computed of constants alone."""


def node_of(tensor: Tensor) -> fx.Node | None:
    """What made the tensor, of either tracer."""
    if isinstance(tensor, FunctionalTensor):
        mode, inner = get_proxy_mode(), torch._from_functional_tensor(tensor.elem)
        slot = get_proxy_slot(inner, mode.tracer, None) if mode is not None else None
        return None if slot is None else slot.proxy.node
    node = getattr(tensor, "node", None)
    return node if isinstance(node, fx.Node) else None


def known(tensor: Tensor, *, state: bool = False) -> Tensor | None:
    """The value of a traced tensor that is computed of constants alone; else, or of more than a thousand ops, None.

    Args:
        state: buffers and frozen parameters count as constants, and are noted as asked for.
    """
    node = node_of(tensor)
    ancestors = None if node is None else _ancestors(node, state)
    if node is None or ancestors is None:
        return None
    made = {each: _constant(each) for each in ancestors if each.op == "get_attr"}
    kept = [each for each in ancestors if each.op == "placeholder"]
    made |= {each: each.meta[STATE].value() for each in kept}
    if any(value is None for value in made.values()):
        return None
    for each in kept:
        each.meta[STATE].ask()
    with _disable_current_modes(), torch.no_grad():
        for each in ancestors:
            if each not in made:
                args, kwargs = fx.map_arg((each.args, each.kwargs), made.__getitem__)  # type: ignore[arg-type]
                made[each] = each.target(*args, **kwargs)  # type: ignore[operator]
    value = made[node]
    return value if isinstance(value, Tensor) else None


def known_numbers(tensor: Tensor, *, state: bool = False) -> Any:
    """The same as ``tolist`` gives it: a number for a 0-d tensor."""
    value = known(tensor, state=state)
    with _disable_current_modes():
        return None if value is None else value.tolist()


def known_number(tensor: Tensor, *, state: bool = False) -> Any:
    """The only element of a tensor of one; None: it has more, or is not known."""
    value = known_numbers(tensor, state=state) if tensor.numel() == 1 else None
    while isinstance(value, list):
        (value,) = value
    return value


def known_equality(first: Tensor, second: Tensor) -> bool | None:
    """What ``torch.equal`` says of constants and state that no step changes, or of one tensor and itself; None: it is not known."""
    if first is second:
        return True
    values = [known(each, state=True) if node_of(each) is not None else each for each in (first, second)]
    with _disable_current_modes():
        return None if any(value is None for value in values) else torch.equal(*values)  # type: ignore[arg-type]


def of_known(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], *, state: bool) -> tuple[Tensor, ...] | None:
    """The results of an op of tensors that are all known; None: one of them is not.   state: as ``known`` takes it."""

    def value_of(arg: object) -> object:
        if isinstance(arg, list | tuple):
            return [value_of(item) for item in arg]
        if not isinstance(arg, Tensor) or type(arg) is Tensor:
            return arg  # a tensor from outside of the step is a constant of it
        value = known(arg, state=state)
        if value is None:
            raise _Unknown
        return value

    try:
        given = [value_of(arg) for arg in args], {name: value_of(arg) for name, arg in kwargs.items()}
    except _Unknown:
        return None
    with _disable_current_modes(), torch.no_grad():
        made = func(*given[0], **given[1])
    return (made,) if isinstance(made, Tensor) else tuple(made)


def without_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices, each boolean mask whose value is known replaced by the places where it is true."""
    made: list[Tensor | None] = []
    for index in indices:
        mask = known(index, state=True) if index is not None and index.dtype in (torch.bool, torch.uint8) else None
        if mask is None:
            made.append(index)
            continue
        with _disable_current_modes():
            made += mask.nonzero().unbind(1)
    return made


def _ancestors(node: fx.Node, state: bool) -> list[fx.Node] | None:
    """What the node is computed of, and itself, each behind what it takes; None: not of constants alone (and state), or of too many."""
    order: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        last = stack[-1]
        if last in seen:
            order[stack.pop()] = None
            continue
        if len(seen) > _MOST_NODES or not _is_of_constants(last, state):
            return None
        seen.add(last)
        stack += [given for given in last.all_input_nodes if given not in order]
    return list(order)


def _is_of_constants(node: fx.Node, state: bool) -> bool:
    """Whether it is a constant of at most so many elements, state that no step changes, or what a function gives of its operands."""
    if node.op == "placeholder":
        return state and STATE in node.meta and bool(node.meta["val"].numel() <= _MOST_ELEMENTS)
    if node.op == "get_attr":
        value = _constant(node)
        return isinstance(value, Tensor) and value.numel() <= _MOST_ELEMENTS
    if node.op != "call_function" or not (node.target is operator.getitem or _is_function(node.target)):
        return False
    example = node.meta.get("val")
    return not isinstance(example, Tensor) or example.numel() <= _MOST_ELEMENTS


def _constant(node: fx.Node) -> object:
    """What a get_attr node names."""
    mode = get_proxy_mode()
    if CONSTANT in node.meta or mode is None:
        return node.meta.get(CONSTANT)
    return getattr(mode.tracer.root, str(node.target), None)  # type: ignore[union-attr]


def _is_function(target: object) -> bool:
    """Of what it is given alone."""
    return isinstance(target, OpOverload) and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
