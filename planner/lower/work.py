"""The work of a fragment: flop, bytes moved, and bytes of workspace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost import compute_dtype
from planner.cost.kernels.launches import fragment_kernels
from planner.ir.graph import Fusion, KernelWork, Op
from planner.ir.plan import DTypeFlop
from planner.ir.tensor import DType, TensorType
from planner.opset import flop, is_creation, is_view, traffic_bytes

__all__ = ["BOXING_OP", "Work", "fragment_work"]

BOXING_OP = "regista.boxing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a fragment; the fields are those of Fragment."""

    flop: int
    flop_by_dtype: tuple[DTypeFlop, ...]
    traffic_bytes: int
    workspace_bytes: int
    kernels: tuple[KernelWork, ...]


def fragment_work(
    ops: Sequence[Op], types: Mapping[str, Mapping[str, TensorType]], written: frozenset[str], fusion: Fusion | None = None
) -> Work:
    """The work of ops performed in order.

    Args:
        types: op id -> local types of the values that it reads and writes; boxing steps have none, because they only slice or pad.
        written: values that are written into Regsts, which count their bytes.
        fusion: how it is run on a device with a kernel table; None: its kernels are not asked for.

    Returns:
        The work; workspace_bytes is the peak of the values that are not in a Regst.  A value is freed after its last use.
    """
    total_flop = total_traffic = 0
    by_dtype: dict[DType, int] = defaultdict(int)
    counted: dict[str, tuple[int, int, DType | None]] = {}
    last_use = {value: place for place, op in enumerate(ops) for value in op.inputs}
    live: dict[str, int] = {}
    peak = now = 0
    for place, op in enumerate(ops):
        if op.target == BOXING_OP:
            continue
        local = types[op.id]
        op_flop, op_bytes, dtype = counted[op.id] = flop(op, local), traffic_bytes(op, local), compute_dtype(op, local)
        total_flop += op_flop
        if dtype is not None and op_flop:
            by_dtype[dtype] += op_flop
        total_traffic += op_bytes
        for value in op.outputs:
            if value is not None and value not in written and (not is_view(op) or is_creation(op)):
                live[value] = local[value].size_bytes
                now += live[value]
        peak = max(peak, now)
        for value in op.inputs:
            if last_use[value] == place:
                now -= live.pop(value, 0)
    parts = tuple(DTypeFlop(dtype=dtype, flop=by_dtype[dtype]) for dtype in DType if dtype in by_dtype)
    kernels = () if fusion is None else fragment_kernels(ops, types, counted, written, fusion)
    return Work(flop=total_flop, flop_by_dtype=parts, traffic_bytes=total_traffic, workspace_bytes=peak, kernels=kernels)
