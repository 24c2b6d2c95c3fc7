"""Which kernels can write straight into memory that is there already: the ``.out`` overload of an aten op.

Only overloads with a kernel of their own count.  The others are generated: they compute a new tensor and copy it, which we can do without
the detour, and without resizing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from backend.boxing import BOXING
from backend.whole import KERNELS, MM_BIAS

__all__ = ["COPIES", "writes_into"]

COPIES = frozenset({"aten._to_copy.default"})
"""Their result is what ``slot.copy_(input)`` leaves in a contiguous slot, conversion of the dtype included."""


def _copy_into(value: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """A clone, in the slot's own layout, which is row-major as the kernel of a clone has it: not in that of ``value``."""
    return out.copy_(value)


_KEYS = ("CPU", "CUDA") if torch.version.cuda else ("CPU",)
"""A fragment may be performed on any device that this torch was built for."""


@cache
def writes_into(target: str) -> tuple[Callable[..., object], str] | None:
    """(kernel, name of the argument that takes the memory); None where there is no such kernel."""
    if target == MM_BIAS:
        return KERNELS[target], "out"
    if target == "aten.clone.default":
        return _copy_into, "out"
    if not target.startswith("aten.") or target == BOXING:
        return None
    _, name, overload = target.split(".")
    packet = getattr(torch.ops.aten, name, None)
    function = getattr(packet, overload, None)
    if packet is None or function is None or len(function._schema.returns) != 1 or str(function._schema.returns[0].type) != "Tensor":
        return None
    if any(argument.alias_info is not None for argument in (*function._schema.arguments, *function._schema.returns)):
        return None
    wanted = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    for other in packet.overloads():
        found = getattr(packet, other)
        places = [argument.name for argument in found._schema.arguments if argument.is_out]
        rest = [(argument.name, str(argument.type)) for argument in found._schema.arguments if not argument.is_out]
        if len(places) == 1 and rest == wanted and all(torch._C._dispatch_has_kernel_for_dispatch_key(found.name(), key) for key in _KEYS):
            return found, places[0]
    return None
