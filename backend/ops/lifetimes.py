"""How long the memory of a fragment's values is needed: to the last use of the value, or of any value that may share its memory.

    v1 = mm(x, w)
    v2 = transpose(v1)      a view: v1's memory is needed
    v3 = relu(x)            until here and on,
    v4 = mm(v2, v3)         to here

The operator's schema says whether memory may be shared.  Operators without a reliable schema (functions of ours, operators that torch composes
of others) count as sharing the memory of everything they read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import torch

from backend.ops.kernels import kernel
from backend.ops.outs import NEW_MEMORY
from planner.ir.graph import Op

__all__ = ["ESCAPES", "last_needs", "may_share"]

ESCAPES = 1 << 60
"""The last need of a value that is read after the fragment has ended."""

_KEYS = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Operators with a kernel under one of these keys keep to their schema; the others are composed of several, and some return their input."""


@cache
def may_share(target: str) -> bool:
    """Whether what an op of this target returns may lie in the memory of what it reads."""
    if target in NEW_MEMORY:
        return False
    function = kernel(target) if target.startswith("aten.") else None
    if not isinstance(function, torch._ops.OpOverload):
        return True
    schema = function._schema
    if any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
        return True
    name = function.name()  # type: ignore[no-untyped-call]
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _KEYS)


def last_needs(ops: Sequence[Op], copied: Collection[str], ending: Collection[str], escaping: Collection[str]) -> dict[str, int]:
    """Value -> number of the last op during which its memory must stay as it is; len(ops): until the fragment ends.

    Args:
        copied: values that are moved to memory of their own as soon as they are computed.
        ending: values that are read once more at the end of the fragment.
        escaping: values that are handed out as they are; their entries, and those of what they may share memory with, are ESCAPES.
    """
    needs = {value: len(ops) for value in ending} | dict.fromkeys(escaping, ESCAPES)
    for place in reversed(range(len(ops))):
        op = ops[place]
        results = [value for value in op.outputs if value is not None]
        for value in results:
            needs[value] = max(needs.get(value, place), place)
        sharing = [value for value in results if value not in copied] if may_share(op.target) else []
        # What shares memory with one result may share it with all.
        longest = max((needs[value] for value in sharing), default=place)
        for value in (*sharing, *op.inputs):
            needs[value] = max(needs.get(value, place), longest if sharing else place)
    return needs
