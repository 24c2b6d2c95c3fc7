"""What a choice problem counts, and what it leaves to choose."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from planner.cost.routing import ExpertLoad
from planner.search.context import Context

__all__ = ["FormulationOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulationOptions:
    """Options of build_model.

    pipeline_slots: acts of a micro-batch that the step waits for, m + p - 1.
    limit_bytes: of a device; infinite: no memory is counted.   in_flight: per stage, micro-batches that wait for their backward pass.
    zero: the ZeRO level that is asked for; None: the search is free.
    context: how attention over a cut sequence is performed; None: the search is free.
    load: of experts, at whose quantile their work is priced; None: even.
    saved_elsewhere: values that the backward part of another piece of the model reads; None: the graph is a whole model.
    """

    micro_batches: int
    pipeline_slots: int
    limit_bytes: float = inf
    in_flight: tuple[int, ...] = ()
    zero: int | None = None
    context: Context | None = None
    load: ExpertLoad | None = None
    saved_elsewhere: frozenset[str] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether memory is counted."""
        return self.limit_bytes < inf
