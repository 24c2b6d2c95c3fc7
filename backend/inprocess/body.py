"""The work of one act of each kind, as something to put into a lane, for all ranks of one process.

take(crew)  -->  work     on the runtime's thread: which memory
work()                    in the lane of the crew: read, compute, write
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend.acts.act import Batches, loss_position, prepared_parts, source_parts
from backend.comm.collectives import GroupExchange, check_boxing, exchange
from backend.devices.device import Device, ImmediateLane, Lane, Work
from backend.inprocess.grip import Grip, Put, put
from backend.inprocess.rendezvous import Crew
from backend.layout.sharding import torch_dtype
from backend.memory.blocks import Blocks
from backend.monitor.nonfinite import LossWatch
from backend.ops.fragment import CompiledFragment, compile_fragment, grant_of
from planner.ir.actors.actor import Actor, ActorId
from planner.ir.actors.routes import Piece, pieces
from planner.ir.errors import NotFinite
from planner.ir.plan import Boxing, Fragment, Placement, Plan, RegstKind, Task, TaskKind

__all__ = ["ProcessBody"]


def _box(value: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    for dim, (offset, length) in enumerate(spans):
        if length != value.shape[dim]:
            value = value.narrow(dim, offset, length)
    return value


class ProcessBody:
    """See the module's text.

    Args:
        blocks, devices: per rank.   graphs: fragments are put into lanes as recorded graphs from the second time on.
        on_loss: called with (step, loss), on the thread of the act.   allow_nan: a loss that is no number does not end the run.
    """

    def __init__(
        self,
        plan: Plan,
        blocks: Mapping[int, Blocks],
        devices: Mapping[int, Device],
        batches: Batches,
        *,
        graphs: bool = False,
        on_loss: Callable[[int, float], None] | None = None,
        allow_nan: bool = False,
    ) -> None:
        self.plan, self.losses = plan, dict[int, float]()
        self._blocks, self._devices, self._batches, self._graphs, self.on_loss = blocks, devices, batches, graphs, on_loss
        self._watch = None if allow_nan else LossWatch(plan)
        self._grips: dict[ActorId, Grip] = {}
        self._lanes: dict[tuple[str, int, str], Lane] = {}
        self._host = ImmediateLane()
        self._pieces: dict[ActorId, list[tuple[Piece, ...]]] = {}
        self._fragments: dict[ActorId, CompiledFragment] = {}
        self._replays: dict[tuple[ActorId, tuple[int, ...]], Work | None] = {}
        self._kinds: dict[ActorId, Lane] = {}
        self._steps: dict[ActorId, GroupExchange] = {}
        for task in plan.tasks:
            for rank in plan.ranks_of(task):
                if isinstance(task.body, Boxing):
                    check_boxing(task, task.body)
                    if len(plan.peers(task, rank)) == 1:
                        self._steps[task.id, rank] = GroupExchange(plan, task, rank, None)
                if isinstance(task.body, Fragment):
                    self._fragments[task.id, rank] = self._compile(task, rank)
                if task.kind is TaskKind.TRANSFER:
                    self._pieces[task.id, rank] = self._sent(task, rank)
                self._kinds[task.id, rank] = self._lane(task, rank)

    def _compile(self, task: Task, rank: int) -> CompiledFragment:
        placement: Placement = self.plan.placement[task.placement]
        mode, device = self._blocks[rank].mode, self._devices[rank].torch_device
        return compile_fragment(task, placement, rank, grant_of(self.plan, task, mode), device="" if device.type == "cpu" else str(device))

    def _sent(self, task: Task, rank: int) -> list[tuple[Piece, ...]]:
        """Per (read, write) pair what this rank sends."""
        found: list[tuple[Piece, ...]] = []
        for read, write in zip(task.reads, task.writes, strict=True):
            target = self.plan.regst[write.regst]
            src = self.plan.regst[read.regst].tensors[read.index]
            moves = pieces(src, self.plan.placement[task.placement], target.tensors[write.index], self.plan.placement[target.placement])
            found.append(tuple(piece for piece in moves if piece.src_rank == rank))
        return found

    def targets(self, actor: ActorId) -> tuple[int, ...]:
        """Ranks that a TRANSFER sends to from this one."""
        return tuple(dict.fromkeys(piece.dst_rank for moves in self._pieces[actor] for piece in moves))

    # Which lane.

    def _lane(self, task: Task, rank: int) -> Lane:
        """Of the own device; where data leaves an immediate device for another one, of that; for a crew, of its first device with lanes."""
        if task.kind in (TaskKind.PREPARE, TaskKind.FETCH, TaskKind.SAVE):
            return self._host
        candidates = [rank, *(self.targets((task.id, rank)) if task.kind is TaskKind.TRANSFER else self.plan.peers(task, rank))]
        for candidate in candidates:
            device = self._devices[candidate]
            if not device.immediate:
                key = task.stream, rank if task.kind is TaskKind.TRANSFER else candidate, device.name
                if key not in self._lanes:
                    self._lanes[key] = device.lane(f"{task.stream} of rank {key[1]}")
                return self._lanes[key]
        return self._host

    def lane(self, crew: Crew) -> Lane:
        actor = crew[0][0]
        return self._kinds[actor.task.id, actor.rank]

    # The work.

    def take(self, crew: Crew) -> Work:
        """What to put into the crew's lane; called when the blocks in hand are known, and before they move on."""
        actor, number = crew[0]
        task = actor.task
        if len(crew) > 1:
            return self._collective(crew)
        grip = self._grip(actor)
        match task.kind:
            case TaskKind.SOURCE:
                puts = grip.puts()
                return lambda: put(source_parts(self.plan, task, actor.rank, number, self._batches), puts)
            case TaskKind.SAVE:
                return lambda: None
            case TaskKind.PREPARE:
                values, puts = grip.values(), grip.puts()
                return lambda: put(prepared_parts(self.plan, task, actor.rank, values, self._batches), puts)
            case TaskKind.FETCH:
                values = grip.values()
                return lambda: self._fetch(task, number, values)
            case TaskKind.TRANSFER:
                return self._transfer(actor, number, grip.values())
            case TaskKind.COPY:
                values, puts = grip.values(), grip.puts()
                return lambda: put(values if puts and puts[0].slot is not None else [value.clone() for value in values], puts)
            case TaskKind.BOXING:
                return self._alone(actor, grip)
            case _:
                return self._compute(actor, grip)

    def _grip(self, actor: Actor) -> Grip:
        grip = self._grips.get(actor.id)
        if grip is None:
            grip = self._grips[actor.id] = Grip(actor, self._blocks[actor.rank], writes=actor.task.kind is not TaskKind.TRANSFER)
        return grip

    def _compute(self, actor: Actor, grip: Grip) -> Work:
        fragment = self._fragments[actor.id]
        values, puts = grip.values(), grip.puts()
        slots = grip.slots(puts)

        if self._kinds[actor.id].immediate and self._watch is not None and actor.task.id in self._watch.places:
            watch = self._watch

            def watched() -> None:
                results = fragment(*values, *slots)
                watch.check(actor.task, actor.rank, values, results)
                put(results, puts)

            return watched

        def work() -> None:
            put(fragment(*values, *slots), puts)

        if not self._graphs or self._kinds[actor.id].immediate:
            return work
        key = actor.id, grip.slot_numbers()
        if key not in self._replays:
            self._replays[key] = None  # once as it is: libraries set themselves up at first use, which must not be captured
            return work
        found = self._replays[key]
        if found is None:
            found = self._replays[key] = self._kinds[actor.id].again(work)
        return found

    def _fetch(self, task: Task, number: int, values: list[Tensor]) -> None:
        loss = float(values[loss_position(self.plan, task)])
        if self._watch is not None and not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss}; perform the plan on CPUs (--performer gloo) to learn which op made it so, or allow_nan")
        # Several ranks may fetch it, each on its thread; the one whose float was kept tells.
        if self.losses.setdefault(number, loss) is loss and self.on_loss is not None:
            self.on_loss(number, loss)

    def _transfer(self, actor: Actor, number: int, values: list[Tensor]) -> Work:
        moved: list[tuple[Tensor, Tensor]] = []
        for value, write, moves in zip(values, actor.task.writes, self._pieces[actor.id], strict=True):
            for piece in moves:
                whole = self._landing(piece.dst_rank, write.regst, write.index, number)
                moved.append((_box(whole, piece.dst_spans), _box(value, piece.src_spans)))

        def work() -> None:
            for there, here in moved:
                there.copy_(here, non_blocking=True)

        return work

    def _landing(self, rank: int, regst: str, index: int, number: int) -> Tensor:
        """The receiver's memory for act ``number``; parts of several senders meet in it."""
        blocks, placed = self._blocks[rank], self.plan.regst[regst]
        slot = number % placed.quota
        whole = blocks.peek(regst, slot, index)
        if whole is None:
            tensor = placed.tensors[index]
            shape = tensor.local_type(self.plan.placement[placed.placement], rank).shape
            whole = blocks.claim(regst, slot, index, torch.empty(shape, dtype=torch_dtype(tensor.dtype)))
        return whole

    def _alone(self, actor: Actor, grip: Grip) -> Work:
        """A step that needs no neighbour."""
        values, puts, task = grip.values(), grip.puts(), actor.task
        step = self._steps[actor.id]
        return lambda: put(self._apart(task, step.run(values), values, puts), puts)

    def _collective(self, crew: Crew) -> Work:
        """The arithmetic of collectives.exchange, once for all ranks, on the first device with lanes."""
        task = crew[0][0].task
        assert isinstance(task.body, Boxing)
        axis = task.body.axis
        src, dst = task.body.src[axis], task.body.dst[axis]
        grips = [self._grip(actor) for actor, _ in crew]
        values, puts = [grip.values() for grip in grips], [grip.puts() for grip in grips]
        home = next((self._devices[a.rank].torch_device for a, _ in crew if not self._devices[a.rank].immediate), None)

        def work() -> None:
            for n in range(len(task.reads)):
                parts = [row[n] if home is None else row[n].to(home, non_blocking=True) for row in values]
                results = exchange(src, dst, parts)
                taken = list(parts)
                for result, to in zip(results, puts, strict=True):
                    (own,) = self._apart(task, [result], taken, to[n : n + 1])
                    taken.append(own)
                    put([own], to[n : n + 1])

        return work

    def _apart(self, task: Task, results: Sequence[Tensor], others: Sequence[Tensor], puts: Sequence[Put]) -> list[Tensor]:
        """Without memory of its own, a state block must share none: its owner will write to it."""
        state = any(self.plan.regst[access.regst].kind is RegstKind.STATE for access in task.writes)
        if not state or not puts or puts[0].slot is not None:
            return list(results)
        held = {other.untyped_storage().data_ptr() for other in others}
        return [result.clone() if result.untyped_storage().data_ptr() in held else result for result in results]
