"""What is compared: Plans of a Flax model and of its torch twin, and what jaxlib and a Plan of a Flax model compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import regista
from experiments.jax_twins.in_flax import step_of
from experiments.jax_twins.in_torch import twin_of
from planner.frontend.stablehlo.paths import names_of_paths
from planner.ir.plan import Plan
from planner.ir.sbp import Split

__all__ = ["Difference", "planned", "trained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of Plan and twin.   parameters: their number, and of how many the layouts are those of the twin's."""

    objective_s: float
    twin_s: float
    parameters: int
    same_layout: int

    @property
    def relative(self) -> float:
        """How far the objective is from the twin's, as a share of it."""
        return abs(self.objective_s / self.twin_s - 1)


_TORCH_NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_DIMS = {2: (1, 0), 4: (2, 3, 1, 0)}
"""Of a kernel of a Flax layer: which dim of torch's weight each of its dims is."""


def _layouts(plan: Plan, of_flax: bool) -> dict[str, tuple[str, ...]]:
    """Parameter by torch's name -> its layout along each axis, in torch's dims."""
    found = {}
    for entry in plan.states:
        if ":" in entry.name:
            continue
        tensor = plan.regst[entry.regst].tensors[entry.index]
        holder, _, leaf = entry.name.rpartition(".")
        dims = _DIMS.get(len(tensor.shape), ()) if leaf == "kernel" else ()
        shown = [f"S({dims[s.dim]})" if isinstance(s, Split) and dims and of_flax else str(s) for s in tensor.sbp]
        found[f"{holder}.{_TORCH_NAMES.get(leaf, leaf)}".lstrip(".") if of_flax else entry.name] = tuple(shown)
    return found


def planned(model: str, cluster: str, **options: Any) -> Difference:
    """The Plans of a model and of its twin, searched alike."""
    step, state, batch = step_of(model)
    mine = regista.plan(regista.from_jax(step, state, batch, name=model), cluster, **options)
    its = regista.plan(twin_of(model), cluster, **options)
    layouts, twins = _layouts(mine, True), _layouts(its, False)
    if layouts.keys() != twins.keys():
        raise AssertionError(f"{model}: other parameters than the twin's: {sorted(layouts.keys() ^ twins.keys())}")
    return Difference(
        objective_s=mine.search.objective_s,
        twin_s=its.search.objective_s,
        parameters=len(layouts),
        same_layout=sum(layouts[name] == twins[name] for name in layouts),
    )


def trained(model: str, steps: int, performer: regista.Performer, **options: Any) -> tuple[float, float]:
    """Train a Flax model by its Plan on 2 devices and by jaxlib: the largest difference of a loss, and of an element of a parameter at the end."""
    step, state, batch = step_of(model)
    program = regista.from_jax(step, state, batch, name=model)
    outcome = regista.run(regista.plan(program, "local:2", **options), program, steps=steps, performer=performer)
    losses, jitted = [], jax.jit(step)
    for _ in range(steps):
        state, loss = jitted(state, batch)
        losses.append(float(loss))
    leaves = jax.tree_util.tree_leaves_with_path(state[0])
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    parameters = dict(zip(names_of_paths(paths, paths), (np.asarray(leaf) for _, leaf in leaves), strict=True))
    apart = [float(np.abs(outcome.states[name].numpy() - leaf).max()) for name, leaf in parameters.items()]
    return max(abs(mine - its) for mine, its in zip(outcome.losses, losses, strict=True)), max(apart)
