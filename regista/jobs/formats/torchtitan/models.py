"""torchtitan's models by name and flavor, and what its release knows of settings (data/torchtitan.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.ir.errors import Unsupported
from regista.jobs.job import Model

__all__ = ["flavor_of", "known", "model_of", "stage_layers"]

_FILE = Path(__file__).parent.parent / "data" / "torchtitan.toml"


@cache
def known() -> Mapping[str, Any]:
    """without_effect, unmapped, flavors, configs."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def model_of(name: str, flavor: str, seq: int) -> Model:
    """Raises Unsupported where there is no such model."""
    flavors = known()["flavors"]
    if flavor not in flavors.get(name, {}):
        told = "; ".join(f"{model}: {', '.join(own)}" for model, own in flavors.items())
        raise Unsupported(f"model {name!r} flavor {flavor!r} is not predicted; known are {told}; give --family NAME in its place")
    return Model(name=f"{name} {flavor}", seq=seq, gated=True, **flavors[name][flavor])


def flavor_of(model: Model) -> tuple[str, str] | None:
    """Name and flavor of a model; None: torchtitan has none with these numbers."""
    plain = replace(model, name="")
    for name, flavors in known()["flavors"].items():
        for flavor in flavors:
            if replace(model_of(name, flavor, model.seq), name="") == plain:
                return name, flavor
    return None


def stage_layers(layers: int, stages: int, first_less: int = 1, last_less: int = 1) -> tuple[int, ...]:
    """How torchtitan spreads layers: embedding and head count as layers of the first and the last stage, and the rest goes to the first ones."""
    each, rest = divmod(layers + first_less + last_less, stages)
    spread = [each + (i < rest) for i in range(stages)]
    spread[0] -= first_less
    spread[-1] -= last_less
    return tuple(spread)
