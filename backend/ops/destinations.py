"""The slots that receive the results of an act, fixed when the act is put into its lane: when it is performed, its ports may have moved on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from backend.memory.blocks import Slot, store
from backend.ops.bindings import OperandBindings, accumulate_into

__all__ = ["DeferredBindings", "Destination", "store_results"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one result goes: into memory of its own (``slot``), or into the table (``row``)."""

    row: Slot
    index: int
    slot: Tensor | None
    acts_per_block: int
    phase: int


def store_results(results: Sequence[Tensor], destinations: Sequence[Destination]) -> None:
    """Store each result; a block that several acts fill takes their mean."""
    for to, value in zip(destinations, results, strict=True):
        slot = to.slot
        if slot is not None:
            if to.acts_per_block > 1:
                accumulate_into(slot, value.to(slot.device), to.acts_per_block, to.phase)
            elif value is not slot:
                store(slot, value)
        elif to.acts_per_block == 1:
            to.row[to.index] = value
        elif to.phase == 0:
            to.row[to.index] = value.div(to.acts_per_block)
        else:
            to.row[to.index].add_(value, alpha=1.0 / to.acts_per_block)  # type: ignore[union-attr]  # filled at phase 0


class DeferredBindings(OperandBindings):
    """Operands of an act that is performed later than its lane takes it."""

    def destinations(self) -> list[Destination]:
        """Where the values of task.writes go."""
        destinations: list[Destination] = []
        for port, rows, index in self._writes:
            row = rows[port.slot]
            destinations.append(Destination(row, index, row[index] if self._static else None, port.acts_per_block, port.phase))
        return destinations

    def slots(self, destinations: Sequence[Destination]) -> list[Tensor]:
        """Memory that a fragment may write its results to."""
        return [destinations[place].slot for place in self._places]  # type: ignore[misc]  # places are those of STATIC blocks

    def slot_numbers(self) -> tuple[int, ...]:
        """The slots that ports point at, and phases: equal ones mean the same memory and the same work (one CUDA graph)."""
        reads = tuple(port.slot if port is not None else 0 for port, _, _ in self._reads)
        return reads + tuple(n for port, _, _ in self._writes for n in (port.slot, int(port.phase > 0)))
