"""The reference performer: all ranks in one process, one act after the other.  It defines the meaning of a Plan.

Virtual devices share one clock and one thread.  It keeps the same books as the workers do (backend.acts.bookkeeper), so its trace obeys the six
laws, with real durations but no overlap.  A boxing act is performed for all ranks of its axis at once, when the turn of each of them has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend.acts.act import Batches, accumulate, loss_position, read_inputs, write_outputs
from backend.acts.bookkeeper import BegunAct, Bookkeeper
from backend.acts.kinds import loaded_parts, method_of
from backend.acts.outputs import OutputCollector, StepOutputs
from backend.acts.rows import act_of
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.acts.transfer import pieces_of
from backend.comm.collectives import GroupExchange, check_boxing, exchange
from backend.initial.values import Values
from backend.layout.views import box_view
from backend.memory.blocks import Blocks, initial_states
from backend.monitor.interrupts import noticing_interrupts
from backend.ops.callables import RankFragments, say_not_compiled
from backend.ops.fragment import draws
from backend.ops.inductor import Kernels, check_kernels
from backend.run_folder.merge import agreed
from backend.run_folder.outcome import Outcome, assemble_here
from planner.ir.actors.actor import Actor
from planner.ir.actors.deadlock import explain_wait
from planner.ir.actors.routes import Piece
from planner.ir.actors.verify import verify
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, RegistaError, WorkerFailed
from planner.ir.plan import Boxing, Plan, Task, TaskKind
from planner.ir.traces.trace import Act

__all__ = ["ReferencePerformer", "perform"]

_Act = tuple[Sequence[Actor], int]
"""The actors of all ranks that perform an act together, in axis order, and its number."""


def perform(
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    steps: int,
    *,
    gradients: bool = False,
    on_event: Callable[[Act], None] | None = None,
    numbers: StepNumbers = no_numbers,
    kernels: Kernels = Kernels.EAGER,
) -> Outcome:
    """Perform ``steps`` steps of the Plan in this process.

    Args:
        state: logical tensors by the names of plan.states; not written to.
        batches: step -> the global batch's tensors, in the order of plan.batch_inputs.
        gradients: also return the last step's mean gradients.
        on_event: called after every act.
        numbers: step -> what its STEP_INPUT tasks write, of Plans that have such.
        kernels: how fragments are performed (backend.ops.inductor).

    Returns:
        trace (source ``run``, performer ``reference``), losses per step, final states and gradients as logical tensors.

    Raises:
        InvalidPlan, DeadLock, OutOfMemory: the Plan is refused (planner.ir.actors.verify), or ``state`` does not fit it.
        InvalidProgram: a batch does not fit the Plan.
        WorkerFailed: an op of a fragment raised.
    """
    return ReferencePerformer(plan, state, batches, steps, gradients=gradients, on_event=on_event, numbers=numbers, kernels=kernels).run()


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
        numbers: StepNumbers = no_numbers,
        kernels: Kernels = Kernels.EAGER,
    ) -> None:
        verify(plan)
        check_kernels(kernels, {"cpu"})
        check_numbers(plan, numbers, range(steps))
        for task in plan.tasks:
            if isinstance(task.body, Boxing):
                check_boxing(task, task.body)
        self.plan = plan
        self._batches = batches
        self._numbers = numbers
        self._steps = steps
        self._gradients = gradients
        self._on_event = on_event
        taps = plan.gradients.values() if gradients else ()
        self._blocks = {rank: Blocks(plan, rank, taps=taps) for rank in range(plan.num_ranks)}
        for rank, blocks in self._blocks.items():
            blocks.fill_state(initial_states(plan, rank, state))
        self._book = Bookkeeper(plan, steps, self._blocks)
        self._fragments = {rank: RankFragments(plan, rank, None, kernels=kernels, at_once=False) for rank in range(plan.num_ranks)}
        self._pieces = {task.id: pieces_of(plan, task) for task in plan.tasks if task.kind is TaskKind.TRANSFER}
        self._losses: dict[int, float] = {}
        self._outputs: dict[int, StepOutputs] = {}
        self._collector = OutputCollector(plan, self._outputs.__setitem__)
        self._zero_ns = time.monotonic_ns()

    # What tests override.

    def run_fragment(self, task: Task, rank: int, inputs: Sequence[Tensor | int]) -> Sequence[Tensor]:
        """The values of task.writes, from those of task.reads; then the micro-batch's number, where the task draws random numbers."""
        try:
            return self._fragments[rank].functions[task.id](*inputs)
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
            with torch.no_grad(), noticing_interrupts() as interrupts:
                self._book.note_ready()
                while self._sweep():
                    interrupts.check()
        finally:
            torch.set_num_threads(threads)
        if self._book.unfinished:
            raise DeadLock(explain_wait(self.plan, self._book.actors, self._book.gates))
        say_not_compiled({task: why for of_rank in self._fragments.values() for task, why in of_rank.not_compiled.items()})
        return assemble_here(
            self.plan,
            self._blocks,
            performer="reference",
            steps=self._steps,
            rows=self._book.rows,
            losses=self._losses,
            outputs=self._outputs,
            gradients=self._gradients,
            about={"torch": torch.__version__, "threads": "1"} | agreed({rank: each.about for rank, each in self._fragments.items()}),
        )

    def _sweep(self) -> bool:
        """Let every stream start what it can; False when nothing could."""
        progress = False
        for gate in self._book.gates.values():
            actor = gate.choose()
            members = self._members(actor) if actor is not None else None
            if members is not None:
                self._act([self._book.begin_actor(member) for member in members])
                progress = True
        return progress

    def _members(self, actor: Actor) -> list[Actor] | None:
        """The actors of all ranks that perform this act together, in axis order; None while some are not at their turn."""
        members = [self._book.actors[actor.task.id, rank] for rank in self.plan.peers(actor.task, actor.rank)]
        chosen = [self._book.gates[member.task.stream, member.rank].choose() for member in members]
        return members if all(a is b for a, b in zip(chosen, members, strict=True)) else None

    def _act(self, acts: list[BegunAct]) -> None:
        start_ns = time.monotonic_ns()
        self._perform([actor for actor, _, _ in acts], acts[0][1])
        end_ns = time.monotonic_ns()
        for act in acts:
            row = self._book.record(act, start_ns, end_ns)
            self._book.finish(act)
            if self._on_event is not None:
                self._on_event(act_of(self.plan, act[0].rank, row, self._zero_ns))

    def _perform(self, actors: Sequence[Actor], number: int) -> None:
        """The work of act ``number`` of one task, on all ranks that perform it together."""
        method_of(self, actors[0].task.kind)((actors, number))

    def _inputs(self, actor: Actor) -> list[Tensor]:
        return read_inputs(actor, self._blocks[actor.rank])

    def _write(self, actor: Actor, results: Sequence[Tensor]) -> None:
        write_outputs(actor, self._blocks[actor.rank], results, self.accumulate)

    # The kinds of tasks (backend.acts.kinds).

    def load(self, act: _Act) -> None:
        (actor,), number = act
        parts = loaded_parts(self.plan, actor.task, actor.rank, number, self._inputs(actor), self._batches, self._numbers)
        self._write(actor, parts)

    def copy(self, act: _Act) -> None:
        (actor,), _ = act
        self._write(actor, self._inputs(actor))

    def compute(self, act: _Act) -> None:
        (actor,), number = act
        inputs: list[Tensor | int] = [*self._inputs(actor)]
        if draws(actor.task):
            inputs.append(number % actor.task.acts)
        self._write(actor, self.run_fragment(actor.task, actor.rank, inputs))

    def fetch(self, act: _Act) -> None:
        (actor,), number = act
        self._losses.setdefault(number, float(self._inputs(actor)[loss_position(self.plan, actor.task)]))

    def save(self, act: _Act) -> None:
        """Nothing: files are the processes' business; the act is what orders it before the next update."""

    def output(self, act: _Act) -> None:
        (actor,), number = act
        self._collector.add(actor.task, actor.rank, number, self._inputs(actor))

    def box(self, act: _Act) -> None:
        actors, _ = act
        task, body = actors[0].task, actors[0].task.body
        assert isinstance(body, Boxing)
        if body.collective is Collective.LOCAL:
            (actor,) = actors
            mover = GroupExchange(self.plan, task, actor.rank, None)
            self._write(actor, mover.run(self._inputs(actor)))
            return
        inputs = [self._inputs(actor) for actor in actors]
        results = [self.run_boxing(task, body, parts) for parts in zip(*inputs, strict=True)]
        for position, actor in enumerate(actors):
            self._write(actor, [moved[position] for moved in results])

    def transfer(self, act: _Act) -> None:
        (actor,), number = act
        inputs = self._inputs(actor)
        for value, write, moves in zip(inputs, actor.task.writes, self._pieces[actor.task.id], strict=True):
            for piece in moves:
                if piece.src_rank == actor.rank:
                    whole = self._blocks[piece.dst_rank].incoming(write.regst, write.index, number)
                    box_view(whole, piece.dst_spans).copy_(self.run_transfer(actor.task, piece, box_view(value, piece.src_spans)))
