"""A loss that is no finite number ends the run, and the act that made it is done again, op by op, to say which op was the first.

rank 1 failed in task forward.1 (act 5, micro-batch 1): the loss is nan: op v12 (aten.log.default, forward, module h.3) made nan in 4 of 16
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from backend.layout.boxing import BOXING, parse_boxing
from backend.ops.kernels import Place, call
from planner.ir.errors import NotFinite
from planner.ir.graph import Arg, Op
from planner.ir.plan import Boxing, Fragment, Placement, Plan, Task

__all__ = ["LossWatch", "first_bad_op"]


class LossWatch:
    """Which fragments of a Plan make the loss, and at which place of task.writes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.places: dict[str, int] = {}
        waiting = [(plan.loss.regst, plan.loss.index)]
        while waiting:
            regst, index = waiting.pop()
            producer = plan.regst[regst].producer
            task = plan.task[producer] if producer is not None else None
            place = next((n for n, w in enumerate(task.writes) if (w.regst, w.index) == (regst, index)), None) if task else None
            if task is None or place is None:
                continue
            if isinstance(task.body, Fragment):
                self.places[task.id] = place
            elif len(task.reads) == len(task.writes):  # boxing and transfers: what they read is what they write
                waiting.append((task.reads[place].regst, task.reads[place].index))

    def check(self, task: Task, rank: int, values: Sequence[Tensor], results: Sequence[Tensor], micro_batch: int = 0) -> None:
        """Raises NotFinite: the loss that ``task`` has just made of ``values`` is nan or infinite."""
        place = self.places.get(task.id)
        if place is None or math.isfinite(loss := float(results[place])):
            return
        raise NotFinite(
            f"the loss is {loss}: {first_bad_op(task, self._plan.placement[task.placement], rank, values, micro_batch)}; {_WAY_OUT}"
        )


_WAY_OUT = "lower the learning rate, look at the data of this step, or go on regardless with allow_nan"


def first_bad_op(task: Task, placement: Placement, rank: int, values: Sequence[Tensor], micro_batch: int = 0) -> str:
    """Where nan or infinity first arose in a fragment.

    Args:
        values: of task.reads, in order, as they were before the act.
    """
    assert isinstance(task.body, Fragment) and not isinstance(task.body, Boxing)
    env: dict[str, Tensor] = {}
    for access, value in zip(task.reads, values, strict=True):
        if not _is_finite(value):
            return f"{access.name} (tensor {access.index} of regst {access.regst}) came in with {_kinds(value)}"
        env.setdefault(access.name, value)
    infinite = ""
    for op in task.body.ops:
        results = _results(op, env, placement, rank, micro_batch)
        before = [env[value] for value in op.inputs]
        for name, result in zip(op.outputs, results, strict=False):
            if name is None or result is None:
                continue
            env[name] = result
            if _is_finite(result):
                continue
            if bool(torch.isnan(result).any()) and not any(bool(torch.isnan(value).any()) for value in before):
                return f"{infinite}{op.where()} made {_kinds(result)}"
            # Masks hold -inf on purpose, as a literal: only what is computed from finite numbers counts.
            if not infinite and before and all(map(_is_finite, before)) and not any(map(_is_infinite, op.args)):
                infinite = f"{op.where()} made {_kinds(result)} of finite values; "
    return infinite.removesuffix("; ") or "no single op of it makes nan or infinity of finite values"


def _results(op: Op, env: Mapping[str, Tensor], placement: Placement, rank: int, micro_batch: int) -> Sequence[Tensor | None]:
    if op.target == BOXING:
        value, function = parse_boxing(op, placement.mesh, placement.coordinate(rank))
        return (function(env[value]),)
    return call(op, env, place=Place(mesh=placement.mesh, coordinate=placement.coordinate(rank), micro_batch=micro_batch))


def _is_infinite(arg: Arg) -> bool:
    return isinstance(arg, float) and not math.isfinite(arg)


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _kinds(value: Tensor) -> str:
    bad = int((~torch.isfinite(value)).sum())
    kind = "nan" if bool(torch.isnan(value).any()) else "infinity"
    return f"{kind} in {bad} of {value.numel()} elements"
