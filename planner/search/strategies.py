"""Strategies: every joint layout of an op on a mesh of several axes (SEMANTICS 1.5: ND signatures are products of 1-D ones).

Ops that differ only in the names of their values share one set, so a model of 96 equal layers needs the strategies of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.cost import compute_dtype
from planner.ir.graph import Arg, Op, Ref
from planner.ir.sbp import B, NdSbp, Sbp, Split
from planner.ir.tensor import DType, TensorType
from planner.opset import factor_rule, flop, local_types, localize, signatures, traffic_bytes

__all__ = ["LocalOp", "Ring", "Strategy", "StrategySet", "StrategySets", "cut", "op_shape", "relabel", "without_names"]


_NO_AXIS = NdSbp(())


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op as one rank performs it: literals and types are local, layouts per operand occurrence and per output."""

    op: Op
    types: Mapping[str, TensorType]
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp | None, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """What travels around a mesh axis during attention: ``total_bytes``, of all devices together, so often.   behind: that overlap with nothing.

    steps: the work of its first step, and of each other.
    """

    axis: int
    shifts: int
    total_bytes: float
    behind: int
    steps: tuple[Strategy, Strategy]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to lay an op: NdSbp per operand and per output, and the work of one rank.

    ring: of attention whose keys and values go from device to device; the work is then that of gathered ones.
    """

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    flop: int
    traffic_bytes: int
    dtype: DType | None
    local: LocalOp
    ring: Ring | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StrategySet:
    """The strategies of ops of one shape, which differ in the names of their values only.  Compared by identity."""

    strategies: tuple[Strategy, ...]


class StrategySets:
    """Strategy sets by op shape, for one mesh.

    narrowed: what the search takes of a set, by what is asked of the op (planner.search.formulation.op_strategies).
    """

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.mesh = mesh
        self._by_shape: dict[tuple[object, ...], StrategySet] = {}
        self._by_op: dict[tuple[int, int], tuple[Op, Mapping[str, TensorType], StrategySet]] = {}
        """By identity of the op and of its graph's types, which are held so that no others come to lie at their addresses."""
        self.narrowed: dict[tuple[StrategySet, object], StrategySet] = {}

    def of(self, op: Op, types: Mapping[str, TensorType]) -> StrategySet:
        """Every strategy of the op.

        Raises:
            UnknownOp: the op has no rule.
        """
        key = id(op), id(types)
        if key not in self._by_op:
            shape = op_shape(op, types)
            if shape not in self._by_shape:
                self._by_shape[shape] = StrategySet(tuple(self._strategies(op, types)))
            self._by_op[key] = op, types, self._by_shape[shape]
        return self._by_op[key][2]

    def _strategies(self, op: Op, types: Mapping[str, TensorType]) -> list[Strategy]:
        local_ops = [LocalOp(op, {v: types[v] for v in (*op.inputs, *(o for o in op.outputs if o))}, (), ())]
        for parts in self.mesh:
            local_ops = [extended for local in local_ops for extended in _extensions(local, parts)]
        dtype = compute_dtype(op, types)  # whatever is cut
        distinct = {(local.inputs, local.outputs): local for local in reversed(local_ops)}
        return [
            Strategy(
                local.inputs,
                tuple(sbp if sbp is not None else NdSbp.broadcast(len(self.mesh)) for sbp in local.outputs),
                flop(local.op, local.types),
                traffic_bytes(local.op, local.types),
                dtype,
                local,
            )
            for local in reversed(distinct.values())
        ]


def relabel(local: LocalOp, op: Op) -> LocalOp:
    """The local op of another op of the same shape."""
    if _labels(local.op) == _labels(op):
        return local
    names: dict[str, str] = dict(zip(local.op.inputs, op.inputs, strict=True))
    outputs = {o: n for o, n in zip(local.op.outputs, op.outputs, strict=True) if o is not None and n is not None}
    mine = local.op.renamed(names)
    mine = op.with_arguments(mine.args, mine.kwargs)
    types = {(outputs if v in outputs else names)[v]: t for v, t in local.types.items()}
    return LocalOp(mine, types, local.inputs, local.outputs)


def _labels(op: Op) -> tuple[object, ...]:
    """The fields in which ops of one strategy set may differ: names, place and number of draw."""
    return op.id, op.inputs, op.outputs, op.role, op.module, op.forward_of, op.draw, op.again


def _extensions(local: LocalOp, parts: int) -> list[LocalOp]:
    before_in = local.inputs or (_NO_AXIS,) * len(local.op.inputs)
    before_out = local.outputs or (_NO_AXIS,) * len(local.op.outputs)
    extended = []
    rule = factor_rule(local.op, local.types)
    for signature in signatures(local.op, local.types, parts, rule):
        types = dict(local.types)
        for value, sbp in zip(local.op.inputs, signature.inputs, strict=True):
            types[value] = cut(local.types[value], sbp, parts)
        types |= local_types(local.op, signature, local.types, parts)
        extended.append(
            LocalOp(
                localize(local.op, signature, local.types, parts, rule),
                types,
                tuple([b.followed_by(s) for b, s in zip(before_in, signature.inputs, strict=True)]),
                tuple(
                    [
                        (b if b is not None else _NO_AXIS).followed_by(s if s is not None else B)
                        for b, s in zip(before_out, signature.outputs, strict=True)
                    ]
                ),
            )
        )
    return extended


def cut(tensor: TensorType, sbp: Sbp, parts: int) -> TensorType:
    """One even part of a tensor along one axis."""
    if not isinstance(sbp, Split):
        return tensor
    shape = list(tensor.shape)
    shape[sbp.dim] //= parts
    return tensor.with_shape(tuple(shape))


def op_shape(op: Op, types: Mapping[str, TensorType]) -> tuple[object, ...]:
    """What the strategies of an op depend on: everything but the names."""
    places: dict[str, int] = {}
    literals = tuple([without_names(arg, places) for arg in op.args])
    named = tuple([(name, without_names(arg, places)) for name, arg in op.kwargs])
    made = tuple([types[o] if o is not None else None for o in op.outputs])
    return (op.target, literals, named, tuple([types[v] for v in places]), made)


def without_names(arg: Arg, places: dict[str, int]) -> object:
    """A literal with its type, since 1, 1.0 and True are equal but not the same; of a value, which of the op's it is: its place in ``places``."""
    if isinstance(arg, Ref):
        return places.setdefault(arg.value, len(places))
    if isinstance(arg, tuple):
        return tuple([without_names(item, places) for item in arg])
    return (type(arg), arg)
