"""Matrix products, distances, and what is done to each matrix of a batch.

Products:  mm = mk,kn->mn   bmm = bmk,bkn->bmn   matmul = (the same leading dims)mk,kn->mn   addmm = bias + mm.

mm: S(0),B -> S(0)   B,S(1) -> S(1)   S(1),S(0) -> P   P,B -> P   B,P -> P
"""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.errors import InvalidProgram
from planner.ir.graph import Op
from planner.opset.elementwise import broadcast_factors
from planner.opset.rule import FactorRule, Factors, Types
from planner.opset.spec import OpSpec, argument, dim_of, labels, result_shape, shape_of

__all__ = ["TABLE"]

_EACH = (frozenset({0}), frozenset({1}))


def _mm(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("m", "k"), ("k", "n")), results=(("m", "n"),), linear=_EACH)


def _bmm(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("b", "m", "k"), ("b", "k", "n")), results=(("b", "m", "n"),), linear=_EACH)


def _matmul(op: Op, types: Types) -> FactorRule:
    """The two operands have the same leading dims and nothing broadcasts: the front end makes such products of bmm."""
    left, right = shape_of(op, types, 0), shape_of(op, types, 1)
    if len(left) < 3 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise InvalidProgram(
            f"{op.where()}: {left} by {right}; only products with the same leading dims have a rule, write the others with bmm"
        )
    batch = labels(len(left) - 2)
    return FactorRule(operands=((*batch, "m", "k"), (*batch, "k", "n")), results=((*batch, "m", "n"),), linear=_EACH)


def _grouped_mm(op: Op, types: Types) -> FactorRule:
    """x, w, ends of the groups?, bias?: the rows of one side or the summed dim are cut into groups, whose ends count from the first row.

    t k, g k n -> t n       g m k, k t -> m t       m t, t n -> g m n       g m k, g k n -> g m n
    """
    left, right = len(shape_of(op, types, 0)), len(shape_of(op, types, 1))
    operands: tuple[Factors, Factors]
    result: Factors
    match left, right:
        case 2, 3:
            operands, result = (("", "k"), ("", "k", "n")), ("", "n")
        case 3, 2:
            operands, result = (("", "m", "k"), ("k", "")), ("m", "")
        case 2, 2:
            operands, result = (("m", ""), ("", "n")), ("", "m", "n")
        case _:
            operands, result = (("g", "m", "k"), ("g", "k", "n")), ("g", "m", "n")
    rest = tuple(("",) * types[v].ndim for v in op.inputs[2:])
    if argument(op, 3, "bias") is not None:  # no kernel has one yet
        operands, result = (("",) * left, ("",) * right), ("",) * len(result)
    return FactorRule(operands=(*operands, *rest), results=(result,), linear=_EACH)


def _grouped_mm_flop(op: Op, types: Types) -> int:
    """2 m n k of every row with its own group's matrix."""
    x, w = (types[v] for v in op.inputs[:2])
    rows = x.numel if x.ndim == 2 or w.ndim == 3 else x.numel // x.shape[0]
    return 2 * rows * w.shape[-1]


def _mv(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("m", "k"), ("k",)), results=(("m",),), linear=_EACH)


def _dot(op: Op, types: Types) -> FactorRule:
    return FactorRule(operands=(("k",), ("k",)), results=((),), linear=_EACH)


def _addmm(op: Op, types: Types) -> FactorRule:
    """Every part adds the bias: if k is split, the bias must be P; the op passes P only if the bias and one factor are both P."""
    shape = (shape_of(op, types, 1)[0], shape_of(op, types, 2)[1])
    bias = broadcast_factors(shape_of(op, types, 0), shape, ("m", "n"))
    joint = (frozenset({0, 1}), frozenset({0, 2}))
    return FactorRule(operands=(bias, ("m", "k"), ("k", "n")), results=(("m", "n"),), addends=frozenset({0}), linear=joint)


