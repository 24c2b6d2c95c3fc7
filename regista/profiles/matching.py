"""Recorded operators -> ops that Regista has rules for -> a kernel table.

An operator is matched by its name, the types of its tensors and its other arguments, as torch's schema binds them; its results' types are those that
torch gives on meta tensors.  Of operators that lie inside of each other the outermost matched one counts, so linear, which is no op of a Plan, counts
as the addmm inside of it.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles
from typing import Any

import torch

from planner.cost import compute_dtype
from planner.cost.kernels.launches import op_kernel
from planner.cost.kernels.table import CopyTime, KernelTable, KernelTime
from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.graph import Arg, KernelWork, Op, Ref, Role
from planner.ir.tensor import DType, TensorType
from planner.opset import known_targets
from regista.profiles.recorded import Profiled

__all__ = ["FromProfile", "kernel_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FromProfile:
    """matched: recorded operators that are in the table.   views: those that move nothing.   left_out: name -> how many were not matched."""

    table: KernelTable
    matched: int
    views: int
    left_out: Mapping[str, int]


_ATTENTIONS = frozenset(
    f"aten::_scaled_dot_product_{library}_attention{end}"
    for library in ("flash", "efficient", "cudnn")
    for end in ("", "_backward", "_for_cpu", "_for_cpu_backward")
)
_EMPTY = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty"})
"""They write nothing."""


@dataclass(frozen=True, slots=True)
class _Match:
    """work: None of a view."""

    target: str
    work: KernelWork | None


def kernel_table(profiled: Profiled, source: str) -> FromProfile:
    """The kernels of a profile; equal ones have the median of their times.

    Raises:
        InvalidFile: no operator could be matched.
    """
    operators = profiled.operators
    matches = [_match(operator.name, operator.arguments) for operator in operators]
    holds = [False] * len(operators)  # a match inside of it
    for place in reversed(range(len(operators))):
        outer = operators[place].inside
        if outer is not None:
            holds[outer] |= holds[place] or matches[place] is not None
    covered = [False] * len(operators)  # inside of a match, or of one that is left out
    times: dict[tuple[str, KernelWork], list[float]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    views = 0
    for place, (operator, match) in enumerate(zip(operators, matches, strict=True)):
        is_left_out = match is None and not holds[place] and operator.name.startswith("aten::")
        outer = operator.inside
        inside = outer is not None and covered[outer]
        covered[place] = inside or match is not None or is_left_out
        if inside:
            continue
        if match is None:
            left_out[operator.name] += is_left_out
        elif match.work is None:
            views += 1
        elif operator.seconds > 0:
            times[match.target, match.work].append(operator.seconds / match.work.times)
        else:
            left_out[f"{operator.name} (without a kernel)"] += 1
    left_out = +left_out
    if not times:
        names = ", ".join(name for name, _ in left_out.most_common(5)) or "no operator of aten"
        raise InvalidFile(
            f"{source}: none of its {len(operators)} operators is an op with shapes that Regista knows ({names}); "
            "record a training step of torch with record_shapes=True"
        )
    rows = tuple(_row(target, work, seconds) for (target, work), seconds in times.items())
    matched = sum(row.rounds for row in rows)
    about = {
        "source": source,
        "method": "operators of a profile, by name and shapes; medians",
        "operators": f"{matched} matched, {views} views, {left_out.total()} left out",
    }
    table = KernelTable(
        device=profiled.device,
        launch_s=profiled.launch_s or min(row.seconds for row in rows),
        times=rows,
        copies=tuple(CopyTime(to_device=to, size_bytes=size, seconds=took_s) for to, size, took_s in profiled.copies if took_s > 0),
        about=about,
    )
    return FromProfile(table=table, matched=matched, views=views, left_out=dict(left_out.most_common()))


def _row(target: str, work: KernelWork, seconds: list[float]) -> KernelTime:
    low_s, _, high_s = quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return KernelTime(target=target, work=work, seconds=median(seconds), low_s=max(low_s, min(seconds)), high_s=high_s, rounds=len(seconds))


@cache
def _match(name: str, arguments: tuple[TensorType | str, ...]) -> _Match | None:
    """The op of that name whose overload takes such arguments; None: there is none among Regista's."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
    if packet is None or not any(isinstance(argument, TensorType) for argument in arguments):
        return None
    if name in _ATTENTIONS:
        return _attention(packet.default._schema.arguments, arguments)
    for overload in packet.overloads():
        target = f"aten.{name.removeprefix('aten::')}.{overload}"
        if target in known_targets():
            bound = _bound(getattr(packet, overload), arguments)
            if bound is not None:
                op, types = _op(target, bound)
                try:
                    return _Match(target, None if name in _EMPTY else op_kernel(op, types, compute_dtype(op, types)))
                except (RegistaError, IndexError, KeyError, ValueError, AttributeError):  # a rule that takes other arguments
                    continue
    return None


