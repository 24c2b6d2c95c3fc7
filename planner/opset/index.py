"""Look-ups by index.  The indexed dim is whole, because a part would need shifted indices; the index' dims and the others are factors.

Our own look-ups (planner/frontend/tracing/lookup.py) take the numbers of the table's rows (slots) as an operand that is split with it:

    regista.embedding (V D)(i)(V) -> i D:            S(0) of table and slots: V is contracted -> P
    regista.embedding_backward (i D)(i)(V) -> V D:   S(0) of the slots -> S(0)
    regista.pick (.. V ..)(.. k ..)(V) -> .. k ..    V is contracted -> P;     regista.place: its adjoint, k is contracted
    regista.take_along (G T M)(G k 1) -> G k M       T is whole;               regista.add_along (G T M)(G k 1)(G k M) -> G T M: k adds up

The names on the left are the factors:

    embedding (V D)(i) -> i D:        S(i) of the index -> S(i);  S(1) of the table -> S(last);  P of the table -> P
    embedding backward (i D)(i) -> V D:  i is contracted -> P;  D -> S(1)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planner.ir.graph import Op, Ref
from planner.ir.tensor import DType
from planner.opset.elementwise import broadcast_factors
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import OpSpec, argument, dim_of, integer, is_ref, labels, no_flop, result_shape, shape_of, written_bytes

__all__ = ["TABLE"]


def _embedding(op: Op, types: Types) -> FactorRule:
    """weight, indices."""
    index = labels(len(shape_of(op, types, 1)), "i")
    return FactorRule(operands=(("v", "d"), index), results=((*index, "d"),), whole=frozenset({"v"}), linear=(frozenset({0}),))


def _embedding_backward(op: Op, types: Types) -> FactorRule:
    """grad, indices, num_weights, padding_idx, scale_grad_by_freq (which counts all indices, so these must be whole)."""
    index = labels(len(shape_of(op, types, 1)), "i")
    by_frequency = bool(integer(op, 4, "scale_grad_by_freq", 0))
    whole = frozenset({"v", *index}) if by_frequency else frozenset({"v"})
    return FactorRule(operands=((*index, "d"), index), results=(("v", "d"),), whole=whole, linear=(frozenset({0}),))


def _gather(op: Op, types: Types) -> FactorRule:
    """x, dim, index: on dim the index has a factor of its own; another dim is a factor if index and x have the same extent there."""
    source, index = shape_of(op, types, 0), shape_of(op, types, 1)
    dim = dim_of(op, 1, "dim", 0, len(index))
    names = tuple("i" if d == dim else f"d{d}" if source[d] == extent else "" for d, extent in enumerate(index))
    operand = tuple("" if d == dim else f for d, f in enumerate(names))
    return FactorRule(operands=(operand, names), results=(names,), linear=(frozenset({0}),))


def _scatter_reduce(op: Op, types: Types) -> FactorRule:
    """x, dim, index, src, reduce: as scatter; a sum and a mean are jointly linear in (x, src), an extreme and a product are not."""
    return _scatter(op, types, joint=argument(op, 4, "reduce") in ("sum", "mean"))


def _scatter(op: Op, types: Types, *, joint: bool) -> FactorRule:
    """x, dim, index, src (a tensor or a number): dim is whole; another dim is a factor if all operands have the same extent there."""
    shapes = [types[v].shape for v in op.inputs]
    dim = dim_of(op, 1, "dim", 0, len(shapes[0]))
    names = tuple(f"d{d}" if d != dim and len({s[d] for s in shapes}) == 1 else "" for d in range(len(shapes[0])))
    linear = (frozenset({0, 2}),) if joint else ()
    return FactorRule(operands=(names,) * len(shapes), results=(names,), linear=linear)


def _sliced_embedding(op: Op, types: Types) -> FactorRule:
    """weight, index, slots, extent."""
    index = labels(len(shape_of(op, types, 1)), "i")
    return FactorRule(operands=(("v", "d"), index, ("v",)), results=((*index, "d"),), linear=(frozenset({0}),))


def _sliced_embedding_backward(op: Op, types: Types) -> FactorRule:
    """grad, index, slots, extent, padding_idx."""
    index = labels(len(shape_of(op, types, 1)), "i")
    return FactorRule(operands=((*index, "d"), index, ("v",)), results=(("v", "d"),), linear=(frozenset({0}),))


def _pick(op: Op, types: Types) -> FactorRule:
    """x, dim, index, slots, extent: the rule of gather, but the dim is a factor of x and of the slots."""
    gathered = _gather(op, types)
    source, picked = gathered.operands
    dim = dim_of(op, 1, "dim", 0, len(picked))
    whole_x = (*source[:dim], "v", *source[dim + 1 :])
    return FactorRule(operands=(whole_x, picked, ("v",)), results=(picked,), linear=(frozenset({0}),))


def _place(op: Op, types: Types) -> FactorRule:
    """source, dim, index (of one shape), slots, extent."""
    placed = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dim", 0, len(placed))
    result = (*placed[:dim], "v", *placed[dim + 1 :])
    return FactorRule(operands=(placed, placed, ("v",)), results=(result,), linear=(frozenset({0}),))


def _take_along(op: Op, types: Types) -> FactorRule:
    """x, dim, index with one dim for each of x, of extent 1 where all of x's elements share it: the rule of index_select but for the index."""
    selected = _index_select(op, types)
    (names, _), (result,) = selected.operands, selected.results
    return replace(selected, operands=(names, _along(op, types, result)))