def _matrices(*core: int, results: tuple[int, ...], of: int | None = None) -> Callable[[Op, Types], FactorRule]:
    """Decompositions, inverses, solves: each matrix by itself, so the dims before those of a matrix are factors.

    core, results: how many of the last dims of each operand and result belong to one matrix.
    of: the right-hand side of a solve: the first result is linear in it, and the other results do not depend on it.
    """

    def rule(op: Op, types: Types) -> FactorRule:
        everything = frozenset(range(len(op.inputs)))
        linear = () if of is None else (frozenset({of}),)
        depends = None if of is None else (everything, *(everything - {of},) * (len(op.outputs) - 1))
        batches = {shape_of(op, types, k)[: types[v].ndim - core[k]] for k, v in enumerate(op.inputs)}
        batch = labels(len(min(batches, key=len)))
        if len(batches) > 1:
            return FactorRule(
                operands=tuple(("",) * types[v].ndim for v in op.inputs),
                results=tuple(() if name is None else ("",) * types[name].ndim for name in op.outputs),
                linear=linear,
                depends=depends,
            )
        made = tuple(
            () if name is None else (*batch, *("",) * dims) if types[name].ndim == len(batch) + dims else ("",) * types[name].ndim
            for name, dims in zip(op.outputs, results, strict=True)
        )
        operands = tuple((*batch, *("",) * dims) for dims in core)
        return FactorRule(operands=operands, results=made, linear=linear, depends=depends)

    return rule


def _distances(op: Op, types: Types) -> FactorRule:
    """x [.., p, m], y [.., r, m] -> [.., p, r]: a distance needs all of m; leading dims broadcast."""
    return FactorRule(operands=_points(op, types, 0), results=((*_leading(op, types), "p", "r"),))


def _distances_backward(op: Op, types: Types) -> FactorRule:
    """grad [.., p, r], x, y, order, distances -> [.., p, m]: the parts of r add up, and each coordinate has its own gradient."""
    batch = labels(len(result_shape(op, types)) - 2)
    x, y, pairs = shape_of(op, types, 1), shape_of(op, types, 2), (*batch, "p", "r")
    if x[:-2] != y[:-2] or shape_of(op, types, 0)[:-2] != x[:-2]:
        batch = ("",) * len(batch)
        return FactorRule(
            operands=tuple((*("",) * (types[v].ndim - 2), *last) for v, last in zip(op.inputs, ("pr", "pm", "rm", "pr"), strict=True)),
            results=((*batch, "p", "m"),),
            linear=(frozenset({0}),),
        )
    return FactorRule(
        operands=(pairs, (*batch, "p", "m"), (*batch, "r", "m"), pairs), results=((*batch, "p", "m"),), linear=(frozenset({0}),)
    )


def _leading(op: Op, types: Types) -> Factors:
    return labels(len(result_shape(op, types)) - 2)


def _points(op: Op, types: Types, first: int) -> tuple[Factors, Factors]:
    batch, shape = _leading(op, types), result_shape(op, types)[:-2]
    left, right = (broadcast_factors(shape_of(op, types, first + k)[:-2], shape, batch) for k in range(2))
    return (*left, "p", ""), (*right, "r", "")


def _distances_flop(op: Op, types: Types) -> int:
    """Three per pair of points and coordinate: a difference, a power, a sum."""
    back = "backward" in op.target
    x, y = (shape_of(op, types, k + back) for k in (0, 1))
    return 3 * types[op.inputs[back]].numel * y[-2] if len(x) >= len(y) else 3 * types[op.inputs[1]].numel * x[-2]


def _cross(op: Op, types: Types) -> FactorRule:
    """x, y (their shapes broadcast), dim=-1 of extent 3, which is whole."""
    shape = result_shape(op, types)
    names = labels(len(shape))
    operands = tuple(broadcast_factors(types[v].shape, shape, names) for v in op.inputs)
    return FactorRule(operands=operands, results=(names,), whole=frozenset({names[dim_of(op, 2, "dim", -1, len(names))]}), linear=_EACH)


