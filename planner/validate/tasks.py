"""What each kind of task writes, in terms of what it reads.

kind                                 law
SOURCE                               one part per micro-batch of the batch input that an access names            SEMANTICS 1.3, 6.1
STEP_INPUT                           whole numbers, once per step                                                SEMANTICS 3.11
PREPARE, COPY                        batch inputs of raw data (not checked); the same values
FORWARD, BACKWARD, WEIGHT, UPDATE    its fragment's results                                                      planner.validate.fragments
BOXING                               each value in another layout                                                planner.validate.values.steps
TRANSFER                             each value on another placement                                             planner.ir.actors.routes
FETCH, OUTPUT, SAVE                  nothing                                                                     planner.validate.results
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from planner.ir.collective import collective_for
from planner.ir.errors import Unsupported
from planner.ir.graph import GraphInput, InputKind, LogicalGraph
from planner.ir.plan import Access, Boxing, Fragment, Plan, Task, TaskKind
from planner.validate.contents import LAYOUT_MARK, RAW, Contents, Facts, single_axes_whole
from planner.validate.fragments import FragmentProver, ProvenFragments
from planner.validate.in_place import check_in_place
from planner.validate.refusal import at, refusal
from planner.validate.values.steps import broken_law

__all__ = ["TaskProver"]


class TaskProver:
    """Executes the tasks of a Plan symbolically; what it cannot prove, it notes in ``not_checked``."""

    def __init__(self, plan: Plan, graph: LogicalGraph, fragments: ProvenFragments, contents: Contents) -> None:
        self._plan, self._numbers, self._contents = plan, fragments.numbers, contents
        self._fragments = FragmentProver(plan, fragments)
        self._fed: dict[InputKind, dict[str, GraphInput]] = {
            kind: {given.value: given for given in graph.inputs if given.kind is kind} for kind in (InputKind.BATCH, InputKind.STEP_INPUT)
        }
        self.not_checked: dict[str, None] = {}

    def written(self, task: Task) -> Sequence[Facts]:
        """The facts of what the task writes, per entry of task.writes, before they are laid into their Regst.

        Raises:
            PlanDoesNotComputeProgram: the first difference.
        """
        match task.kind:
            case TaskKind.FORWARD | TaskKind.BACKWARD | TaskKind.WEIGHT | TaskKind.UPDATE:
                return self._computed(task)
            case TaskKind.BOXING:
                return [self._boxed(task, read, write) for read, write in zip(task.reads, task.writes, strict=True)]
            case TaskKind.TRANSFER:
                return [self._sent(task, read, write) for read, write in zip(task.reads, task.writes, strict=True)]
            case TaskKind.SOURCE | TaskKind.PREPARE:
                wanted = task.kind is TaskKind.PREPARE
                self._require(
                    task, bool(task.reads) is wanted, "a SOURCE reads nothing, a PREPARE reads what a SOURCE has read", "SEMANTICS 3.5"
                )
                return [self._loaded(task, write) for write in task.writes]
            case TaskKind.STEP_INPUT:
                return [self._number_of_step(task, write) for write in task.writes]
            case TaskKind.COPY:
                self._require(task, len(task.reads) == len(task.writes), "it copies each tensor that it reads", "SEMANTICS 3.5")
                return [self._read(read) for read in task.reads]
            case TaskKind.FETCH | TaskKind.OUTPUT | TaskKind.SAVE:
                self._require(task, not task.writes, "it hands over what it reads and writes nothing", "SEMANTICS 3.5")
                return []
        assert_never(task.kind)

    def _require(self, task: Task, holds: bool, what: str, law: str) -> None:
        if not holds:
            raise refusal(at(self._plan, task), what, law)

    def _read(self, access: Access) -> Facts:
        return self._contents.facts[access.regst, access.index]

    def _computed(self, task: Task) -> Sequence[Facts]:
        assert isinstance(task.body, Fragment)
        read: dict[str, Facts] = {}
        for access in task.reads:
            read.setdefault(access.name, self._read(access))  # of two reads under one name, performers take the first
        check_in_place(self._plan, task, task.body)
        return self._fragments.written(task, task.body, read)

    def _boxed(self, task: Task, read: Access, write: Access) -> Facts:
        body, mesh = task.body, self._plan.placement[task.placement].mesh
        assert isinstance(body, Boxing)
        src, dst = single_axes_whole(body.src, mesh), single_axes_whole(body.dst, mesh)
        for access, layout, what in ((read, src, "reads"), (write, dst, "writes")):
            lies = self._contents.declared(access.regst, access.index)
            self._require(task, lies == layout, f"it {what} {access.name} as {layout}, which lies as {lies}", "SEMANTICS 2")
        try:
            wanted = collective_for(body.src[body.axis], body.dst[body.axis])
        except Unsupported as error:
            raise refusal(at(self._plan, task), str(error), "SEMANTICS 2") from None
        self._require(task, wanted is body.collective, f"{body.src} -> {body.dst} is not {body.collective.value}", "SEMANTICS 2")
        facts = self._read(read)
        for number, _ in facts:
            law = broken_law(self._numbers.type_of(number), mesh, src, dst, body.axis)
            self._require(task, law is None, f"{read.name}, {body.src} -> {body.dst} on axis {body.axis}: {law}", "SEMANTICS 2.1")
        return tuple((number, dst) for number, _ in facts)

    def _sent(self, task: Task, read: Access, write: Access) -> Facts:
        src, dst = (self._contents.declared(access.regst, access.index) for access in (read, write))
        whole = not src.has_partial and not dst.has_partial
        self._require(task, whole, f"it sends {read.name} as {src} to {dst}; partial values are reduced before they travel", "SEMANTICS 2")
        return tuple((number, dst) for number, _ in self._read(read))

    def _loaded(self, task: Task, write: Access) -> Facts:
        if write.name.startswith(RAW):
            self.not_checked["what readers make of raw data"] = None
            return ()
        given = self._input_of(task, write, InputKind.BATCH)
        self._require_acts(task, self._plan.micro_batches, f"of {given.name} it loads one micro-batch per act")
        return ((self._numbers.of[given.value], self._contents.declared(write.regst, write.index)),)

    def _number_of_step(self, task: Task, write: Access) -> Facts:
        given = self._input_of(task, write, InputKind.STEP_INPUT)
        self._require_acts(task, 1, f"it writes {given.name} once per step")
        number, layout = self._numbers.of[given.value], self._contents.declared(write.regst, write.index)
        whole = ((number, layout.broadcast(len(layout))),)
        self._require(task, whole[0][1] == layout, f"each rank has the whole of {given.name}, which lies as {layout}", "SEMANTICS 3.11")
        return whole

    def _require_acts(self, task: Task, acts: int, what: str) -> None:
        self._require(task, task.acts == acts, f"{what}, {acts} in all; it acts {task.acts} times", "SEMANTICS 3.6")

    def _input_of(self, task: Task, write: Access, kind: InputKind) -> GraphInput:
        """The input that an access names: its value, or ``value@layout``."""
        inputs: Mapping[str, GraphInput] = self._fed[kind]
        given = inputs.get(write.name) or inputs.get(write.name.rpartition(LAYOUT_MARK)[0])
        if given is None:
            raise refusal(
                at(self._plan, task), f"it writes {write.name}, the program's inputs are {sorted(inputs)[:8]}", f"{kind.value} inputs"
            )
        return given
