"""The work of one act of each kind, as something to put into a lane, for all ranks of one process.

bind(joint)  -->  work    on the engine's thread: looks up which memory the act reads and writes
work()                    in the lane of the act: read, compute, write
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from backend.acts.act import Batches, loss_position
from backend.acts.kinds import copied_values, loaded_parts, method_of
from backend.acts.outputs import OutputCollector, StepOutputs
from backend.acts.step_inputs import StepNumbers
from backend.acts.transfer import pieces_of
from backend.comm.collectives import GroupExchange, check_boxing, exchange
from backend.devices.device import Device, ImmediateLane, Lane, Work
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.inprocess.rendezvous import JointAct
from backend.layout.views import box_view
from backend.memory.blocks import Blocks
from backend.monitor.nonfinite import LossWatch
from backend.ops.callables import RankFragments
from backend.ops.destinations import DeferredBindings, Destination, store_results
from backend.ops.fragment import draws
from backend.placing.graphs import Graphs
from planner.ir.actors.actor import Actor, ActorId
from planner.ir.actors.routes import Piece
from planner.ir.errors import NotFinite
from planner.ir.plan import Boxing, Plan, RegstKind, Task, TaskKind

__all__ = ["ProcessBody"]


class ProcessBody:
    """See the module's text.

    Args:
        blocks, devices: per rank.   fragments: per rank, compiled for its device.   options: of devices with lanes.
        on_loss: called with (step, loss), on the thread of the act.   allow_nan: a loss that is no number does not end the run.
    """

    def __init__(
        self,
        plan: Plan,
        blocks: Mapping[int, Blocks],
        devices: Mapping[int, Device],
        batches: Batches,
        numbers: StepNumbers,
        fragments: Mapping[int, RankFragments],
        *,
        options: DeviceOptions = DEFAULT_DEVICE_OPTIONS,
        on_loss: Callable[[int, float], None] | None = None,
        allow_nan: bool = False,
    ) -> None:
        self.plan, self.losses = plan, dict[int, float]()
        self.outputs = dict[int, StepOutputs]()
        self._collector = OutputCollector(plan, self.outputs.__setitem__)
        self._blocks, self._devices, self._batches, self.on_loss = blocks, devices, batches, on_loss
        self._fragments, self.graphs = fragments, Graphs() if options.graphs else None
        self._numbers = numbers
        self._watch = None if allow_nan else LossWatch(plan)
        self._bindings: dict[ActorId, DeferredBindings] = {}
        self._lanes: dict[tuple[str, int, str], Lane] = {}
        self._pieces: dict[ActorId, list[tuple[Piece, ...]]] = {}
        self._lane_of: dict[ActorId, Lane] = {}
        self._local_exchanges: dict[ActorId, GroupExchange] = {}
        self._methods = {task.id: method_of(self, task.kind) for task in plan.tasks}
        for task in plan.tasks:
            for rank in plan.ranks_of(task):
                if isinstance(task.body, Boxing):
                    check_boxing(task, task.body)
                    if len(plan.peers(task, rank)) == 1:
                        self._local_exchanges[task.id, rank] = GroupExchange(plan, task, rank, None)
                if task.kind is TaskKind.TRANSFER:
                    self._pieces[task.id, rank] = [tuple(p for p in moves if p.src_rank == rank) for moves in pieces_of(plan, task)]
                self._lane_of[task.id, rank] = self._lane(task, rank)

    def targets(self, actor: ActorId) -> tuple[int, ...]:
        """Ranks that a TRANSFER sends to from this one."""
        return tuple(dict.fromkeys(piece.dst_rank for moves in self._pieces[actor] for piece in moves))

    # Which lane.

    def _lane(self, task: Task, rank: int) -> Lane:
        """A lane of the rank's own device; where data leaves an immediate device for another one, of that one; for a collective, of the first
        of its devices with lanes.  What the host does has a lane per stream and rank, since one thread at a time may use a lane.
        """
        if task.kind in (TaskKind.PREPARE, TaskKind.FETCH, TaskKind.SAVE, TaskKind.OUTPUT):
            return self._lanes.setdefault((task.stream, rank, "host"), ImmediateLane())
        candidates = [rank, *(self.targets((task.id, rank)) if task.kind is TaskKind.TRANSFER else self.plan.peers(task, rank))]
        for candidate in candidates:
            device = self._devices[candidate]
            if not device.immediate:
                key = task.stream, rank if task.kind is TaskKind.TRANSFER else candidate, device.name
                if key not in self._lanes:
                    self._lanes[key] = device.lane(f"{task.stream} of rank {key[1]}")
                return self._lanes[key]
        return self._lanes.setdefault((task.stream, rank, "host"), ImmediateLane())

    def lane(self, joint: JointAct) -> Lane:
        actor = joint[0][0]
        return self._lane_of[actor.id]

    # The work.

    def bind(self, joint: JointAct) -> Work:
        """What to put into the act's lane; called before the counters of its ports move on."""
        return self._methods[joint[0][0].task.id](joint)

    # The kinds of tasks (backend.acts.kinds).

    def load(self, act: JointAct) -> Work:
        ((actor, number, _),) = act
        bindings, task = self._bindings_of(actor), actor.task
        values, destinations = bindings.values(), bindings.destinations()
        return lambda: store_results(loaded_parts(self.plan, task, actor.rank, number, values, self._batches, self._numbers), destinations)

    def copy(self, act: JointAct) -> Work:
        ((actor, _, _),) = act
        bindings = self._bindings_of(actor)
        values, destinations = bindings.values(), bindings.destinations()
        return lambda: store_results(copied_values(values, bindings.slots(destinations)), destinations)

    def compute(self, act: JointAct) -> Work:
        ((actor, number, _),) = act
        return self._fragment(actor, self._bindings_of(actor), number % actor.task.acts)

    def box(self, act: JointAct) -> Work:
        return self._collective(act) if len(act) > 1 else self._local_step(act[0][0], self._bindings_of(act[0][0]))

    def transfer(self, act: JointAct) -> Work:
        ((actor, number, _),) = act
        return self._transfer(actor, number, self._bindings_of(actor).values())

    def save(self, act: JointAct) -> Work:
        return lambda: None

    def output(self, act: JointAct) -> Work:
        ((actor, number, _),) = act
        values = self._bindings_of(actor).values()
        return lambda: self._collector.add(actor.task, actor.rank, number, values)

    def fetch(self, act: JointAct) -> Work:
        ((actor, number, _),) = act
        values = self._bindings_of(actor).values()
        return lambda: self._fetch(actor.task, number, values)

    # How they are performed.

    def _bindings_of(self, actor: Actor) -> DeferredBindings:
        bindings = self._bindings.get(actor.id)
        if bindings is None:
            writes = actor.task.kind is not TaskKind.TRANSFER
            bindings = self._bindings[actor.id] = DeferredBindings(actor, self._blocks[actor.rank], writes=writes)
        return bindings

    def _fragment(self, actor: Actor, bindings: DeferredBindings, micro_batch: int) -> Work:
        task, lane = actor.task, self._lane_of[actor.id]
        is_random = draws(task)
        functions = self._fragments[actor.rank].functions
        values, destinations = bindings.values(), bindings.destinations()
        operands = [*values, *bindings.slots(destinations), *([micro_batch] if is_random else [])]

        if lane.immediate and self._watch is not None and task.id in self._watch.places:
            watch = self._watch

            def watched() -> None:
                results = functions[task.id](*operands)
                watch.check(task, actor.rank, values, results, micro_batch)
                store_results(results, destinations)

            return watched

        def work() -> None:
            store_results(functions[task.id](*operands), destinations)

        # A captured act would repeat its micro-batch's number.
        if self.graphs is None or lane.immediate or (is_random and task.acts > 1) or not self._fragments[actor.rank].is_final(task.id):
            return work
        return self.graphs.of(actor, bindings.slot_numbers(), lane, work)

    def _fetch(self, task: Task, number: int, values: list[Tensor]) -> None:
        loss = float(values[loss_position(self.plan, task)])
        if self._watch is not None and not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss}; perform the plan on CPUs (--performer gloo) to learn which op made it so, or allow_nan")
        # Several ranks may fetch it, each on its thread; the one whose float was kept reports it.
        if self.losses.setdefault(number, loss) is loss and self.on_loss is not None:
            self.on_loss(number, loss)

    def _transfer(self, actor: Actor, number: int, values: list[Tensor]) -> Work:
        moved: list[tuple[Tensor, Tensor]] = []
        for value, write, moves in zip(values, actor.task.writes, self._pieces[actor.id], strict=True):
            for piece in moves:
                whole = self._blocks[piece.dst_rank].incoming(write.regst, write.index, number)
                moved.append((box_view(whole, piece.dst_spans), box_view(value, piece.src_spans)))

        def work() -> None:
            for there, here in moved:
                there.copy_(here, non_blocking=True)

        return work

    def _local_step(self, actor: Actor, bindings: DeferredBindings) -> Work:
        """A step that needs no neighbour."""
        values, destinations, task = bindings.values(), bindings.destinations(), actor.task
        step = self._local_exchanges[actor.id]
        return lambda: store_results(self._unshared(task, step.run(values), values, destinations), destinations)

    def _collective(self, joint: JointAct) -> Work:
        """The arithmetic of collectives.exchange, once for all ranks, on the first device with lanes."""
        task = joint[0][0].task
        assert isinstance(task.body, Boxing)
        axis = task.body.axis
        src, dst = task.body.src[axis], task.body.dst[axis]
        bindings = [self._bindings_of(actor) for actor, _, _ in joint]
        values = [of_rank.values() for of_rank in bindings]
        destinations = [of_rank.destinations() for of_rank in bindings]
        device = next((self._devices[a.rank].torch_device for a, _, _ in joint if not self._devices[a.rank].immediate), None)

        def work() -> None:
            for n in range(len(task.reads)):
                parts = [row[n] if device is None else row[n].to(device, non_blocking=True) for row in values]
                results = exchange(src, dst, parts)
                others = list(parts)
                for result, to in zip(results, destinations, strict=True):
                    (own,) = self._unshared(task, [result], others, to[n : n + 1])
                    others.append(own)
                    store_results([own], to[n : n + 1])

        return work

    def _unshared(
        self, task: Task, results: Sequence[Tensor], others: Sequence[Tensor], destinations: Sequence[Destination]
    ) -> list[Tensor]:
        """The results, copied where a state block would share memory with another value: the owner of the state writes to it later."""
        state = any(self.plan.regst[access.regst].kind is RegstKind.STATE for access in task.writes)
        if not state or not destinations or destinations[0].slot is not None:
            return list(results)
        shared = {other.untyped_storage().data_ptr() for other in others}
        return [result.clone() if result.untyped_storage().data_ptr() in shared else result for result in results]
