"""The blocks of one rank: for every Regst that lies on it a table of ``quota`` slots (SEMANTICS 3.2).

    produce:  hold(regst, slot, index, value) ...   complete(regst, slot)     readable from now on
    consume:  read(regst, slot, index) ...          release(regst, slot)      the last consumer's release drops the references

DYNAMIC (no arena): data passes by reference: a value that a task read may live on in what the task wrote, so block memory is never written
to again, except by the accumulation that owns it.  State is replaced, not overwritten.

STATIC (an arena): every slot is memory of its own from start to end; what is held is copied there unless it was computed there.  Nothing
outlives the release of its block; MemoryOptions.poison proves it by overwriting released blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from backend.initial.values import Values, as_values
from backend.layout.sharding import torch_dtype
from backend.memory.arena import Arena, planned_bytes
from backend.memory.options import RegisterMode
from planner.ir.errors import InvalidPlan, OutOfMemory
from planner.ir.plan import Access, Plan, RegstKind
from planner.ir.sbp import Partial, ReduceOp

__all__ = ["Blocks", "check_state", "initial_states", "laid_out", "state_parts", "store", "store_first"]

Slot = list[Tensor | None]


def store(slot: Tensor, value: Tensor) -> Tensor:
    """Copy ``value`` into ``slot`` unless it is there already; returns the slot, whose layout stays as it is.

    Raises:
        InvalidPlan: another shape than the Plan says.
    """
    if value is slot:
        return slot
    if value.shape != slot.shape:
        raise InvalidPlan(
            f"a value of shape {tuple(value.shape)} was computed for a block of shape {tuple(slot.shape)}; plan this program anew"
        )
    same_place = value.data_ptr() == slot.data_ptr() and value.device == slot.device
    if same_place and value.stride() == slot.stride() and value.dtype == slot.dtype:
        return slot
    return slot.copy_(value, non_blocking=True)


def store_first(slot: Tensor, value: Tensor) -> Tensor:
    """The same for the first value that ever comes to any block of a Regst: the slot returned is laid out like the value.

    A transposed value stays transposed: its elements keep their order in memory, as they would without slots, so that later sums run in the
    same order and give the same bits.  Never later: the Regst's other blocks hold data then.

    Raises:
        InvalidPlan: another shape than the Plan says.
    """
    return store(laid_out(slot, value) if value.shape == slot.shape else slot, value)


def laid_out(slot: Tensor, value: Tensor) -> Tensor:
    """The slot's memory with the strides of ``value``; as it is, where the value does not fill memory densely (a row that is repeated)."""
    strides = value.stride()
    if strides == slot.stride() or not _is_permuted(value.shape, strides):
        return slot
    return slot.as_strided(value.shape, strides)


