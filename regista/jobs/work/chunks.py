"""The chunks of a pipeline: which layers each has, and the kernels of its passes.

chunk c = 0 .. pp vp - 1 in the order of the model lies on stage c mod pp
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regista.jobs.job import Job
from regista.jobs.work.kernels import Kernel, Product, Sweep
from regista.jobs.work.layer import tokens

__all__ = [
    *("Chunk", "chunk_layers", "chunk_stacks", "chunks_of", "head_backward", "head_forward", "predictor_layers", "stack_counts"),
    "vocab_padded",
]

_PAD = 128
"""Megatron pads the vocabulary to a multiple of 128 times the tensor-parallel size (make-vocab-size-divisible-by)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """first, layers: which, and how many.   embeds, predicts: whether it has the embedding, or the head and the loss."""

    number: int
    stage: int
    first: int
    layers: int
    embeds: bool
    predicts: bool


def vocab_padded(job: Job) -> int:
    """Rows of the embedding."""
    step = _PAD * job.layout.tp
    return -(-job.model.vocab // step) * step


def chunk_layers(job: Job) -> tuple[int, ...]:
    """Layers of each chunk: as given, or even; where they do not divide, embedding and loss count as a layer each (NeMo), or the rest is spread."""
    at, layers = job.layout, job.model.layers + job.model.encoder
    if at.layers_of_chunks is not None:
        return at.layers_of_chunks
    if layers % at.chunks and (layers + 2) % at.chunks == 0 and at.chunks > 1:
        even = (layers + 2) // at.chunks
        return (even - 1, *[even] * (at.chunks - 2), even - 1)
    base, rest = divmod(layers, at.chunks)
    return tuple(base + (i < rest) for i in range(at.chunks))


def chunks_of(job: Job) -> tuple[Chunk, ...]:
    at, layers = job.layout, chunk_layers(job)
    return tuple(
        Chunk(number=i, stage=i % at.pp, first=sum(layers[:i]), layers=own, embeds=i == 0, predicts=i == at.chunks - 1)
        for i, own in enumerate(layers)
    )


def stack_counts(job: Job, chunk: Chunk) -> tuple[int, ...]:
    """Of each kind of layer (Model.stacks), how many the chunk has."""
    if job.model.pattern:
        own = job.model.pattern[chunk.first : chunk.first + chunk.layers]
        return tuple(own.count(model.part.value) for model, _ in job.model.stacks)
    found, begin = [], 0
    for _, count in job.model.stacks:
        found.append(max(0, min(begin + count, chunk.first + chunk.layers) - max(begin, chunk.first)))
        begin += count
    return tuple(found)


def chunk_stacks(job: Job, chunk: Chunk) -> tuple[tuple[Job, int], ...]:
    """The kinds of layer in a chunk: for each kind the job with that model, and how many layers of the chunk are of it."""
    pairs = zip(job.model.stacks, stack_counts(job, chunk), strict=True)
    return tuple((job if model is job.model else replace(job, model=model), own) for (model, _), own in pairs if own)


def predictor_layers(job: Job) -> tuple[Job, ...]:
    """The layers of one head that predicts a further token, as jobs whose model is the layer's."""
    return tuple(replace(job, model=model) for model in job.model.predictor)


def _joined(job: Job) -> Product:
    """State and next token brought to one width, in front of a predictor's layers."""
    return Product(tokens(job), job.model.hidden // job.layout.tp, 2 * job.model.hidden)


def head_forward(job: Job) -> tuple[Kernel, ...]:
    """Final norm, logits and loss: unfused, the loss works on a copy of the logits in 32 bits, kernel by kernel."""
    rows, columns = tokens(job), vocab_padded(job) // job.layout.tp
    once = (Product(rows, columns, job.model.hidden, low=False), Sweep(rows * columns * (6.0 if job.running.fused_loss else 26.0), 5))
    return once + job.model.predicted * (_joined(job), *once)


def head_backward(job: Job) -> tuple[Kernel, ...]:
    rows, columns, hidden = tokens(job), vocab_padded(job) // job.layout.tp, job.model.hidden
    products = [Product(rows, hidden, columns, low=False)]
    if not job.running.frozen:
        products.append(Product(hidden, columns, rows, low=False))
    loss = 4.0 if job.running.fused_loss else 14.0
    once: tuple[Kernel, ...] = (*products, Sweep(rows * columns * loss + 2.0 * hidden * columns * job.running.grad_bytes, 3))
    joined = _joined(job)
    again = [Product(joined.m, joined.k, joined.n), *([] if job.running.frozen else [Product(joined.k, joined.n, joined.m)])]
    return once + job.model.predicted * (*again, *once)
