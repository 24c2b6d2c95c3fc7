"""Two sides of a pair alive at the same time, one of them running.

    ours    start ==warm==|      |#####|      |#####|      ...|== rest
    theirs                 start ==warm==|#####|      |#####| ...|== rest          # a turn of TURN steps, | SIGSTOP or SIGCONT to the workers

A turn is some steps long, a second or so: what else happens on the machine hits both sides alike, and neither pays for a start.  The first
steps after every pause do not count (the other side's data fills the caches), nor does anything outside the turns.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from experiments.rivals.job import Job, to_json
from planner.ir.errors import Mismatch, WorkerFailed

__all__ = ["Measured", "Pauses", "against", "same_losses", "turns_of"]

TURN = 8
"""Steps of a turn."""
COLD = 2
"""Steps after a pause that do not count, the interrupted one not included."""
WARM = 4
"""Steps before the first pause."""
SLACK = 3
"""Steps that a side may be late in stopping: progress is looked at every 20 ms."""
PATIENCE_S = 500.0

Pauses = Sequence[float]
"""How long a side was stopped, in order, in seconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """``ours``, ``theirs``: step times in seconds, turn by turn.   ``loss_error``: largest relative difference of a step's losses.

    ``ours_cpu_s``, ``theirs_cpu_s``: processor time of one step, all ranks and threads together, turn by turn.  On a busy machine it is much
    steadier than step times; it does not see waiting.
    """

    job: Job
    ours: tuple[tuple[float, ...], ...]
    theirs: tuple[tuple[float, ...], ...]
    ours_cpu_s: tuple[float, ...]
    theirs_cpu_s: tuple[float, ...]
    loss_error: float

    @property
    def ratios(self) -> list[float]:
        """Speed of ours over theirs, for each pair of turns: median step time of theirs over that of ours."""
        return [median(b) / median(a) for a, b in zip(self.ours, self.theirs, strict=True)]


def steps_for(pairs: int) -> int:
    return WARM + SLACK + pairs * (TURN + SLACK)


def places_of(times_s: Sequence[float], pauses_s: Pauses) -> list[int]:
    """The steps that were interrupted, in order.

    Args:
        times_s: of consecutive steps.   pauses_s: how long the side was stopped; each pause fell into one step or between two.

    Raises:
        Mismatch: the longest steps are not those that were interrupted: something else held a step up for as long as a pause.
    """
    longest = sorted(range(len(times_s)), key=lambda step: times_s[step])[len(times_s) - len(pauses_s) :]
    places = sorted(longest)
    for place, pause_s in zip(places, pauses_s, strict=True):
        if not 0.9 * pause_s <= times_s[place] <= 1.5 * pause_s + 1.0:
            raise Mismatch(
                f"step {place} took {times_s[place]:.3f} s where a pause of {pause_s:.3f} s is on record; the machine held up a step for as "
                f"long as a turn: measure again, or with longer turns"
            )
    return places


def turns_of(times_s: Sequence[float], pauses_s: Pauses, *, cold: int = COLD) -> tuple[tuple[float, ...], ...]:
    """The step times between pauses, without those before the first and after the last.

    Returns:
        For every stretch between two pauses its step times, the interrupted step and ``cold`` more left out.

    Raises:
        Mismatch: see places_of.
    """
    places = places_of(times_s, pauses_s)
    return tuple(tuple(times_s[a + 1 + cold : b]) for a, b in pairwise(places))


def same_losses(ours: Sequence[float], theirs: Sequence[float], *, close: float = 1e-5, first: int = 8) -> float:
    """Largest relative difference of the first losses: later ones drift apart by rounding that training enlarges.

    Raises:
        Mismatch: it is above ``close``; the two sides do not compute the same thing.
    """
    errors = [abs(a - b) / abs(b) for a, b in zip(ours[:first], theirs[:first], strict=True)]
    if not max(errors) <= close:
        step = errors.index(max(errors))
        raise Mismatch(
            f"step {step}: our loss is {ours[step]:.6f}, the rival's {theirs[step]:.6f}; relative difference {max(errors):.1e} is above "
            f"{close:g}, so one side computes something else and the times say nothing"
        )
    return max(errors)


