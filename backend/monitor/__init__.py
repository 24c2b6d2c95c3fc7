"""Watching a run: heartbeats of the workers, progress, and losses that are no finite number."""

from backend.monitor.heartbeat import Heartbeat, writing_heartbeats
from backend.monitor.nonfinite import LossWatch
from backend.monitor.progress import Progress

__all__ = ["Heartbeat", "LossWatch", "Progress", "writing_heartbeats"]
