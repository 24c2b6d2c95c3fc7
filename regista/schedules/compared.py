"""What a Plan records of the schedules among which its own was chosen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan
from planner.ir.units import show_bytes, show_s

__all__ = ["RECORD", "PlayedSchedule", "compared_schedules", "recorded_text", "schedules_text"]

RECORD = "schedules"
"""The key in a Plan's options."""
_MOST_WORDS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSchedule:
    """One schedule on the shape of the Plan.

    name: the schedule, with its stages per device group or its micro-batches held.
    step_s: seconds of a step in the long run (kind ``sim``).   bubble: share of a step in which devices compute nothing, mean over them.
    peak_bytes: live bytes of the fullest device.   None: it was not played;   why_not says why, else it is empty.
    """

    name: str
    step_s: float | None = None
    bubble: float | None = None
    peak_bytes: int | None = None
    why_not: str = ""


def recorded_text(played: tuple[PlayedSchedule, ...]) -> str:
    """For the Plan's record; the chosen one first."""
    return json.dumps([asdict(one) for one in played], separators=(",", ":"))


def compared_schedules(plan: Plan) -> tuple[PlayedSchedule, ...]:
    """The schedules that were compared, the chosen one first; none if the schedule was given.

    Raises:
        InvalidPlan: the record was written by somebody else.
    """
    if RECORD not in plan.options:
        return ()
    try:
        return tuple(_checked(PlayedSchedule(**entry)) for entry in json.loads(plan.options[RECORD]))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidPlan(
            f"plan {plan.plan_id} has a record of schedules that does not say name, step, bubble and bytes: {error}"
        ) from None


def _checked(one: PlayedSchedule) -> PlayedSchedule:
    for value, kinds in ((one.step_s, (int, float)), (one.bubble, (int, float)), (one.peak_bytes, (int,))):
        if value is not None and not isinstance(value, kinds):
            raise TypeError(f"{value!r} is no number")
    if not isinstance(one.name, str) or not isinstance(one.why_not, str):
        raise TypeError(f"{one.name!r} is no name")
    return one


def schedules_text(plan: Plan) -> str:
    """``zb-h1 of 7 played on this shape: zb-h1 1.2 s, bubble 4.0 %, 3.1 GB; ...; gpipe refused: ...``; empty if the schedule was given."""
    compared = compared_schedules(plan)
    if not compared:
        return ""
    num_played = sum(one.step_s is not None for one in compared)
    return f"{compared[0].name}, the quickest of {num_played} played on this shape: {'; '.join(map(_text, compared))}"


def _text(one: PlayedSchedule) -> str:
    if one.step_s is None or one.bubble is None or one.peak_bytes is None:
        return f"{one.name} refused: {one.why_not[:_MOST_WORDS]}{'...' * (len(one.why_not) > _MOST_WORDS)}"
    return f"{one.name} {show_s(one.step_s)}, bubble {one.bubble:.1%}, {show_bytes(one.peak_bytes)}"