def _is_permuted(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these strides visit every element of a contiguous piece of memory once."""
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in zip(strides, shape, strict=True) if extent != 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def _poison(block: Sequence[Tensor | None]) -> None:
    for value in block:
        if value is not None and value.is_floating_point():
            value.fill_(float("nan"))
        elif value is not None and value.dtype is not torch.bool:
            value.fill_(torch.iinfo(value.dtype).min)


def check_state(plan: Plan, state: Mapping[str, Tensor] | Values) -> None:
    """Refuse a state that does not fit the Plan.

    Raises:
        InvalidPlan: ``state`` lacks a name of the Plan, or has it in another shape or dtype.
    """
    values = as_values(state)
    for entry in plan.states:
        tensor = plan.regst[entry.regst].tensors[entry.index]
        held = values.type_of(entry.given_as)
        if held is None:
            raise InvalidPlan(f"the plan needs state {entry.given_as}, which was not given; give the state of the model it was made for")
        if held.shape != tensor.shape or (held.dtype is not tensor.dtype and entry.copy_of is None):
            wanted = f"{tensor.shape} {tensor.dtype.value}"
            raise InvalidPlan(f"state {entry.name} has shape {held.shape} torch.{held.dtype.value}, the plan was made for {wanted}")


def initial_states(plan: Plan, rank: int, state: Mapping[str, Tensor] | Values) -> dict[tuple[str, int], Tensor]:
    """(regst, index) -> this rank's part of every state tensor that lies on it, in memory of its own.

    Raises:
        InvalidPlan: see check_state.
    """
    return dict(state_parts(plan, rank, state))


def state_parts(plan: Plan, rank: int, state: Mapping[str, Tensor] | Values) -> Iterator[tuple[tuple[str, int], Tensor]]:
    """((regst, index), this rank's part) one by one, in memory of its own.  Raises as initial_states does."""
    check_state(plan, state)
    values = as_values(state)
    for entry in plan.states:
        regst = plan.regst[entry.regst]
        placement = plan.placement[regst.placement]
        if rank not in placement.ranks:
            continue
        tensor = regst.tensors[entry.index]
        coordinate = placement.coordinate(rank)
        part = values.part(entry.given_as, tensor.sbp.region(tensor.shape, placement.mesh, coordinate))
        for axis_entry, place in zip(tensor.sbp.entries, coordinate, strict=True):
            if place and axis_entry == Partial(ReduceOp.SUM):
                part.zero_()  # a sum counts the value once
        yield (entry.regst, entry.index), part.to(getattr(torch, tensor.dtype.value))


class Blocks:
    """Slots of one rank.  Not locked (but for ``incoming``): reads and writes of one slot never overlap, because the actors see to it.

    ``bytes_now`` and ``peak_bytes`` count the blocks that hold data, state included.
    """

    def __init__(self, plan: Plan, rank: int, *, taps: Iterable[Access] = (), arena: Arena | None = None, poison: bool = False) -> None:
        self.plan, self.rank, self.arena = plan, rank, arena
        self._poison = poison and arena is not None
        self._claiming = threading.Lock()
        self.bytes_now = 0
        self.peak_bytes = 0
        here = [r for r in plan.regsts if rank in plan.placement[r.placement].ranks]
        self._is_state = {r.id: r.kind is RegstKind.STATE for r in here}
        self._num_tensors = {r.id: len(r.tensors) for r in here}
        self._slots: dict[str, list[Slot]] = {r.id: [[None] * len(r.tensors) for _ in range(r.quota)] for r in here}
        if arena is not None:
            self._slots = arena.tables  # type: ignore[assignment]  # every slot has its tensor
        self._readers = {r.id: len(plan.consumers[r.id]) for r in here}
        self._left: dict[str, list[int]] = {r.id: [0] * r.quota for r in here}
        self._size_bytes: dict[str, int] = {}
        self._taps: dict[str, list[int]] = {}
        self.tapped: dict[tuple[str, int], Tensor] = {}
        for access in taps:
            self._taps.setdefault(access.regst, []).append(access.index)

    @property
    def mode(self) -> RegisterMode:
        return RegisterMode.DYNAMIC if self.arena is None else RegisterMode.STATIC

    def rows(self, regst: str) -> list[Slot]:
        """Slot -> tensor number -> what lies there; the table itself, for performers that look into it at every act."""
        return self._slots[regst]

    def fill_state(self, values: Mapping[tuple[str, int], Tensor] | Iterable[tuple[tuple[str, int], Tensor]]) -> None:
        """Put the initial values; DYNAMIC keeps the tensors given, STATIC copies them.

        Raises:
            InvalidPlan: a state tensor of this rank is missing.
        """
        filled: set[tuple[str, int]] = set()
        for (regst, index), value in values.items() if isinstance(values, Mapping) else values:
            self.hold(regst, 0, index, value)
            filled.add((regst, index))
        for regst, is_state in self._is_state.items():
            slot = self._slots[regst][0]
            missing = [index for index in range(len(slot)) if (regst, index) not in filled]
            if is_state and missing:
                raise InvalidPlan(f"regst {regst} is state, but tensor {missing[0]} of it stands in no State of the plan")
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
        if self.arena is None:
            self._slots[regst][slot][index] = value
        else:
            store(self.arena.tables[regst][slot][index], value)

    def incoming(self, regst: str, index: int, number: int) -> Tensor:
        """The tensor that act ``number`` of a TRANSFER fills; without an arena it is new memory per block, as readers may keep views of the
        last one.

        Parts from several senders meet in it on several threads: the allocation of the first one counts.
        """
        placed = self.plan.regst[regst]
        slot = number % placed.quota
        held = self._slots[regst][slot][index]
        if held is not None:
            return held
        local = placed.tensors[index].local_type(self.plan.placement[placed.placement], self.rank)
        made = torch.empty(local.shape, dtype=torch_dtype(local.dtype))
        with self._claiming:
            held = self._slots[regst][slot][index]
            if held is None:
                held = self._slots[regst][slot][index] = made
            return held

    def complete(self, regst: str, slot: int) -> None:
        """The block is full; consumers may have it."""
        block = self._slots[regst][slot]
        for index in self._taps.get(regst, ()):
            value = block[index]
            assert value is not None
            self.tapped[regst, index] = value.clone() if self._poison else value
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
        """Forget the content of a block."""
        if self.arena is None:
            self._slots[regst][slot] = [None] * self._num_tensors[regst]
        elif self._poison:
            _poison(self._slots[regst][slot])

    def check(self) -> None:
        """At the end of a run: the memory of the blocks was what the Plan says.

        STATIC: allocated == planned, to the byte.   DYNAMIC: live bytes never above all blocks of the Plan, nor above the device's memory.

        Raises:
            InvalidPlan: a fault of ours.   OutOfMemory: live blocks took more than the device has, as acts came in another order than planned.
        """
        if self.arena is not None:
            self.arena.check(self.plan)
        planned, limit = planned_bytes(self.plan, self.rank), self.plan.cluster.device.memory_bytes
        if self.peak_bytes > planned:
            raise InvalidPlan(
                f"rank {self.rank} held {self.peak_bytes} B of blocks, all blocks of the plan are {planned} B; please report it"
            )
        if self.peak_bytes > limit:
            raise OutOfMemory(
                f"rank {self.rank} held {self.peak_bytes} B of blocks at once, but a device of {self.plan.cluster.name} has {limit} B; "
                f"use smaller quotas or more micro-batches"
            )

    def _drop(self, regst: str, slot: int) -> None:
        self.clear(regst, slot)
        self.bytes_now -= self._size_bytes[regst]