def _add_along(op: Op, types: Types) -> FactorRule:
    """x, dim, index as of take_along, source: the rule of index_add but for the index."""
    added = _along_index(op, types, adds=True)
    names, _, source = added.operands
    return replace(added, operands=(names, _along(op, types, source), source))


def _along(op: Op, types: Types, looked_up: tuple[str, ...]) -> tuple[str, ...]:
    """The factors of an index that is broadcast to what it looks up, whose factors are given."""
    x, index = shape_of(op, types, 0), shape_of(op, types, 1)
    return tuple(f if f == "i" or index[d] == x[d] else "" for d, f in enumerate(looked_up))


def _index_select(op: Op, types: Types) -> FactorRule:
    """x, dim, index (1-D)."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dim", 0, len(names))
    result = tuple("i" if d == dim else f for d, f in enumerate(names))
    return FactorRule(operands=(names, ("i",)), results=(result,), whole=frozenset({names[dim]}), linear=(frozenset({0}),))


def _along_index(op: Op, types: Types, *, adds: bool) -> FactorRule:
    """x, dim, index (1-D), source: x with the slices of source added (or put) at the index; where they are added, parts of the index add up."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dim", 0, len(names))
    if len(names) == 0 or len(shape_of(op, types, 2)) != len(names):
        return FactorRule(operands=tuple(("",) * types[v].ndim for v in op.inputs), results=(("",) * len(names),))
    source = (*names[:dim], "i", *names[dim + 1 :])
    return FactorRule(
        operands=(names, ("i",) * len(shape_of(op, types, 1)), source),
        results=(names,),
        whole=frozenset({names[dim]}) if adds else frozenset({names[dim], "i"}),
        addends=frozenset({0}) if adds else frozenset(),
        linear=(frozenset({0, 2}),),
    )


def _index_fill(op: Op, types: Types) -> FactorRule:
    """x, dim, index, value (a number or a tensor of no dims)."""
    names = labels(len(shape_of(op, types, 0)))
    dim = dim_of(op, 1, "dim", 0, len(names))
    whole = frozenset(names[dim : dim + 1])
    index = ("",) * len(shape_of(op, types, 1))
    if is_ref(op, 3, "value"):
        return FactorRule(operands=(names, index, ()), results=(names,), whole=whole, linear=(frozenset({0, 2}),))
    linear = (frozenset({0}),) if argument(op, 3, "value") == 0 else ()
    return FactorRule(operands=(names, index), results=(names,), whole=whole, linear=linear)


def _masked_scatter(op: Op, types: Types) -> FactorRule:
    """x, mask, source: the elements of source go to the places of the mask in order, so all is whole."""
    return FactorRule(
        operands=tuple(("",) * types[v].ndim for v in op.inputs),
        results=(("",) * len(result_shape(op, types)),),
        linear=(frozenset({0, 2}),),
    )


def _masked_scatter_backward(op: Op, types: Types) -> FactorRule:
    return FactorRule(
        operands=tuple(("",) * types[v].ndim for v in op.inputs), results=(("",) * len(result_shape(op, types)),), linear=(frozenset({0}),)
    )


def _take(op: Op, types: Types) -> FactorRule:
    """x as one row, index: each index is looked up by itself."""
    index = labels(len(shape_of(op, types, 1)), "i")
    return FactorRule(operands=(("",) * len(shape_of(op, types, 0)), index), results=(index,), linear=(frozenset({0}),))


def _put(op: Op, types: Types) -> FactorRule:
    """x as one row, index, source, accumulate: places are those of the whole x; where sources are added, parts of the index add up."""
    names, source = ("",) * len(shape_of(op, types, 0)), shape_of(op, types, 2)
    adds = bool(integer(op, 3, "accumulate", 0)) and shape_of(op, types, 1) == source
    index = labels(len(source), "i") if adds else ("",) * len(shape_of(op, types, 1))
    return FactorRule(
        operands=(names, index, index if adds else ("",) * len(source)),
        results=(names,),
        addends=frozenset({0}) if adds else frozenset(),
        linear=(frozenset({0, 2}),),
    )


