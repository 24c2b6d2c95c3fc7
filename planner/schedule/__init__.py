"""Pipeline schedules as pure functions: they are made, checked, timed, searched for, and exchanged with torch."""

from planner.schedule.actions import PipelineSchedule
from planner.schedule.in_flight import in_flight
from planner.schedule.kinds import Schedule, schedule_of
from planner.schedule.legality import check_schedule
from planner.schedule.torch_csv import from_torch_csv

__all__ = ["PipelineSchedule", "Schedule", "check_schedule", "from_torch_csv", "in_flight", "schedule_of"]
