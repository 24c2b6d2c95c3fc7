"""A Mamba-2 layer on one device (Dao & Gu 2024, state space duality): products by pieces of a sequence, and passes over memory.

    norm - in (z, x, B, C, dt) - convolution - scan - gated norm - out - add

Of each piece of PIECE tokens and each head, with state N and head width P:  C B' (Q x Q x N, per group), its product with x (Q x P x Q),
the state that the piece leaves (N x P x Q) and what earlier pieces give (Q x P x N).
"""

from __future__ import annotations

from regista.jobs.job import Job
from regista.jobs.work.kernels import Kernel, Product, Sweep

__all__ = ["mamba_products", "mamba_scan"]

PIECE = 128
"""Tokens of a piece. [mamba-ssm, Megatron-LM: chunk_size 128 of MambaMixer]"""


def mamba_products(job: Job, rows: int) -> list[Product]:
    """Those that have parameters."""
    model, tp = job.model, job.layout.tp
    return [Product(rows, model.mamba_columns // tp, model.hidden), Product(rows, model.hidden, model.mamba_width // tp)]


def mamba_scan(job: Job, rows: int, *, backward: bool) -> list[Kernel]:
    """The convolution, the scan and the gated norm; the backward pass makes each product's two gradients, and the scan again."""
    model, tp, value = job.model, job.layout.tp, job.running.precision.value_bytes
    pieces, heads, groups = max(1, rows // PIECE), max(1, model.mamba_heads // tp), max(1, model.mamba_groups // tp)
    times, state, width = 3 if backward else 1, model.state_dim, model.mamba_head_dim
    moved = float(rows * (model.mamba_columns + 2 * model.mamba_width) // tp * value)
    states = 4.0 * pieces * heads * width * state
    return [
        Product(PIECE, PIECE, state, batch=pieces * groups, count=times, low=False),
        Product(PIECE, width, PIECE, batch=pieces * heads, count=times, low=False),
        Product(state, width, PIECE, batch=pieces * heads, count=times, low=False),
        Product(PIECE, width, state, batch=pieces * heads, count=times, low=False),
        Sweep(2 * moved * (2 if backward else 1), count=4),
        Sweep(2 * states * times, count=times),
    ]
