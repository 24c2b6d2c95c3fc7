"""One rank's part of a run: its compiled fragments, collectives and transfer pieces, and how one act of each kind is performed.

backend.worker.loop decides when an act starts; this module performs it, on the thread that calls.
"""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from backend.acts.act import Batches, loss_position
from backend.acts.kinds import copied_values, loaded_parts, method_of
from backend.acts.outputs import handed_over
from backend.acts.step_inputs import StepNumbers, no_numbers
from backend.acts.transfer import pieces_of
from backend.comm.buckets import largest
from backend.comm.collectives import GroupExchange
from backend.comm.host.groups import HostGroups
from backend.comm.scratch import Scratch
from backend.comm.transport import Mesh, receive_into, tensor_bytes
from backend.comm.wires import GroupWire, StagedWire, Wire
from backend.data.loader import Loader
from backend.devices.device import Device
from backend.layout.views import box_view
from backend.memory.blocks import Blocks
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.monitor.nonfinite import LossWatch
from backend.ops.bindings import DirectBindings
from backend.ops.callables import RankFragments
from backend.ops.destinations import DeferredBindings, store_results
from backend.ops.fragment import draws
from backend.ops.inductor import Kernels
from backend.ops.workspace import uses_workspace
from backend.ops.writable import slot_places
from backend.placing.carriers import Carried, Carrier
from backend.placing.graphs import Graphs
from backend.run_folder.outputs import save_outputs
from backend.worker.lanes import LaunchTurns, RankLanes
from planner.ir.actors.actor import Actor
from planner.ir.actors.communicators import Communicator, communicators
from planner.ir.actors.routes import Piece, routes
from planner.ir.plan import Boxing, Plan, Task, TaskKind

__all__ = ["Announce", "RankBody", "axis_groups"]

Announce = Callable[[], None]
"""What is to be called after an act's end was recorded."""

_RankAct = tuple[Task, int, list[Tensor], DirectBindings]
"""A task, the number of its act, what it reads, and where it writes."""

GroupKey = tuple[str, int]
"""(stream, axis)"""

Tables = Mapping[str, list[list[Tensor]]]
"""Regst -> slot -> tensor number -> its memory."""


def axis_groups(
    plan: Plan,
    rank: int,
    timeout_s: float,
    carried: Mapping[Communicator, Carried] | None = None,
    device: Device | None = None,
    shared: HostGroups | None = None,
) -> dict[GroupKey, Wire]:
    """This rank's wire per (collective stream, axis).  Every rank makes all groups, in the same order (planner.ir.actors.communicators).

    Two streams never share a group: their collectives may run at the same time and in any order.

    Args:
        carried: by what; None: all by shared memory or gloo.   device: of this rank, where it has lanes.
        shared: those that lie in memory which processes of this host share.
    """
    mine: dict[GroupKey, Wire] = {}
    for each in communicators(plan):
        if each.axis is None:
            continue  # transfers have sockets and shared memory
        if shared is not None and shared.carries(each):
            if each in shared.wires:
                mine[each.stream, each.axis] = shared.wires[each]
            continue
        carrier = carried[each].carrier if carried is not None else Carrier.GLOO
        # torch numbers members by global rank unless told otherwise (an argument of newer versions); ours stand in axis order.
        order: dict[str, Any] = {} if list(each.ranks) == sorted(each.ranks) else {"sort_ranks": False}
        group = dist.new_group(list(each.ranks), timeout=timedelta(seconds=timeout_s), backend=carrier.value, **order)
        if rank in each.ranks:
            wire = GroupWire(group)
            there = device.torch_device if device is not None else torch.device("cpu")
            if carrier is Carrier.NCCL:
                wire.connect(there)
            mine[each.stream, each.axis] = StagedWire(wire) if there.type != "cpu" and carrier is Carrier.GLOO else wire
    return mine


