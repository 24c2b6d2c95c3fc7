"""A reader's place in a Plan: which samples a rank needs in one act, and what SOURCE and PREPARE make of them.

sample number  =  permutation of the epoch (position),   position = step * batch + micro_batch * its size + row        -> Loader.samples

Nothing is remembered from act to act: a run that resumes at step k asks for step k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from backend.data.describe import load_source, source_json
from backend.data.opening import open_source
from backend.data.permute import Permutation
from backend.data.reader import Reader
from planner.ir.errors import InvalidPlan, InvalidProgram, Mismatch
from planner.ir.plan import PlacedTensor, Plan, Task, TaskKind
from planner.ir.sbp import Partial, ReduceOp
from planner.ir.text import Json
from planner.lower.data_actors.loading import RAW, is_raw
from planner.lower.names import value_of

__all__ = ["Box", "Loader", "Span"]

Span = tuple[int, int]
"""(offset, length)"""
Box = tuple[Span, ...]
"""One span per dim."""


class Loader:
    """A reader that serves one Plan.  Called with a step it gives the global batch, as a function of batches does.

    Raises:
        InvalidProgram: the reader makes other tensors than the Plan was made for, or the Plan's chain of loading actors has another form.
    """

    def __init__(self, reader: Reader, plan: Plan) -> None:
        self.reader = reader
        self.batch_size, self.micro_batches = plan.batch_size, plan.micro_batches
        self.micro_size = plan.batch_size // plan.micro_batches
        arguments = [entry for entry in plan.batch_inputs if entry.whole_of is None]
        number_of = {entry.name: number for number, entry in enumerate(arguments)}
        self._dims = [entry.batch_dim for entry in arguments]
        self._numbers = {entry.value: number_of[entry.whole_of or entry.name] for entry in plan.batch_inputs}
        self._whole = {entry.value for entry in plan.batch_inputs if entry.whole_of is not None}
        self._raw_numbers = {RAW + tensor.name: number for number, tensor in enumerate(reader.raw)}
        self._check(plan)

    @staticmethod
    def open(plan: Plan, data: Mapping[str, object]) -> Loader:
        """On a worker, from what ``to_json`` gave.

        Raises:
            Mismatch: this rank does not see the data that the run was started with.   InvalidFile: it sees none.
        """
        reader = open_source(load_source(data["source"]))
        if reader.fingerprint != data["fingerprint"]:
            raise Mismatch(
                f"this rank's data has the fingerprint {reader.fingerprint}, the run was started with {data['fingerprint']}: names, sizes or "
                f"shapes differ; all hosts need the same data under the same path"
            )
        return Loader(reader, plan)

    def to_json(self) -> dict[str, Json]:
        return {"source": source_json(self.reader.source), "fingerprint": self.reader.fingerprint}

    def check_steps(self, last_step: int) -> None:
        """Raises InvalidProgram when steps 0 .. last_step - 1 need more samples than the epochs have."""
        epochs, have = self.reader.source.order.epochs, self.reader.num_samples
        needed = last_step * self.batch_size
        if epochs and needed > epochs * have:
            raise InvalidProgram(
                f"{last_step} steps of {self.batch_size} samples need {needed}, the data has {have} x {epochs} epochs = {epochs * have}; "
                f"run at most {epochs * have // self.batch_size} steps, or set epochs=0 to begin anew as often as needed"
            )

    def samples(self, step: int, micro_batch: int, rows: Span) -> list[int]:
        """Numbers of the samples in these rows of a micro-batch."""
        order, total = self.reader.source.order, self.reader.num_samples
        first = step * self.batch_size + micro_batch * self.micro_size + rows[0]
        numbers: list[int] = []
        for position in range(first, first + rows[1]):
            epoch, place = divmod(position, total)
            numbers.append(Permutation(total, (order.seed << 32) + epoch)(place) if order.shuffle else place)
        return numbers

    def part(self, step: int, micro_batch: int, boxes: Sequence[tuple[int, Box]]) -> list[Tensor]:
        """Boxes of a micro-batch's batch inputs; no other sample is read.

        Args:
            boxes: (number of the batch input, span per dim) each.

        Returns:
            contiguous tensors of the boxes' shapes.
        """
        spans = [box[self._dim(number)] for number, box in boxes]
        begin, end = min(offset for offset, _ in spans), max(offset + length for offset, length in spans)
        rows = begin, end - begin
        wanted = {number for number, _ in boxes}
        raw = [number for number, tensor in enumerate(self.reader.raw) if wanted & set(tensor.inputs)]
        values = self.reader.read(self.samples(step, micro_batch, rows), raw)
        return self.prepared({number: (rows, value) for number, value in zip(raw, values, strict=True)}, boxes)

    def prepared(self, raw: Mapping[int, tuple[Span, Tensor]], boxes: Sequence[tuple[int, Box]]) -> list[Tensor]:
        """Boxes of batch inputs, made of raw tensors that hold the rows they need.

        Args:
            raw: number of the raw tensor -> (its rows, its value).
        """
        whole: dict[int, tuple[int, Tensor]] = {}
        for number in dict.fromkeys(number for number, _ in boxes):
            needed = {n: raw[n] for n, tensor in enumerate(self.reader.raw) if number in tensor.inputs}
            begin = max(offset for (offset, _), _ in needed.values())
            end = min(offset + length for (offset, length), _ in needed.values())
            common = {n: value.narrow(0, begin - offset, end - begin) for n, ((offset, _), value) in needed.items()}
            (made,) = self.reader.prepare(common, [number])
            whole[number] = begin, made.movedim(0, self._dim(number))
        values: list[Tensor] = []
        for number, box in boxes:
            begin, value = whole[number]
            for dim, (offset, length) in enumerate(box):
                value = value.narrow(dim, offset - begin if dim == self._dim(number) else offset, length)
            values.append(value.contiguous())
        return values

    def source(self, plan: Plan, task: Task, rank: int, act: int) -> list[Tensor]:
        """What a SOURCE writes in one act: raw tensors in a chain of loading actors, this rank's parts of the batch otherwise."""
        step, micro_batch = divmod(act, task.acts)
        if not all(is_raw(access.name) for access in task.writes):
            return self._summed(plan, task, rank, self._parts(step, micro_batch, task, self._boxes(plan, task, rank)))
        rows = {self._raw_numbers[access.name]: _region(plan, task, rank, access.regst, access.index)[0] for access in task.writes}
        raw: dict[int, Tensor] = {}
        for span in dict.fromkeys(rows.values()):
            numbers = [number for number, other in rows.items() if other == span]
            raw |= zip(numbers, self.reader.read(self.samples(step, micro_batch, span), numbers), strict=True)
        return [raw[self._raw_numbers[access.name]] for access in task.writes]

    def _parts(self, step: int, micro_batch: int, task: Task, boxes: Sequence[tuple[int, Box]]) -> list[Tensor]:
        """The boxes that a task writes, one per write; those of inputs that stand for the whole batch count rows from its beginning."""
        whole = [_value(self._numbers, access.name) in self._whole for access in task.writes]
        parts: dict[bool, list[Tensor]] = {}
        for is_whole in dict.fromkeys(whole):
            alike = [box for box, other in zip(boxes, whole, strict=True) if other is is_whole]
            parts[is_whole] = self.part(step, 0 if is_whole else micro_batch, alike)
        return [parts[is_whole].pop(0) for is_whole in whole]

    def prepare(self, plan: Plan, task: Task, rank: int, values: Sequence[Tensor]) -> list[Tensor]:
        """What a PREPARE writes, from the raw tensors that it read."""
        raw: dict[int, tuple[Span, Tensor]] = {}
        for access, value in zip(task.reads, values, strict=True):
            raw[self._raw_numbers[access.name]] = _region(plan, task, rank, access.regst, access.index)[0], value
        return self._summed(plan, task, rank, self.prepared(raw, self._boxes(plan, task, rank)))

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        boxes: list[tuple[int, Box]] = []
        for number, made in enumerate(self.reader.made):
            spans = [(0, size) for size in made.shape]
            spans.insert(self._dim(number), (0, self.micro_size))
            boxes.append((number, tuple(spans)))
        parts = [self.part(step, micro_batch, boxes) for micro_batch in range(self.micro_batches)]
        return tuple(torch.cat([part[number] for part in parts], self._dim(number)) for number, _ in boxes)

    def _dim(self, number: int) -> int:
        dim = self._dims[number]
        assert dim is not None  # _check
        return dim

    def _boxes(self, plan: Plan, task: Task, rank: int) -> list[tuple[int, Box]]:
        return [(self._numbers[_value(self._numbers, a.name)], _region(plan, task, rank, a.regst, a.index)) for a in task.writes]

    def _summed(self, plan: Plan, task: Task, rank: int, parts: Sequence[Tensor]) -> list[Tensor]:
        """Of an input laid out as P(sum) one rank holds the value, the others zeros."""
        placement = plan.placement[task.placement]
        sums: list[Tensor] = []
        for access, part in zip(task.writes, parts, strict=True):
            layout = plan.regst[access.regst].tensors[access.index].sbp
            where = zip(layout.entries, placement.coordinate(rank), strict=True)
            counted = all(index == 0 for entry, index in where if isinstance(entry, Partial) and entry.op is ReduceOp.SUM)
            sums.append(part if counted else torch.zeros_like(part))
        return sums

    def _check(self, plan: Plan) -> None:
        made = self.reader.made
        if len(made) != len(self._dims):
            names = [entry.name for entry in plan.batch_inputs if entry.whole_of is None]
            raise InvalidProgram(f"the data makes {len(made)} tensors per sample, the plan was made for {len(names)}: {names}")
        if plan.batch_size % plan.micro_batches:
            raise InvalidProgram(f"a batch of {plan.batch_size} samples does not divide into {plan.micro_batches} micro-batches")
        for task in plan.tasks:
            if not task.kind.is_loading:
                continue
            for access in task.writes:
                placed = plan.regst[access.regst].tensors[access.index]
                if is_raw(access.name):
                    self._check_raw(access.name, placed)
                else:
                    self._check_made(plan, access.name, placed)
            if task.kind is TaskKind.PREPARE and not all(is_raw(access.name) for access in task.reads):
                raise InvalidProgram(f"task {task.id} reads finished tensors, so there is nothing to prepare; plan the loading anew")

    def _check_raw(self, name: str, placed: PlacedTensor) -> None:
        if name not in self._raw_numbers:
            raise InvalidProgram(f"the plan loads {name}, the data gives {sorted(self._raw_numbers)}; plan the loading for this data")
        raw = self.reader.raw[self._raw_numbers[name]]
        if placed.shape[1:] != raw.shape or placed.dtype is not raw.dtype:
            raise InvalidProgram(
                f"{name}: a sample has shape {raw.shape} {raw.dtype.value}, the plan was made for {placed.shape[1:]} {placed.dtype.value}; "
                f"plan the loading for this data"
            )

    def _check_made(self, plan: Plan, name: str, placed: PlacedTensor) -> None:
        value = _value(self._numbers, name)
        number = self._numbers[value]
        made, dim = self.reader.made[number], self._dims[number]
        (entry,) = (entry for entry in plan.batch_inputs if entry.value == value)
        if dim is None:
            raise InvalidProgram(f"batch input {entry.name} is not sliced by micro-batches, so no sample holds it; feed it from Python")
        shape = list(made.shape)
        shape.insert(dim, self.batch_size if value in self._whole else self.micro_size)
        if tuple(shape) != placed.shape or made.dtype is not placed.dtype:
            raise InvalidProgram(
                f"batch input {entry.name}: the data makes {made.dtype.value}{shape} per micro-batch, the plan was made for "
                f"{placed.dtype.value}{list(placed.shape)}; describe the data otherwise or plan the model for it"
            )


def _value(numbers: Mapping[str, int], name: str) -> str:
    """The batch input that a name stands for, whatever its layout."""
    value = name if name in numbers else value_of(name)
    if value not in numbers:
        raise InvalidPlan(f"a loading task writes {name}, but the batch inputs are {sorted(numbers)}")
    return value


def _region(plan: Plan, task: Task, rank: int, regst: str, index: int) -> Box:
    placement = plan.placement[task.placement]
    placed = plan.regst[regst].tensors[index]
    return placed.sbp.region(placed.shape, placement.mesh, placement.coordinate(rank))
