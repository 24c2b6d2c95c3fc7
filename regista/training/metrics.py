"""What an evaluation measures beside its loss.

A Metric is a function of the module's output and the targets of one batch, metric(output, *targets), that gives a number, the mean over the batch's
samples, or (sum, count) where batches count differently.  Over all batches of an evaluation: the sum of sums over the sum of counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram
from planner.ir.text import number_or_text

__all__ = ["Measured", "Metric", "accuracy", "check_metrics"]

Metric = Callable[..., object]

PERPLEXITY = "perplexity"
"""exp of the evaluation's loss, where that is a mean cross entropy in nats."""

_IGNORED = -100
"""The value of targets that torch's cross_entropy does not count."""


def accuracy(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How many targets are the class of the largest output, and how many there are; targets of -100 are left out.

    Args:
        output: [..., classes], or [samples, classes, ...] as cross_entropy takes it.   target: whole numbers of the other dims.
    """
    chosen = output.argmax(-1 if output.shape[:-1] == target.shape else 1)
    counted = target != _IGNORED
    return ((chosen == target) & counted).sum(), counted.sum()


_KNOWN: Mapping[str, Metric] = {"accuracy": accuracy}


def check_metrics(metrics: Mapping[str, Metric] | Sequence[str]) -> dict[str, Metric]:
    """Metrics by name, perplexity left out.

    Raises:
        InvalidProgram: a name that is not known, or what is no function.
    """
    if isinstance(metrics, str):
        raise InvalidProgram(f"metrics is the text {metrics!r}; give names in a tuple, or a mapping of functions")
    if not isinstance(metrics, Mapping):
        unknown = [name for name in metrics if name not in _KNOWN and name != PERPLEXITY]
        if unknown:
            known = ", ".join([*_KNOWN, PERPLEXITY])
            raise InvalidProgram(
                f"metric {unknown[0]!r} is not known; known by name are {known}; or give {{name: function(output, *targets)}}"
            )
        return {name: _KNOWN[name] for name in metrics if name != PERPLEXITY}
    for name, metric in metrics.items():
        if name == "loss" or not name.isidentifier() or isinstance(number_or_text(name), float | int):
            raise InvalidProgram(f"a metric cannot be named {name!r}; give a name of letters, digits and _ that is not 'loss'")
        if not callable(metric):
            raise InvalidProgram(f"metric {name!r} is a {type(metric).__name__}; give a function of (output, *targets)")
    return dict(metrics)


@dataclass(slots=True)
class Measured:
    """Adds up the batches of one evaluation.   losses: of its batches."""

    metrics: Mapping[str, Metric] | Sequence[str]
    losses: list[float] = field(default_factory=list)
    _totals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add_output(self, output: object, targets: Sequence[object]) -> None:
        """What the module returned for one more batch, whose loss stands in ``losses``.

        Raises:
            InvalidProgram: a metric raised, or gave no number.
        """
        for name, metric in check_metrics(self.metrics).items():
            total, count = _numbers(name, metric, output, targets)
            before = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = before[0] + total, before[1] + count

    def values(self) -> dict[str, float]:
        """Name -> value over all batches; the loss is the mean of the batches' losses, nan where they have none."""
        loss = math.fsum(self.losses) / len(self.losses) if self.losses else math.nan
        values = {"loss": loss} | {name: total / count if count else math.nan for name, (total, count) in self._totals.items()}
        if not isinstance(self.metrics, Mapping) and PERPLEXITY in self.metrics:
            values[PERPLEXITY] = math.exp(loss) if loss < 700 else math.inf
        return values


def _numbers(name: str, metric: Metric, output: object, targets: Sequence[object]) -> tuple[float, float]:
    try:
        with torch.no_grad():
            value = metric(output, *targets)
        total, count = value if isinstance(value, tuple) else (value, 1)
        return float(total), float(count)
    except Exception as error:
        raise InvalidProgram(
            f"metric {name} raised {type(error).__name__}: {error}; it is called with (output, *targets) and gives a number or (sum, count)"
        ) from error
