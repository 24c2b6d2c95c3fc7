"""Profiles that others recorded as measured prices: operators of Kineto and Chakra, matched to ops by name and shapes."""

from regista.profiles.matching import FromProfile, kernel_table
from regista.profiles.recorded import Profiled, read_profile

__all__ = ["FromProfile", "Profiled", "kernel_table", "read_profile"]
