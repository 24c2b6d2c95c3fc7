"""Views, joins and slices: they move elements and do not compute; all are linear.

A view that folds or unfolds dims: both shapes (without their 1s) are partitioned into groups of equal product.  In each group only the
first dims of the two sides share a factor, because a contiguous split of the group is a split of its first dim:

    [B, T, C] -> [B*T, C]      groups (B T | B*T) (C | C)     S(0) -> S(0),  S(2) -> S(1);  T cannot be split
    [N, C]    -> [N, H, D]     groups (N | N) (C | H D)       S(1) -> S(1) if the parts divide H

The sizes are literals among the arguments; a ``Size`` makes ``localize`` replace them by the local shape of the result.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Op
from planner.opset.elementwise import broadcast_factors
from planner.opset.rule import FactorRule, Factors, Size, Types
from planner.opset.spec import Kind, OpSpec, argument, dim_of, dims_of, integer, labels, no_flop, result_shape, shape_of

__all__ = ["TABLE", "fold_factors"]

_FIRST = (frozenset({0}),)


def fold_factors(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Factors, Factors]:
    """Factors of both sides of a view.

    >>> fold_factors((2, 3, 4), (6, 1, 4))
    (('g0', '', 'g1'), ('g0', '', 'g1'))
    """
    left, right = [""] * len(source), [""] * len(target)
    rows = [d for d, extent in enumerate(source) if extent != 1]
    columns = [d for d, extent in enumerate(target) if extent != 1]
    i = j = group = 0
    while i < len(rows) and j < len(columns):
        left[rows[i]] = right[columns[j]] = f"g{group}"
        a, b = source[rows[i]], target[columns[j]]
        i, j, group = i + 1, j + 1, group + 1
        while a != b:
            if a < b and i < len(rows):
                a, i = a * source[rows[i]], i + 1
            elif b < a and j < len(columns):
                b, j = b * target[columns[j]], j + 1
            else:
                return ("",) * len(source), ("",) * len(target)  # only with empty dims: nothing is split
    return tuple(left), tuple(right)


def _view(op: Op, types: Types) -> FactorRule:
    source, target = types[op.inputs[0]], result_shape(op, types)
    if source.with_shape(target).numel != source.numel:
        raise InvalidProgram(f"{op.where()}: {source} has {source.numel} elements, its view {target} has another number")
    left, right = fold_factors(source.shape, target)
    return FactorRule(operands=(left,), results=(right,), linear=_FIRST, sizes=(Size(arg=1, name="size"),))


def _expand(op: Op, types: Types) -> FactorRule:
    """A dim that the op makes, rather than reads, is a factor of the result alone: B -> S(d)."""
    shape = result_shape(op, types)
    names = labels(len(shape))
    source = broadcast_factors(shape_of(op, types, 0), shape, names)
    return FactorRule(operands=(source,), results=(names,), linear=_FIRST, sizes=(Size(arg=1, name="size"),))


def _reordered(order: Callable[[Op, int], tuple[int, ...]]) -> Callable[[Op, Types], FactorRule]:
    """A rule for views that permute, drop or insert dims: ``order`` lists the source dim of every result dim, -1 for a new one."""

    def rule(op: Op, types: Types) -> FactorRule:
        names = labels(len(shape_of(op, types, 0)))
        result = tuple("" if d < 0 else names[d] for d in order(op, len(names)))
        return FactorRule(operands=(names,), results=(result,) * len(op.outputs), whole=frozenset(names) - set(result), linear=_FIRST)

    return rule


def _t(op: Op, ndim: int) -> tuple[int, ...]:
    return tuple(reversed(range(ndim)))


def _transpose(op: Op, ndim: int) -> tuple[int, ...]:
    a, b = dim_of(op, 1, "dim0", 0, ndim), dim_of(op, 2, "dim1", 0, ndim)
    swap = {a: b, b: a}
    return tuple(swap.get(d, d) for d in range(ndim))


def _permute(op: Op, ndim: int) -> tuple[int, ...]:
    dims = argument(op, 1, "dims")
    assert isinstance(dims, tuple)
    return tuple(int(d) % ndim for d in dims if isinstance(d, int))


def _unsqueeze(op: Op, ndim: int) -> tuple[int, ...]:
    new = dim_of(op, 1, "dim", 0, ndim + 1)
    return (*range(new), -1, *range(new, ndim))


def _select(op: Op, ndim: int) -> tuple[int, ...]:
    gone = dim_of(op, 1, "dim", 0, ndim)
    return tuple(d for d in range(ndim) if d != gone)


def _same(op: Op, types: Types) -> FactorRule:
    names = labels(len(shape_of(op, types, 0)))
    return FactorRule(operands=(names,), results=(names,) * len(op.outputs), linear=_FIRST)


def _squeeze(op: Op, types: Types) -> FactorRule:
    """A listed dim whose extent is not 1 stays.  Its parts must be longer than 1 too, or the op would drop the dim there."""
    shape = shape_of(op, types, 0)
    names = labels(len(shape))
    listed = dims_of(op, 1, "dim", len(shape))
    result = tuple(f for d, f in enumerate(names) if d not in listed or shape[d] != 1)
    return FactorRule(operands=(names,), results=(result,), thick=frozenset(names[d] for d in listed), linear=_FIRST)


def _slice(op: Op, types: Types) -> FactorRule:
    """x, dim=0, start, end, step: the sliced dim is a factor only if the slice takes all of it."""
    return _cut(shape_of(op, types, 0), op, first=1, sizes=())


def _slice_backward(op: Op, types: Types) -> FactorRule:
    """grad, input_sizes, dim, start, end, step."""
    return _cut(result_shape(op, types), op, first=2, sizes=(Size(arg=1, name="input_sizes"),))


def _cut(shape: tuple[int, ...], op: Op, *, first: int, sizes: tuple[Size, ...]) -> FactorRule:
    names = labels(len(shape))
    dim = dim_of(op, first, "dim", 0, len(shape))
    start, end, step = integer(op, first + 1, "start", 0), integer(op, first + 2, "end", shape[dim]), integer(op, first + 3, "step", 1)
    full = start == 0 and end >= shape[dim] and step == 1
    whole = frozenset() if full else frozenset({names[dim]})
    return FactorRule(operands=(names,), results=(names,), whole=whole, linear=_FIRST, sizes=sizes)


def _select_backward(op: Op, types: Types) -> FactorRule:
    """grad, input_sizes, dim, index."""
    names = labels(len(result_shape(op, types)))
    gone = dim_of(op, 2, "dim", 0, len(names))
    source = (*names[:gone], *names[gone + 1 :])
    whole = frozenset({names[gone]})
    return FactorRule(operands=(source,), results=(names,), whole=whole, linear=_FIRST, sizes=(Size(arg=1, name="input_sizes"),))


def _moved_within(at: int) -> Callable[[Op, Types], FactorRule]:
    """flip and roll (dims in argument ``at``; all if none is listed): elements move along a listed dim, so it is whole."""

    def rule(op: Op, types: Types) -> FactorRule:
        names = labels(len(shape_of(op, types, 0)))
        whole = frozenset(names[d] for d in dims_of(op, at, "dims", len(names)))
        return FactorRule(operands=(names,), results=(names,), whole=whole, linear=_FIRST)

    return rule


def _diagonal(op: Op, types: Types) -> FactorRule:
    """x, offset=0, dim1=0, dim2=1: the two dims are whole; the diagonal is the last dim of the result."""
    names = labels(len(shape_of(op, types, 0)))
    crossed = frozenset(names[dim_of(op, at, name, at - 2, len(names))] for at, name in ((2, "dim1"), (3, "dim2")))
    return FactorRule(operands=(names,), results=((*(f for f in names if f not in crossed), ""),), whole=crossed, linear=_FIRST)


def _diag_embed(op: Op, types: Types) -> FactorRule:
    """x, offset=0, dim1=-2, dim2=-1: the last dim becomes a diagonal of two dims of the result; the others keep their order."""
    names = labels(len(shape_of(op, types, 0)))
    pair = {dim_of(op, at, name, at - 4, len(names) + 1) for at, name in ((2, "dim1"), (3, "dim2"))}
    others = iter(names[:-1])
    result = tuple("" if d in pair else next(others) for d in range(len(names) + 1))
    return FactorRule(operands=((*names[:-1], ""),), results=(result,), linear=_FIRST)


def _windows(op: Op, types: Types) -> FactorRule:
    """x, dim, size, step: the windows of a dim stand in its place, their elements last."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dimension", 0, len(names))
    kept = tuple("" if d == dim else f for d, f in enumerate(names))
    return FactorRule(operands=(kept,), results=((*kept, ""),), linear=_FIRST)


