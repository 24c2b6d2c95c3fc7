"""The reference performer: all ranks in one process, one act after the other.  It defines the meaning of a Plan.

Virtual devices share one clock and one thread: it steps the same Actors and StreamGates as the workers do, so its trace obeys the six laws,
with real durations but no overlap.  A boxing act is performed for all ranks of its axis at once, when the turn of each of them has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend.acts.act import Batches, accumulate, loss_position, prepared_parts, read_inputs, settle, source_parts, write_outputs
from backend.comm.collectives import GroupExchange, check_boxing, exchange
from backend.initial.values import Values
from backend.layout.sharding import torch_dtype
from backend.memory.blocks import Blocks, initial_states
from backend.ops.fragment import CompiledFragment, compile_fragment
from backend.run_folder.outcome import Outcome, gather, state_homes
from planner.ir.actors.actor import Actor, ActorId, build_actors
from planner.ir.actors.deadlock import explain_wait
from planner.ir.actors.routes import Piece, pieces
from planner.ir.actors.verify import verify
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, InvalidPlan, RegistaError, WorkerFailed
from planner.ir.plan import Boxing, Plan, Task, TaskKind
from planner.ir.traces.trace import Act, Source, Trace

__all__ = ["ReferencePerformer", "perform"]


def perform(
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    steps: int,
    *,
    gradients: bool = False,
    on_event: Callable[[Act], None] | None = None,
) -> Outcome:
    """Perform ``steps`` steps of the Plan in this process.

    Args:
        state: logical tensors by the names of plan.states; not written to.
        batches: step -> the global batch's tensors, in the order of plan.batch_inputs.
        gradients: also return the last step's mean gradients.
        on_event: called after every act.

    Returns:
        trace (source ``run``, performer ``reference``), losses per step, final states and gradients as logical tensors.

    Raises:
        InvalidPlan, DeadLock, OutOfMemory: the Plan is refused (planner.ir.actors.verify), or ``state`` does not fit it.
        InvalidProgram: a batch does not fit the Plan.
        WorkerFailed: an op of a fragment raised.
    """
    return ReferencePerformer(plan, state, batches, steps, gradients=gradients, on_event=on_event).run()


class ReferencePerformer:
    """See the module's text.

    Tests plant wrong performers by overriding ``run_fragment``, ``run_boxing``, ``run_transfer`` or ``accumulate``.
    """

    def __init__(
        self,
        plan: Plan,
        state: Mapping[str, Tensor] | Values,
        batches: Batches,
        steps: int,
        *,
        gradients: bool = False,
        on_event: Callable[[Act], None] | None = None,
    ) -> None:
        verify(plan)
        for task in plan.tasks:
            if isinstance(task.body, Boxing):
                check_boxing(task, task.body)
        self.plan = plan
        self._batches = batches
        self._steps = steps
        self._gradients = gradients
        self._on_event = on_event
        self._actors, self._gates = build_actors(plan, steps)
        taps = plan.gradients.values() if gradients else ()
        self._blocks = {rank: Blocks(plan, rank, taps=taps) for rank in range(plan.num_ranks)}
        for rank, blocks in self._blocks.items():
            blocks.fill_state(initial_states(plan, rank, state))
        self._fragments: dict[ActorId, CompiledFragment] = {}
        self._pieces: dict[str, list[tuple[Piece, ...]]] = {t.id: _pieces(plan, t) for t in plan.tasks if t.kind is TaskKind.TRANSFER}
        # Blocks on receivers: (regst, rank) -> how many senders' parts each slot still lacks.
        self._awaited: dict[tuple[str, int], dict[int, int]] = {}
        self._ready_s: dict[ActorId, float] = {}
        self._acts: list[Act] = []
        self._losses: dict[int, float] = {}
        self._zero = time.monotonic()

    # What tests override.

    def run_fragment(self, task: Task, rank: int, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The values of task.writes, from those of task.reads."""
        try:
            if (task.id, rank) not in self._fragments:
                self._fragments[task.id, rank] = compile_fragment(task, self.plan.placement[task.placement], rank)
            return self._fragments[task.id, rank](*inputs)
        except RegistaError:
            raise
        except Exception as error:  # what torch says of an op with other arguments or shapes than the planner gives it
            text = str(error).strip().split("\n")[0]
            raise WorkerFailed(f"rank {rank} failed in task {task.id}: {type(error).__name__}: {text}; plan this program anew") from error

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """One tensor's parts along the axis before -> after."""
        return exchange(body.src[body.axis], body.dst[body.axis], parts)

    def run_transfer(self, task: Task, piece: Piece, value: Tensor) -> Tensor:
        """What arrives when ``value`` is sent."""
        return value.clone()

    def accumulate(self, held: Tensor | None, value: Tensor, acts_per_block: int) -> Tensor:
        """The block's content after one more act."""
        return accumulate(held, value, acts_per_block)

    # The loop.

    def run(self) -> Outcome:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                self._note_ready(self._actors.values(), self._now())
                while self._sweep():
                    pass
        finally:
            torch.set_num_threads(threads)
        if any(not actor.done for actor in self._actors.values()):
            raise DeadLock(explain_wait(self.plan, self._actors, self._gates))
        return self._outcome()

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _sweep(self) -> bool:
        """Let every stream start what it can; False when nothing could."""
        progress = False
        for gate in self._gates.values():
            actor = gate.choose()
            if actor is None:
                continue
            crew = self._crew(actor)
            if crew is not None:
                self._act(crew)
                progress = True
        return progress

    def _crew(self, actor: Actor) -> list[Actor] | None:
        """All actors that meet in this act, in axis order; None while some are not at their turn."""
        crew = [self._actors[actor.task.id, rank] for rank in self.plan.peers(actor.task, actor.rank)]
        chosen = [self._gates[member.task.stream, member.rank].choose() for member in crew]
        return crew if all(a is b for a, b in zip(chosen, crew, strict=True)) else None

    def _act(self, crew: list[Actor]) -> None:
        task = crew[0].task
        numbers = [self._gates[task.stream, actor.rank].start(actor) for actor in crew]
        start_s = self._now()
        match task.kind:
            case TaskKind.BOXING:
                self._box(crew)
            case TaskKind.TRANSFER:
                self._transfer(crew[0])
            case TaskKind.SOURCE:
                parts = source_parts(self.plan, task, crew[0].rank, numbers[0], self._batches)
                write_outputs(crew[0], self._blocks[crew[0].rank], parts, self.accumulate)
            case TaskKind.SAVE:
                pass  # files are the processes' business; the act is what orders it before the next update
            case TaskKind.PREPARE | TaskKind.COPY:
                blocks = self._blocks[crew[0].rank]
                parts = read_inputs(crew[0], blocks)
                if task.kind is TaskKind.PREPARE:
                    parts = prepared_parts(self.plan, task, crew[0].rank, parts, self._batches)
                write_outputs(crew[0], blocks, parts, self.accumulate)
            case TaskKind.FETCH:
                values = read_inputs(crew[0], self._blocks[crew[0].rank])
                self._losses.setdefault(numbers[0], float(values[loss_position(self.plan, task)]))
            case _:
                blocks = self._blocks[crew[0].rank]
                write_outputs(crew[0], blocks, self.run_fragment(task, crew[0].rank, read_inputs(crew[0], blocks)), self.accumulate)
        end_s = self._now()
        for actor, number in zip(crew, numbers, strict=True):
            act = Act(task.id, actor.rank, number, self._ready_s.pop(actor.id), start_s, end_s)
            self._acts.append(act)
            settle(actor, self._blocks[actor.rank], produced_here=task.kind is not TaskKind.TRANSFER)
            self._gates[task.stream, actor.rank].finish()
            touched = [actor]
            for message in actor.end():
                self._actors[message.receiver].receive(message)
                touched.append(self._actors[message.receiver])
            self._note_ready(touched, end_s)
            if self._on_event is not None:
                self._on_event(act)

    def _note_ready(self, actors: object, now_s: float) -> None:
        for actor in actors:  # type: ignore[attr-defined]
            if actor.id not in self._ready_s and actor.can_fire():
                self._ready_s[actor.id] = now_s

    def _box(self, crew: list[Actor]) -> None:
        task, body = crew[0].task, crew[0].task.body
        assert isinstance(body, Boxing)
        if body.collective is Collective.LOCAL:
            (actor,) = crew
            mover = GroupExchange(self.plan, task, actor.rank, None)
            write_outputs(actor, self._blocks[actor.rank], mover.run(read_inputs(actor, self._blocks[actor.rank])), self.accumulate)
            return
        inputs = [read_inputs(actor, self._blocks[actor.rank]) for actor in crew]
        results = [self.run_boxing(task, body, parts) for parts in zip(*inputs, strict=True)]
        for position, actor in enumerate(crew):
            write_outputs(actor, self._blocks[actor.rank], [moved[position] for moved in results], self.accumulate)

    def _transfer(self, actor: Actor) -> None:
        task = actor.task
        inputs = read_inputs(actor, self._blocks[actor.rank])
        by_regst: dict[str, set[int]] = {}
        for value, write, moves in zip(inputs, task.writes, self._pieces[task.id], strict=True):
            target = self.plan.regst[write.regst]
            tensor, slot = target.tensors[write.index], actor.outputs[write.regst].slot
            placement = self.plan.placement[target.placement]
            for piece in moves:
                if piece.src_rank != actor.rank:
                    continue
                blocks = self._blocks[piece.dst_rank]
                whole = blocks.peek(write.regst, slot, write.index)
                if whole is None:
                    whole = torch.empty(tensor.local_type(placement, piece.dst_rank).shape, dtype=torch_dtype(tensor.dtype))
                    blocks.hold(write.regst, slot, write.index, whole)
                narrow(whole, piece.dst_spans).copy_(self.run_transfer(task, piece, narrow(value, piece.src_spans)))
                by_regst.setdefault(write.regst, set()).add(piece.dst_rank)
        for regst, ranks in by_regst.items():
            for rank in ranks:
                self._arrived(task, regst, rank, actor.outputs[regst].slot)

    def _arrived(self, task: Task, regst: str, rank: int, slot: int) -> None:
        """One sender's part of a block is there; the last one completes it."""
        missing = self._awaited.setdefault((regst, rank), {})
        if slot not in missing:
            pairs = zip(task.writes, self._pieces[task.id], strict=True)
            missing[slot] = len({p.src_rank for write, moves in pairs if write.regst == regst for p in moves if p.dst_rank == rank})
        missing[slot] -= 1
        if missing[slot] == 0:
            del missing[slot]
            self._blocks[rank].complete(regst, slot)

    def _outcome(self) -> Outcome:
        plan = self.plan
        losses = tuple(self._losses[step] for step in sorted(self._losses))
        trace = Trace(
            source=Source.RUN,
            performer="reference",
            plan_id=plan.plan_id,
            steps=self._steps,
            acts=tuple(sorted(self._acts, key=lambda a: (a.start_s, a.end_s, a.task, a.rank))),
            peak_bytes={str(rank): blocks.peak_bytes for rank, blocks in self._blocks.items()},
            register_bytes={str(rank): blocks.peak_bytes for rank, blocks in self._blocks.items()},
            losses=losses,
            about={"torch": torch.__version__, "threads": "1"},
        )
        homes = state_homes(plan)
        held = {
            (a.regst, a.index, rank): self._blocks[rank].state_of(a.regst, a.index)
            for a in homes.values()
            for rank in plan.ranks_holding(a.regst)
        }
        tapped = {(*key, rank): value for rank, blocks in self._blocks.items() for key, value in blocks.tapped.items()}
        slopes = gather(plan, plan.gradients, tapped) if self._gradients else {}
        return Outcome(trace=trace, losses=losses, states=gather(plan, homes, held), gradients=slopes)


def narrow(value: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """The box of ``value`` at (offset, length) per dim."""
    for dim, (offset, length) in enumerate(spans):
        value = value.narrow(dim, offset, length)
    return value


def _pieces(plan: Plan, task: Task) -> list[tuple[Piece, ...]]:
    """Per (read, write) pair, all pieces.

    Raises:
        InvalidPlan: a transfer that would have to add up what it sends.
    """
    found: list[tuple[Piece, ...]] = []
    for read, write in zip(task.reads, task.writes, strict=True):
        target = plan.regst[write.regst]
        if any(port.acts_per_block > 1 for port in task.produces):
            raise InvalidPlan(f"transfer {task.id} fills a block with several acts; accumulate before or after the transfer")
        src = plan.regst[read.regst].tensors[read.index]
        found.append(pieces(src, plan.placement[task.placement], target.tensors[write.index], plan.placement[target.placement]))
    return found
