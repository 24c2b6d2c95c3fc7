"""What a run shows while it goes: step, loss, speed, the slowest actor and how much of the time nobody computes.

    on a terminal:   a bar and one line of figures, drawn anew
    elsewhere:       a plain line at the first step, then at most one every PLAIN_EVERY_S seconds
    with --json:     nothing

step time   median of the last LAST_STEPS differences between the ends of steps, as the workers' clocks say
slowest     on the busiest stream of all ranks, the task with the most time there, with its share of the time.  What a collective takes is the
            least of its ranks' times: the others waited for the last
waiting     share of the time in which no compute act ran, mean over the ranks (the bubble of the last table)

Shares are those of the last LAST_HEARTBEATS heartbeats of a rank, some seconds.  All of it is kind ``run``.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from backend.monitor import Heartbeat
from planner.ir.plan import Plan, TaskKind
from planner.ir.units import show_s

__all__ = ["Facts", "Watched", "figures", "watched"]

LAST_STEPS = 20
LAST_HEARTBEATS = 8
PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """None: not known yet.   steps_done of steps.   slowest: (task, rank, share of the time 0 to 1).   waiting: 0 to 1."""

    steps_done: int
    steps: int
    loss: float | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    slowest: tuple[str, int, float] | None = None
    waiting: float | None = None


def figures(facts: Facts) -> str:
    """One line."""
    parts = [f"step {facts.steps_done}/{facts.steps}"]
    if facts.loss is not None:
        parts.append(f"loss {facts.loss:.4f}")
    if facts.samples_per_s is not None and facts.step_time_s is not None:
        parts.append(f"{facts.samples_per_s:.1f} samples/s")
        parts.append(f"{show_s(facts.step_time_s)} per step")
    if facts.slowest is not None:
        task, rank, share = facts.slowest
        parts.append(f"slowest {task} on rank {rank} ({share:.0%})")
    if facts.waiting is not None:
        parts.append(f"waiting {facts.waiting:.0%}")
    return "  ".join(parts)


@dataclass
class Watched:
    """Gathers what the workers report: a backend.monitor.progress.Listener, called by one thread of the launcher."""

    plan: Plan
    steps: int
    steps_done: int = 0
    loss: float | None = None
    changed: Callable[[], None] = lambda: None
    evaluated: Callable[[int, dict[str, float]], None] = lambda step, values: None
    _heartbeats: dict[int, deque[Heartbeat]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=LAST_HEARTBEATS)))
    _dated_by: int | None = None
    _last: tuple[int, float] | None = None
    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))

    def __call__(self, step: int, loss: float) -> None:
        self.steps_done, self.loss = step + 1, loss if self.plan.has_loss else None
        self.changed()

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._heartbeats[heartbeat.rank].append(heartbeat)
        if heartbeat.ends_s and self._dated_by in (None, heartbeat.rank):
            self._dated_by = heartbeat.rank  # several ranks may hold the loss; one of them dates the steps
            for step, end_s in heartbeat.ends_s:
                if self._last is not None and step == self._last[0] + 1:
                    self._times_s.append(end_s - self._last[1])
                self._last = step, end_s
        self.changed()

    def on_evaluation(self, step: int, values: dict[str, float]) -> None:
        """What an evaluation after ``step`` steps measured."""
        self.evaluated(step, values)

    def facts(self) -> Facts:
        """What is known now."""
        step_s = median(self._times_s) if self._times_s else None
        return Facts(
            steps_done=self.steps_done,
            steps=self.steps,
            loss=self.loss,
            step_time_s=step_s,
            samples_per_s=self.plan.batch_size / step_s if step_s else None,
            slowest=self._slowest(),
            waiting=self._waiting(),
        )

    def _slowest(self) -> tuple[str, int, float] | None:
        streams: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for rank, heartbeats in self._heartbeats.items():
            # A run that saves has tasks that its plan has not.
            for task in {task for heartbeat in heartbeats for task in heartbeat.busy_s if task in self.plan.task}:
                streams[self.plan.task[task].stream, rank][task] = self._share(task, rank)
        if not any(shares for shares in streams.values()):
            return None
        (_, rank), shares = max(streams.items(), key=lambda entry: sum(entry[1].values()))
        task = max(shares, key=lambda name: shares[name])
        return task, rank, min(1.0, shares[task])

    def _share(self, task: str, rank: int) -> float:
        """Of the time of the last heartbeats."""
        placed = self.plan.task[task]
        ranks = self.plan.ranks_of(placed) if placed.kind is TaskKind.BOXING else (rank,)
        # A rank that does not name it has other things to do: it came last, and nobody's time but its own counts.
        return min(_share(self._heartbeats[r], task) for r in ranks if r in self._heartbeats)

    def _waiting(self) -> float | None:
        if not self._heartbeats:
            return None
        computing = [_part(heartbeats, sum(heartbeat.compute_s for heartbeat in heartbeats)) for heartbeats in self._heartbeats.values()]
        return sum(max(0.0, 1 - share) for share in computing) / len(computing)


def _share(heartbeats: Collection[Heartbeat], task: str) -> float:
    return _part(heartbeats, sum(heartbeat.busy_s.get(task, 0.0) for heartbeat in heartbeats))


def _part(heartbeats: Collection[Heartbeat], busy_s: float) -> float:
    whole_s = sum(heartbeat.end_s - heartbeat.begin_s for heartbeat in heartbeats)
    return busy_s / whole_s if whole_s > 0 else 0.0


@contextmanager
def watched(plan: Plan, steps: int, *, quiet: bool, console: Console | None = None) -> Iterator[Watched]:
    """Show a run on ``console`` (default: standard error) while the body performs it with the Watched as its on_progress.

    quiet: gather and show nothing.
    """
    watch = Watched(plan=plan, steps=steps)
    out = console or Console(stderr=True)
    if quiet:
        yield watch
    elif out.is_terminal:
        with _drawn(watch, out):
            yield watch
    else:
        watch.changed = _Plain(watch, out).show
        yield watch


@contextmanager
def _drawn(watch: Watched, out: Console) -> Iterator[None]:
    progress = Progress(TextColumn("running"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn())
    bar = progress.add_task("running", total=watch.steps)
    line = Text()
    with Live(Group(progress, line), console=out, refresh_per_second=4, transient=True):

        def show() -> None:
            progress.update(bar, completed=watch.steps_done)
            line.plain = figures(watch.facts())

        watch.changed = show
        yield


@dataclass
class _Plain:
    watch: Watched
    out: Console
    _shown_s: float | None = None

    def show(self) -> None:
        now_s = time.monotonic()
        if not self.watch.steps_done or (self._shown_s is not None and now_s < self._shown_s + PLAIN_EVERY_S):
            return
        self._shown_s = now_s
        self.out.print(escape(figures(self.watch.facts())), highlight=False, soft_wrap=True)
