"""What equal means: a training in float32 or float64 against another, to rounding."""

from __future__ import annotations

from math import inf

import torch
from oracle import Outcome as Eager

from backend.run_folder.outcome import Outcome


def assert_transparent(outcome: Outcome, eager: Eager, *, factor: float = 1.0) -> None:
    """SEMANTICS 6.1: losses, gradients, parameters and buffers equal those of one device, to the rounding of float32.

    Args:
        factor: how much tighter (or wider) than float32's the tolerance is.
    """
    worst = errors(outcome, eager, factor=factor)
    too_large = {what: f"{error:.3g} times what rounding allows, at {name}" for what, (error, name) in worst.items() if not error <= 1}
    assert not too_large, too_large


def errors(outcome: Outcome, eager: Eager, *, factor: float = 1.0) -> dict[str, tuple[float, str]]:
    """'loss', 'gradient', 'state' -> largest |difference| as a multiple of what is allowed, and where; more than 1 is a difference.

    Allowed of value x: 1e-6 + 1e-5 |x| for losses, 1e-7 + 1e-5 max |g| + 1e-4 |x| for a gradient g, 2e-5 + 1e-4 |x| for a state; all
    times ``factor``.
    """
    assert set(outcome.gradients) == set(eager.gradients_of_last_step)
    error_of = {"loss": max((_beyond(a, b, 1e-6, 1e-5, factor), f"step {n}") for n, (a, b) in enumerate(_losses(outcome, eager)))}
    assert len(outcome.losses) == len(eager.losses)
    gradients = eager.gradients_of_last_step
    error_of["gradient"] = max(
        (_beyond(outcome.gradients[n], g, 1e-7 + 1e-5 * float(g.abs().max()), 1e-4, factor), n) for n, g in gradients.items()
    )
    states = {**eager.parameters, **eager.buffers}
    error_of["state"] = max((_beyond(outcome.states[n], value, 2e-5, 1e-4, factor), n) for n, value in states.items())
    return error_of


def _losses(outcome: Outcome, eager: Eager) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = zip(outcome.losses, eager.losses, strict=True)
    return [(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)) for a, b in pairs]


def _beyond(value: torch.Tensor, wanted: torch.Tensor, absolute: float, relative: float, factor: float) -> float:
    """Largest multiple of factor (absolute + relative |wanted|) by which the two differ; infinite where a number is missing.

    Raises:
        AssertionError: another shape or dtype.
    """
    assert value.shape == wanted.shape and value.dtype == wanted.dtype, (value.shape, value.dtype, wanted.shape, wanted.dtype)
    if value.dtype == torch.bool:
        return 0.0 if torch.equal(value, wanted) else inf
    if value.numel() == 0:
        return 0.0
    here, there = value.double(), wanted.double()
    gap = (here - there).abs() / (factor * (absolute + relative * there.abs()))
    gap = torch.where(here == there, 0.0, gap)  # two infinities are equal
    return float(gap.nan_to_num(nan=inf, posinf=inf).max())
