"""Jobs as frameworks write them: their settings -> a job, each mapped, without effect or named; and a job -> their settings."""

from regista.jobs.formats.deepspeed.reading import BUCKETS
from regista.jobs.formats.reading import read_framework
from regista.jobs.formats.values import Asked, Form, Reading
from regista.jobs.formats.writing import flags_text, spelled_flags, write_flags

__all__ = ["BUCKETS", "Asked", "Form", "Reading", "flags_text", "read_framework", "spelled_flags", "write_flags"]
