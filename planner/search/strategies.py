"""Strategies: every joint layout of an op on a mesh of several axes (SEMANTICS 1.5: ND signatures are products of 1-D ones).

Ops that differ only in the names of their values share one set, so a model of 96 equal layers needs the strategies of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from planner.cost import compute_dtype
from planner.ir.graph import Arg, Op, Ref
from planner.ir.sbp import B, NdSbp, Sbp, Split
from planner.ir.tensor import DType, TensorType
from planner.opset import factor_rule, flop, local_types, localize, signatures, traffic_bytes

__all__ = ["LocalOp", "OpPart", "OpParts", "Ring", "Strategy", "StrategySet", "StrategySets", "cut", "op_shape", "relabel", "without_names"]


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


@dataclass(frozen=True, eq=False)  # no slots: the work is counted once and kept
class OpPart:
    """One of the equal parts of an op along an axis: its literals and types are local.

    inputs, outputs: layouts along the axis.   dtype: in which it computes, whatever is cut.
    """

    op: Op
    types: Mapping[str, TensorType]
    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp | None, ...]
    dtype: DType | None

    @cached_property
    def work(self) -> tuple[int, int]:
        """(flop, bytes that it moves)."""
        return flop(self.op, self.types), traffic_bytes(self.op, self.types)


class Strategy(NamedTuple):
    """One way to lay an op: NdSbp per operand and per output, and the work of one rank.

    A tuple, because a search makes a hundred thousand of them.

    part: of the op that one rank performs.
    ring: of attention whose keys and values go from device to device; the work is then that of gathered ones.
    """

    part: OpPart
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    ring: Ring | None = None

    @property
    def local(self) -> LocalOp:
        """The op as one rank performs it."""
        return LocalOp(self.part.op, self.part.types, self.inputs, self.outputs)

    def cut_into(self, part: OpPart) -> Strategy:
        """The strategy on a mesh with one more axis, along which the op is cut into parts like this one."""
        return Strategy(
            part,
            tuple([before.followed_by(sbp) for before, sbp in zip(self.inputs, part.inputs, strict=True)]),
            tuple([before.followed_by(B if sbp is None else sbp) for before, sbp in zip(self.outputs, part.outputs, strict=True)]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class StrategySet:
    """The strategies of ops of one shape, which differ in the names of their values only.  Compared by identity."""

    strategies: tuple[Strategy, ...]

    @property
    def has_rings(self) -> bool:
        """Whether some of them take time on links."""
        return any(strategy.ring is not None for strategy in self.strategies)


class OpParts:
    """The parts of ops along an axis, by op shape, for all meshes: a part on one is often the whole, or another part, on another."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[object, ...], int], tuple[OpPart, ...]] = {}

    def of(self, op: Op, types: Mapping[str, TensorType], parts: int) -> tuple[OpPart, ...]:
        """One for each signature of the op on an axis of ``parts`` devices.

        Raises:
            UnknownOp: the op has no rule.
        """
        key = op_shape(op, types), parts
        known = self._known.get(key)
        if known is None or (known[0].op.inputs, known[0].op.outputs) != (op.inputs, op.outputs):  # names are those of the last op
            known = self._known[key] = tuple(_parts(op, types, parts))
        return known


class StrategySets:
    """Strategy sets by op shape, for one mesh.

    parts: of ops, which the sets of several meshes share.
    narrowed: what the search takes of a set, by what is asked of the op (planner.search.formulation.op_strategies).
    """

    def __init__(self, mesh: tuple[int, ...], parts: OpParts | None = None) -> None:
        self.mesh = mesh
        self._parts = OpParts() if parts is None else parts
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
        given = OpPart(op, {v: types[v] for v in (*op.inputs, *(o for o in op.outputs if o))}, (), (), None)
        strategies = [Strategy(given, (_NO_AXIS,) * len(op.inputs), (_NO_AXIS,) * len(op.outputs))]
        for parts in self.mesh:
            strategies = [s.cut_into(part) for s in strategies for part in self._parts.of(s.part.op, s.part.types, parts)]
        distinct = {(s.inputs, s.outputs): s for s in reversed(strategies)}
        return list(reversed(distinct.values()))


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


def _parts(op: Op, types: Mapping[str, TensorType], parts: int) -> Iterator[OpPart]:
    rule, dtype = factor_rule(op, types), compute_dtype(op, types)
    for signature in signatures(op, types, parts, rule):
        local = dict(types)
        for value, sbp in zip(op.inputs, signature.inputs, strict=True):
            local[value] = cut(types[value], sbp, parts)
        local |= local_types(op, signature, types, parts)
        yield OpPart(localize(op, signature, types, parts, rule), local, signature.inputs, signature.outputs, dtype)


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
