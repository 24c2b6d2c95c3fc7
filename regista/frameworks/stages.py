"""Where torch's pipelining is to cut a module so that parameters lie on the stages of a Plan."""

from __future__ import annotations

from torch import nn

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind
from planner.ir.plan import Plan

__all__ = ["split_points"]


def split_points(plan: Plan, module: nn.Module) -> tuple[str, ...]:
    """The modules that begin stages 1, 2, ..., in the order in which the module names them.

    Raises:
        Unsupported: a parameter lies on two stages (tied weights), or modules of one stage do not follow one another.
    """
    number = {placement.id: k for k, placement in enumerate(plan.placements)}
    stage_of: dict[str, int] = {}
    for state in plan.states:
        if state.kind is InputKind.PARAMETER and state.copy_of is None:
            stage = number[plan.regst[state.regst].placement]
            if stage_of.setdefault(state.name, stage) != stage:
                raise Unsupported(
                    f"parameter {state.name} lies on stages {stage_of[state.name]} and {stage}; torch's stages share no parameter"
                )
    shared = [
        name for name, parameter in module.named_parameters(remove_duplicate=False) if name not in stage_of and parameter.requires_grad
    ]
    if shared:
        raise Unsupported(f"parameter {shared[0]} is tied to another one; torch's stages share no parameter, so untie it or take one stage")
    owners: dict[str, list[int]] = {}
    for name, stage in stage_of.items():
        parts = name.split(".")[:-1]
        for depth in range(1, len(parts) + 1):
            owners.setdefault(".".join(parts[:depth]), []).append(stage)
    points: list[str] = []
    last = 0
    for path, _ in module.named_modules():
        stages = set(owners.get(path, ()))
        if len(stages) != 1:
            continue
        (stage,) = stages
        if stage < last or stage > last + 1:
            raise Unsupported(
                f"module {path} is of stage {stage}, behind one of stage {last}; torch cuts a module in the order of its parts"
            )
        if stage == last + 1:
            points.append(path)
            last = stage
    if last != len(plan.placements) - 1:
        raise Unsupported(f"no module begins stage {last + 1} of {len(plan.placements)}: its parameters belong to a module of two stages")
    return tuple(points)