def _trilinear(op: Op, types: Types) -> FactorRule:
    """Three tensors, the dims in which each is expanded, and the dims that are summed: linear in each."""
    expands = [_dims(op, at) for at in (3, 4, 5)]
    ndim = len(shape_of(op, types, 0)) + len(expands[0])
    names, summed = labels(ndim), _dims(op, 6)
    operands = tuple(tuple(f for d, f in enumerate(names) if d not in expand) for expand in expands)
    result = tuple(f for d, f in enumerate(names) if d not in summed)
    return FactorRule(operands=operands, results=(result,), linear=(frozenset({0}), frozenset({1}), frozenset({2})))


def _dims(op: Op, at: int) -> tuple[int, ...]:
    given = argument(op, at, "")
    return tuple(int(d) for d in given if isinstance(d, int)) if isinstance(given, tuple) else ()


def _cubic(op: Op, types: Types) -> int:
    """About two thirds n^3 per matrix, as an LU decomposition."""
    matrices = types[op.inputs[0]]
    return 2 * matrices.numel * matrices.shape[-1] // 3


def _mm_flop(op: Op, types: Types) -> int:
    """2 m n k, from the last two operands; times b if they are batched."""
    left, right = (types[v] for v in op.inputs[-2:])
    return 2 * left.numel * (right.shape[-1] if right.ndim > 1 else 1)


TABLE: dict[str, OpSpec] = {
    "aten.mm.default": OpSpec(rule=_mm, flop=_mm_flop),
    "aten.bmm.default": OpSpec(rule=_bmm, flop=_mm_flop),
    "aten.matmul.default": OpSpec(rule=_matmul, flop=_mm_flop),
    "aten.mv.default": OpSpec(rule=_mv, flop=_mm_flop),
    "aten.dot.default": OpSpec(rule=_dot, flop=_mm_flop),
    "aten.addmm.default": OpSpec(rule=_addmm, flop=_mm_flop),
    "aten._grouped_mm.default": OpSpec(rule=_grouped_mm, flop=_grouped_mm_flop),
    "aten.linalg_inv_ex.default": OpSpec(rule=_matrices(2, results=(2, 0)), flop=_cubic),
    "aten._linalg_det.default": OpSpec(rule=_matrices(2, results=(0, 2, 1)), flop=_cubic),
    "aten._linalg_slogdet.default": OpSpec(rule=_matrices(2, results=(0, 0, 2, 1)), flop=_cubic),
    "aten.linalg_lu_factor_ex.default": OpSpec(rule=_matrices(2, results=(2, 1, 0)), flop=_cubic),
    "aten.linalg_lu_solve.default": OpSpec(rule=_matrices(2, 1, 2, results=(2,), of=2), flop=_cubic),
    "aten._linalg_solve_ex.default": OpSpec(rule=_matrices(2, 2, results=(2, 2, 1, 0), of=1), flop=_cubic),
    "aten.linalg_solve_triangular.default": OpSpec(rule=_matrices(2, 2, results=(2,), of=1), flop=_cubic),
    "aten.linalg_cholesky_ex.default": OpSpec(rule=_matrices(2, results=(2, 0)), flop=_cubic),
    "aten.cholesky_solve.default": OpSpec(rule=_matrices(2, 2, results=(2,), of=0), flop=_cubic),
    "aten.linalg_qr.default": OpSpec(rule=_matrices(2, results=(2, 2)), flop=_cubic),
    "aten.linalg_householder_product.default": OpSpec(rule=_matrices(2, 1, results=(2,)), flop=_cubic),
    "aten._linalg_svd.default": OpSpec(rule=_matrices(2, results=(2, 1, 2)), flop=_cubic),
    "aten._linalg_eigh.default": OpSpec(rule=_matrices(2, results=(1, 2)), flop=_cubic),
    "aten._cdist_forward.default": OpSpec(rule=_distances, flop=_distances_flop),
    "aten._euclidean_dist.default": OpSpec(rule=_distances, flop=_distances_flop),
    "aten._cdist_backward.default": OpSpec(rule=_distances_backward, flop=_distances_flop),
    "aten.linalg_cross.default": OpSpec(rule=_cross),
    "aten._trilinear.default": OpSpec(rule=_trilinear),
}
