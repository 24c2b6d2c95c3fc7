"""What one act reads and writes, taken when it is put into its lane: when the lane comes to it, the ports may point elsewhere already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from backend.arena import RegisterMode
from backend.blocks import Blocks, Slot
from backend.hands import accumulate_into, slot_places
from planner.ir.actor import Actor, InPort, OutPort
from planner.ir.errors import InvalidPlan

__all__ = ["Grip", "Put", "put", "put_into"]


@dataclass(frozen=True, slots=True)
class Put:
    """Where one result goes: into memory of its own (``slot``), or into the table (``row``)."""

    row: Slot
    index: int
    slot: Tensor | None
    acts_per_block: int
    phase: int


def put(results: Sequence[Tensor], puts: Sequence[Put]) -> None:
    """Leave the results where they belong; blocks that several acts fill take the mean."""
    for to, value in zip(puts, results, strict=True):
        slot = to.slot
        if slot is not None:
            if to.acts_per_block > 1:
                accumulate_into(slot, value.to(slot.device), to.acts_per_block, to.phase)
            elif value is not slot:
                put_into(slot, value)
        elif to.acts_per_block == 1:
            to.row[to.index] = value
        elif to.phase == 0:
            to.row[to.index] = value.div(to.acts_per_block)
        else:
            to.row[to.index].add_(value, alpha=1.0 / to.acts_per_block)  # type: ignore[union-attr]  # filled at phase 0


def put_into(slot: Tensor, value: Tensor) -> Tensor:
    """Copy ``value`` into ``slot`` unless it lies there; the slot keeps its layout, as whoever reads it may have taken it already.

    Raises:
        InvalidPlan: another shape than the Plan says.
    """
    if value.shape != slot.shape:
        raise InvalidPlan(
            f"a value of shape {tuple(value.shape)} was computed for a block of shape {tuple(slot.shape)}; plan this program anew"
        )
    if value.data_ptr() == slot.data_ptr() and value.stride() == slot.stride() and value.device == slot.device:
        return slot
    return slot.copy_(value, non_blocking=True)


class Grip:
    """Reads and writes of one actor; those of a TRANSFER lie elsewhere: it has no writes here."""

    def __init__(self, actor: Actor, blocks: Blocks, *, writes: bool = True) -> None:
        task = actor.task
        self._name = f"{task.id} on rank {actor.rank}"
        self._static = blocks.mode is RegisterMode.STATIC
        # Constants and the task's own state have no port to count; they lie in slot 0.
        self._reads: list[tuple[InPort | None, list[Slot], int]] = [
            (actor.inputs.get(access.regst), blocks.rows(access.regst), access.index) for access in task.reads
        ]
        self._writes: list[tuple[OutPort, list[Slot], int]] = [
            (actor.outputs[access.regst], blocks.rows(access.regst), access.index) for access in (task.writes if writes else ())
        ]
        self._places = slot_places(task, blocks.mode) if writes else ()

    def values(self) -> list[Tensor]:
        """The values of task.reads, in order.

        Raises:
            InvalidPlan: one was never written.
        """
        found = [rows[port.slot if port is not None else 0][index] for port, rows, index in self._reads]
        if not self._static and any(value is None for value in found):
            raise InvalidPlan(f"{self._name} reads a block before anything was written to it")
        return found  # type: ignore[return-value]  # no None is left

    def puts(self) -> list[Put]:
        """Where the values of task.writes go."""
        found: list[Put] = []
        for port, rows, index in self._writes:
            row = rows[port.slot]
            found.append(Put(row, index, row[index] if self._static else None, port.acts_per_block, port.phase))
        return found

    def slots(self, puts: Sequence[Put]) -> list[Tensor]:
        """Memory that a fragment may write its results to."""
        return [puts[place].slot for place in self._places]  # type: ignore[misc]  # places are those of STATIC blocks

    def slot_numbers(self) -> tuple[int, ...]:
        """Slots in hand and phases: equal ones mean the same memory and the same work (one CUDA graph)."""
        reads = tuple(port.slot if port is not None else 0 for port, _, _ in self._reads)
        return reads + tuple(n for port, _, _ in self._writes for n in (port.slot, int(port.phase > 0)))