def _bins(op: Op, types: Types, *, values_at: int) -> FactorRule:
    """Values and the borders of bins in one row: each value finds its bin by itself.  Borders in several rows share the leading dims.

    A bin's number counts the borders below, so parts of the borders, which stand in order, add up.
    """
    values, borders = shape_of(op, types, values_at), shape_of(op, types, 1 - values_at)
    names = labels(len(values))
    rows = () if len(borders) < 2 else names[:-1]
    sorters = len(op.inputs) - 2  # they hold places in the whole row
    row = (*rows, "" if sorters else "borders")
    pair = (names, row) if values_at == 0 else (row, names)
    return FactorRule(operands=(*pair, *(row,) * sorters), results=(names,))


def _members(op: Op, types: Types) -> FactorRule:
    """isin(elements, set): each element is looked for by itself."""
    names = labels(len(shape_of(op, types, 0)))
    return FactorRule(operands=(names, ("",) * len(shape_of(op, types, 1))), results=(names,))


def _embedding_bag(op: Op, types: Types) -> FactorRule:
    """weight, indices (1-D), offsets, scale, mode, sparse, weights of the samples -> bags, bag of each index, sizes, places of the maxima.

    Offsets count from the first index, so indices and bags are whole; a column of the table stands in one column of the bags.
    """
    summed = integer(op, 4, "mode", 0) != _MAX
    rest = tuple(("",) * types[v].ndim for v in op.inputs[1:])
    maxima = ("",) * len(result_shape(op, types, 3)) if op.outputs[3] is not None else ()
    lie = ("", "") if not summed else ("", "d")
    return FactorRule(
        operands=(("", lie[1]), *rest),
        results=(("", lie[1]), ("",), ("",), maxima),
        linear=(frozenset({0}),) if summed else (),
        depends=(frozenset(range(len(op.inputs))), *(frozenset(range(1, len(op.inputs))),) * 3),
    )


def _embedding_bag_backward(op: Op, types: Types) -> FactorRule:
    """grad, indices, offsets, offset2bag, sizes, places of the maxima, rows, ... -> the table's gradient."""
    summed = integer(op, 8, "mode", 0) != _MAX
    rest = tuple(("",) * types[v].ndim for v in op.inputs[1:])
    column = "d" if summed else ""
    return FactorRule(operands=(("", column), *rest), results=(("", column),), linear=(frozenset({0}),))


_MAX = 2
"""Mode of an embedding bag whose entries are the largest; 0 and 1 are sums and means."""


def _advanced(op: Op, types: Types, *, put: bool) -> FactorRule:
    """x[indices], and index_put(x, indices, values), which writes there: indexed dims are whole, the others factors.

    The dims of the broadcast index take the place of the first indexed dim, or stand in front if the indexed dims are not adjacent.
    """
    positions = argument(op, 1, "indices")
    assert isinstance(positions, tuple)
    indexed = [d for d, a in enumerate(positions) if isinstance(a, Ref)]
    names = labels(len(shape_of(op, types, 0)))
    masks = [d for d, v in zip(indexed, op.inputs[1:], strict=False) if types[v].dtype is DType.BOOL]
    if put and masks and len(indexed) == 1 and types[op.inputs[-1]].numel == 1:  # one number into all places of a mask: elementwise
        mask, value = (types[v].ndim for v in op.inputs[1:])
        covered = names[masks[0] : masks[0] + mask]
        return FactorRule(operands=(names, covered, ("",) * value), results=(names,), linear=(frozenset({0, 2}),))
    if masks:  # how many places a mask names depends on its values: all-B only
        blank = tuple(("",) * types[v].ndim for v in op.inputs)
        return FactorRule(operands=blank, results=(("",) * len(result_shape(op, types)),))
    shapes = [shape_of(op, types, 1 + k) for k in range(len(indexed))]
    index = labels(max(map(len, shapes)), "i")
    extent = tuple(max(s[k - len(index)] for s in shapes if len(s) >= len(index) - k) for k in range(len(index)))
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    at = indexed[0] if adjacent else 0
    unindexed = [f for d, f in enumerate(names) if d not in indexed]
    looked_up = (*unindexed[:at], *index, *unindexed[at:])
    operands = (names, *(broadcast_factors(s, extent, index) for s in shapes))
    whole = frozenset(names[d] for d in indexed)
    if not put:
        return FactorRule(operands=operands, results=(looked_up,), whole=whole, linear=(frozenset({0}),))
    unindexed_extents = [e for d, e in enumerate(shape_of(op, types, 0)) if d not in indexed]
    looked_up_shape = (*unindexed_extents[:at], *extent, *unindexed_extents[at:])
    values = broadcast_factors(types[op.inputs[-1]].shape, looked_up_shape, looked_up)
    joint = frozenset({0, len(operands)})
    return FactorRule(operands=(*operands, values), results=(names,), whole=whole | set(index), linear=(joint,))


