"""Kernels of ours beside those of torch that they stand for (backend.ops.cpu), on one core, in turns.

    python -m experiments.rivals.kernels [--rounds N] [--products N] [--csv FILE]

Random products have 2**21 to 2**28 multiplications, every size at least 64, and each operand lies by rows or by columns; where torch's own library
is the quickest on this CPU there are none.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from backend.ops.cpu.gelu import gelu, gelu_gradient
from backend.ops.cpu.masks import masked_fill
from backend.ops.cpu.products import Library, library, product

__all__ = ["Pair", "main", "pairs", "times_s"]

_ATEN = torch.ops.aten
_SEED = 2


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same work by a kernel of ours and by torch's, each into memory of its own.   kind: rows of one are summed up together."""

    kind: str
    name: str
    ours: Callable[[], Tensor]
    torchs: Callable[[], Tensor]


def _filled(name: str, shape: Sequence[int], mask: Tensor, value: float) -> Pair:
    x = torch.randn(*shape)
    mine, others = torch.empty_like(x), torch.empty_like(x)
    return Pair(
        kind=f"masked_fill, {name}",
        name="x".join(map(str, shape)),
        ours=lambda: masked_fill(x, mask, value, out=mine),
        torchs=lambda: others.copy_(x).masked_fill_(mask, value),
    )


def _gelus(*shape: int) -> Iterator[Pair]:
    x, g, mine, others = (torch.randn(*shape) for _ in range(4))
    name = "x".join(map(str, shape))
    tanh = {"approximate": "tanh"}
    yield Pair(kind="gelu", name=name, ours=lambda: gelu(x, out=mine, **tanh), torchs=lambda: _ATEN.gelu.out(x, out=others, **tanh))
    yield Pair(
        kind="gelu, gradient",
        name=name,
        ours=lambda: gelu_gradient(g, x, grad_input=mine, **tanh),
        torchs=lambda: _ATEN.gelu_backward.grad_input(g, x, grad_input=others, **tanh),
    )


def _products(count: int) -> Iterator[Pair]:
    drawn = random.Random(_SEED)

    def lying(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns) if drawn.random() < 0.5 else torch.randn(columns, rows).t()

    def pair(rows: int, inner: int, columns: int) -> Pair:
        x, w = lying(rows, inner), lying(inner, columns)
        mine, others = torch.empty(rows, columns), torch.empty(rows, columns)
        name = f"{rows}x{inner}x{columns}"
        return Pair(kind="product", name=name, ours=lambda: product(x, w, out=mine), torchs=lambda: torch.mm(x, w, out=others))

    while count:
        powers = [drawn.uniform(6, 16) for _ in range(3)]
        if 21 <= sum(powers) <= 28:
            count -= 1
            yield pair(*(math.ceil(2**power) for power in powers))


def pairs(products: int) -> Iterator[Pair]:
    """All that is timed, one after the other, so that few are in memory."""
    causal = torch.ones(128, 128, dtype=torch.bool).triu(1)
    yield _filled("causal, -inf", (4, 8, 128, 128), causal, -math.inf)
    yield _filled("causal, 0", (4, 8, 128, 128), causal, 0.0)
    yield _filled("irregular, -inf", (8, 12, 512, 512), torch.rand(512, 512) < 0.5, -math.inf)
    yield from _gelus(512, 1024)
    if library() is not Library.TORCHS:
        yield from _products(products)


def times_s(pair: Pair, rounds: int) -> tuple[float, float]:
    """Medians of both sides, in seconds, after one round that does not count."""
    taken: tuple[list[float], list[float]] = [], []
    for number in range(rounds + 1):
        for side, run in enumerate((pair.ours, pair.torchs)):
            start_ns = time.perf_counter_ns()
            run()
            if number:
                taken[side].append((time.perf_counter_ns() - start_ns) * 1e-9)
    return median(taken[0]), median(taken[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.rivals.kernels", description="Kernels of ours beside torch's.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--products", type=int, default=100)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write a row per pair there")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    rows: list[dict[str, object]] = []
    for pair in pairs(args.products):
        ours_s, torchs_s = times_s(pair, args.rounds)
        rows.append({"kind": pair.kind, "name": pair.name, "ours_s": ours_s, "torchs_s": torchs_s, "share": ours_s / torchs_s})
    frame = pd.DataFrame(rows)
    if args.csv is not None:
        frame.to_csv(args.csv, index=False)
    title = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, large products by {library().value} (run)"
    table = Table("kernel", "n", "ours us", "torch's us", "ours / torch's", "least", "most", title=title)
    for kind, part in frame.groupby("kind", sort=False):
        times = (f"{part[side].median() * 1e6:.0f}" for side in ("ours_s", "torchs_s"))
        shares = (f"{value:.2f}" for value in (part.share.median(), part.share.min(), part.share.max()))
        table.add_row(str(kind), str(len(part)), *times, *shares)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
