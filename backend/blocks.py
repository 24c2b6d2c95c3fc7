"""The blocks of one rank: for every Regst that lies on it a table of ``quota`` slots (SEMANTICS 3.2).

    produce:  hold(regst, slot, index, value) ...   complete(regst, slot)     readable from now on
    consume:  read(regst, slot, index) ...          release(regst, slot)      the last consumer's release drops the references

Data passes by reference: a value that a task read may live on in what the task wrote, so block memory is never written to again, except by
the accumulation that owns it.  State is replaced, not overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from backend.sharding import slice_part
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Access, Plan, RegstKind

__all__ = ["Blocks", "check_state", "initial_states"]

Slot = list[Tensor | None]


def check_state(plan: Plan, state: Mapping[str, Tensor]) -> None:
    """Refuse a state that does not fit the Plan.

    Raises:
        InvalidPlan: ``state`` lacks a name of the Plan, or has it in another shape or dtype.
    """
    for entry in plan.states:
        tensor = plan.regst[entry.regst].tensors[entry.index]
        if entry.name not in state:
            raise InvalidPlan(f"the plan needs state {entry.name}, which was not given; give the state of the model it was made for")
        value = state[entry.name]
        if tuple(value.shape) != tensor.shape or str(value.dtype) != f"torch.{tensor.dtype.value}":
            wanted = f"{tensor.shape} {tensor.dtype.value}"
            raise InvalidPlan(f"state {entry.name} has shape {tuple(value.shape)} {value.dtype}, the plan was made for {wanted}")


def initial_states(plan: Plan, rank: int, state: Mapping[str, Tensor]) -> dict[tuple[str, int], Tensor]:
    """(regst, index) -> this rank's part of every state tensor that lies on it, in memory of its own.

    Raises:
        InvalidPlan: see check_state.
    """
    check_state(plan, state)
    found: dict[tuple[str, int], Tensor] = {}
    for entry in plan.states:
        regst = plan.regst[entry.regst]
        placement = plan.placement[regst.placement]
        if rank not in placement.ranks:
            continue
        part = slice_part(state[entry.name].detach(), regst.tensors[entry.index].sbp, placement.mesh, placement.coordinate(rank))
        # A part that shares memory with the caller's tensor (or a mapped file) would keep the whole of it alive.
        found[entry.regst, entry.index] = part.clone()
    return found


class Blocks:
    """Slots of one rank.  Not locked (but for ``claim``): reads and writes of one slot never overlap, because the actors see to it.

    ``bytes_now`` and ``peak_bytes`` count the blocks that hold data, state included.
    """

    def __init__(self, plan: Plan, rank: int, *, taps: Iterable[Access] = ()) -> None:
        self.rank = rank
        self._claiming = threading.Lock()
        self.bytes_now = 0
        self.peak_bytes = 0
        here = [r for r in plan.regsts if rank in plan.placement[r.placement].ranks]
        self._is_state = {r.id: r.kind is RegstKind.STATE for r in here}
        self._num_tensors = {r.id: len(r.tensors) for r in here}
        self._slots: dict[str, list[Slot]] = {r.id: [[None] * len(r.tensors) for _ in range(r.quota)] for r in here}
        self._readers = {r.id: len(plan.consumers[r.id]) for r in here}
        self._left: dict[str, list[int]] = {r.id: [0] * r.quota for r in here}
        self._size_bytes: dict[str, int] = {}
        self._taps: dict[str, list[int]] = {}
        self.tapped: dict[tuple[str, int], Tensor] = {}
        for access in taps:
            self._taps.setdefault(access.regst, []).append(access.index)

    def fill_state(self, values: Mapping[tuple[str, int], Tensor]) -> None:
        for (regst, index), value in values.items():
            self._slots[regst][0][index] = value
        for regst, is_state in self._is_state.items():
            slot = self._slots[regst][0]
            if is_state and None in slot:
                raise InvalidPlan(f"regst {regst} is state, but tensor {slot.index(None)} of it stands in no State of the plan")
            if is_state:
                self._grow(regst, slot)

    def state_of(self, regst: str, index: int) -> Tensor:
        value = self._slots[regst][0][index]
        assert value is not None
        return value

    def read(self, regst: str, slot: int, index: int) -> Tensor:
        value = self._slots[regst][slot][index]
        if value is None:
            raise InvalidPlan(f"tensor {index} of regst {regst} is read on rank {self.rank} before anything was written to it")
        return value

    def peek(self, regst: str, slot: int, index: int) -> Tensor | None:
        """What lies in a block that is still being filled."""
        return self._slots[regst][slot][index]

    def hold(self, regst: str, slot: int, index: int, value: Tensor) -> None:
        self._slots[regst][slot][index] = value

    def claim(self, regst: str, slot: int, index: int, value: Tensor) -> Tensor:
        """Hold ``value`` unless another thread was first; returns what is held."""
        with self._claiming:
            held = self._slots[regst][slot][index]
            if held is None:
                held = self._slots[regst][slot][index] = value
            return held

    def complete(self, regst: str, slot: int) -> None:
        """The block is full; consumers may have it."""
        block = self._slots[regst][slot]
        for index in self._taps.get(regst, ()):
            value = block[index]
            assert value is not None
            self.tapped[regst, index] = value
        if self._is_state[regst]:
            return
        self._left[regst][slot] = self._readers[regst]
        self._grow(regst, block)
        if not self._readers[regst]:
            self._drop(regst, slot)

    def release(self, regst: str, slot: int) -> None:
        """One consumer has done with the block."""
        if self._is_state[regst]:
            return
        self._left[regst][slot] -= 1
        if self._left[regst][slot] == 0:
            self._drop(regst, slot)

    def _grow(self, regst: str, block: Sequence[Tensor | None]) -> None:
        # Shapes are static, so a Regst's blocks have one size: measured once.
        if regst not in self._size_bytes:
            self._size_bytes[regst] = sum(value.nbytes for value in block if value is not None)
        self.bytes_now += self._size_bytes[regst]
        self.peak_bytes = max(self.peak_bytes, self.bytes_now)

    def clear(self, regst: str, slot: int) -> None:
        """Forget the content of a block that was never completed."""
        self._slots[regst][slot] = [None] * self._num_tensors[regst]

    def _drop(self, regst: str, slot: int) -> None:
        self.clear(regst, slot)
        self.bytes_now -= self._size_bytes[regst]
