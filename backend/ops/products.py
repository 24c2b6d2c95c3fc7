"""Products of float32 matrices on CPUs: by MKL, or by oneDNN where MKL is slow.

MKL picks its kernels by the maker of the CPU, and on one that is not Intel's takes those of older CPUs, without AVX-512: a product of 512 x 192 and
192 x 768 takes 1,520 us there and 665 us with oneDNN's kernels (one core of a Zen 5 EPYC, torch 2.13, 2026-11), to the same numbers.  Below
some two million multiplications oneDNN's call costs more than it saves: 8 x 64 x 256 takes 4 us and 12 us.  Where the CPU has no AVX-512, or does
its instructions in two halves, oneDNN gains nothing: 0.7 to 1.4 of MKL's time on an EPYC without AVX-512, 0.81 to 1.45, median 1.05, on a Zen 4 EPYC
(products of 2**26 to 2**32 multiplications).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["is_large_product", "mkl_is_slow", "product"]

_SMALLEST = 2**21
"""Multiplications from which oneDNN's kernel is the quicker one: 0.6 to 0.9 of MKL's time there, 0.5 from 2**26 on [measured as above]."""

_PIECE, _FEWEST_ROWS = 2**17, 64
"""Numbers of a result that are made at once, and its rows at least: oneDNN writes where it likes, outside the planned memory, and no more than 512 KiB
shall lie there.  The processes of a GPT's pipeline were 2.6 to 8.5 % larger than planned with whole results, up to 5.6 % with pieces of 2 MiB, whose
holes in the heap small objects filled, and are at most as large as planned now; the products take 0 to 10 % longer."""

_CPU = Path("/proc/cpuinfo")
_AMD, _ZEN_5 = "AuthenticAMD", 26
"""AMD's vendor name in /proc/cpuinfo, and its first CPU family that executes 512-bit instructions whole; Zen 4, family 25, splits each in two."""


@cache
def mkl_is_slow() -> bool:
    """Whether torch multiplies by MKL, has oneDNN too, and this is a CPU of AMD's that does AVX-512 at full width."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    try:
        said = [line.partition(":") for line in _CPU.read_text().splitlines()]
    except OSError:
        return False
    values: dict[str, set[str]] = {}
    for key, _, value in said:
        values.setdefault(key.strip(), set()).update(value.split())
    families = {int(family) for family in values.get("cpu family", ()) if family.isdigit()}
    return values.get("vendor_id") == {_AMD} and min(families, default=0) >= _ZEN_5 and "avx512f" in values.get("flags", ())


def is_large_product(x: Tensor, w: Tensor) -> bool:
    """Whether oneDNN multiplies x [M, K] and w [K, N]."""
    large = x.dtype is w.dtype is torch.float32 and x.shape[0] * x.shape[1] * w.shape[1] >= _SMALLEST
    return large and x.device.type == "cpu" and mkl_is_slow()


def product(x: Tensor, w: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """x w, or bias + x w: x [M, K], w [K, N], bias [N] or [M, N]; into ``out`` where it is given."""
    if is_large_product(x, w) and (bias is None or (bias.ndim == 1 and bias.dtype is torch.float32)):
        turned = w.contiguous().t() if _overlaps(w) else w.t()
        made = x.new_empty(x.shape[0], w.shape[1]) if out is None else out
        rows = max(_FEWEST_ROWS, _PIECE // w.shape[1])
        for part, into in zip(torch.split(x, rows), torch.split(made, rows), strict=True):
            into.copy_(torch.ops.mkldnn._linear_pointwise.default(part, turned, bias, "none", [], ""))
        return made
    return torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)


def _overlaps(matrix: Tensor) -> bool:
    """Whether rows share memory with one another as frames of a signal do, which oneDNN refuses."""
    (down, right), (rows, columns) = matrix.stride(), matrix.shape
    return 0 < down < columns * right and 0 < right < rows * down
