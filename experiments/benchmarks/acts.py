"""What the worker adds between acts, in microseconds: from the end of the act that was waited for to the start of the act that waited.

    between processes            a TRANSFER's end on the sender -> start of its consumer on the receiver
    in a process, same stream    end of an act -> start of the next one of the stream
    in a process, other stream   end of an act -> start of an act on another stream
    the loop alone               end of an act -> start of the next one of a rank whose acts do nothing
    ..., asleep                  the same where workers sleep as soon as they have nothing to do (``run --waiting sleep``), in turns with the rest
    a wake-up by ...             half a round trip of 16 bytes between two processes that do nothing else, both awake lately

The model is so small that hardly anything is computed.  Its acts are short, so the thread that let several start performs them one by one
(backend.worker.threads): a gap then holds the acts of other streams that came first, 20 to 80 us each; those of the loop alone hold none.
``python -m experiments.benchmarks.acts``
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import regista
from backend.devices.cores import Waiting
from backend.worker.loop import EventLoop
from planner.ir.actors.actor import Actor, build_actors
from planner.ir.plan import Plan, StreamKind
from planner.ir.traces.trace import Act, Trace
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["Row", "gaps", "loop_alone", "main", "rows", "wake_ups"]

MODEL = "zoo:mlp?batch=4&width=4&hidden=4&depth=2"
LOOP = "the loop alone"
BETWEEN, SAME, OTHER = "between processes", "in a process, same stream", "in a process, other stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Gaps of one kind, in seconds; ``n`` of them."""

    name: str
    median_s: float
    p10_s: float
    p90_s: float
    n: int


