"""Timing each task alone, on all ranks of a run, with the inputs of its last real act.

A prediction needs the duration of each task alone; in a run computing and communication overlap.  Here every rank computes one step's acts in
the order of the run, while the other ranks compute theirs.  So caches hold what the act before left there, and the memory bus is shared as in
training.  (A task that is simply repeated has its operands in the caches: an AdamW step seemed 60 % cheaper [measured, 2 cores, 2026-11-21].)
Each communication task runs by itself.

    | barrier |   forward 0   forward 1   backward 0 ...  update   | barrier |   each communication task alone

After the first round, the memory that the run left free in the heap is given back.  The peak of the rounds that follow is that of acts performed
one by one: registers, workspace, and what no Plan counts: pages of the libraries' code (13 MiB for the kernels of a GPT, 25 with convolutions),
values that do not lie in the workspace (what a convolution computes, and its copies in another layout), threads, sockets [measured with smaps:
2 ranks, torch 2.13 on CPU, 2026-11-22].
"""

from __future__ import annotations

import io
import mmap
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from backend.acts.act import accumulate
from backend.acts.kinds import copied_values, method_of
from backend.acts.rows import ActRow
from backend.memory.heap import keep_heap
from backend.run_folder.files import BATCHES, Options
from backend.worker.loop import EventLoop
from backend.worker.rank import Announce, RankBody
from backend.worker.registers import process_bytes, reset_process_peak, resident_bytes
from planner.ir.plan import Plan, Task, TaskKind