def _windows_backward(op: Op, types: Types) -> FactorRule:
    """grad, input_sizes, dim, size, step."""
    names = labels(len(result_shape(op, types)))
    dim = dim_of(op, 2, "dim", 0, len(names))
    kept = tuple("" if d == dim else f for d, f in enumerate(names))
    return FactorRule(operands=((*kept, ""),), results=(kept,), linear=_FIRST, sizes=(Size(arg=1, name="input_sizes"),))


def _along_dim(at: int) -> Callable[[Op, Types], FactorRule]:
    """Joins and cuts along one dim (argument ``at``), which must be whole; the others are factors."""

    def rule(op: Op, types: Types) -> FactorRule:
        names = labels(len(shape_of(op, types, 0)))
        dim = dim_of(op, at, "dim", 0, len(names))
        joint = (frozenset(range(len(op.inputs))),)
        return FactorRule(
            operands=(names,) * len(op.inputs), results=(names,) * len(op.outputs), whole=frozenset({names[dim]}), linear=joint
        )

    return rule


def _stack(op: Op, types: Types) -> FactorRule:
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dim", 0, len(names) + 1)
    result = (*names[:dim], "", *names[dim:])
    joint = (frozenset(range(len(op.inputs))),)
    return FactorRule(operands=(names,) * len(op.inputs), results=(result,), linear=joint)


