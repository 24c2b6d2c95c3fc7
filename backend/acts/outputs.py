"""The outputs of a step: what OUTPUT acts hand over, part by part, put together as whole logical tensors of the global batch.

    micro-batch 0   rank 0: rows 0 1    rank 1: rows 2 3          joined as the layout says, then one micro-batch after the other along the
    micro-batch 1   rank 0: rows 4 5    rank 1: rows 6 7          batch dim: rows 0 1 2 3 4 5 6 7, as one device has them

Of ranks that hold the same (B), the first alone hands it over.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from backend.layout.sharding import join_parts
from planner.ir.plan import Output, Plan, Task, TaskKind
from planner.ir.sbp import Broadcast, coordinates

__all__ = ["OutputCollector", "OutputParts", "StepOutputs", "handed_over", "num_handovers", "put_together"]

StepOutputs = Mapping[str, Tensor]
"""Name of an output -> its value for the global batch, on the CPU."""

OutputParts = Mapping[tuple[int, int, int], Tensor]
"""(place in plan.outputs, micro-batch, rank) -> local tensor."""


def handed_over(plan: Plan, task: Task, rank: int) -> tuple[tuple[int, int], ...]:
    """What a rank hands over in an act of an OUTPUT task: (place in plan.outputs, place in task.reads)."""
    reads = {(access.regst, access.index): place for place, access in enumerate(task.reads)}
    here = [(n, output) for n, output in enumerate(plan.outputs) if (output.regst, output.index) in reads]
    return tuple((n, reads[output.regst, output.index]) for n, output in here if rank in _first_holders(plan, output).values())


def num_handovers(plan: Plan) -> int:
    """How many acts of a step hand over an output, counted over all ranks."""
    return sum(
        task.acts * sum(bool(handed_over(plan, task, rank)) for rank in plan.ranks_of(task))
        for task in plan.tasks
        if task.kind is TaskKind.OUTPUT
    )


def _first_holders(plan: Plan, output: Output) -> dict[tuple[int, ...], int]:
    """Coordinate -> the first rank that holds the same part."""
    regst = plan.regst[output.regst]
    placement, sbp = plan.placement[regst.placement], regst.tensors[output.index].sbp
    same = {
        c: tuple(0 if isinstance(entry, Broadcast) else at for entry, at in zip(sbp.entries, c, strict=True))
        for c in coordinates(placement.mesh)
    }
    return {coordinate: placement.rank_at(first) for coordinate, first in same.items()}


def put_together(plan: Plan, parts: OutputParts) -> dict[str, Tensor]:
    """The outputs of one step."""
    whole: dict[str, Tensor] = {}
    for place, output in enumerate(plan.outputs):
        regst = plan.regst[output.regst]
        tensor, mesh, holders = regst.tensors[output.index], plan.placement[regst.placement].mesh, _first_holders(plan, output)
        values = [
            join_parts({c: parts[place, number, rank] for c, rank in holders.items()}, tensor.sbp, mesh, tensor.shape)
            for number in range(plan.micro_batches)
        ]
        whole[output.name] = values[0] if output.batch_dim is None else torch.cat(values, output.batch_dim)
    return whole


class OutputCollector:
    """Takes the parts of all ranks of this process, on any thread.

    Args:
        on_step: called with (step, outputs) on the thread of the act that completed it; what it was called with is not kept.
    """

    def __init__(self, plan: Plan, on_step: Callable[[int, StepOutputs], None]) -> None:
        self._plan, self._on_step, self._missing = plan, on_step, num_handovers(plan)
        self._parts: dict[int, dict[tuple[int, int, int], Tensor]] = defaultdict(dict)
        self._num_acts: dict[int, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._handed_over = cache(lambda task, rank: handed_over(plan, plan.task[task], rank))

    def add(self, task: Task, rank: int, act: int, values: Sequence[Tensor]) -> None:
        """One act of an OUTPUT task of a rank, with the values of task.reads."""
        step, micro_batch = divmod(act, task.acts)
        wanted = self._handed_over(task.id, rank)
        if not wanted:
            return
        copies = {(place, micro_batch, rank): values[read].detach().to("cpu", copy=True) for place, read in wanted}
        with self._lock:
            self._parts[step] |= copies
            self._num_acts[step] += 1
            parts = self._parts.pop(step) if self._num_acts[step] == self._missing else None
        if parts is not None:
            self._on_step(step, put_together(self._plan, parts))
