"""Measuring: the acts of a Plan on real processes, and the constants of a machine."""

from backend.measure.microbench import microbench
from backend.measure.profile import Profile, profile

__all__ = ["Profile", "microbench", "profile"]
