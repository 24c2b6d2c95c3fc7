"""The comparison of a simulated and a measured trace of one Plan as plain values, which pages show.

error of a time, a size       predicted / measured - 1               (-0.05: the prediction is 5 % too low)
error of a share (bubble)     predicted - measured, in points
error of an act               predicted duration of its task on its rank / measured duration - 1, one per measured act after the warm-up
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir.actors.verify import device_bytes
from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Trace
from regista.analysis.comparison import Comparison, Pair, compare, default_warmup
from regista.report.whatif import Change, TracePrices, what_if_changes
from regista.views.tables.verdict import bubble

__all__ = ["ActError", "Findings", "Memory", "find"]


@dataclass(frozen=True, slots=True)
class ActError:
    """One measured act beside its prediction; ``error`` as in the module's text."""

    task: str
    kind: TaskKind
    rank: int
    number: int
    measured_s: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One rank, in bytes.   planned: all blocks of all Regsts and the largest workspaces.   held: registers and state that held data.
    peak_sim: held and the workspace of running fragments, as simulated (a run does not see workspace).
    """

    rank: int
    planned: int
    held: Pair
    peak_sim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """bubble: mean share of the steps without compute, 0 to 1.   changes: the table of what-ifs, the Plan as it is first."""

    comparison: Comparison
    bubble: Pair
    memory: tuple[Memory, ...]
    acts: tuple[ActError, ...]
    changes: tuple[Change, ...]


def find(plan: Plan, sim: Trace, run: Trace, *, warmup: int | None = None) -> Findings:
    """Everything that a page of one comparison shows.

    Args:
        warmup: steps of the run to leave out; None: see regista.analysis.comparison.default_warmup.

    Raises:
        Mismatch: see regista.analysis.comparison.compare.
    """
    compared = compare(plan, sim, run, warmup=warmup)
    leave_out = default_warmup(run) if warmup is None else warmup
    return Findings(
        comparison=compared,
        bubble=Pair(predicted=bubble(plan, sim, max(0, sim.steps - 2)), measured=bubble(plan, run, leave_out)),
        memory=tuple(_memory(plan, sim, run)),
        acts=tuple(_act_errors(plan, sim, run, leave_out)),
        changes=what_if_changes(plan, sim, run),
    )


def _memory(plan: Plan, sim: Trace, run: Trace) -> list[Memory]:
    planned = device_bytes(plan)
    return [
        Memory(
            rank=int(rank),
            planned=planned[int(rank)],
            held=Pair(predicted=held_bytes, measured=run.register_bytes[rank]),
            peak_sim=sim.peak_bytes.get(rank, held_bytes),
        )
        for rank, held_bytes in sorted(sim.register_bytes.items(), key=lambda item: int(item[0]))
        if rank in run.register_bytes
    ]


def _act_errors(plan: Plan, sim: Trace, run: Trace, leave_out: int) -> list[ActError]:
    """Acts without measured duration have no relative error and are left out."""
    predicted_s = TracePrices.of(sim).act_times_s
    return [
        ActError(
            task=act.task,
            kind=plan.task[act.task].kind,
            rank=act.rank,
            number=act.number,
            measured_s=act.duration_s,
            error=predicted_s[act.task, act.rank] / act.duration_s - 1,
        )
        for act in run.acts
        if act.number // plan.task[act.task].acts >= leave_out and act.duration_s > 0 and (act.task, act.rank) in predicted_s
    ]
