"""Cases for every rule of the op set: builders of real arguments on random small shapes, in float64 so that sums agree closely."""

from __future__ import annotations

from collections.abc import Mapping

from tests.cases.opset_cases import (
    attentions,
    contractions,
    creation,
    elementwise,
    images,
    lookups,
    normalisation,
    recurrences,
    reductions,
    views,
)
from tests.cases.opset_cases.drawing import Builder, Draw
from tests.oracles.sbp_check import Case

__all__ = ["CASES", "Draw", "cases"]

CASES: Mapping[str, Builder] = {
    target: builder
    for family in (elementwise, contractions, reductions, views, normalisation, recurrences, attentions, lookups, images, creation)
    for target, builder in family.CASES.items()
}


def cases(target: str, seed: int) -> tuple[Case, ...]:
    """All cases of one rule for one seed."""
    return tuple(CASES[target](Draw(seed)))
