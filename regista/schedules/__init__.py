"""Schedules from outside the planner: files that say the order of passes, and the quickest of several, by playing each."""

from regista.schedules.compared import PlayedSchedule, compared_schedules, schedules_text

__all__ = ["PlayedSchedule", "compared_schedules", "schedules_text"]
