"""All combinations of a small set of decisions, each with its step and its bytes, as arrays with one dim per decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.search_space.choices import Choices, Kind

__all__ = ["Every", "every_choice"]


@dataclass(frozen=True, slots=True)
class Every:
    """step_s, held_bytes: of each combination, flat; infinite seconds: forbidden.   untied_s: the step without what only breaks ties.

    sizes: of the decisions, by which a place is read.
    """

    step_s: NDArray[np.float64]
    untied_s: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    sizes: tuple[int, ...]

    def choice(self, place: int) -> tuple[int, ...]:
        """What is chosen for each decision."""
        wide = iter(np.unravel_index(place, [size for size in self.sizes if size > 1]))
        return tuple(int(next(wide)) if size > 1 else 0 for size in self.sizes)

    def least_s(self, limit_bytes: float = np.inf, *, untied: bool = False) -> float:
        """Seconds of the quickest combination that holds at most so many bytes; infinite: none does."""
        step_s = self.untied_s if untied else self.step_s
        fitting = step_s if limit_bytes == np.inf else np.where(self.held_bytes <= limit_bytes, step_s, np.inf)
        return float(fitting.min())

    def cheapest(self, below_s: float) -> Iterator[int]:
        """Places of combinations below so many seconds, the cheapest first."""
        places = np.flatnonzero(self.step_s < below_s)
        yield from (int(place) for place in places[np.argsort(self.step_s[places], kind="stable")])

    def smallest(self, most: int, below_s: float) -> list[int]:
        """Places of so many combinations below so many seconds that hold least, the quicker first where they hold as much."""
        places = np.flatnonzero(self.step_s < below_s)
        order = np.lexsort((self.step_s[places], self.held_bytes[places]))
        return [int(place) for place in places[order[:most]]]


def every_choice(choices: Choices) -> Every:
    """Step and bytes of every combination."""
    axes = {node: axis for axis, node in enumerate(n for n, size in enumerate(choices.sizes) if size > 1)}
    shape = [choices.sizes[node] for node in axes]
    sums: dict[tuple[Kind, int], NDArray[np.float64]] = {}
    for term in choices.terms:
        wide = [1] * len(shape)
        for node in term.nodes:
            if node in axes:
                wide[axes[node]] = choices.sizes[node]
        first = term.nodes[0]
        amounts = term.amounts
        if len(term.nodes) == 2 and first in axes and term.nodes[1] in axes and axes[first] > axes[term.nodes[1]]:
            amounts = amounts.T
        sums.setdefault(term.bucket, np.zeros(shape))
        sums[term.bucket] += amounts.reshape(wide)
    zero = np.zeros(shape)
    stages = range(choices.staged.num_stages)
    micro = [sums.get((Kind.MICRO, s), zero) for s in stages]
    once = [sums.get((Kind.ONCE, s), zero) for s in stages]
    held = [amounts for (kind, _), amounts in sums.items() if kind is Kind.HELD]
    once_s = np.max(once, axis=0)
    with np.errstate(invalid="ignore"):  # 0 x infinite: forbidden all the same
        micro_s = np.sum(micro, axis=0) + (choices.micro_batches - 1) * np.max(micro, axis=0)
    micro_s = np.where(np.isnan(micro_s), np.inf, micro_s)
    ties = [once[0] + sums.get((Kind.TIE, 0), zero), *once[1:]]
    held_bytes = np.max(held, axis=0) if held else zero
    step_s, untied_s = micro_s + np.max(ties, axis=0), micro_s + once_s
    return Every(step_s.ravel(), untied_s.ravel(), held_bytes.ravel(), tuple(choices.sizes))
