"""A Mamba-2 layer on one device (Dao & Gu 2024, state space duality), as Megatron-Core's MambaMixer runs it in training.

norm - in (z, x, B, C, dt) - causal convolution - chunked scan - gated norm - out - add
"""

from __future__ import annotations

from regista.jobs.job import Job
from regista.jobs.work.kernels import CausalConvolution, Kernel, Product, Scan, Sweep

__all__ = ["mamba_products", "mamba_scan"]


def mamba_products(job: Job, rows: int) -> list[Product]:
    """Those that have parameters."""
    model, tp = job.model, job.layout.tp
    return [Product(rows, model.mamba_columns // tp, model.hidden), Product(rows, model.hidden, model.mamba_width // tp)]


def mamba_scan(job: Job, rows: int, *, backward: bool) -> list[Kernel]:
    """The convolution, the scan and the gated norm.

    Several sequences lie token by token between the products and sequence by sequence in the scan: they are copied there and back.
    """
    model, tp, value = job.model, job.layout.tp, job.running.precision.value_bytes
    heads, groups = max(1, model.mamba_heads // tp), max(1, model.mamba_groups // tp)
    width, columns = heads * model.mamba_head_dim, model.mamba_columns // tp
    made: list[Kernel] = [
        CausalConvolution(rows, width + 2 * groups * model.state_dim, backward),
        Scan(rows, heads, model.mamba_head_dim, backward),
        # A norm reads the scan's result and z and writes one tensor; backward it reads both and a gradient, and writes two.
        Sweep(float(rows * width * value) * (5 if backward else 3), count=1),
    ]
    if job.layout.micro_batch > 1:
        made.append(Sweep(2.0 * rows * (columns + width) * value, count=2))
    return made