def _attention(schema: Any, arguments: tuple[TensorType | str, ...]) -> _Match | None:
    """torch has a kernel per library, Regista one op each way: what it computes follows from its queries, keys, values and whether it is causal."""
    given = dict(zip((wanted.name for wanted in schema), arguments, strict=False))
    tensors = {name: given.get(name) for name in ("query", "key", "value")}
    kinds = [kind for kind in tensors.values() if isinstance(kind, TensorType) and kind.ndim == 4]
    causal = given.get("is_causal") == "True"
    if len(kinds) != 3:
        return None
    query, key, value = kinds
    out, rows = query.with_shape((*query.shape[:-1], value.shape[-1])), TensorType(query.shape[:-1], DType.FLOAT32)
    types = {"q": query, "k": key, "v": value, "out": out, "rows": rows}
    q, k, v, place = Ref("q"), Ref("k"), Ref("v"), (causal, None, out.shape, ()) if causal else (causal, None)
    if any(wanted.name in ("grad_out", "grad_out_") for wanted in schema):
        types |= {"gradient": out, "dq": query, "dk": key, "dv": value}
        args: tuple[Arg, ...] = (Ref("gradient"), q, k, v, None, Ref("out"), Ref("rows"), *place)
        op = Op(id="recorded", target="regista.attention_backward", args=args, outputs=("dq", "dk", "dv"), role=Role.BACKWARD)
    else:
        op = Op(id="recorded", target="regista.attention", args=(q, k, v, None, *place), outputs=("out", "rows"), role=Role.FORWARD)
    return _Match(op.target, op_kernel(op, types, query.dtype))


Bound = tuple[list[Any], dict[str, Any], tuple[torch.Tensor | None, ...]]


def _bound(overload: Any, arguments: tuple[TensorType | str, ...]) -> Bound | None:
    """Positional and named arguments, and results, on meta tensors; None: the overload does not take them."""
    schema = overload._schema.arguments
    if len(arguments) > len(schema):
        return None
    args: list[Any] = []
    named: dict[str, Any] = {}
    try:
        for place, wanted in enumerate(schema):
            given = arguments[place] if place < len(arguments) else ""
            if isinstance(given, TensorType):
                value: Any = torch.empty(given.shape, dtype=getattr(torch, given.dtype.value), device="meta")
            elif given == "" and wanted.has_default_value():
                value = wanted.default_value
            elif given == "":
                value = None
            else:
                value = ast.literal_eval(given[:1000])
            if wanted.kwarg_only:
                named[wanted.name] = value
            else:
                args.append(value)
        made = overload(*args, **named)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, SyntaxError, IndexError, AssertionError):
        return None
    results = made if isinstance(made, tuple | list) else (made,)
    return args, named, tuple(result if isinstance(result, torch.Tensor) else None for result in results)


def _op(target: str, bound: Bound) -> tuple[Op, dict[str, TensorType]]:
    types: dict[str, TensorType] = {}

    def value(given: Any, name: str) -> Arg:
        if isinstance(given, torch.Tensor):
            types[name] = TensorType(tuple(given.shape), DType.parse(str(given.dtype)))
            return Ref(name)
        if isinstance(given, list | tuple):
            return tuple(value(one, f"{name}.{n}") for n, one in enumerate(given))
        return given if isinstance(given, bool | int | float | str) else None

    args = [value(given, f"a{n}") for n, given in enumerate(bound[0])]
    while args and args[-1] is None:
        args.pop()
    named = tuple((name, value(given, name)) for name, given in bound[1].items() if given is not None)
    outputs = tuple(None if result is None else f"o{n}" for n, result in enumerate(bound[2]))
    for n, result in enumerate(bound[2]):
        value(result, f"o{n}")
    return Op(id="recorded", target=target, args=tuple(args), kwargs=named, outputs=outputs, role=Role.FORWARD), types
