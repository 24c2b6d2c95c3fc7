"""A worker's acts on a device with lanes: each is put into its stream's lane and waited for, and collectives are launched in one order.

    thread of the act     lane.enqueue(work) --> event = lane.record() --> event.synchronize() --> messages
                          collective: first wait for its turn among this rank's launches (SEMANTICS 3.12)

An act has ended, for its actor, when its event is reached, so quotas hold as on CPUs and no event crosses processes.  What that costs is the time of
one launch and one wait per act; acts of different streams overlap, since each stream has a thread.  (All ranks in one process run ahead:
backend.inprocess.)  What computes is put into its lane by one thread of the process, so that cuBLAS keeps one workspace per lane, as was counted; what
communicates may wait for other ranks while it is put there, and so is by its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from backend.devices.device import Device, Work
from backend.placing.graphs import Graphs
from backend.worker.threads import prepare_thread
from planner.ir.actors.actor import Actor
from planner.ir.actors.launches import Launch, launch_orders
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan, Task, TaskKind

__all__ = ["LaunchTurns", "RankLanes", "collectives_of"]

Result = TypeVar("Result")

_BY_HOST = (TaskKind.PREPARE, TaskKind.FETCH, TaskKind.SAVE, TaskKind.OUTPUT)


class _Put:
    """A call for the launching thread.   done: it was made."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self.done = call, threading.Event()


class RankLanes:
    """A lane per stream of this rank, made before the first act; and a thread that launches what computes."""

    def __init__(self, plan: Plan, rank: int, device: Device) -> None:
        streams = {task.stream for task in plan.tasks if rank in plan.ranks_of(task) and task.kind not in _BY_HOST}
        self._lanes = {stream: device.lane(f"{stream} of rank {rank}") for stream in sorted(streams)}
        self._puts: queue.SimpleQueue[_Put | None] = queue.SimpleQueue()
        threading.Thread(target=self._launch, daemon=True, name="launching").start()

    def perform(self, task: Task, work: Callable[[], Result]) -> Result:
        """Do the work in the lane of the task's stream, and wait until the device has done it.  Raises what the work raises."""
        if task.kind in _BY_HOST:
            return work()
        lane, results, errors = self._lanes[task.stream], list[Result](), list[BaseException]()

        def caught() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

        def put_into() -> None:
            try:
                lane.enqueue(caught)
            except BaseException as error:
                errors.append(error)

        if task.kind.is_compute:
            self._by_launching_thread(put_into)
        else:
            put_into()
        event = lane.record()
        if event is not None:
            event.synchronize()
        if errors:
            raise errors[0]
        return results[0]

    def perform_again(self, actor: Actor, slots: tuple[int, ...], work: Work, graphs: Graphs) -> None:
        """The same of work that computes and may be recorded as a graph (Graphs.of), since it is the same whenever ``slots`` are."""
        lane, errors = self._lanes[actor.task.stream], list[BaseException]()

        def put_into() -> None:
            try:
                lane.enqueue(graphs.of(actor, slots, lane, work))
            except BaseException as error:
                errors.append(error)

        self._by_launching_thread(put_into)
        if errors:
            raise errors[0]
        event = lane.record()
        if event is not None:
            event.synchronize()

    def _by_launching_thread(self, call: Callable[[], None]) -> None:
        put = _Put(call)
        self._puts.put(put)
        put.done.wait()

    def close(self) -> None:
        """End the launching thread; no act follows."""
        self._puts.put(None)

    def _launch(self) -> None:
        prepare_thread()
        while (put := self._puts.get()) is not None:
            put.call()
            put.done.set()


def collectives_of(plan: Plan, rank: int) -> tuple[Launch, ...]:
    """What a rank launches in one step, in its order, without transfers, which need no launch of the receiver."""
    return tuple(launch for launch in launch_orders(plan)[rank] if plan.task[launch.task].meeting_axis is not None)


class LaunchTurns:
    """Lets the threads of a rank launch collectives in one order, step after step.

    launched: how many so far.
    """

    def __init__(self, order: Sequence[Launch], timeout_s: float) -> None:
        self._order, self._timeout_s = tuple(order), timeout_s
        self._places = {(launch.task, launch.act): place for place, launch in enumerate(self._order)}
        self.launched = 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, task: Task, number: int) -> Iterator[None]:
        """Wait until all launches before this one are made; the next may follow at the end of the block.

        Args:
            number: of the act, counted over all steps.

        Raises:
            WorkerFailed: the turn does not come.
        """
        place = (number // task.acts) * len(self._order) + self._places[task.id, number % task.acts]
        with self._changed:
            if not self._changed.wait_for(lambda: self.launched == place, self._timeout_s):
                first = self._order[self.launched % len(self._order)]
                raise WorkerFailed(f"{task.id} waited {self._timeout_s:g} s for its turn to launch; {first} stands first (SEMANTICS 3.12)")
        try:
            yield
        finally:
            with self._changed:
                self.launched += 1
                self._changed.notify_all()
