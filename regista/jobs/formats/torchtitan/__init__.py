"""torchtitan's TOML, its configurations in Python, or its settings on the command line: -> a job, and a job -> settings."""

from regista.jobs.formats.torchtitan.python_config import python_flags
from regista.jobs.formats.torchtitan.reading import flat, preset_flags, read_torchtitan
from regista.jobs.formats.torchtitan.writing import torchtitan_flags

__all__ = ["flat", "preset_flags", "python_flags", "read_torchtitan", "torchtitan_flags"]
