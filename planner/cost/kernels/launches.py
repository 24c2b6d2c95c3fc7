"""The kernels that ops launch, by how the model is run (planner.ir.graph.Fusion).

Fused: ops that work element by element, reductions and normalisations which feed each other, directly or through views, with no product between,
are one pass: it reads what comes from outside once and writes what is read outside.  Ops behind a product are not joined with ops before it.
Copies that only make operands of products contiguous, and constants, cost nothing then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from planner.ir.graph import ACCUMULATE, Fusion, KernelKind, KernelWork, Op
from planner.ir.tensor import DType, TensorType
from planner.opset import elementwise, flop, is_creation, is_view, norm, reduce, traffic_bytes
from planner.opset.layers import BLOCK, BLOCK_BACKWARD
from planner.opset.layers.blocks import block_is_causal
from planner.opset.optimizer import UPDATES
from planner.opset.spec import argument, integer

__all__ = ["fragment_kernels", "kernel_of", "op_kernel"]

Types = Mapping[str, TensorType]

_PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.addmm.default", "aten.baddbmm.default"})
_CONVOLUTION, _CONVOLUTION_BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_ATTENTION, _ATTENTION_BACKWARD = "regista.attention", "regista.attention_backward"
_STRIDED = _PRODUCTS | {_ATTENTION, _ATTENTION_BACKWARD, BLOCK, BLOCK_BACKWARD}
_COPY = "aten.clone.default"
_PLACED = frozenset(
    {"aten.cat.default", "aten.stack.default", "aten.select_scatter.default", "aten.slice_scatter.default", "aten.slice_backward.default"}
)
"""They put parts together, and a compiler writes each part where it belongs."""
_CONSTANTS = frozenset(
    f"aten.{name}.default"
    for name in ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
_JOINED = (frozenset(elementwise.TABLE) | frozenset(reduce.TABLE) | frozenset(norm.TABLE) | _PLACED) - UPDATES - {ACCUMULATE}


def op_kernel(op: Op, types: Types, dtype: DType | None) -> KernelWork | None:
    """The kernel of one op by itself; None for a view, or what moves and computes nothing.

    Args:
        types: of the values that it reads and writes.   dtype: in which it computes (planner.cost.compute_dtype).
    """
    return kernel_of(op, types, dtype, flop(op, types), traffic_bytes(op, types))


def kernel_of(op: Op, types: Types, dtype: DType | None, op_flop: int, size_bytes: int) -> KernelWork | None:
    """``op_kernel`` of an op whose flop and bytes are known."""
    if is_view(op) or not (op_flop or size_bytes):
        return None
    kind, shape, times = _kind(op, types, op_flop)
    if kind in (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD):
        dtype = types[op.inputs[0]].dtype  # its row of numbers is float32 whatever it computes in
    return KernelWork(kind=kind, dtype=dtype, shape=shape, flop=op_flop // times, size_bytes=size_bytes // times, times=times)


def _kind(op: Op, types: Types, op_flop: int) -> tuple[KernelKind, tuple[int, ...], int]:
    """Kind and shape, and of how many kernels."""
    if op.target in _PRODUCTS:
        left, right = (types[v].shape for v in op.inputs[-2:])
        return KernelKind.PRODUCT, (prod(left[:-2]), left[-2], right[-1], left[-1]), 1
    if op.target == _CONVOLUTION and op.outputs[0] is not None:
        made, groups = types[op.outputs[0]].shape, integer(op, 8, "groups", 1)
        rows, columns = prod(made) // made[1], max(made[1] // groups, 1)
        inner = _inner(op_flop, groups * rows * columns)
        return KernelKind.CONVOLUTION, (groups, rows, columns, inner, _slides_by_one(op, types[op.inputs[1]], 3)), 1
    if op.target == _CONVOLUTION_BACKWARD:
        gradient, groups = types[op.inputs[0]].shape, integer(op, 9, "groups", 1)
        gradients = max(sum(v is not None for v in op.outputs[:2]), 1)
        rows, columns = prod(gradient) // gradient[1], max(gradient[1] // groups, 1)
        inner = _inner(op_flop // gradients, groups * rows * columns)
        return KernelKind.CONVOLUTION, (groups, rows, inner, columns, _slides_by_one(op, types[op.inputs[2]], 4)), gradients
    if op.target in (_ATTENTION, _ATTENTION_BACKWARD, BLOCK, BLOCK_BACKWARD):
        backward = op.target in (_ATTENTION_BACKWARD, BLOCK_BACKWARD)
        (samples, heads, queries, width), keys = (types[v].shape for v in op.inputs[backward : backward + 2])
        causal = block_is_causal(op) if op.target in (BLOCK, BLOCK_BACKWARD) else bool(integer(op, 7 if backward else 4, "is_causal", 0))
        kind = KernelKind.ATTENTION_BACKWARD if backward else KernelKind.ATTENTION
        return kind, (samples, heads, keys[1], queries, keys[2], width, int(causal)), 1
    return KernelKind.PASS, (), 1


def _slides_by_one(op: Op, weight: TensorType, stride: int) -> int:
    """1 if a filter of 3 x 3 moves by one place, which leaves a library the algorithms with fewer multiplications; ``stride``: its position."""
    moves = (argument(op, stride, "stride", 1), argument(op, stride + 2, "dilation", 1))
    by_one = all(move in (1, (1,), (1, 1)) for move in moves)
    return int(by_one and weight.shape[2:] == (3, 3) and not integer(op, stride + 3, "transposed", 0))


def _inner(op_flop: int, made: int) -> int:
    """The inner extent of the product that makes so many elements with so many flop."""
    return max(op_flop // (2 * max(made, 1)), 1)


def fragment_kernels(
    ops: Sequence[Op],
    types: Mapping[str, Types],
    counted: Mapping[str, tuple[int, int, DType | None]],
    written: frozenset[str],
    fusion: Fusion,
) -> tuple[KernelWork, ...]:
    """The kernels of ops performed in order; equal ones are counted.

    Args:
        types, counted: op id -> local types, and its flop, its bytes and the dtype in which it computes; without the boxing steps, which only
            cut or pad.
        written: values that lie in Regsts, and so are written whoever reads them.
    """
    known = [op for op in ops if op.id in types]
    works: dict[str, KernelWork] = {}
    for op in known:
        op_flop, size_bytes, dtype = counted[op.id]
        if (work := kernel_of(op, types[op.id], dtype, op_flop, size_bytes)) is not None:
            works[op.id] = work
    made: list[KernelWork] = []
    if fusion is Fusion.EAGER:
        made = list(works.values())
    else:
        source, readers = _sources(known), _readers(known)
        free = {op.id for op in known if _is_free(op, readers, written)}
        inlined = {v for op in known if op.id in free and op.target in _CONSTANTS for v in op.outputs if v is not None}
        works = {name: work for name, work in works.items() if name not in free}
        updates = [works[op.id] for op in known if op.target in UPDATES and op.id in works]
        chains = _chains([op for op in known if op.target in _JOINED and not is_creation(op)], known, works)
        apart = {op.id for chain in chains for op in chain} | {op.id for op in known if op.target in UPDATES}
        made = [works[op.id] for op in known if op.id in works and op.id not in apart]
        made += [_joined(chain, types, works, source, readers, written, inlined) for chain in chains]
        if updates:
            whole = sum(w.flop for w in updates), sum(w.size_bytes for w in updates)
            made.append(replace(updates[0], flop=whole[0], size_bytes=whole[1]))
    counts: Counter[KernelWork] = Counter()
    for work in made:
        counts[replace(work, times=1)] += work.times
    return tuple(replace(work, times=times) for work, times in counts.items())


def _is_free(op: Op, readers: Mapping[str, Sequence[Op]], written: frozenset[str]) -> bool:
    """A copy for products and attentions alone, which take strided operands as well; a constant that only passes read, which know it."""
    if (op.target != _COPY and op.target not in _CONSTANTS) or op.outputs[0] is None or op.outputs[0] in written:
        return False
    takes = _STRIDED if op.target == _COPY else _JOINED
    return all(reader.target in takes for reader in readers.get(op.outputs[0], ()))


def _sources(ops: Sequence[Op]) -> dict[str, str]:
    """A value that is a view -> the value that it shows."""
    source: dict[str, str] = {}
    for op in ops:
        if is_view(op) and op.inputs:
            source.update((value, source.get(op.inputs[0], op.inputs[0])) for value in op.outputs if value is not None)
    return source


def _readers(ops: Sequence[Op]) -> dict[str, list[Op]]:
    """Value -> the ops that read it, directly or through views; each once."""
    source, readers = _sources(ops), defaultdict(list)
    for op in ops:
        if not is_view(op):
            for value in dict.fromkeys(source.get(v, v) for v in op.inputs):
                readers[value].append(op)
    return dict(readers)


def _chains(candidates: Sequence[Op], ops: Sequence[Op], works: Mapping[str, KernelWork]) -> list[list[Op]]:
    """Candidates that feed each other and have equally many kernels of other kinds before them."""
    source, depth, maker = _sources(ops), dict[str, int](), dict[str, str]()
    joined, level = {op.id for op in candidates if op.id in works}, dict[str, int]()
    group: dict[str, str] = {name: name for name in joined}

    def first(name: str) -> str:
        while group[name] != name:
            name = group[name] = group[group[name]]
        return name

    for op in ops:
        level[op.id] = max((depth.get(source.get(v, v), 0) for v in op.inputs), default=0)
        if op.id in joined:
            for value in op.inputs:
                fed_by = maker.get(source.get(value, value))
                if fed_by is not None and level[fed_by] == level[op.id]:
                    group[first(op.id)] = first(fed_by)
        behind = level[op.id] + (op.id in works and op.id not in joined)
        for made in op.outputs:
            if made is not None:
                depth[made] = behind
                if op.id in joined:
                    maker[made] = op.id
    chains: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.id in joined:
            chains[first(op.id)].append(op)
    return list(chains.values())


def _joined(
    chain: Sequence[Op],
    types: Mapping[str, Types],
    works: Mapping[str, KernelWork],
    source: Mapping[str, str],
    readers: Mapping[str, Sequence[Op]],
    written: frozenset[str],
    inlined: set[str],
) -> KernelWork:
    """One pass instead of several kernels.   inlined: constants, which are not read."""
    inside = {op.id for op in chain}
    made = {value for op in chain for value in op.outputs if value is not None}
    entering = {source.get(v, v): types[op.id][v].size_bytes for op in chain for v in op.inputs if source.get(v, v) not in made | inlined}
    seen_outside = {v for v in made if v in written or any(op.id not in inside for op in readers.get(v, ()))}
    leaving = sum(types[op.id][v].size_bytes for op in chain for v in op.outputs if v in seen_outside)
    whole = sum(entering.values()) + leaving
    separate = sum(works[op.id].size_bytes for op in chain)
    return KernelWork(
        kind=KernelKind.PASS,
        dtype=works[chain[0].id].dtype,
        shape=(),
        flop=sum(works[op.id].flop for op in chain),
        size_bytes=min(whole, separate),
    )
