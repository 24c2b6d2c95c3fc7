"""Pipeline schedules as pure functions: made, checked, timed, searched, and exchanged with torch."""

from planner.schedule.actions import Action, Pass, PipelineSchedule
from planner.schedule.automatic import FoundSchedule, zb_auto
from planner.schedule.classic import gpipe, interleaved, one_f_one_b
from planner.schedule.greedy import MemoryLimit
from planner.schedule.legality import check_schedule, in_flight, peak_memory
from planner.schedule.timing import PassTimes, act_times, bubble_rate, makespan_s
from planner.schedule.torch_csv import from_torch_csv, to_torch_csv
from planner.schedule.zero_bubble import zb_h1, zb_h2

__all__ = [
    "Action",
    "FoundSchedule",
    "MemoryLimit",
    "Pass",
    "PassTimes",
    "PipelineSchedule",
    "act_times",
    "bubble_rate",
    "check_schedule",
    "from_torch_csv",
    "gpipe",
    "in_flight",
    "interleaved",
    "makespan_s",
    "one_f_one_b",
    "peak_memory",
    "to_torch_csv",
    "zb_auto",
    "zb_h1",
    "zb_h2",
]
