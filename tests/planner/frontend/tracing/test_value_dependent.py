"""Where a value decides a shape or a branch, the refusal says what is usually written instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x)).sum()


def _by_expert(x: Tensor) -> Tensor:
    made = torch.zeros_like(x)
    for expert in range(2):
        (rows,) = torch.where(x[:, 0] > expert)
        made[rows] = x[rows] * expert
    return made


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x[x > 0], r"torch.where\(mask, x, 0\)"),
        (lambda x: x.masked_select(x > 0), r"divide by mask.sum\(\)"),
        (lambda x: x * len(torch.unique(x.round())), "bins of fixed number"),
        (lambda x: x * x.sum().item(), "item"),
        (lambda x: x.repeat_interleave((x[:, 0] > 0).long(), 0), "index of fixed length"),
        (_by_expert, r"experts_implementation='grouped_mm'"),
    ],
    ids=["boolean index", "masked_select", "unique", "item", "repeat_interleave", "loop over experts"],
)
def test_an_op_whose_shape_depends_on_values_is_refused_with_the_usual_rewrite(function: Callable[[Tensor], Tensor], says: str) -> None:
    with pytest.raises(InvalidProgram, match=f"lets a value decide what is computed.*{says}"):
        Program(Applied(function), torch.randn(8, 4)).graph()
