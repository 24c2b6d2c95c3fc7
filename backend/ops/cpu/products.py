"""Products of float32 matrices on CPUs: by torch's library, which is MKL, or by another where MKL is slow.

MKL picks its kernels by the maker of the CPU, and on one that is not Intel's takes those of older CPUs.

AMD from Zen 5 on    has AVX-512 at full width, which MKL leaves alone: a product of 512 x 192 and 192 x 768 takes 1,520 us there and 665 us with
                     oneDNN's kernels (one core of a Zen 5 EPYC, torch 2.13, 2026-11).  Below some two million multiplications oneDNN's call costs
                     more than it saves: 8 x 64 x 256 takes 4 us and 12 us.
AMD without AVX-512  OpenBLAS, which numpy brings along, takes 0.61 to 1.09 of MKL's time, median 0.91 (100 products of 2**21 to 2**28
                     multiplications, all sizes at least 64, one core of a Zen 4 EPYC whose AVX-512 is hidden, numpy 2.4, 2026-11:
                     experiments.rivals.kernels); oneDNN 0.7 to 1.4.
Zen 4                executes its AVX-512 in two halves, and oneDNN takes 0.81 to 1.45 of MKL's time, median 1.05: nothing is gained.

All give the same numbers to rounding.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["Library", "is_large_product", "library", "product"]


class Library(Enum):
    """The library that multiplies large float32 matrices."""

    TORCHS = "torch's"
    ONEDNN = "oneDNN"
    OPENBLAS = "OpenBLAS"


_SMALLEST = 2**21
"""Multiplications from which another library's kernel is the quicker one: oneDNN's takes 0.6 to 0.9 of MKL's time there, 0.5 from 2**26 on."""

_NARROWEST = 64
"""Each size from which OpenBLAS's kernel is: of narrower products some take 1.8 of MKL's time."""

_PIECE, _FEWEST_ROWS = 2**17, 64
"""Numbers of a result that are made at once, and its rows at least: oneDNN writes where it likes, outside the planned memory, and no more than 512 KiB
shall lie there.  The processes of a GPT's pipeline were 2.6 to 8.5 % larger than planned with whole results, up to 5.6 % with pieces of 2 MiB, whose
holes in the heap small objects filled, and are at most as large as planned now; the products take 0 to 10 % longer."""

_CPU = Path("/proc/cpuinfo")
_AMD, _ZEN_5 = "AuthenticAMD", 26
"""AMD's vendor name in /proc/cpuinfo, and its first CPU family that executes 512-bit instructions whole; Zen 4, family 25, splits each in two."""


@cache
def library() -> Library:
    """The fastest library for large products on this CPU: by its maker and instructions, not by a measurement, so that results repeat."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return Library.TORCHS
    try:
        said = [line.partition(":") for line in _CPU.read_text().splitlines()]
    except OSError:
        return Library.TORCHS
    values: dict[str, set[str]] = {}
    for key, _, value in said:
        values.setdefault(key.strip(), set()).update(value.split())
    families = {int(family) for family in values.get("cpu family", ()) if family.isdigit()}
    if values.get("vendor_id") != {_AMD} or "avx2" not in values.get("flags", ()):
        return Library.TORCHS
    if "avx512f" not in values["flags"]:
        return Library.OPENBLAS if _numpy_multiplies_by_openblas() else Library.TORCHS
    is_full_width = min(families, default=0) >= _ZEN_5 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return Library.ONEDNN if is_full_width else Library.TORCHS


def _numpy_multiplies_by_openblas() -> bool:
    """By one thread: all of a host's cores, as it has them by itself in a process of the user's, would be in the way of other ranks."""
    described = np.show_config(mode="dicts")
    name = str(described.get("Build Dependencies", {}).get("blas", {}).get("name", "")) if described is not None else ""
    return "openblas" in name and os.environ.get("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS")) == "1"


def is_large_product(x: Tensor, w: Tensor) -> bool:
    """Whether the product of x [M, K] and w [K, N] is computed by another library than torch's own."""
    (rows, inner), columns = x.shape, w.shape[1]
    if x.dtype is not torch.float32 or w.dtype is not torch.float32 or rows * inner * columns < _SMALLEST or x.device.type != "cpu":
        return False
    match library():
        case Library.TORCHS:
            return False
        case Library.ONEDNN:
            return True
        case Library.OPENBLAS:
            return min(rows, inner, columns) >= _NARROWEST and _has_lines(x) and _has_lines(w)


def product(x: Tensor, w: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """x w, or bias + x w: x [M, K], w [K, N], bias [N] or [M, N]; into ``out`` where it is given."""
    if not is_large_product(x, w) or not (bias is None or (bias.ndim == 1 and bias.dtype is torch.float32)):
        return torch.mm(x, w, out=out) if bias is None else torch.addmm(bias, x, w, out=out)
    if library() is Library.ONEDNN:
        return _by_onednn(x, w, bias, out)
    made = x.new_empty(x.shape[0], w.shape[1]) if out is None or not _has_lines(out) else out
    np.matmul(x.detach().numpy(), w.detach().numpy(), out=made.detach().numpy())
    if bias is not None:
        made += bias
    return made if out is None or made is out else out.copy_(made)


def _by_onednn(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    turned = w.contiguous().t() if _overlaps(w) else w.t()
    made = x.new_empty(x.shape[0], w.shape[1]) if out is None else out
    rows = max(_FEWEST_ROWS, _PIECE // w.shape[1])
    for part, into in zip(torch.split(x, rows), torch.split(made, rows), strict=True):
        into.copy_(torch.ops.mkldnn._linear_pointwise.default(part, turned, bias, "none", [], ""))
    return made


def _has_lines(matrix: Tensor) -> bool:
    """Whether rows, or columns, lie one after the other without gaps inside, as libraries take them; numpy multiplies others number by number."""
    (down, right), (rows, columns) = matrix.stride(), matrix.shape
    return (right == 1 and down >= columns) or (down == 1 and right >= rows)


def _overlaps(matrix: Tensor) -> bool:
    """Whether rows share memory with one another as frames of a signal do, which oneDNN refuses."""
    (down, right), (rows, columns) = matrix.stride(), matrix.shape
    return 0 < down < columns * right and 0 < right < rows * down
