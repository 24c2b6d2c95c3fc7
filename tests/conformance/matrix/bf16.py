"""What equal means in bfloat16: as near to float32 training as plain bfloat16 training is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isnan, sqrt

import torch
from oracle import Outcome as Eager
from oracle import train_eagerly

from backend.run_folder.outcome import Outcome
from planner.frontend import Program

from .cells import STEPS, expected, program, widened


@dataclass(frozen=True)
class Bf16Error:
    """Relative distances |x - x32| / |x32| of all tensors of a kind together, and of losses (largest), from the float32 training."""

    loss: float
    gradient: float
    parameter: float
    buffer: float


@cache
def float32_training(model: str, micro_batches: int, dtype: str = "bf16") -> Eager:
    """The model's numbers, trained in float32."""
    if dtype != "bf16":
        return expected(model, micro_batches)
    return train_eagerly(widened(program(model, "bf16"), model, torch.float32), micro_batches, STEPS)


def bf16_errors(model: str, outcome: Outcome, micro_batches: int, dtype: str = "bf16") -> tuple[Bf16Error, Bf16Error]:
    """(of the plan, of plain bfloat16 training: the largest over 1, 2 and 4 micro-batches, which round in another order each)."""
    mine = _bf16_error(outcome.losses, outcome.gradients, outcome.states, float32_training(model, micro_batches, dtype))
    plain = [_plain_bf16_error(model, count, dtype) for count in {1, 2, 4, micro_batches}]
    return mine, Bf16Error(
        loss=max(e.loss for e in plain),
        gradient=max(e.gradient for e in plain),
        parameter=max(e.parameter for e in plain),
        buffer=max(e.buffer for e in plain),
    )


@cache
def _plain_bf16_error(model: str, micro_batches: int, dtype: str) -> Bf16Error:
    truth, plain = float32_training(model, micro_batches, dtype), expected(model, micro_batches, dtype)
    return _bf16_error(plain.losses, plain.gradients_of_last_step, {**plain.parameters, **plain.buffers}, truth)


def _bf16_error(
    losses: Sequence[float], gradients: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor], truth: Eager
) -> Bf16Error:
    return Bf16Error(
        loss=max(abs(a - b) / abs(b) for a, b in zip(losses, truth.losses, strict=True)),
        gradient=_distance(gradients, truth.gradients_of_last_step),
        parameter=_distance(states, truth.parameters),
        buffer=_distance(states, truth.buffers),
    )


def gradient_error_over_plain(outcome: Outcome, model: str, source: Program, micro_batches: int, dtype: str) -> float:
    """How many times as far from float32 training the plan's gradients are as those of plain training in ``dtype``, the farthest of 1, 2 and 4
    micro-batches.   source: the model in float32, with numbers of its own."""
    low = source.in_formats(dtype, None)
    counts = {1, 2, 4, micro_batches}
    truth = {count: train_eagerly(source, count, STEPS, program(model)).gradients_of_last_step for count in counts}
    plain = [_distance(train_eagerly(low, count, STEPS, program(model)).gradients_of_last_step, truth[count]) for count in counts]
    return _distance(outcome.gradients, truth[micro_batches]) / max(plain)


def _distance(values: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    floats = {name: value.double() for name, value in wanted.items() if value.is_floating_point()}
    gap = sum(float((values[name].double() - value).square().sum()) for name, value in floats.items())
    size = sum(float(value.square().sum()) for value in floats.values())
    return sqrt(gap / size) if size else 0.0


BF16_FACTOR, BF16_FACTOR_OF_ONE = 2.0, 6.0
"""A plan rounds the same values as plain training does, and now and then a partial sum more (P(sum) is added up in bfloat16), so its error is
of the same size; two roundings instead of one bound it by twice.  A single tensor has few numbers, so luck may make plain training's error
small there: 6.  [measured over all cells: all gradients 1.5, parameters 1.3, buffers 1.0; one gradient 4.2]"""


def assert_transparent_in_bf16(model: str, outcome: Outcome, micro_batches: int, dtype: str = "bf16") -> None:
    """SEMANTICS 6.1 in bfloat16: no further from float32 training than a small multiple of what plain bfloat16 training is."""
    worst = errors_in_bf16(model, outcome, micro_batches, dtype)
    too_large = {what: f"{error:.3g} times what is allowed ({where})" for what, (error, where) in worst.items() if not error <= 1}
    assert not too_large, too_large


def errors_in_bf16(model: str, outcome: Outcome, micro_batches: int, dtype: str = "bf16") -> dict[str, tuple[float, str]]:
    """'loss', 'gradient', 'state' -> distance from float32 training as a multiple of what is allowed, and where; 1 at most is right.

    Allowed is BF16_FACTOR times the distance of plain bfloat16 training.  A loss is one number; so half a unit in its last place, 2^-9, is
    allowed besides for each rounding on its way: the sum over the batch, the mean, and the mean over the micro-batches.  A single
    gradient may be off by BF16_FACTOR_OF_ONE times as much, and a unit, 2^-7 of its size, besides.
    """
    plan, plain = bf16_errors(model, outcome, micro_batches, dtype)
    truth = float32_training(model, micro_batches, dtype).gradients_of_last_step
    eager = expected(model, micro_batches, dtype).gradients_of_last_step
    gradients = [(_over(plan.gradient, BF16_FACTOR * plain.gradient), "all")]
    for name, gradient in truth.items():
        mine, theirs = (float((values[name].double() - gradient.double()).norm()) for values in (outcome.gradients, eager))
        gradients.append((_over(mine, BF16_FACTOR_OF_ONE * theirs + 2**-7 * float(gradient.double().norm())), name))
    states = [
        (_over(plan.parameter, BF16_FACTOR * plain.parameter), "parameters"),
        (_over(plan.buffer, BF16_FACTOR * plain.buffer), "buffers"),
    ]
    return {"loss": (_over(plan.loss, BF16_FACTOR * plain.loss + 3 * 2**-9), "all"), "gradient": max(gradients), "state": max(states)}


def _over(error: float, allowed: float) -> float:
    """error / allowed; infinite where there is no number."""
    if isnan(error):
        return inf
    return error / allowed if allowed else (inf if error else 0.0)
