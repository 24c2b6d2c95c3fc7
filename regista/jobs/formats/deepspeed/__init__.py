"""DeepSpeed's JSON beside a Hugging Face config.json: -> a job, and a job -> settings."""

from regista.jobs.formats.deepspeed.reading import BUCKETS, is_deepspeed, read_deepspeed
from regista.jobs.formats.deepspeed.writing import deepspeed_flags

__all__ = ["BUCKETS", "deepspeed_flags", "is_deepspeed", "read_deepspeed"]