class _Side:
    """A running ``experiments.rivals.side`` and the workers below it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.pauses_s: list[float] = []
        self.turns_cpu_s: list[float] = []
        self._log = (folder / "log").open("w")
        command = [sys.executable, "-m", "experiments.rivals.side", name, str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1)
        self._step = -1
        self._changed = threading.Condition()
        self._stopped_at = 0.0
        self._used_s = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._step = int(line)
                self._changed.notify()
        with self._changed:
            self._changed.notify()

    def wait_steps(self, count: int) -> None:
        """Until ``count`` more steps have ended.

        Raises:
            WorkerFailed: the side ended before, or took PATIENCE_S.
        """
        with self._changed:
            goal = self._step + count
            if not self._changed.wait_for(lambda: self._step >= goal or self.process.poll() is not None, PATIENCE_S) or self._step < goal:
                raise WorkerFailed(f"{self.name} got to step {self._step} of {goal}: {self._last_words()}")

    def _last_words(self) -> str:
        return " ".join((self.folder / "log").read_text().splitlines()[-4:]) or f"no step for {PATIENCE_S:g} s"

    def stop(self) -> None:
        workers = workers_below(self.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        self._stopped_at = time.monotonic()
        used_s = sum(map(cpu_s, workers))
        self.turns_cpu_s.append(used_s - self._used_s)
        self._used_s = used_s

    def resume(self) -> None:
        self.pauses_s.append(time.monotonic() - self._stopped_at)
        for pid in workers_below(self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def result(self) -> Mapping[str, list[float]]:
        if self.process.wait(PATIENCE_S):
            raise WorkerFailed(f"{self.name} ended with code {self.process.returncode}: {self._last_words()}")
        durations: Mapping[str, list[float]] = json.loads((self.folder / "result.json").read_text())
        return durations

    def end(self) -> None:
        self.process.kill()  # its workers are told by the kernel
        self.process.wait()
        self._log.close()


@contextmanager
def _side(name: str, job: Job, folder: Path) -> Iterator[_Side]:
    own = folder / name
    own.mkdir()
    (own / "job.json").write_text(to_json(job))
    side = _Side(name, own)
    try:
        yield side
    finally:
        side.end()


def workers_below(pid: int) -> list[int]:
    """All processes two or more levels below ``pid`` (Linux): not the launcher, which must go on to hear of its workers."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    descendants, left = [], list(children.get(pid, ()))
    while left:
        for child in children.get(left.pop(), ()):
            descendants.append(child)
            left.append(child)
    return descendants


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far, all its threads together (Linux)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) * 1e-9


def against(job: Job, pairs: int) -> Measured:
    """Measure one pair of sides in ``pairs`` pairs of turns.

    Raises:
        Mismatch: the sides' losses differ, or the machine is too uneven to tell pauses from steps.   WorkerFailed: a side broke.
    """
    job = job.of_steps(steps_for(pairs))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = []
        for name in ("ours", "theirs"):
            side = stack.enter_context(_side(name, job, folder))
            side.wait_steps(WARM)
            side.stop()
            sides.append(side)
        for _ in range(pairs):
            for side in sides:
                side.resume()
                side.wait_steps(TURN)
                side.stop()
        results = []
        for side in sides:  # one after the other, so that the last pause, too, is long enough to be told from a step
            side.resume()
            results.append(side.result())
        ours, theirs = results
        return Measured(
            job=job,
            ours=turns_of(ours["times_s"], sides[0].pauses_s),
            theirs=turns_of(theirs["times_s"], sides[1].pauses_s),
            ours_cpu_s=_per_step(ours["times_s"], sides[0]),
            theirs_cpu_s=_per_step(theirs["times_s"], sides[1]),
            loss_error=same_losses(ours["losses"], theirs["losses"], close=job.close, first=job.compared),
        )


def _per_step(times_s: Sequence[float], side: _Side) -> tuple[float, ...]:
    """Processor time per step of each turn; the time before the first pause is not of a turn."""
    counts = [b - a for a, b in pairwise(places_of(times_s, side.pauses_s))]
    return tuple(used_s / count for used_s, count in zip(side.turns_cpu_s[1:], counts, strict=True))
