"""Parameters of one device before they are split over replicas, and their bytes as they are held and sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from regista.jobs.job import Job
from regista.jobs.recipes import casting
from regista.jobs.work import Chunk, chunk_stacks, chunks_of, vocab_padded
from regista.jobs.work.chunks import predictor_layers

__all__ = ["Counts", "chunk_parameters", "stage_parameters"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Parameters on one device.   dense: that all replicas share; expert: of experts, which fewer replicas have.   low: of the dense ones those of
    products that may take 8 or 4 bits; experts' all may."""

    dense: float
    expert: float
    low: float

    @property
    def total(self) -> float:
        return self.dense + self.expert

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.dense + other.dense, self.expert + other.expert, self.low + other.low)

    def held_bytes(self, job: Job) -> float:
        """As the device holds them: in 16 bits; what products take in fewer bits also in those and transposed, or only so (low_params).  XLA casts
        them when they are read."""
        run, value = job.running, job.running.precision.value_bytes
        if not run.precision.is_low or run.jax:
            return value * self.total
        low, copies = self.low + self.expert, 2 * casting(run.recipe).kept_bytes
        return value * (self.total - low) + low * (copies if run.low_params else value + copies)

    def dense_sent_bytes(self, job: Job) -> float:
        """Of the dense parameters as they are gathered."""
        value = job.running.precision.value_bytes
        return value * (self.dense - self.low) + _sent_low(job) * self.low

    def expert_sent_bytes(self, job: Job) -> float:
        return _sent_low(job) * self.expert


def _sent_low(job: Job) -> float:
    """Bytes in which a parameter of a product is gathered."""
    run = job.running
    return casting(run.recipe).kept_bytes if run.precision.is_low and run.low_params else run.precision.value_bytes


@lru_cache(maxsize=4096)
def chunk_parameters(job: Job, chunk: Chunk) -> Counts:
    """Of one device, before they are split over replicas."""
    model, at = job.model, job.layout
    low = dense = expert = 0.0
    heads = 1 if model.predicted_alike else model.predicted
    ahead = [(layer, heads) for layer in predictor_layers(job)] if chunk.predicts else []
    for stack, layers in (*chunk_stacks(job, chunk), *ahead):
        own = stack.model
        # Layers of a decoder attend to the encoder, too.
        products = (own.dense_parameters - own.duplicated_parameters + (own.attention_parameters if own.crossed else 0)) / at.tp
        low += layers * products
        dense += layers * (products + own.duplicated_parameters)
        expert += layers * own.expert_parameters / (at.ep * at.etp)
    table = vocab_padded(job) * model.hidden / at.tp
    if chunk.embeds:
        dense += table + (max(model.seq, model.encoder_seq) * model.hidden if model.learned_positions else 0)
    if ahead:
        joined = heads * 2 * model.hidden**2 / at.tp
        low, dense = low + joined, dense + joined
    if chunk.predicts and not (model.tied and chunk.embeds):
        dense += table
    return Counts(dense, expert, low)


def stage_parameters(job: Job, stage: int) -> Counts:
    """Of all chunks of a stage."""
    return sum((chunk_parameters(job, chunk) for chunk in chunks_of(job) if chunk.stage == stage), Counts(0.0, 0.0, 0.0))
