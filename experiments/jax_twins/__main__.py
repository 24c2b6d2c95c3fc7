"""Flax NNX models with optax AdamW: plans beside those of torch twins (kind ``sim``), training on 2 processes beside jaxlib (kind ``run``).

    python -m experiments.jax_twins        plan, train, write results/jax_twins.csv, print           [extra jax; 1 core, two minutes]

difference: of the objective from the twin's, as a share; or of the worst loss from jaxlib's.   at_end: the worst element of any parameter after
the steps, against jaxlib's.   layouts: parameters whose layout is the twin's, of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import regista
from experiments.jax_twins.measure import planned, trained

CSV = Path(__file__).parent.parent / "results/jax_twins.csv"
WAYS = (
    ("local:2", {"micro_batches": 1}),
    ("local:2", {"micro_batches": 2, "stages": 2}),
    ("dgx-a100:1", {"micro_batches": 1}),
    ("dgx-a100:1", {"micro_batches": 1, "mesh": (2, 4)}),
    ("dgx-a100:1", {"micro_batches": 4, "stages": 2}),
)
RUNS: tuple[dict[str, int], ...] = ({"micro_batches": 1}, {"micro_batches": 2, "stages": 2})
STEPS = 3


def rows() -> Iterator[dict[str, object]]:
    """One row per model and way."""
    for model in ("gpt", "vit", "mixer"):
        for cluster, options in WAYS:
            found = planned(model, cluster, **options)
            row = {"kind": "sim", "model": model, "cluster": cluster, "options": _shown(options), "objective_s": found.objective_s}
            layouts = f"{found.same_layout} of {found.parameters}"
            yield row | {"twin_s": found.twin_s, "difference": f"{found.relative:.2e}", "layouts": layouts}
        for options in RUNS:
            losses, at_end = trained(model, STEPS, regista.Performer.GLOO, **options)
            row = {"kind": "run", "model": model, "cluster": "local:2", "options": _shown(options), "steps": STEPS}
            yield row | {"difference": f"{losses:.2e}", "at_end": f"{at_end:.2e}"}


def _shown(options: dict[str, object]) -> str:
    return " ".join(f"{key}={value if not isinstance(value, tuple) else 'x'.join(map(str, value))}" for key, value in options.items())


if __name__ == "__main__":
    table = pd.DataFrame(rows())
    table.to_csv(CSV, index=False)
    print(table.to_string(index=False))