def _pad(op: Op, types: Types) -> FactorRule:
    """x, pad (pairs from the last dim), value: a padded dim must be whole; padding with zeros is linear."""
    names = labels(len(shape_of(op, types, 0)))
    pad = argument(op, 1, "pad")
    assert isinstance(pad, tuple)
    padded = frozenset(names[-1 - k // 2] for k, amount in enumerate(pad) if amount != 0)
    zero = argument(op, 2, "value", 0) == 0
    return FactorRule(operands=(names,), results=(names,), whole=padded, linear=_FIRST if zero else ())


def _copy(op: Op, types: Types) -> FactorRule:
    """target, source: the source broadcasts into the target, whose elements are not read."""
    names = labels(len(result_shape(op, types)))
    source = broadcast_factors(shape_of(op, types, 1), result_shape(op, types), names)
    return FactorRule(operands=(names, source), results=(names,), linear=(frozenset({1}), frozenset({0, 1})), unread=frozenset({0}))


def _insert(op: Op, types: Types) -> FactorRule:
    """slice_scatter(x, src, dim, ...): dim is whole."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 2, "dim", 0, len(names))
    return FactorRule(operands=(names, names), results=(names,), whole=frozenset({names[dim]}), linear=(frozenset({0, 1}),))


def _insert_one(op: Op, types: Types) -> FactorRule:
    """select_scatter(x, src, dim, index): dim is whole; src does not have it."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 2, "dim", 0, len(names))
    source = (*names[:dim], *names[dim + 1 :])
    return FactorRule(operands=(names, source), results=(names,), whole=frozenset({names[dim]}), linear=(frozenset({0, 1}),))


def _insert_diagonal(op: Op, types: Types) -> FactorRule:
    """diagonal_scatter(x, src, offset=0, dim1=0, dim2=1): the two dims are whole; the diagonal is the last dim of src."""
    names = labels(len(shape_of(op, types, 0)))
    crossed = frozenset(names[dim_of(op, at, name, at - 3, len(names))] for at, name in ((3, "dim1"), (4, "dim2")))
    source = (*(f for f in names if f not in crossed), "")
    return FactorRule(operands=(names, source), results=(names,), whole=crossed, linear=(frozenset({0, 1}),))


def _alias(rule: Callable[[Op, Types], FactorRule]) -> OpSpec:
    return OpSpec(rule=rule, kind=Kind.VIEW, flop=no_flop)


TABLE: dict[str, OpSpec] = {
    "aten.view.default": _alias(_view),
    "aten._unsafe_view.default": _alias(_view),
    "aten.reshape.default": _alias(_view),
    "aten.expand.default": _alias(_expand),
    "aten.t.default": _alias(_reordered(_t)),
    "aten.transpose.int": _alias(_reordered(_transpose)),
    "aten.permute.default": _alias(_reordered(_permute)),
    "aten.unsqueeze.default": _alias(_reordered(_unsqueeze)),
    "aten.select.int": _alias(_reordered(_select)),
    "aten.unbind.int": _alias(_reordered(_select)),
    "aten.squeeze.default": _alias(_squeeze),
    "aten.squeeze.dim": _alias(_squeeze),
    "aten.squeeze.dims": _alias(_squeeze),
    "aten.alias.default": _alias(_same),
    "aten.detach.default": _alias(_same),
    "aten.slice.Tensor": _alias(_slice),
    "aten.split.Tensor": _alias(_along_dim(2)),
    "aten.split_with_sizes.default": _alias(_along_dim(2)),
    "aten.cat.default": OpSpec(rule=_along_dim(1), flop=no_flop),
    "aten.stack.default": OpSpec(rule=_stack, flop=no_flop),
    "aten.diagonal.default": _alias(_diagonal),
    "aten.flip.default": OpSpec(rule=_moved_within(1), flop=no_flop),
    "aten.roll.default": OpSpec(rule=_moved_within(2), flop=no_flop),
    "aten.constant_pad_nd.default": OpSpec(rule=_pad, flop=no_flop),
    "aten.copy.default": OpSpec(rule=_copy, flop=no_flop),
    "aten.slice_scatter.default": OpSpec(rule=_insert, flop=no_flop),
    "aten.select_scatter.default": OpSpec(rule=_insert_one, flop=no_flop),
    "aten.diagonal_scatter.default": OpSpec(rule=_insert_diagonal, flop=no_flop),
    "aten.diag_embed.default": OpSpec(rule=_diag_embed, flop=no_flop),
    "aten.unfold_copy.default": OpSpec(rule=_windows, flop=no_flop),
    "aten.unfold_backward.default": OpSpec(rule=_windows_backward),
    "aten.slice_backward.default": OpSpec(rule=_slice_backward, flop=no_flop),
    "aten.select_backward.default": OpSpec(rule=_select_backward, flop=no_flop),
}
