"""Wide & Deep on Criteo-like clicks: embedding tables that no device can hold, and a small MLP.

    logit = sum_k wide[id_k]  +  mlp(cat(deep[id_1], ..., deep[id_26], dense))            [Cheng et al. 2016, arXiv 1606.07792]

The configuration is that of OneFlow's DLPerf runs: 2 wide and 26 deep fields that share one table each, 13 dense ones, 7 hidden layers of
1024, a global batch of 16384; the vocabulary grows from 3.2 to 819 million rows.  Theirs drop half of each hidden layer's output
(``--deep_dropout_rate 0.5`` in vocab_x2.sh); here dropout is 0 by default.  They split the wide table by rows and the deep one by columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.seeded import deferred_module, drawn_types, seeded_data
from zoo.text import float_type, in_format

__all__ = ["WideDeep", "click_loss", "wide_deep"]

WIDE_FIELDS, DEEP_FIELDS, DENSE_FIELDS = 2, 26, 13


class WideDeep(nn.Module):
    """Ids (batch, 2) and (batch, 26), numbers (batch, 13) -> logits (batch,)."""

    def __init__(self, vocab: int, embedding: int, layers: int, width: int, sparse: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.wide = nn.Embedding(vocab, 1, sparse=sparse)
        self.deep = nn.Embedding(vocab, embedding, sparse=sparse)
        self.hidden = nn.ModuleList(nn.Linear(width if k else DEEP_FIELDS * embedding + DENSE_FIELDS, width) for k in range(layers))
        self.dropout = dropout
        self.head = nn.Linear(width, 1)

    def forward(self, wide_ids: Tensor, deep_ids: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([self.deep(deep_ids).flatten(1), dense], 1)
        for layer in self.hidden:
            x = F.dropout(layer(x).relu(), self.dropout, self.training)
        logits: Tensor = (self.head(x) + self.wide(wide_ids).sum(1)).squeeze(1)
        return logits


def click_loss(logits: Tensor, clicked: Tensor) -> Tensor:
    """Mean binary cross-entropy of the batch; ``clicked`` is 0 or 1."""
    return F.binary_cross_entropy_with_logits(logits, clicked)


def wide_deep(
    batch: int = 16384,
    vocab: int = 2322444,
    embedding: int = 32,
    layers: int = 7,
    width: int = 1024,
    dtype: str = "fp32",
    optimizer: str = "adamw",
    sparse: bool | int = False,
    dropout: float = 0.0,
    seed: int = 0,
) -> Program:
    """Wide & Deep on random clicks; 83,805,581 parameters by default, 27e9 with vocab=819200000.

    Args:
        batch: global batch.
        vocab: rows of each of the two tables.
        embedding: numbers per row of the deep table (DLPerf: 16 or 32).
        layers, width: hidden layers of the MLP and their features.
        dtype: "fp32", "bf16" or "fp16".
        optimizer: "sgd" or "adamw"; "lazy_adam" with sparse tables.
        sparse: true or 1: of the tables only the rows of the batch are updated.
        dropout: the share of each hidden layer's output that is dropped.

    Raises:
        InvalidProgram: an unknown dtype.
    """
    number = float_type("wide_deep", dtype)
    module = deferred_module(in_format(lambda: WideDeep(vocab, embedding, layers, width, bool(sparse), dropout), "wide_deep", dtype), seed)

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        def ids(fields: int) -> Tensor:
            return torch.randint(0, vocab, (batch, fields), generator=generator)

        dense = torch.randn(batch, DENSE_FIELDS, generator=generator).to(number)
        return ids(WIDE_FIELDS), ids(DEEP_FIELDS), dense, torch.randint(0, 2, (batch,), generator=generator).to(number)

    data = seeded_data(draw, seed)
    return Program(module, drawn_types(draw), click_loss, optimizer, name="wide_deep", data=data, seed=seed)
