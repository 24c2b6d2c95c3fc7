"""Megatron-LM and Megatron-Bridge: arguments and recipes -> a job, and a job -> arguments and recipes."""

from regista.jobs.formats.megatron.reading import read_megatron
from regista.jobs.formats.megatron.writing import MODEL_FLAGS, megatron_flags, script_of

__all__ = ["MODEL_FLAGS", "megatron_flags", "read_megatron", "script_of"]
