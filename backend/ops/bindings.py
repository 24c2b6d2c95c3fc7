"""Operand bindings: the tensors that one actor reads and writes in an act.

Tables and ports are looked up once per actor; from act to act only the slot changes that a port points at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.memory.blocks import Blocks, Slot, laid_out, store, store_first
from backend.memory.options import RegisterMode
from backend.ops.writable import slot_places
from planner.ir.actors.actor import Actor, InPort, OutPort
from planner.ir.errors import InvalidPlan

__all__ = ["DirectBindings", "OperandBindings", "accumulate_into"]


def accumulate_into(slot: Tensor, value: Tensor, acts_per_block: int, phase: int) -> None:
    """Add one value to a mean of ``acts_per_block`` values in ``slot``; the bits are those of backend.acts.act.accumulate, which allocates.

    Args:
        phase: how many values ``slot`` holds already.
    """
    if phase == 0:
        torch.div(value, acts_per_block, out=slot)
    else:
        slot.add_(value, alpha=1.0 / acts_per_block)


def _lay_out_all(rows: list[Slot], index: int, slot: Tensor, number: int) -> Tensor:
    """Give tensor ``index`` of every block the strides of ``slot``, which lies in block ``number``; returns it.

    Only while no other block holds data, which would be read in another order afterwards.
    """
    strides = slot.stride()
    for row in rows:
        tensor = row[index]
        if tensor is not None and tensor.stride() != strides:
            row[index] = tensor.as_strided(slot.shape, strides)
    laid_out_slot = rows[number][index]
    assert laid_out_slot is not None and laid_out_slot.data_ptr() == slot.data_ptr()
    return laid_out_slot


class OperandBindings:
    """The tables and ports through which one actor reads and writes.

    Args:
        writes: False for a TRANSFER, whose writes lie on other ranks.
    """

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
        operands = [rows[port.consumed % port.quota if port is not None else 0][index] for port, rows, index in self._reads]
        if not self._static and any(value is None for value in operands):
            raise InvalidPlan(f"{self._name} reads a block before anything was written to it")
        return operands  # type: ignore[return-value]  # no None is left


class DirectBindings(OperandBindings):
    """Operands of an act that is performed as soon as they are looked up."""

    def __init__(self, actor: Actor, blocks: Blocks, *, writes: bool = True) -> None:
        super().__init__(actor, blocks, writes=writes)
        self._first = True

    @property
    def is_settled(self) -> bool:
        """Whether blocks are laid out for good: the first results have come."""
        return not self._first

    def slots(self) -> list[Tensor]:
        """The memory for the results at ``slot_places``."""
        writes = self._writes
        return [writes[place][1][writes[place][0].slot][writes[place][2]] for place in self._places]  # type: ignore[misc]  # static

    def store(self, results: Sequence[Tensor]) -> None:
        """Put the values of task.writes into their blocks; ports that fill a block with several acts accumulate."""
        for (port, rows, index), value in zip(self._writes, results, strict=True):
            row = rows[port.slot]
            if self._static:
                slot = row[index]
                assert slot is not None
                if port.acts_per_block > 1:
                    if self._first and value.stride() != slot.stride():
                        slot = _lay_out_all(rows, index, laid_out(slot, value), port.slot)
                    accumulate_into(slot, value, port.acts_per_block, port.phase)
                elif value is slot:
                    continue
                elif self._first:
                    _lay_out_all(rows, index, store_first(slot, value), port.slot)
                else:
                    store(slot, value)
            elif port.acts_per_block == 1:
                row[index] = value
            elif port.phase == 0:
                row[index] = value.div(port.acts_per_block)
            else:
                row[index].add_(value, alpha=1.0 / port.acts_per_block)  # type: ignore[union-attr]  # filled at phase 0
        self._first = False