def _triangle(op: Op, types: Types) -> FactorRule:
    """The diagonal runs through the last two dims, so both are whole."""
    names = labels(len(result_shape(op, types)))
    return FactorRule(operands=(names,), results=(names,), whole=frozenset(names[-2:]), linear=(frozenset({0}),))


def _looked_up_bytes(op: Op, types: Types) -> int:
    """The index, and the rows that it names, which are read and written; the rest of the table is not read."""
    return sum(types[v].size_bytes for v in op.inputs[1:]) + 2 * written_bytes(op, types)


def _picked_bytes(op: Op, types: Types) -> int:
    """The index, and the rows that it names, which are read and written; of the slots only the first is read."""
    return types[op.inputs[1]].size_bytes + 2 * written_bytes(op, types)


def _placed_bytes(op: Op, types: Types) -> int:
    """The source and its index are read, the result is cleared, and the source is written into it."""
    source, index = (types[v].size_bytes for v in op.inputs[:2])
    return 2 * source + index + written_bytes(op, types)


TABLE: dict[str, OpSpec] = {
    "regista.embedding": OpSpec(rule=_sliced_embedding, flop=no_flop, traffic=_picked_bytes),
    "regista.embedding_backward": OpSpec(rule=_sliced_embedding_backward, traffic=_placed_bytes),
    "regista.pick": OpSpec(rule=_pick, flop=no_flop, traffic=_picked_bytes),
    "regista.place": OpSpec(rule=_place, flop=no_flop, traffic=_placed_bytes),
    "regista.take_along": OpSpec(rule=_take_along, flop=no_flop, traffic=_looked_up_bytes),
    "regista.add_along": OpSpec(rule=_add_along),
    "aten.embedding.default": OpSpec(rule=_embedding, flop=no_flop, traffic=_looked_up_bytes),
    "aten.embedding_dense_backward.default": OpSpec(rule=_embedding_backward),
    "aten.gather.default": OpSpec(rule=_gather, flop=no_flop, traffic=_looked_up_bytes),
    "aten.index_select.default": OpSpec(rule=_index_select, flop=no_flop, traffic=_looked_up_bytes),
    "aten.index.Tensor": OpSpec(rule=partial(_advanced, put=False), flop=no_flop, traffic=_looked_up_bytes),
    "aten.index_put.default": OpSpec(rule=partial(_advanced, put=True)),
    "aten.scatter.value": OpSpec(rule=partial(_scatter, joint=False)),
    "aten.scatter.src": OpSpec(rule=partial(_scatter, joint=False)),
    "aten.scatter_add.default": OpSpec(rule=partial(_scatter, joint=True)),
    "aten.scatter_reduce.two": OpSpec(rule=_scatter_reduce),
    "aten.index_add.default": OpSpec(rule=partial(_along_index, adds=True)),
    "aten.index_copy.default": OpSpec(rule=partial(_along_index, adds=False)),
    "aten.index_fill.int_Scalar": OpSpec(rule=_index_fill, flop=no_flop),
    "aten.index_fill.int_Tensor": OpSpec(rule=_index_fill, flop=no_flop),
    "aten.masked_scatter.default": OpSpec(rule=_masked_scatter, flop=no_flop),
    "aten.masked_scatter_backward.default": OpSpec(rule=_masked_scatter_backward, flop=no_flop),
    "aten.take.default": OpSpec(rule=_take, flop=no_flop, traffic=_looked_up_bytes),
    "aten.put.default": OpSpec(rule=_put),
    "aten.bucketize.Tensor": OpSpec(rule=partial(_bins, values_at=0)),
    "aten.searchsorted.Tensor": OpSpec(rule=partial(_bins, values_at=1)),
    "aten.isin.Tensor_Tensor": OpSpec(rule=_members),
    "aten._embedding_bag.default": OpSpec(rule=_embedding_bag, traffic=_looked_up_bytes),
    "aten._embedding_bag_backward.default": OpSpec(rule=_embedding_bag_backward),
    "aten.tril.default": OpSpec(rule=_triangle, flop=no_flop),
    "aten.triu.default": OpSpec(rule=_triangle, flop=no_flop),
}
