"""What one parameter's update computes, found by asking it: its numbers from a few values at which they stand alone, then a proof by trial.

AdamW   m' = b1 m + (1 - b1) g      v' = b2 v + (1 - b2) g^2      p' = p - lr ((m' / c1) / (sqrt(v' / c2) + eps) + w p)
SGD     t' = b t + g                p' = p - lr t'  (nesterov: p - lr (g + b t'))

  b1 = m'(m=1, g=0)        b2 = v'(v=1, g=0)       lr from p'(p=0, m=1, v very large)       eps from v=0       w from p=1, m=g=0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from planner.frontend.optim.rules import SGD, AdamW

__all__ = ["Asked", "Fit", "fitted", "plain"]

Ask = Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]]
"""(values by role: p, g and the states; count) -> new values by role, all float64."""

Fit = tuple[SGD | AdamW, Mapping[str, str], Callable[[int], float]]
"""The rule, the slot of each state by role, and the rate by count."""

_LARGE = 1e20


@dataclass(frozen=True, slots=True)
class Asked:
    """An update that can be asked.   states: roles of the states of the parameter's shape.   counted: it keeps a count of steps."""

    ask: Ask
    shape: tuple[int, ...]
    states: tuple[str, ...]
    counted: bool

    def at(self, numbers: Mapping[str, float], count: int = 0) -> dict[str, float]:
        """The new values where every element of an old one is a number; 0 where none is given."""
        filled = {role: torch.full(self.shape, numbers.get(role, 0.0), dtype=torch.float64) for role in ("p", "g", *self.states)}
        made = self.ask(filled, count)
        return {role: float(value.reshape(-1)[0]) for role, value in made.items()}


def fitted(asked: Asked, rates_at: tuple[int, ...]) -> Fit | None:
    """The rule that the update is, its slot of each state, and its rate by count; None: none that is known."""
    return _adamw(asked, rates_at) if len(asked.states) == 2 and asked.counted else _sgd(asked, rates_at)


def plain(value: float) -> float:
    """The shortest decimal that is this number in float32."""
    return float(str(np.float32(value)))


def _adamw(asked: Asked, rates_at: tuple[int, ...]) -> Fit | None:
    first, second = asked.states
    grown = asked.at({"g": 2.0})
    if abs(grown[first]) < abs(grown[second]) or not grown[first]:  # (1 - b1) 2 and (1 - b2) 4
        first, second = second, first
    b1, b2 = asked.at({first: 1.0})[first], asked.at({second: 1.0})[second]
    if not (0 <= b1 < 1 and 0 <= b2 < 1):
        return None

    def rate(count: int) -> float:
        c1, c2 = 1 - b1 ** (count + 1), 1 - b2 ** (count + 1)
        moved = asked.at({first: 1.0, second: _LARGE}, count)["p"]
        return abs(moved) * (b2 * _LARGE / c2) ** 0.5 / (b1 / c1) if b1 and moved < 0 else 0.0

    lr, count = max((rate(count), count) for count in rates_at)
    if not lr > 0:
        return None
    largest = -asked.at({first: 1.0}, count)["p"]
    eps = lr * (b1 / (1 - b1 ** (count + 1))) / largest if np.isfinite(largest) else 0.0
    decay = (1 - asked.at({"p": 1.0, second: 1.0}, count)["p"]) / lr
    rule = AdamW(lr=plain(lr), betas=(plain(b1), plain(b2)), eps=plain(eps), weight_decay=plain(decay) if abs(decay) > 1e-9 else 0.0)

    def expected(values: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        p, g, m, v = values["p"], values["g"], values[first], values[second]
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        step = (m / (1 - b1 ** (count + 1))) / ((v / (1 - b2 ** (count + 1))).sqrt() + rule.eps)
        return {"p": p - rate(count) * (step + rule.weight_decay * p), first: m, second: v}

    return (rule, {first: "exp_avg", second: "exp_avg_sq"}, rate) if _proven(asked, expected, second, rates_at) else None


def _sgd(asked: Asked, rates_at: tuple[int, ...]) -> Fit | None:
    if len(asked.states) > 1:
        return None
    held = asked.states[0] if asked.states else ""
    momentum = asked.at({held: 1.0})[held] if held else 0.0
    nesterov = (
        bool(held) and abs(asked.at({"g": 1.0})["p"]) > abs(asked.at({held: 1.0})["p"] / momentum) * (1 + 1e-6) if momentum else False
    )

    def rate(count: int) -> float:
        return -asked.at({"g": 1.0}, count)["p"] / (1 + momentum if nesterov else 1)

    lr, count = max(((rate(count), count) for count in rates_at), key=lambda pair: abs(pair[0]))
    if not np.isfinite(lr) or lr == 0:
        return None
    decay = (1 - asked.at({"p": 1.0}, count)["p"]) / lr / (1 + momentum if nesterov else 1)
    rule = SGD(lr=abs(plain(lr)), momentum=plain(momentum), weight_decay=plain(decay) if abs(decay) > 1e-9 else 0.0, nesterov=nesterov)

    def expected(values: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        p, g = values["p"], values["g"] + rule.weight_decay * values["p"]
        if not held:
            return {"p": p - rate(count) * g}
        t = momentum * values[held] + g
        return {"p": p - rate(count) * (g + momentum * t if nesterov else t), held: t}

    return (rule, {held: "momentum_buffer"} if held else {}, rate) if _proven(asked, expected, "", rates_at) else None


def _proven(
    asked: Asked, expected: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]], positive: str, counts: tuple[int, ...]
) -> bool:
    """Whether the update computes what the rule does, at random values and several counts, to float32's rounding of the constants."""
    generator = torch.Generator().manual_seed(0)
    for count in counts:
        values = {role: torch.randn(asked.shape, generator=generator, dtype=torch.float64) for role in ("p", "g", *asked.states)}
        if positive:
            values[positive] = values[positive].abs() + 1e-3
        made, wanted = asked.ask(values, count), expected(values, count)
        if not all(torch.allclose(made[role], wanted[role], rtol=2e-5, atol=1e-7) for role in wanted):
            return False
    return True
