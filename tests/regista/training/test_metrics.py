"""Metrics over the batches of an evaluation."""

from __future__ import annotations

import math

import pytest
import torch

from planner.ir.errors import InvalidProgram
from regista.training.metrics import Measured, accuracy, check_metrics


def test_accuracy_counts_what_is_asked_for_in_both_orders_of_dims() -> None:
    scores = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2], [3, 3, 1]]), 4).float()
    targets = torch.tensor([[0, 1, 1], [3, -100, 0]])
    assert accuracy(scores, targets) == (3, 5)
    assert accuracy(scores.transpose(1, 2), targets) == (3, 5)
    assert accuracy(scores[:, 0], targets[:, 0]) == (2, 2)


def test_batches_weigh_by_what_they_count() -> None:
    functions = {"share": lambda output, target: (output.sum(), output.numel()), "mean": lambda output, target: output.mean()}
    measured = Measured(functions, [1.0, 2.0])
    measured.add_output(torch.tensor([1.0, 1.0, 1.0]), [torch.zeros(3)])
    measured.add_output(torch.tensor([0.0]), [torch.zeros(1)])
    assert measured.values() == {"loss": 1.5, "share": 0.75, "mean": 0.5}


def test_perplexity_is_exp_of_the_loss() -> None:
    assert Measured(("perplexity",), [1.0, 2.0]).values() == {"loss": 1.5, "perplexity": math.exp(1.5)}


def raises(output: torch.Tensor) -> float:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (("acuracy",), "metric 'acuracy' is not known; known by name are accuracy, perplexity"),
        ("accuracy", "is the text 'accuracy'; give names in a tuple"),
        ({"loss": accuracy}, "cannot be named 'loss'"),
        ({"a b": accuracy}, "cannot be named 'a b'"),
        ({"a": 3}, "metric 'a' is a int; give a function"),
    ],
)
def test_metrics_that_cannot_be_are_refused_before_the_training(metrics: object, says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        check_metrics(metrics)  # type: ignore[arg-type]


def test_a_metric_that_raises_is_named() -> None:
    with pytest.raises(InvalidProgram, match="metric odd raised ValueError: no such thing; it is called with"):
        Measured({"odd": raises}).add_output(torch.zeros(1), [])
