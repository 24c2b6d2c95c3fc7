"""Models by name: layers, widths and heads of published families, each with its source (data/families.csv)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from planner.ir.errors import Unsupported
from regista.jobs.job import Model

__all__ = ["family", "family_names"]

FILE = Path(__file__).parent / "data" / "families.csv"


@cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["family"]: row for row in csv.DictReader(file)}


def family_names() -> tuple[str, ...]:
    return tuple(_rows())


def family(name: str) -> Model:
    """The model of that name; ``llama3-8b`` is ``llama3.1-8b``, whose numbers are the same.

    Raises:
        Unsupported: no such family.
    """
    row = _rows().get(name) or _rows().get(name.replace("llama3-", "llama3.1-"))
    if row is None:
        raise Unsupported(f"family {name!r} is unknown; known are {', '.join(family_names())}, or give the numbers of [model] yourself")

    def number(key: str) -> int:
        return int(row[key] or 0)

    return Model(
        name=name,
        layers=number("layers"),
        hidden=number("hidden"),
        ffn=number("ffn"),
        heads=number("heads"),
        kv_heads=number("kv_heads"),
        head_dim=number("head_dim"),
        vocab=number("vocab"),
        seq=number("seq"),
        gated=row["gated"] == "true",
        tied=row["tied"] == "true",
        experts=number("experts"),
        top_k=number("top_k"),
        expert_ffn=number("expert_ffn"),
        shared_ffn=number("shared_ffn"),
        kv_latent=number("kv_latent"),
        q_latent=number("q_latent"),
        rope_dim=number("rope_dim"),
        value_dim=number("value_dim"),
        dense_layers=number("dense_layers"),
        pattern=row["pattern"],
        state_dim=number("state_dim"),
        mamba_heads=number("mamba_heads"),
        mamba_head_dim=number("mamba_head_dim"),
        mamba_groups=number("mamba_groups"),
        expert_latent=number("expert_latent"),
        predicted=number("predicted"),
        predicted_pattern=row["predicted_pattern"],
        predicted_alike=row["predicted_alike"] == "true",
        expert_bias=row["expert_bias"] == "true",
        clamped=row["clamped"] == "true",
    )
