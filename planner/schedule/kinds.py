"""The schedules that a user can ask for."""

from __future__ import annotations

from enum import Enum

from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan

__all__ = ["Schedule", "schedule_of"]


class Schedule(Enum):
    """The order of a pipeline's passes.  The first two follow from quotas, the others are the order of compute streams
    (planner.lower.orders.pass_order).

    GIVEN: the user gives the order of every device, in torch's CSV (planner.schedule.torch_csv).
    """

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_AUTO = "zb-auto"
    GIVEN = "csv"

    @property
    def has_order(self) -> bool:
        """Whether compute streams have an explicit order; otherwise the order follows from quotas alone."""
        return self not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE)

    @property
    def splits_backward(self) -> bool:
        """Whether the backward pass has an input part and a weight part; in a given order each pass may be whole or in parts."""
        return self is Schedule.GIVEN or self in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_AUTO)


def schedule_of(plan: Plan) -> Schedule:
    """The schedule that a Plan was asked for with.

    Raises:
        InvalidPlan: it names none that there is.
    """
    named, known = plan.options.get("schedule", Schedule.ONE_F_ONE_B.value), [schedule.value for schedule in Schedule]
    if named not in known:
        raise InvalidPlan(
            f"plan {plan.plan_id}: its option schedule is {named[:60]!r}, not one of {', '.join(known)}; plan the model again"
        )
    return Schedule(named)
