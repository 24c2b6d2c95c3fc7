"""Which kernels are timed: all that the steps of some programs launch, each once, and products over a grid of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product

from planner.cost import compute_dtype
from planner.cost.kernels.launches import op_kernel
from planner.ir.graph import ACCUMULATE, Effect, KernelWork, LogicalGraph, Op, Ref, Role
from planner.ir.tensor import DType, TensorType
from zoo import ZOO

__all__ = ["KernelCase", "Size", "cases", "programs"]


class Size(Enum):
    """SMALL: in seconds on a CPU core, to try the code.   FULL: GPT-2 124M and ResNet-50 in float32 and under autocast, for a GPU."""

    SMALL = "small"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """An op on operands of these types, and the kernel that it launches.   source: the program that it is of."""

    op: Op
    types: Mapping[str, TensorType]
    work: KernelWork
    source: str


GRID = {Size.SMALL: (16, 64), Size.FULL: (256, 1024, 2048, 4096, 8192)}
GRID_DTYPES = {Size.SMALL: (DType.FLOAT32,), Size.FULL: (DType.FLOAT32, DType.BFLOAT16)}


def programs(size: Size) -> Iterator[tuple[str, LogicalGraph]]:
    """(what it is, its graph): one after the other, as each takes seconds to trace."""
    if size is Size.SMALL:
        small = ZOO["gpt"](layers=1, width=16, heads=2, vocab=32, batch=2, seq=8, attention="fused")
        yield "gpt", small.graph(1)
        yield "gpt, bf16-mixed", small.in_formats("bf16-mixed", None).graph(1)
        yield "resnet", ZOO["resnet50"](batch=2, image=32, classes=8, layers=26, width=4).graph(1)
        return
    gpt, resnet = ZOO["gpt2"]("117M", batch=8, vocab=50304, attention="fused"), ZOO["resnet50"](batch=64)
    yield "gpt2 124M, batch 8", gpt.graph(1)
    yield "resnet50, batch 64", resnet.graph(1)
    yield "gpt2 124M, batch 8, bf16-mixed", gpt.in_formats("bf16-mixed", None).graph(1)
    yield "resnet50, batch 64, bf16-mixed", resnet.in_formats("bf16-mixed", None).graph(1)


def cases(size: Size) -> Iterator[KernelCase]:
    """Each kernel of each op once.  Random ops draw by a kernel of ours, which is no kernel of a library, and are left out."""
    seen: set[tuple[str, KernelWork]] = set()
    for source, graph in programs(size):
        for op in graph.ops:
            if op.target == ACCUMULATE or op.effect is Effect.RANDOM:
                continue
            types = {value: graph.values[value] for value in (*op.inputs, *op.outputs) if value is not None}
            work = op_kernel(op, types, compute_dtype(op, types))
            if work is not None and (op.target, work) not in seen:
                seen.add((op.target, work))
                yield KernelCase(op=op, types=types, work=work, source=source)
    for dtype, (m, n, k) in product(GRID_DTYPES[size], _shapes(GRID[size])):
        case = _product(dtype, m, n, k)
        if (case.op.target, case.work) not in seen:
            yield case


def _shapes(sides: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Squares, and flat and tall ones: each side halved and doubled in turn says less of a device than these."""
    for side in sides:
        yield side, side, side
    for a, b in product(sides, sides):
        if a != b:
            yield a, b, min(a, b)


def _product(dtype: DType, m: int, n: int, k: int) -> KernelCase:
    op = Op(id="product", target="aten.mm.default", args=(Ref("a"), Ref("b")), outputs=("c",), role=Role.FORWARD)
    types = {name: TensorType(shape=shape, dtype=dtype) for name, shape in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))}
    work = op_kernel(op, types, dtype)
    assert work is not None
    return KernelCase(op=op, types=types, work=work, source="grid")
