"""Jobs from files: a TOML with one job, or a CSV with one job per row, of the columns of published tables."""

from regista.jobs.readers.reading import Entry, read_jobs

__all__ = ["Entry", "read_jobs"]