__all__ = ["Isolated", "step_order", "time_tasks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """What one rank measured.

    spans: (task, rank that acted) -> (start, end) in ns of every act of every counted round: ``task.acts`` per round, of communication one.
        Where the rank is another one, it sent a TRANSFER here: the time at which its payload was complete (start == end).
    peak_bytes: the most that was resident during the rounds, less what they hold themselves (sums of micro-batches); 0: the kernel does not say.
    batches_bytes: pages of the batches' file in it.
    """

    spans: Mapping[tuple[str, int], list[tuple[int, int]]]
    peak_bytes: int
    batches_bytes: int


def step_order(plan: Plan, rows: Sequence[ActRow]) -> tuple[Task, ...]:
    """The tasks of a rank that do not communicate, as they followed each other in its last real step, each as often as it acts in one."""
    starts_ns: dict[str, list[int]] = defaultdict(list)
    for place, _, _, start_ns, _ in rows:
        starts_ns[plan.tasks[place].id].append(start_ns)
    last = [
        (start_ns, task)
        for task, of_task_ns in starts_ns.items()
        if not plan.task[task].kind.is_communication
        for start_ns in sorted(of_task_ns)[-plan.task[task].acts :]
    ]
    return tuple(plan.task[task] for _, task in sorted(last))


def time_tasks(plan: Plan, rank: int, body: RankBody, loop: EventLoop, options: Options) -> Isolated:
    """Perform options.isolated_rounds rounds of acts on this rank, after options.warmup uncounted ones; all ranks call it."""
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    scratch: dict[tuple[str, int], Tensor] = {}
    order = step_order(plan, loop.rows)
    alone = [task for task in plan.tasks if task.kind.is_communication]

    def timed(task: Task, number: int, *, counts: bool) -> None:
        for key, span in _once(plan, rank, body, loop, task, number, options.timeout_s, scratch).items():
            if counts:
                spans.setdefault(key, []).append(span)

    rounds = options.warmup + options.isolated_rounds
    counts_peak = False
    with torch.no_grad():
        for number in range(rounds):
            counts = number >= options.warmup
            if number == min(1, rounds - 1):  # sums of micro-batches have their memory now
                counts_peak = _return_free_memory(options)
            _meet()
            # The end of the step before, uncounted: a process that slept at a barrier is slower than one in the midst of a step.
            for task in order[-1:]:
                timed(task, number, counts=False)
            for task in order:
                timed(task, number, counts=counts)
            for task in alone:
                _meet()
                timed(task, 2 * number, counts=False)
                timed(task, 2 * number + 1, counts=counts)
    own = sum(total.nbytes for total in scratch.values())
    return Isolated(spans=spans, peak_bytes=process_bytes()[1] - own if counts_peak else 0, batches_bytes=resident_bytes(BATCHES))


def _return_free_memory(options: Options) -> bool:
    """Give back what lies free in the heap, which still keeps the memory that later acts free; True if the process's peak counts from now on."""
    if not options.memory.return_freed:
        keep_heap()
    return reset_process_peak()


def _meet() -> None:
    """Two barriers: the first lets everyone finish, the second starts them closely together."""
    dist.barrier()
    dist.barrier()


def _once(
    plan: Plan,
    rank: int,
    body: RankBody,
    loop: EventLoop,
    task: Task,
    number: int,
    timeout_s: float,
    scratch: dict[tuple[str, int], Tensor],
) -> dict[tuple[str, int], tuple[int, int]]:
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    if rank in plan.ranks_of(task):
        start_ns = time.monotonic_ns()
        announce = _perform(body, task, number, scratch)
        spans[task.id, rank] = start_ns, time.monotonic_ns()
        if announce is not None:
            announce()
    if task.kind is TaskKind.TRANSFER:
        others = {sender for sender in body.senders[task.id] if sender != rank}
        for sender, time_ns in loop.arrivals(task.id, others, timeout_s):
            spans[task.id, sender] = time_ns, time_ns
        if body.senders[task.id]:
            body.forget(task, number)
    return spans


_Act = tuple[Task, int, list[Tensor]]
"""A task, the number of its act, and what it reads."""


@dataclass(frozen=True, slots=True)
class _WithoutBlocks:
    """The work of acts (backend.acts.kinds) without their blocks; sums of micro-batches go to ``scratch``, which nobody reads."""

    body: RankBody
    scratch: dict[tuple[str, int], Tensor]

    def load(self, act: _Act) -> None:
        task, number, values = act
        self._add(task, self.body.loaded(task, number % task.acts, values))

    def copy(self, act: _Act) -> None:
        task, _, values = act
        self._add(task, copied_values(values, self.body.first_slots(task)))

    def compute(self, act: _Act) -> None:
        task, _, values = act
        self._add(task, self.body.computed(task, values, self.body.first_slots(task), 0))

    def box(self, act: _Act) -> None:
        task, _, values = act
        self._add(task, self.body.boxed(task, values, self.body.first_slots(task)))

    def transfer(self, act: _Act) -> Announce:
        return self.body.send(*act)

    def fetch(self, act: _Act) -> None:
        float(act[2][0])

    def save(self, act: _Act) -> None:
        for value in act[2]:
            value.clone()

    def output(self, act: _Act) -> None:
        torch.save([value.clone() for value in act[2]], io.BytesIO())

    def _add(self, task: Task, results: Sequence[Tensor]) -> None:
        filling = {port.regst: port.acts_per_block for port in task.produces if port.acts_per_block > 1}
        for access, value in zip(task.writes, results, strict=True):
            if access.regst in filling:
                key = access.regst, access.index
                if key not in self.scratch:
                    self.scratch[key] = _zeros_off_the_heap(value)
                accumulate(self.scratch[key], value, filling[access.regst])


def _perform(body: RankBody, task: Task, number: int, scratch: dict[tuple[str, int], Tensor]) -> Announce | None:
    assert body.captured is not None
    return method_of(_WithoutBlocks(body, scratch), task.kind)((task, number, body.captured[task.id]))


def _zeros_off_the_heap(value: Tensor) -> Tensor:
    """Zeros laid out as ``value``, outside of the heap: in a run the sum lies in a block, which takes no room in the heap either."""
    region = mmap.mmap(-1, max(value.nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(region, dtype=torch.uint8)[: value.nbytes].zero_()
    return memory.view(value.dtype).as_strided(value.shape, torch.empty_like(value, device="meta").stride())
