"""The schedule of a pipeline, chosen by playing: each schedule is planned on the shape that the search found, within memory, and simulated.

    search over shapes (priced as 1F1B) --> shape --> a Plan per schedule --> simulated step --> the quickest

The layouts of each are searched for the micro-batches that it holds in flight, so a schedule that does not fit is refused by the same law as a
plan that was asked for.  What is chosen is the best of those that were played on this one shape; the bound of the search is about 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from planner.cost import AnalyticCost
from planner.ir.errors import Cancelled, RegistaError, Unsupported
from planner.ir.plan import Plan
from planner.parallelism.options import PlanOptions
from planner.schedule import Schedule
from planner.solve.problem import NotFoundInTime
from planner.stages.recompute import recompute_of
from regista.schedules.compared import RECORD, PlayedSchedule, recorded_text

__all__ = ["AUTOMATIC", "check_open", "with_quickest_schedule"]

AUTOMATIC = "auto"
_INTERLEAVES = (2, 4)
"""Stages per device group that are tried."""
_SAME = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    schedule: Schedule
    interleave: int = 1
    hold: int | None = None

    def __str__(self) -> str:
        if self.schedule is Schedule.INTERLEAVED:
            return f"{self.schedule.value} {self.interleave}"
        return self.schedule.value if self.hold is None else f"{self.schedule.value} hold {self.hold}"


def check_open(options: PlanOptions) -> None:
    """Refuse options that an automatic schedule chooses itself.

    Raises:
        Unsupported: with the way out.
    """
    if options.interleave != 1 or options.hold is not None:
        given = f"interleave = {options.interleave}" if options.interleave != 1 else f"hold = {options.hold}"
        raise Unsupported(f"{given} with schedule {AUTOMATIC}, which tries several; leave it out, or name the schedule")


def with_quickest_schedule(plan: Plan, options: PlanOptions, search: Callable[[PlanOptions], Plan]) -> Plan:
    """The Plan of the same shape under the schedule whose simulated step is shortest; of equal ones, the first in the order of _candidates.

    Args:
        plan: what a search with 1F1B found.   options: of that search.
        search: options of one shape -> its Plan.

    The search's seconds limit the comparison, too: a schedule that they leave no time for is recorded as not tried.
    """
    stages = len(plan.placements)
    if stages == 1:
        return plan
    shape = replace(
        options,
        stages=stages,
        mesh=plan.placements[0].mesh,
        micro_batches=plan.micro_batches,
        recompute=recompute_of(recorded) if (recorded := plan.options.get("recompute", "")) else options.recompute,
    )
    best, best_played = plan, _played(_Candidate(schedule=Schedule.ONE_F_ONE_B), plan)
    others: list[PlayedSchedule] = []
    begin_s = perf_counter()
    for candidate in _candidates(stages):
        left_s = options.seconds - (perf_counter() - begin_s)
        if left_s <= 0:
            others.append(PlayedSchedule(name=str(candidate), why_not="the seconds of the search were over"))
            continue
        asked = replace(shape, schedule=candidate.schedule, interleave=candidate.interleave, hold=candidate.hold, seconds=left_s)
        try:
            made = search(asked)
            played = _played(candidate, made)
        except Cancelled:
            others.append(PlayedSchedule(name=str(candidate), why_not="the search was cancelled"))
            break
        except (RegistaError, NotFoundInTime) as error:
            others.append(PlayedSchedule(name=str(candidate), why_not=str(error)))
            continue
        assert played.step_s is not None and best_played.step_s is not None
        if played.step_s < best_played.step_s * (1 - _SAME):
            others.append(best_played)
            best, best_played = made, played
        else:
            others.append(played)
    return replace(best, options={**best.options, RECORD: recorded_text((best_played, *others))})


def _candidates(stages: int) -> Iterator[_Candidate]:
    """Those beside 1F1B."""
    for schedule in (Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_AUTO):
        yield _Candidate(schedule=schedule)
    yield _Candidate(schedule=Schedule.ZB_AUTO, hold=2 * stages)
    for interleave in _INTERLEAVES:
        yield _Candidate(schedule=Schedule.INTERLEAVED, interleave=interleave)


def _played(candidate: _Candidate, plan: Plan) -> PlayedSchedule:
    from simulator.analysis.forecast import forecast  # loads the compiled engine

    seen = forecast(plan, AnalyticCost(plan.cluster))
    return PlayedSchedule(
        name=str(candidate), step_s=seen.step_s, bubble=seen.mean("bubble"), peak_bytes=max(group.peak_bytes for group in seen.rank_groups)
    )