class RankBody:
    """See the module's text.

    Args:
        groups: see axis_groups.   device: of the rank, where it has lanes.   turns: of its launches, where they have one order.
        graphs: of its fragments, where they are wanted.   kernels: how fragments are performed.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        blocks: Blocks,
        batches: Batches,
        groups: Mapping[GroupKey, Wire],
        folder: Path,
        memory: MemoryOptions = DEFAULT_MEMORY,
        numbers: StepNumbers = no_numbers,
        device: Device | None = None,
        turns: LaunchTurns | None = None,
        graphs: Graphs | None = None,
        kernels: Kernels = Kernels.EAGER,
    ) -> None:
        self.plan, self.rank, self.blocks = plan, rank, blocks
        self._device, self._turns, self._graphs = device, turns, graphs
        self._deferred: dict[str, DeferredBindings] = {}
        self._lanes = RankLanes(plan, rank, device) if device is not None else None
        self.losses = array("d")  # by step, from the first of this attempt
        self.loss_watch: LossWatch | None = None
        self.first_step = 0
        self.on_save: Callable[[Task, int, Sequence[Tensor]], None] | None = None
        self.on_loss: Callable[[int, float], None] | None = None
        self.on_output: Callable[[int], None] | None = None
        self._folder = folder
        self.captured: dict[str, list[Tensor]] | None = None
        self._batches, self._step_numbers = batches, numbers
        self._mesh: Mesh | None = None
        self.waiting: frozenset[str] = frozenset()
        """Tasks whose acts may wait for others: for a peer, a socket that is full, a disk."""
        self._mapped: Mapping[int, Tables] = {}
        self._bound: dict[str, tuple[DirectBindings, Callable[[_RankAct], Announce | None]]] = {}
        here = [task for task in plan.tasks if rank in plan.ranks_of(task)]
        self._drawing = frozenset(task.id for task in here if draws(task))
        self._numbers = {task.id: number for number, task in enumerate(plan.tasks)}
        self.fragments = RankFragments(
            plan,
            rank,
            blocks.mode,
            memory,
            device="" if device is None or device.torch_device.type == "cpu" else str(device.torch_device),
            allocate=device.allocate if device is not None else None,
            planned=uses_workspace(memory, blocks.mode),
            kernels=kernels,
            lays_out=True,
        )
        self._scratch: defaultdict[str, Scratch] = defaultdict(partial(Scratch, device.torch_device if device is not None else None))
        self._exchanges = {
            task.id: GroupExchange(plan, task, rank, groups.get((task.stream, task.body.axis)), self._scratch[task.stream])
            for task in here
            if isinstance(task.body, Boxing)
        }
        for stream, scratch in self._scratch.items():
            scratch.reserve(largest(each.needs for name, each in self._exchanges.items() if plan.task[name].stream == stream))
        self.targets: dict[str, tuple[int, ...]] = {}
        self.senders: dict[str, tuple[int, ...]] = {}
        self._moves: dict[str, list[tuple[Piece, ...]]] = {}
        for task in plan.tasks:
            if task.kind is TaskKind.TRANSFER:
                self._add_transfer(task)
        first = [task.placement for task in here if task.kind is TaskKind.FETCH]
        self._reports = bool(first) and plan.placement[first[0]].ranks[0] == rank
        self._progress = os.open(folder / "progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if self._reports else -1

    @property
    def scratch_bytes(self) -> int:
        """What this rank's collectives hold beside its blocks."""
        return sum(scratch.held_bytes for scratch in self._scratch.values())

    def _add_transfer(self, task: Task) -> None:
        table = routes(self.plan, task)
        self.targets[task.id] = table.get(self.rank, ())
        self.senders[task.id] = tuple(src for src, targets in table.items() if self.rank in targets)
        self._moves[task.id] = [tuple(p for p in moves if self.rank in (p.src_rank, p.dst_rank)) for moves in pieces_of(self.plan, task)]

    def peers(self) -> set[int]:
        """Ranks that this one sends to or receives from in transfers."""
        return {r for table in (self.targets, self.senders) for ranks in table.values() for r in ranks} - {self.rank}

    def attach(self, mesh: Mesh, mapped: Mapping[int, Tables] | None = None) -> None:
        """Give the connections to ``peers()``.

        Args:
            mapped: rank -> its blocks, for those ranks whose blocks this process can write to.
        """
        self._mesh = mesh
        self._mapped = mapped or {}
        self.waiting = frozenset(task.id for task in self.plan.tasks if self._waits(task))

    def _waits(self, task: Task) -> bool:
        if task.kind is TaskKind.TRANSFER:
            return any(target != self.rank and target not in self._mapped for target in self.targets[task.id])
        if task.kind is TaskKind.BOXING:
            return len(self.plan.peers(task, self.plan.ranks_of(task)[0])) > 1
        if task.kind is TaskKind.SOURCE:
            return isinstance(self._batches, Loader)
        return task.kind in (TaskKind.SAVE, TaskKind.PREPARE, TaskKind.OUTPUT)

    @property
    def _connected(self) -> Mesh:
        assert self._mesh is not None
        return self._mesh

    def perform(self, actor: Actor, number: int) -> Announce | None:
        """Do one act."""
        task = actor.task
        bound = self._bound.get(task.id)
        if bound is None:
            bindings = DirectBindings(actor, self.blocks, writes=task.kind is not TaskKind.TRANSFER)
            bound = self._bound[task.id] = bindings, method_of(self, task.kind)
        bindings, method = bound
        values = bindings.values()
        if self.captured is not None:
            self.captured[task.id] = values
        if self._lanes is None:
            return method((task, number, values, bindings))
        if self._graphs is not None and bindings.is_settled and self._repeats(task):
            self._perform_again(actor, number, values, self._lanes, self._graphs)
            return None
        return self._lanes.perform(task, lambda: method((task, number, values, bindings)))

    def _repeats(self, task: Task) -> bool:
        """Whether acts of a task on the same memory are the same work: no micro-batch's number enters, and nothing is looked at."""
        if not task.kind.is_compute or (task.id in self._drawing and task.acts > 1):
            return False
        is_watched = self.loss_watch is not None and task.id in self.loss_watch.places
        return not is_watched and self.fragments.is_final(task.id)

    def _perform_again(self, actor: Actor, number: int, values: list[Tensor], lanes: RankLanes, graphs: Graphs) -> None:
        task = actor.task
        bindings = self._deferred.get(task.id)
        if bindings is None:
            bindings = self._deferred[task.id] = DeferredBindings(actor, self.blocks)
        destinations, function = bindings.destinations(), self.fragments.functions[task.id]
        operands = [*values, *bindings.slots(destinations), *([number % task.acts] if task.id in self._drawing else [])]
        lanes.perform_again(actor, bindings.slot_numbers(), lambda: store_results(function(*operands), destinations), graphs)

    # The kinds of tasks (backend.acts.kinds).

    def load(self, act: _RankAct) -> None:
        task, number, values, bindings = act
        bindings.store(self.loaded(task, number, values))

    def copy(self, act: _RankAct) -> None:
        _, _, values, bindings = act
        bindings.store(copied_values(values, bindings.slots()))

    def compute(self, act: _RankAct) -> None:
        task, number, values, bindings = act
        results = self.computed(task, values, bindings.slots(), number % task.acts)
        if self.loss_watch is not None and task.id in self.loss_watch.places:
            self.loss_watch.check(task, self.rank, values, results, number % task.acts)
        bindings.store(results)

    def box(self, act: _RankAct) -> None:
        task, number, values, bindings = act
        meets = self._turns is not None and len(self.plan.peers(task, self.rank)) > 1
        with self._turns.turn(task, number) if self._turns is not None and meets else nullcontext():
            results = self.boxed(task, values, bindings.slots())
        bindings.store(results)

    def transfer(self, act: _RankAct) -> Announce:
        task, number, values, _ = act
        return self.send(task, number, values)

    def save(self, act: _RankAct) -> None:
        task, number, values, _ = act
        if self.on_save is not None:
            self.on_save(task, number, [value.cpu() for value in values])

    def output(self, act: _RankAct) -> None:
        task, number, values, _ = act
        if wanted := handed_over(self.plan, task, self.rank):
            step, micro_batch = self.first_step + number // task.acts, number % task.acts
            save_outputs(self._folder, step, {(place, micro_batch, self.rank): values[read] for place, read in wanted})
            if self.on_output is not None:
                self.on_output(step)

    def fetch(self, act: _RankAct) -> None:
        task, number, values, _ = act
        step, loss = self.first_step + number, float(values[loss_position(self.plan, task)])
        self.losses.append(loss)
        if self._reports:
            os.write(self._progress, f"{step} {loss!r}\n".encode())
            if self.on_loss is not None:
                self.on_loss(step, loss)

    # Their work without the blocks.

    def loaded(self, task: Task, number: int, values: list[Tensor]) -> list[Tensor]:
        """What comes into the run from outside: a part of a batch, or the numbers of a step."""
        act = self.first_step * task.acts + number
        return loaded_parts(self.plan, task, self.rank, act, values, self._batches, self._step_numbers)

    def computed(self, task: Task, values: list[Tensor], slots: list[Tensor], micro_batch: int) -> list[Tensor] | tuple[Tensor, ...]:
        """The results of a fragment; ``slots``: memory for those at bindings.slot_places."""
        if task.id in self._drawing:
            return self.fragments.functions[task.id](*values, *slots, micro_batch)
        return self.fragments.functions[task.id](*values, *slots)

    def boxed(self, task: Task, values: list[Tensor], slots: list[Tensor]) -> list[Tensor]:
        """The results of a collective, in ``slots`` if all have one."""
        return self._exchanges[task.id].run(values, slots if len(slots) == len(values) else ())

    def first_slots(self, task: Task) -> list[Tensor]:
        """The memory that a task's results lie in, at their first blocks."""
        return [self.blocks.read(task.writes[n].regst, 0, task.writes[n].index) for n in slot_places(task, self.blocks.mode)]

    def send(self, task: Task, number: int, values: list[Tensor]) -> Announce:
        """Send this rank's pieces; the returned call tells the receivers that the act has ended."""
        index = self._numbers[task.id]
        for target in self.targets[task.id]:
            outgoing = [
                (box_view(value, piece.src_spans), piece, write)
                for value, write, moves in zip(values, task.writes, self._moves[task.id], strict=True)
                for piece in moves
                if piece.src_rank == self.rank and piece.dst_rank == target
            ]
            mapped = self._mapped.get(target)
            if mapped is None and target != self.rank:
                self._connected.send_payload(target, index, number, [tensor_bytes(part.contiguous().cpu()) for part, _, _ in outgoing])
                continue
            for part, piece, write in outgoing:
                slot = number % self.plan.regst[write.regst].quota
                whole = (
                    mapped[write.regst][slot][write.index] if mapped is not None else self.blocks.incoming(write.regst, write.index, number)
                )
                box_view(whole, piece.dst_spans).copy_(part)
        others = [target for target in self.targets[task.id] if target != self.rank]

        def announce() -> None:
            for target in others:
                self._connected.send_done(target, index, number, behind_payload=target not in self._mapped)

        return announce

    def receive(self, peer: int, connection: object, task: Task, number: int) -> None:
        """Read the payload of one act of one sender into the blocks (on the reader thread of that sender)."""
        for write, moves in zip(task.writes, self._moves[task.id], strict=True):
            for piece in moves:
                if piece.src_rank != peer or piece.dst_rank != self.rank:
                    continue
                target = box_view(self.blocks.incoming(write.regst, write.index, number), piece.dst_spans)
                if target.is_contiguous() and target.device.type == "cpu":
                    receive_into(connection, tensor_bytes(target))  # type: ignore[arg-type]
                    continue
                received = torch.empty_like(target, memory_format=torch.contiguous_format, device="cpu")
                receive_into(connection, tensor_bytes(received))  # type: ignore[arg-type]
                target.copy_(received)

    def forget(self, task: Task, number: int) -> None:
        """Throw away what act ``number`` of a transfer brought here."""
        for port in task.produces:
            if self.rank in self.plan.ranks_holding(port.regst):
                self.blocks.clear(port.regst, number % self.plan.regst[port.regst].quota)
