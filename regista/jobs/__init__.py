"""Jobs as people write them, predicted: seconds per step with an interval, and bytes per stage, from a layout that is given."""

from regista.jobs.job import Job
from regista.jobs.readers import read_jobs

__all__ = ["Job", "read_jobs"]
