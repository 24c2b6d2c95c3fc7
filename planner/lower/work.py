"""The price of a fragment in work: flop, bytes moved, and the bytes that live only inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.ir.graph import Op
from planner.ir.tensor import TensorType
from planner.opset import flop, is_creation, is_view, traffic_bytes

__all__ = ["BOXING_OP", "fragment_work"]

BOXING_OP = "regista.boxing"


def fragment_work(ops: Sequence[Op], types: Mapping[str, Mapping[str, TensorType]], written: frozenset[str]) -> tuple[int, int, int]:
    """(flop, traffic bytes, workspace bytes) of ops performed in order.

    Args:
        types: op id -> local types of what it reads and writes (not for boxing steps, which only cut or pad).
        written: values that lie in Regsts; they are counted there.

    Returns:
        workspace: the peak of bytes that are neither in a Regst nor freed yet; a value is freed after its last use.
    """
    total_flop = total_traffic = 0
    last_use = {value: place for place, op in enumerate(ops) for value in op.inputs}
    live: dict[str, int] = {}
    peak = now = 0
    for place, op in enumerate(ops):
        if op.target == BOXING_OP:
            continue
        total_flop += flop(op, types[op.id])
        total_traffic += traffic_bytes(op, types[op.id])
        for value in op.outputs:
            if value is not None and value not in written and (not is_view(op) or is_creation(op)):
                live[value] = types[op.id][value].size_bytes
                now += live[value]
        peak = max(peak, now)
        for value in op.inputs:
            if last_use[value] == place:
                now -= live.pop(value, 0)
    return total_flop, total_traffic, peak
