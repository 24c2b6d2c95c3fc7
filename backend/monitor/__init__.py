"""Watching a run: heartbeats of the workers, progress, and losses that are no finite number."""
