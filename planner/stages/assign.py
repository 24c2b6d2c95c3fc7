"""The stage of every op.  Forward ops are cut along the trace order, so that no forward value goes to an earlier stage.

A backward op has the stage of the forward op that it differentiates, an accumulation the stage of the op that makes what it accumulates, and an
update the stage of the state that it updates (planner.stages.staged).  Ops that process a gradient before the update have the stage of its
parameter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Op, Role
from planner.ir.tensor import TensorType
from planner.opset import flop
from planner.stages.blocks import block_of
from planner.stages.staged import first_readers
from planner.stages.uneven import fastest_cut

__all__ = ["assign_stages", "cuts_between_blocks"]


def assign_stages(
    graph: LogicalGraph,
    num_stages: int,
    cuts: Sequence[str] = (),
    *,
    balance: float | None = None,
    micro_batches: int = 1,
    op_s: Sequence[Mapping[str, float]] = (),
    send_s: Sequence[Callable[[float], float]] = (),
) -> Mapping[str, int]:
    """Stage of every op.

    Args:
        num_stages: how many stages.
        cuts: module paths; each begins the next stage at its first forward op.  Empty: cuts of even forward flop, between numbered blocks.
        balance: cut the graph where the fewest bytes cross, such that no stage has more than this share of work above the mean
            (planner.stages.dag_ilp).
        micro_batches: per step; so often do activations cross, for ``balance``.
        op_s: where devices differ, per stage the seconds of a micro-batch of each op of the passes, were it there; without cuts or balance,
            stages are then cut for the fastest pipeline (planner.stages.uneven).
        send_s: with op_s, of each stage but the last, bytes -> seconds in which they go to the next.

    Raises:
        Unsupported: both cuts and balance are given, no cut is balanced so well, there are more stages than units of work, or a cut names
            no module or is out of order.
    """
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    if cuts and balance is not None:
        raise Unsupported(f"cuts at {', '.join(cuts)} and a cut of balance {balance:g}: give one of the two")
    if balance is not None:
        from planner.stages.dag import spread, work_dag  # networkx and PuLP: not before they are needed
        from planner.stages.dag_ilp import cut_stages

        dag = work_dag(graph, micro_batches)
        stage = spread(graph, dag, cut_stages(dag, num_stages, tolerance=balance).stage)
    else:
        borders = _borders_at(forward, cuts, num_stages) if cuts else _even_borders(graph, forward, num_stages)
        if op_s and not cuts:
            borders = _fastest_borders(graph, forward, micro_batches, op_s, send_s)
        stage = {op.id: bisect_right(borders, place) for place, op in enumerate(forward)}
    producers = graph.producers()
    stage_of_value = {value: stage[reader.id] for value, reader in first_readers(graph).items()}
    parameters = {i.name: i.value for i in graph.inputs if i.kind is InputKind.PARAMETER}
    for given in graph.inputs:
        if given.copy_of is not None and given.value in stage_of_value:  # the passes read the copy, perhaps it alone
            stage_of_value[given.copy_of] = min(stage_of_value[given.value], stage_of_value.get(given.copy_of, num_stages))
    stage_of_value |= {
        gradient: stage_of_value.get(parameters[name], 0) for name, gradient in graph.gradients.items() if name in parameters
    }
    for op in graph.ops:
        if op.role is Role.BACKWARD:
            if op.forward_of not in stage:
                raise Unsupported(f"{op.where()} does not say which forward op it belongs to, so it cannot be placed on a stage")
            stage[op.id] = stage[op.forward_of]
        elif op.role is Role.ACCUMULATE:
            made_by = producers.get(op.inputs[0])
            stage[op.id] = stage[made_by.id] if made_by is not None else num_stages - 1
        elif op.role is Role.UPDATE:
            stage[op.id] = next((stage_of_value[value] for value in op.inputs if value in stage_of_value), 0)
            stage_of_value.update((value, stage[op.id]) for value in op.outputs if value is not None)
    return stage


def cuts_between_blocks(graph: LogicalGraph, num_stages: int) -> bool:
    """Whether the even cut into so many stages leaves every numbered block whole; if not, there are too few of them, and it cuts inside of some."""
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    begins = _units(graph, forward, num_stages)[1] if num_stages > 1 else []
    return all(block_of(forward[i].module) != block_of(forward[i - 1].module) or not block_of(forward[i].module) for i in begins if i)


def _even_borders(graph: LogicalGraph, forward: Sequence[Op], num_stages: int) -> list[int]:
    """Places in trace order at which stages begin, such that the largest forward flop of a stage is minimal, and the others are even."""
    units, begins = _units(graph, forward, num_stages)
    return [begins[unit] for unit in _even_cut(units, num_stages)]


def _units(graph: LogicalGraph, forward: Sequence[Op], num_stages: int) -> tuple[NDArray[np.float64], list[int]]:
    """(forward flop, first place) of what is not cut.

    No block (h.3) is cut, so that only outputs of blocks cross.  If there are too few blocks, no module is cut; else any op may begin a stage.
    """
    work = graph.kept("forward flop", lambda: np.array([flop(op, _types(graph, op)) for op in forward], dtype=float))
    if num_stages > len(forward):
        raise Unsupported(f"{num_stages} stages for {len(forward)} forward ops; use fewer stages")
    for names in ([block_of(op.module) or op.module for op in forward], [op.module for op in forward], [op.id for op in forward]):
        begins = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        units = np.add.reduceat(work, begins)
        if np.count_nonzero(units) >= num_stages or len(begins) == len(forward):
            break
    return units, begins


def _types(graph: LogicalGraph, op: Op) -> Mapping[str, TensorType]:
    return {v: graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))}


def _fastest_borders(
    graph: LogicalGraph,
    forward: Sequence[Op],
    micro_batches: int,
    op_s: Sequence[Mapping[str, float]],
    send_s: Sequence[Callable[[float], float]],
) -> list[int]:
    """Places in trace order at which stages begin, such that the pipeline is fastest; units as those of the even cut."""
    num_stages = len(op_s)
    begins = _units(graph, forward, num_stages)[1]
    place = {op.id: i for i, op in enumerate(forward)}
    seconds, consumers = np.zeros((num_stages, len(forward))), graph.consumers()
    for op in graph.ops:
        origin = op.forward_of if op.role is Role.BACKWARD else op.id
        if origin in place:
            seconds[:, place[origin]] += [of_stage[op.id] for of_stage in op_s]
    crossing = np.zeros(len(forward) + 1)
    for i, op in enumerate(forward):
        for value in op.outputs:
            readers = [place[reader.id] for reader in consumers[value] if reader.id in place] if value is not None else []
            if value is not None and readers:
                crossing[i + 1 : max(readers) + 1] += graph.values[value].size_bytes
    border_s = np.array([[send(size_bytes) for size_bytes in crossing[begins]] for send in send_s]).reshape(num_stages - 1, len(begins))
    return [begins[unit] for unit in fastest_cut(np.add.reduceat(seconds, begins, axis=1), micro_batches, border_s)]


def _even_cut(work: NDArray[np.float64], parts: int) -> list[int]:
    """The first unit of every part but the first.  It minimises the work of the largest part, then the sum of squares; no part is empty."""
    done = np.concatenate([[0.0], np.cumsum(work)])
    size = len(work)
    fullest, squares = np.full((parts + 1, size + 1), np.inf), np.full((parts + 1, size + 1), np.inf)
    fullest[0, 0] = squares[0, 0] = 0.0
    for k in range(1, parts + 1):
        for end in range(k, size + 1):
            load = done[end] - done[k - 1 : end]
            fullest[k, end] = np.maximum(fullest[k - 1, k - 1 : end], load).min()
    most = fullest[parts, size] * (1 + 1e-9)
    part_begin = np.zeros((parts + 1, size + 1), dtype=int)
    for k in range(1, parts + 1):
        for end in range(k, size + 1):
            load = done[end] - done[k - 1 : end]
            total = np.where(load <= most, squares[k - 1, k - 1 : end] + load**2, np.inf)
            part_begin[k, end] = k - 1 + int(total.argmin())
            squares[k, end] = total.min()
    begins, end = [], size
    for k in range(parts, 1, -1):
        end = int(part_begin[k, end])
        begins.append(end)
    return begins[::-1]


def _borders_at(forward: Sequence[Op], cuts: Sequence[str], num_stages: int) -> list[int]:
    if len(cuts) != num_stages - 1:
        raise Unsupported(f"{len(cuts)} cuts make {len(cuts) + 1} stages, but {num_stages} stages were asked for")
    borders = []
    for cut in cuts:
        inside = [i for i, op in enumerate(forward) if op.module == cut or op.module.startswith(cut + ".")]
        if not inside:
            modules = sorted({op.module for op in forward if op.module})
            raise Unsupported(f"cut at module {cut!r}: no forward op belongs to it; modules are {', '.join(modules[:12])} ...")
        borders.append(inside[0])
    if borders != sorted(set(borders)) or borders[0] == 0:
        raise Unsupported(f"cuts {list(cuts)} stand at ops {borders}; each stage must begin after the one before it")
    return borders
