"""Where a run begins: which step, and with which values.

init       "module"          the module's own values, built once in this process
           "philox:SEED"     the module's distributions, drawn by counter: every rank draws just its part, nobody holds the model
           "weights:FILE"    a state_dict on disk, cut without any rank holding the whole; optimizer state is zero
           "checkpoint:DIR"  parameters and optimizer state of another run, from its newest checkpoint; steps count from 0
state      given values, of any other Plan of the program: a run's last states, a session's, a checkpoint; its optimizer state is left out
resume     the newest checkpoint of the run's own folder, and its step number; ``init`` where there is none yet
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoint import Saved, find, resume_point, verify
from backend.checkpoint.owner import check_free
from backend.checkpoint.resume import empty_folder
from backend.initial import Given, Layers, Renamed, Values, Weights, program_values
from backend.initial.values import as_values
from planner.frontend import Program
from planner.frontend.optim.loss_scale import state_of
from planner.frontend.to_graph.update import average_of
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind
from planner.ir.plan import Plan

__all__ = ["Beginning", "beginning", "typed_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """values: of all states of the Plan after ``first_step`` steps."""

    values: Mapping[str, Tensor] | Values
    first_step: int = 0


def beginning(
    plan: Plan,
    program: Program,
    *,
    init: str = "module",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    state: Mapping[str, Tensor] | Values | None = None,
    ema: bool = False,
) -> Beginning:
    """See the module's text.

    Args:
        ema: the moving averages of parameters instead of the parameters, of those that have one.

    Raises:
        Unsupported: ``init`` is none of the forms, or ``resume`` without a folder.
        InvalidFile: a file is missing or damaged; or the folder holds another run's checkpoints, or one is saving there.
    """
    if resume and checkpoint is None:
        raise Unsupported("a run resumes from its checkpoint folder; give --checkpoint DIR with --resume")
    if checkpoint is not None:
        check_free(Path(checkpoint))
    resumed = resume_point(checkpoint) if resume and checkpoint is not None else None
    if resumed is not None:
        return Beginning(values=_from_checkpoint(plan, program, resumed.values), first_step=resumed.steps)
    if checkpoint is not None:
        empty_folder(checkpoint)
    if state is not None and init != "module":
        raise Unsupported(f"a run begins with one state; give state or init={init!r}, not both")
    values = _first(plan, program, init) if state is None else _given(plan, program, state)
    return Beginning(values=_averaged(plan, values) if ema else values)


def _first(plan: Plan, program: Program, init: str) -> Mapping[str, Tensor] | Values:
    kind, _, rest = init.partition(":")
    if init == "module":
        return program.initial_state(plan.micro_batches)
    if kind == "philox" and rest.lstrip("-").isdecimal():
        return program_values(program, plan.micro_batches, seed=int(rest))
    if kind == "weights" and rest:
        return program_values(program, plan.micro_batches, weights=Weights(rest))
    if kind == "checkpoint" and rest:
        path = find(rest)
        verify(path)
        return _from_checkpoint(plan, program, Saved(str(path)))
    raise Unsupported(f"initial values {init!r} are not known; write module, philox:SEED, weights:FILE or checkpoint:DIR")


def _given(plan: Plan, program: Program, state: Mapping[str, Tensor] | Values) -> Layers:
    """Constants of the trace belong to the Plan; where nothing was drawn before, draws begin as in a first step."""
    return Layers((Given(program.constants(plan.micro_batches)), as_values(state), Given(program.random_state)))


def _averaged(plan: Plan, values: Mapping[str, Tensor] | Values) -> Values:
    source = as_values(values)
    parameters = dict.fromkeys(entry.given_as for entry in plan.states if entry.kind is InputKind.PARAMETER or entry.copy_of)
    names = {name: average_of(name) for name in parameters if source.type_of(average_of(name)) is not None}
    if not names:
        raise Unsupported("this state holds no moving averages of parameters; train with Program(ema=...), or leave ema out")
    return Renamed(source, names)


def _from_checkpoint(plan: Plan, program: Program, saved: Saved) -> Layers:
    """Constants of the trace belong to the Plan, not to the state; all else must be in the checkpoint, but a scale of the loss may begin anew."""
    return Layers((Given(program.constants(plan.micro_batches)), saved, Given(state_of(program.loss_scaling))))


def typed_state(plan: Plan, values: Mapping[str, Tensor] | Values) -> Mapping[str, Tensor]:
    """Tensors without memory of the shapes and dtypes that ``values`` has for the Plan's states."""
    if isinstance(values, Mapping):
        return values
    types = {entry.given_as: values.type_of(entry.given_as) for entry in plan.states}
    return {name: torch.empty(t.shape, dtype=getattr(torch, t.dtype.value), device="meta") for name, t in types.items() if t is not None}
