"""What the devices of a job compute and send: kernels of a layer, of a model's ends and of the update, and chunks made of them."""

from regista.jobs.work.chunks import Chunk, chunk_stacks, chunks_of, vocab_padded
from regista.jobs.work.kernels import AttentionCore, CausalConvolution, Group, Kernel, Meeting, Product, Ring, Scan, Sweep
from regista.jobs.work.layer import layer_backward, layer_forward

__all__ = [
    "AttentionCore",
    "CausalConvolution",
    "Chunk",
    "Group",
    "Kernel",
    "Meeting",
    "Product",
    "Ring",
    "Scan",
    "Sweep",
    "chunk_stacks",
    "chunks_of",
    "layer_backward",
    "layer_forward",
    "vocab_padded",
]
