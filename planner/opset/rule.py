"""Factor rules and the 1-D SBP signatures that follow from them (SEMANTICS 1.4).

A rule names the index factors of an op's dims, as an einsum does; ``mm`` is ``mk,kn->mn``.  For one mesh axis:

    factor f of a result              operands that have f: S(dim of f), the others B   ->  that result S(dim of f)
    factor f contracted               operands that have f: S(dim of f), the others B   ->  the result P(reduce op of f)
                                      (an addend, which has no f: P, because every part adds it)
    result independent of f           (no operand that it depends on has f)             ->  B
    linear group g of operands        operands in g: P(sum), the others B               ->  results that depend on g: P(sum)
    always                            all operands B                                    ->  all results B

A dim that has no factor is written ``""``: a broadcast dim of size 1, or an inner dim of a folded group of a view.
A factor in ``whole`` has a name but is never split (the dim a softmax runs over).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from planner.ir.graph import Op
from planner.ir.sbp import B, Broadcast, P, Partial, ReduceOp, Sbp, Split
from planner.ir.tensor import DType, TensorType

__all__ = ["FactorRule", "Factors", "Signature", "Size", "Turned", "Types", "derive"]

Types = Mapping[str, TensorType]
Factors = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """One legal layout of an op's operands and results on one mesh axis.

    inputs: one Sbp per entry of ``op.inputs`` (repeats included).
    outputs: one per entry of ``op.outputs``; None where nobody reads that output.
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp | None, ...]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join('-' if o is None else str(o) for o in self.outputs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A literal in the op's arguments that must follow the local shape of a result or of an operand.

    arg, name: the literal's position among the arguments, and its keyword where it is not given by position.
    result, operand: the tensor whose shape it repeats;  dims: which dims of it (None: all).
    shrinks: the literal is one number, which shrinks as the first of ``dims`` does (the groups of a convolution).
    """

    arg: int
    name: str
    result: int = 0
    operand: int | None = None
    dims: tuple[int, ...] | None = None
    shrinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """A factor that is cut into exactly so many parts, of which these operands and results have theirs ``turn`` places further (SEMANTICS 1.7)."""

    factor: str
    parts: int
    turn: int
    operands: frozenset[int]
    results: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorRule:
    """The factors of one op on given shapes.

    operands: per tensor operand (order and repeats of ``op.inputs``) the factor of every dim.
    results: per output the factor of every dim.
    whole: factors that may not be split.
    thick: factors whose parts must have an extent above 1 (a squeezed dim of 1 would vanish).
    addends: operands that are added to a contraction; they are P(sum) while a contracted factor that they do not have is split.
    reduce: contracted factor -> how the parts combine (default SUM); None forbids the split.
    linear: groups of operand indices in which the op is jointly linear; an empty group means that the results are zero.
    depends: per result the operand indices it is computed from (None: all of them).
    unread: operands whose elements are never read: they may be P, and S on dims that have no factor.
    sizes: literals that repeat a shape.
    counts: factor -> a number that must also be divisible by the number of parts, as the extents of the dims with that factor are.
    cuts: position of the literal that lists, for each mesh axis so far, which dim of the first result it cuts (-1: none); an op whose values
        depend on where an element stands takes from it where its part begins.
    turned: a factor whose parts lie further along the axis in some operands.
    """

    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    whole: frozenset[str] = frozenset()
    thick: frozenset[str] = frozenset()
    addends: frozenset[int] = frozenset()
    reduce: Mapping[str, ReduceOp | None] = field(default_factory=dict)
    linear: tuple[frozenset[int], ...] = ()
    depends: tuple[frozenset[int], ...] | None = None
    unread: frozenset[int] = frozenset()
    sizes: tuple[Size, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    cuts: int | None = None
    turned: Turned | None = None

    def depends_on(self, result: int) -> frozenset[int]:
        return frozenset(range(len(self.operands))) if self.depends is None else self.depends[result]

    def factors(self) -> tuple[str, ...]:
        """Factors that may be split: those of the results in their order, then those of the operands."""
        names = dict.fromkeys(f for dims in (*self.results, *self.operands) for f in dims)
        return tuple(f for f in names if f and f not in self.whole)


def derive(rule: FactorRule, op: Op, types: Types, parts: int) -> tuple[Signature, ...]:
    """Every 1-D signature of ``op`` on an axis of ``parts`` devices: all-B first, then one per factor, then the linear ones.

    Args:
        types: types of the op's values, already local for the mesh axes cut before this one.

    Returns:
        Signatures that split evenly, in a fixed order and without repetition.
    """
    everywhere = Signature((B,) * len(rule.operands), tuple(None if o is None else B for o in op.outputs))
    if parts == 1:
        return (everywhere,)
    repeats = len(set(op.inputs)) < len(op.inputs)
    has_bool = any(types[v].dtype is DType.BOOL for v in (*op.inputs, *op.outputs) if v is not None)
    legal: list[Signature] = []
    for signature in _candidates(rule, op, types, parts, everywhere):
        if (repeats and not _one_sbp_per_value(op, signature)) or (has_bool and _partial_bool(op, signature, types)):
            continue
        if signature not in legal:
            legal.append(signature)
    return tuple(legal)


def _candidates(rule: FactorRule, op: Op, types: Types, parts: int, everywhere: Signature) -> Iterator[Signature]:
    yield from _with_unread(rule, op, types, parts, everywhere)
    for factor in rule.factors():
        if (split := _split_factor(rule, op, types, parts, factor)) is not None:
            yield from _with_unread(rule, op, types, parts, split)
    for group in rule.linear:
        inputs = tuple(P if k in group else B for k in range(len(rule.operands)))
        passed = (P if not group or group & rule.depends_on(r) else B for r in range(len(op.outputs)))
        outputs = tuple(None if name is None else sbp for name, sbp in zip(op.outputs, passed, strict=True))
        yield from _with_unread(rule, op, types, parts, Signature(inputs, outputs))


@cache
def _split(dim: int, turn: int) -> Split:
    """Equal ones are one object: they are made, and compared, for every op of a model on every mesh."""
    return Split(dim, turn)


def _split_factor(rule: FactorRule, op: Op, types: Types, parts: int, factor: str) -> Signature | None:
    if rule.counts.get(factor, parts) % parts:
        return None
    turned = rule.turned if rule.turned is not None and rule.turned.factor == factor else None
    if turned is not None and turned.parts != parts:
        return None
    inputs: list[Sbp] = []
    contracted = not any(factor in dims for dims in rule.results)
    for k, (value, dims) in enumerate(zip(op.inputs, rule.operands, strict=True)):
        if factor not in dims:
            inputs.append(P if contracted and k in rule.addends else B)
            continue
        extent = types[value].shape[dims.index(factor)]
        if not _even(extent, parts) or (factor in rule.thick and extent == parts):
            return None
        inputs.append(_split(dims.index(factor), turned.turn if turned is not None and k in turned.operands else 0))
    outputs: list[Sbp | None] = []
    for r, (name, dims) in enumerate(zip(op.outputs, rule.results, strict=True)):
        if name is None:
            outputs.append(None)
        elif factor in dims:
            if not _even(types[name].shape[dims.index(factor)], parts):
                return None
            outputs.append(_split(dims.index(factor), turned.turn if turned is not None and r in turned.results else 0))
        elif any(factor in rule.operands[k] for k in rule.depends_on(r)):
            reduce = rule.reduce.get(factor, ReduceOp.SUM)
            if reduce is None:
                return None
            outputs.append(Partial(reduce))
        else:
            outputs.append(B)
    return Signature(tuple(inputs), tuple(outputs))


def _with_unread(rule: FactorRule, op: Op, types: Types, parts: int, signature: Signature) -> Iterator[Signature]:
    """The signature itself, then its variants in which one operand that the op does not read has another layout."""
    yield signature
    for k in sorted(rule.unread):
        if not isinstance(signature.inputs[k], Broadcast):
            continue
        shape = types[op.inputs[k]].shape
        free: list[Sbp] = [Split(d) for d, f in enumerate(rule.operands[k]) if not f and _even(shape[d], parts)]
        for sbp in (*free, P):
            yield Signature((*signature.inputs[:k], sbp, *signature.inputs[k + 1 :]), signature.outputs)


def _even(extent: int, parts: int) -> bool:
    return extent >= parts and extent % parts == 0


def _one_sbp_per_value(op: Op, signature: Signature) -> bool:
    """A value has one layout: x * x reads one tensor, which cannot be P as the left operand and B as the right one."""
    seen: dict[str, Sbp] = {}
    return all(seen.setdefault(value, sbp) == sbp for value, sbp in zip(op.inputs, signature.inputs, strict=True))


def _partial_bool(op: Op, signature: Signature, types: Types) -> bool:
    """Booleans have no sum: True + True is not a truth value."""
    layouts = (*zip(op.inputs, signature.inputs, strict=True), *zip(op.outputs, signature.outputs, strict=True))
    return any(v is not None and isinstance(sbp, Partial) and types[v].dtype is DType.BOOL for v, sbp in layouts)
