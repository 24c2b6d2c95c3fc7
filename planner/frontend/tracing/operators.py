"""What the recorder asks of torch's operators and of their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch._ops import OpOverload, OpOverloadPacket

from planner.frontend.tracing.traced import Aliases, NotRecordable, Traced

__all__ = ["as_views", "example_of", "examples_of", "functional_twin", "leaves", "returns_list"]

aten = torch.ops.aten


def as_views(made: object, base: object, func: OpOverload) -> object:
    """The results of a view, known as other names of its first operand.

    Raises:
        NotRecordable: the operand was written.  Functionalization makes such a view anew at each use; only detach vanishes later.
    """
    aliases = base.aliases if isinstance(base, Traced) else Aliases()
    if aliases.written and func is not aten.detach.default:
        raise NotRecordable(f"{func} of a tensor that was written in place")
    for result in leaves([made]):
        if isinstance(result, Traced):
            result.aliases = aliases
            aliases.count += 1
    return made


def functional_twin(func: OpOverload) -> tuple[OpOverload, tuple[int, ...]]:
    """The op that computes what ``func`` writes, and the places of the arguments that ``func`` writes into.

    Raises:
        NotRecordable: it writes into keywords, or its name does not say.
    """
    if func is aten._native_batch_norm_legit.default:
        return aten._native_batch_norm_legit_functional.default, (3, 4)
    if func is aten.normal_.default:
        return aten.normal_functional.default, (0,)
    if func is aten.rrelu_with_noise.default:
        return aten.rrelu_with_noise_functional.default, (1,)
    places = tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    name = func.overloadpacket.__name__
    packet = getattr(getattr(torch.ops, func.namespace), name.removesuffix("_"), None)
    if places == (0,) and name.endswith("_") and isinstance(packet, OpOverloadPacket):
        wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
        for twin in (getattr(packet, overload) for overload in packet.overloads()):  # type: ignore[no-untyped-call]
            if [(a.name, str(a.type)) for a in twin._schema.arguments] == wanted and not twin._schema.is_mutable:
                return twin, places
    raise NotRecordable(f"{func} has no functional twin of its name")


def example_of(arg: object) -> object:
    if isinstance(arg, Traced):
        return arg.meta.example
    return examples_of(arg) if isinstance(arg, list | tuple) else arg


def examples_of(args: Sequence[object]) -> list[object]:
    return [example_of(arg) for arg in args]


def leaves(args: Sequence[object]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from leaves(arg)
        else:
            yield arg


def returns_list(func: OpOverload) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
