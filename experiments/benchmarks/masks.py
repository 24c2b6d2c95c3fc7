"""Dropout on a CPU, in nanoseconds of one core per element: the mask drawn again for the backward pass, kept for it, and as torch does it.

    redrawn    forward: draw, scale                     backward: draw, scale                 no memory        what Plans do
    kept       forward: draw, scale, write the mask     backward: read the mask, scale        1 byte
    torch      torch.native_dropout                     gradient x mask x scale               1 byte

``python -m experiments.benchmarks.masks``
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from planner.frontend.random.kernels import dropout
from planner.frontend.random.words import _CHUNK, _chunk

__all__ = ["main", "times_ns"]

RATE, SEED, DRAW = 0.1, 7, 5
Floats = npt.NDArray[np.float32]


@numba.njit(nogil=True)
def masked(x: Floats, out: Floats, mask: npt.NDArray[np.bool_], draw: int, step: int, seed: int, last: np.uint32, kept: np.float32) -> None:
    """As planner.frontend.random.words.dropped, and the mask is written too."""
    k0, k1 = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) & 0xFFFFFFFF)
    words = np.empty(4 * _CHUNK, dtype=np.uint32)
    at = 0
    while at < x.shape[0]:
        skip, number = _chunk(at, x.shape[0], draw, step, k0, k1, words)
        drawn, given, made, held = words[skip : skip + number], x[at : at + number], out[at : at + number], mask[at : at + number]
        for n in range(number):
            held[n] = drawn[n] <= last
            made[n] = given[n] * (kept if drawn[n] <= last else np.float32(0))
        at += number


@numba.njit(nogil=True)
def applied(x: Floats, out: Floats, mask: npt.NDArray[np.bool_], kept: np.float32) -> None:
    for at in range(x.shape[0]):
        out[at] = x[at] * (kept if mask[at] else np.float32(0))


def times_ns(count: int, rounds: int = 15) -> dict[str, list[float]]:
    """What is timed -> processor time per element, in ns, one entry per round; the rounds of all take turns."""
    x, out = torch.randn(count), torch.empty(count)
    values, result, mask = x.numpy(), out.numpy(), np.empty(count, dtype=np.bool_)
    seed, step = torch.tensor(SEED), torch.tensor(3)
    kept, last = np.float32(1 / (1 - RATE)), np.uint32((1 - RATE) * 2**32)

    _, torch_mask = torch.native_dropout(x, RATE, True)
    works: dict[str, Callable[[], Any]] = {
        "redrawn, each pass": lambda: dropout(x, seed, step, 1 - RATE, 1 - RATE, [count], [], DRAW, out=out),
        "kept, forward": lambda: masked(values, result, mask, DRAW, 3, SEED, last, kept),
        "kept, backward": lambda: applied(values, result, mask, kept),
        "torch, forward": lambda: torch.native_dropout(x, RATE, True),
        "torch, backward": lambda: torch.ops.aten.native_dropout_backward(x, torch_mask, 1 / (1 - RATE)),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            start = time.thread_time_ns()
            work()
            if number:  # the first round compiles
                times[name].append((time.thread_time_ns() - start) / count)
    return times


def main() -> None:
    torch.set_num_threads(1)
    table = Table("elements", "what", "median ns", "least", "most", title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} (run)")
    for count in (1 << 16, 1 << 20, 1 << 22):
        for name, taken in times_ns(count).items():
            table.add_row(f"{count:,}", name, f"{median(taken):.2f}", f"{min(taken):.2f}", f"{max(taken):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
