"""What devices hold, as demands of the choice problem.

Stage s is fullest at time 2 s, when its forward part is done, or at time 2 s + 1, when its backward part is done for the first time:

    states                                                           both times
    what the backward part will read, for every micro-batch in flight   2 s; 2 s + 1 for all but one of them, where no forward part follows
    accumulated gradients                                            2 s + 1; both times where a forward part follows a backward part

Where a forward part follows, time 2 s is the later one, at which a full number of micro-batches and the gradients meet.  Of a piece of a model time
2 s + 1 is the end of the step, with no micro-batch in flight, since that is what all stages have alike.

A Plan holds more (what is on its way), never less.
"""

from __future__ import annotations

import numpy as np

from planner.ir.tensor import TensorType
from planner.search.formulation.draft import ProblemDraft
from planner.search.formulation.layout_sets import LayoutSet
from planner.search.formulation.options import FormulationOptions
from planner.solve.problem import Floats

__all__ = ["MemoryDemands"]


class MemoryDemands:
    """Adds demands to a draft; adds none if memory is not counted."""

    def __init__(self, draft: ProblemDraft, mesh: tuple[int, ...], options: FormulationOptions) -> None:
        self._draft, self._mesh, self._options = draft, mesh, options
        self._amounts: dict[tuple[LayoutSet, TensorType, tuple[int, ...]], Floats] = {}

    def add_state(self, node: int, layouts: LayoutSet, logical: TensorType, stage: int) -> None:
        """A state is held at all times."""
        self._add(node, layouts, logical, 2 * stage, 2 * stage + 2, (1,))

    def add_saved(self, node: int, layouts: LayoutSet, logical: TensorType, stage: int, *blocks: int) -> None:
        """A value waits for the backward part, in so many blocks: one number for all layouts, or one for each equal share of them."""
        self._add(node, layouts, logical, 2 * stage, 2 * stage + 1, blocks)

    def add_still_saved(self, node: int, layouts: LayoutSet, logical: TensorType, stage: int, *blocks: int) -> None:
        """As add_saved, of which so many blocks are left when the backward part is done for the first time and no forward part follows."""
        if self._options.saved_elsewhere is None and not self._forward_follows(stage):
            self._add(node, layouts, logical, 2 * stage + 1, 2 * stage + 2, blocks)

    def add_gradient(self, node: int, layouts: LayoutSet, logical: TensorType, stage: int) -> None:
        """An accumulated gradient is held from the first backward part on, to the end of the step."""
        self._add(node, layouts, logical, 2 * stage + (not self._forward_follows(stage)), 2 * stage + 2, (1,))

    def _forward_follows(self, stage: int) -> bool:
        """Whether the stage performs a forward part after a backward part in one step."""
        in_flight = self._options.in_flight
        return bool(in_flight) and self._options.micro_batches > in_flight[stage]

    def _add(self, node: int, layouts: LayoutSet, logical: TensorType, start: int, stop: int, blocks: tuple[int, ...]) -> None:
        if not self._options.is_limited or not any(blocks):
            return
        key = (layouts, logical, blocks)
        if key not in self._amounts:
            size = [logical.with_shape(sbp.local_shape(logical.shape, self._mesh)).size_bytes for sbp in layouts.layouts]
            self._amounts[key] = np.array(size, dtype=np.float64) * np.repeat(blocks, len(layouts) // len(blocks))
        self._draft.add_demand(node, start, stop, self._amounts[key])