def _waited_for(plan: Plan, actor: Actor, act: Act) -> Iterator[tuple[str, int, int]]:
    """(task, rank, number) of every act that had to end before this one, those of its own stream aside."""
    for port in actor.inputs.values():
        for (task, rank), full in port.received.items():
            (made,) = [p.acts_per_block for p in plan.task[task].produces if p.regst == port.regst]
            yield task, rank, (act.number // port.acts_per_block - full + 1) * made - 1
    for out in actor.outputs.values():
        for task, rank in out.acked:
            (used,) = [p.acts_per_block for p in plan.task[task].consumes if p.regst == out.regst]
            yield task, rank, (act.number // out.acts_per_block + out.produced - out.quota + 1) * used - 1


def gaps(plan: Plan, trace: Trace, skip_steps: int = 2) -> Mapping[str, list[float]]:
    """Kind -> gaps in seconds.  Collectives are left out: their start is that of the last rank.

    Args:
        skip_steps: steps at the start that do not count.
    """
    actors, _ = build_actors(plan, trace.steps)
    acts = {(act.task, act.rank, act.number): act for act in trace.acts}
    gaps_of: dict[str, list[float]] = {BETWEEN: [], SAME: [], OTHER: []}
    before: dict[tuple[str, int], Act] = {}
    for act in sorted(trace.acts, key=lambda a: a.start_s):
        task = plan.task[act.task]
        lane = task.stream, act.rank
        own, before[lane] = before.get(lane), act
        if act.number < skip_steps * task.acts or plan.stream[task.stream].kind is StreamKind.COLLECTIVE:
            continue
        causes = [acts[key] for key in _waited_for(plan, actors[act.task, act.rank], act) if key in acts]
        cause = max([*causes, *([own] if own is not None else [])], key=lambda a: a.end_s, default=None)
        if cause is None:
            continue
        same = plan.task[cause.task].stream == task.stream
        gaps_of[BETWEEN if cause.rank != act.rank else SAME if same else OTHER].append(act.start_s - cause.end_s)
    return gaps_of


def rows(steps: int = 300, rounds: int = 3) -> tuple[list[Row], Mapping[Waiting, float]]:
    """Measure: a 2-stage pipeline of two processes, ``rounds`` runs of ``steps`` steps for each way of waiting, in turns.

    Returns:
        Rows of gaps, and the processor time per act of both workers together with their start and end, in seconds.
    """
    program = program_of(MODEL)
    plan = regista.plan(program, resolve_cluster("local:2"), stages=2, micro_batches=4)
    pooled: dict[str, list[float]] = {}
    spent_s, acts = dict.fromkeys(Waiting, 0.0), dict.fromkeys(Waiting, 0)
    for _ in range(rounds):
        for waiting in Waiting:
            before_s = _children_s()
            trace = regista.run(plan, program, steps=steps, waiting=waiting).trace
            spent_s[waiting] += _children_s() - before_s
            acts[waiting] += len(trace.acts)
            for name, values in gaps(plan, trace).items():
                pooled.setdefault(name if waiting is Waiting.AUTO else f"{name}, asleep", []).extend(values)
    per_act_s = {waiting: spent_s[waiting] / acts[waiting] for waiting in Waiting}
    return [_row(name, sorted(values)) for name, values in pooled.items() if values], per_act_s


def _children_s() -> float:
    """Processor time of all workers that have ended: children of this process's children, which are the fork server."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == os.getpid():
            ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


class _Nothing:
    """A rank's acts that do nothing, blocks that keep no account, and no other rank."""

    waiting: frozenset[str] = frozenset()

    @property
    def blocks(self) -> _Nothing:
        return self

    def complete(self, regst: str, slot: int) -> None: ...
    def release(self, regst: str, slot: int) -> None: ...
    def perform(self, actor: Actor, number: int) -> None: ...
    def start_readers(self, *handlers: object) -> None: ...


def loop_alone(steps: int) -> tuple[list[float], float]:
    """(gaps, processor time per act) of the event loop of one rank, in seconds."""
    plan = regista.plan(program_of(MODEL), resolve_cluster("local:2"), stages=1, micro_batches=4)
    nothing: Any = _Nothing()
    loop = EventLoop(plan, 0, steps, nothing, nothing, timeout_s=60.0)
    loop.start_threads()
    start_ns = time.process_time_ns()
    loop.run()
    processor_s = (time.process_time_ns() - start_ns) * 1e-9
    loop.stop()
    return [(after[3] - before[4]) * 1e-9 for before, after in pairwise(loop.rows)], processor_s / len(loop.rows)


def _halves(ring: Callable[[int], object], wait: Callable[[int], object], rounds: int) -> list[float]:
    """Half of each round trip between this process (end 0) and a fork of it (end 1), in seconds."""
    child = os.fork()
    if child == 0:
        try:
            for _ in range(rounds):
                wait(1)
                ring(0)
        finally:
            os._exit(0)  # never back into the caller, of whom this is a copy
    halves: list[float] = []
    for _ in range(rounds):
        start_ns = time.monotonic_ns()
        ring(1)
        wait(0)
        halves.append((time.monotonic_ns() - start_ns) * 0.5e-9)
    os.waitpid(child, 0)
    return halves


def wake_ups(rounds: int = 2000) -> list[Row]:
    """The time from one process to another by a unix socket, by an eventfd (which wakes workers that sleep), and by a number in shared memory that
    the other reads again and again (as workers do that look for messages)."""
    ends = socket.socketpair()
    doorbells = os.eventfd(0), os.eventfd(0)
    shared, seen = mmap.mmap(-1, 128), [0, 0]

    def store(end: int) -> None:
        shared[64 * end] = (shared[64 * end] + 1) % 256

    def spin(end: int) -> None:
        seen[end] = (seen[end] + 1) % 256
        while shared[64 * end] != seen[end]:
            pass

    ways: Mapping[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
        "socket": (lambda end: ends[1 - end].send(bytes(16)), lambda end: ends[end].recv(16)),
        "eventfd": (lambda end: os.eventfd_write(doorbells[end], 1), lambda end: os.eventfd_read(doorbells[end])),
        "shared memory, never blocking": (store, spin),
    }
    measured = [_row(f"a wake-up by {name}", sorted(_halves(ring, wait, rounds))) for name, (ring, wait) in ways.items()]
    for each in ends:
        each.close()
    for doorbell in doorbells:
        os.close(doorbell)
    return measured


def _row(name: str, values: list[float]) -> Row:
    last = len(values) - 1
    return Row(name=name, median_s=median(values), p10_s=values[int(0.1 * last)], p90_s=values[int(0.9 * last)], n=len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    table = Table("gap", "median us", "p10 us", "p90 us", "n", title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} (run)")
    loop_gaps, processor_s = loop_alone(4 * asked.steps)
    run_rows, per_act_s = rows(asked.steps, asked.rounds)
    for row in [*run_rows, _row(LOOP, sorted(loop_gaps)), *wake_ups()]:
        table.add_row(row.name, *(f"{value * 1e6:.1f}" for value in (row.median_s, row.p10_s, row.p90_s)), str(row.n))
    Console(width=110).print(table)
    for waiting, spent_s in per_act_s.items():
        print(f"workers, waiting={waiting}: {spent_s * 1e6:.1f} us of processor time per act, their start and end included")
    print(f"{LOOP}: {processor_s * 1e6:.1f} us of processor time per act")


if __name__ == "__main__":
    main()
