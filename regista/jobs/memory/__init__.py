"""Bytes of one device of each stage, by owner, as Megatron, FSDP2 and PyTorch's allocator hold them."""

from regista.jobs.memory.activations import message_bytes, stash_bytes
from regista.jobs.memory.parameters import chunk_parameters
from regista.jobs.memory.stage import Owner, StageMemory, stage_memory

__all__ = ["Owner", "StageMemory", "chunk_parameters", "message_bytes", "stage_memory", "stash_bytes"]
