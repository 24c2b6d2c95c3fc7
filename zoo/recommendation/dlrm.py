"""DLRM: one table per categorical field, and products of every pair of their vectors.            [Naumov et al. 2019, arXiv 1906.00091]

    z0 = bottom(dense);  z_k = table_k[id_k];  logit = top(cat(z0, z_i . z_j for i > j))

The tables are those of the two public Criteo sets; the larger is the one of the MLPerf benchmark, with 24e9 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram
from zoo.recommendation.wide_deep import DENSE_FIELDS, click_loss
from zoo.seeded import deferred_module, drawn_types, seeded_data

__all__ = ["DLRM", "dlrm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    """rows: of each table; bottom, top: features of each layer (bottom's last is the length of every vector)."""

    rows: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]


# fmt: off
CONFIGS = {
    "kaggle": _Config(
        rows=(
            1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4,
            7046547, 18, 15, 286181, 105, 142572,
        ),
        bottom=(512, 256, 64, 16),
        top=(512, 256),
    ),
    "terabyte": _Config(
        rows=(
            39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976, 14, 39979771,
            25641295, 39664984, 585935, 12972, 108, 36,
        ),
        bottom=(512, 256, 128),
        top=(1024, 1024, 512, 256),
    ),
}
# fmt: on


class _MLP(nn.Module):
    """Linear layers, each with relu; behind them a last one without if ``out`` is given."""

    def __init__(self, features: int, widths: Sequence[int], out: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip((features, *widths), widths, strict=False))
        self.out: nn.Module = nn.Identity() if out is None else nn.Linear(widths[-1], out)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        result: Tensor = self.out(x)
        return result


class DLRM(nn.Module):
    """Numbers (batch, 13) and ids (batch, tables) -> logits (batch,)."""

    left: Tensor
    right: Tensor

    def __init__(self, rows: Sequence[int], bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        size, vectors = bottom[-1], len(rows) + 1
        self.tables = nn.ModuleList(nn.Embedding(count, size) for count in rows)
        self.bottom = _MLP(DENSE_FIELDS, bottom, None)
        self.top = _MLP(size + vectors * (vectors - 1) // 2, top, 1)
        left, right = torch.tril_indices(vectors, vectors, -1).unbind()
        self.register_buffer("left", left, persistent=False)
        self.register_buffer("right", right, persistent=False)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        z0 = self.bottom(dense)
        vectors = torch.stack([z0, *(table(ids[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.left, self.right]
        logits: Tensor = self.top(torch.cat([z0, products], 1)).squeeze(1)
        return logits


def dlrm(
    batch: int = 2048, criteo: str = "kaggle", rows: int = 0, tables: int = 26, width: int = 0, optimizer: str = "sgd", seed: int = 0
) -> Program:
    """DLRM on random clicks; 540,677,217 parameters by default, 24e9 with criteo=terabyte.

    Args:
        batch: global batch.
        criteo: "kaggle" or "terabyte": the rows of the tables and the layers around them.
        rows: no table has more rows than this (0: no bound; a larger id would be taken modulo it).
        tables: the first so many of the 26.
        width: no layer has more features than this, the vectors included (0: no bound).
        optimizer: "sgd" or "adamw".

    Raises:
        InvalidProgram: the set has no such name, or the number of tables is not 1 to 26.
    """
    if criteo not in CONFIGS:
        raise InvalidProgram(f"dlrm: criteo {criteo} is unknown; it is one of {', '.join(CONFIGS)}")
    config = CONFIGS[criteo]
    if not 1 <= tables <= len(config.rows):
        raise InvalidProgram(f"dlrm: {tables} tables were asked for; there are 1 to {len(config.rows)}")
    counts = tuple(min(count, rows or count) for count in config.rows[:tables])
    bottom, top = (tuple(min(features, width or features) for features in layers) for layers in (config.bottom, config.top))
    module = deferred_module(lambda: DLRM(counts, bottom, top), seed)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.stack([torch.randint(0, count, (batch,), generator=generator) for count in counts], 1)
        clicked = torch.randint(0, 2, (batch,), generator=generator).float()
        return torch.randn(batch, DENSE_FIELDS, generator=generator), ids, clicked

    data = seeded_data(draw, seed)
    return Program(module, drawn_types(draw), click_loss, optimizer, name="dlrm", data=data, seed=seed)
