"""Where the gradient of a parameter stands in a step: the last value through which everything that the update learns of the batch must pass.

    batch, other parameters --> forward, backward --> g --> m', v', p'         g: no edge from before it to behind it passes it by

Operations stand in an order of their dependences, so a value is such a cut exactly if no edge spans its place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from planner.frontend.stablehlo.listing import Listing, Operation

__all__ = ["Dependence"]


@dataclass(frozen=True, slots=True)
class Dependence:
    """made_by: value -> operation.   place: of each operation in the listing, by its first result."""

    listing: Listing
    made_by: Mapping[int, Operation]
    place: Mapping[int, int]

    @staticmethod
    def of(listing: Listing) -> Dependence:
        place = {value: number for number, operation in enumerate(listing.operations) for value in operation.results}
        return Dependence(listing, listing.made_by(), place)

    def reached_from(self, sources: Iterable[int]) -> set[int]:
        """All values that depend on one of these, themselves included."""
        reached = set(sources)
        for operation in self.listing.operations:
            if not reached.isdisjoint(operation.operands):
                reached.update(operation.results)
        return reached

    def last_cut(self, sinks: Iterable[int], tainted: set[int]) -> int | None:
        """The last value before the sinks through which every path from what is tainted passes; None: there is none.

        Args:
            tainted: the sources and all that depends on them.
        """
        ends = set(sinks)
        waiting = {value for value in ends if value in tainted}
        heap = [-self.place.get(value, -1) for value in waiting]
        heapq.heapify(heap)
        at = {self.place.get(value, -1): value for value in waiting}
        while waiting:
            if len(waiting) == 1 and not waiting & ends:
                return next(iter(waiting))
            value = at[-heapq.heappop(heap)]
            waiting.discard(value)
            operation = self.made_by.get(value)
            if operation is None:
                return None
            for operand in operation.operands:
                if operand in tainted and operand not in waiting:
                    waiting.add(operand)
                    number = self.place.get(operand, -1 - operand)
                    at[number] = operand
                    heapq.heappush(heap, -number)
        return None

    def inputs_of(self, values: Iterable[int], without: Iterable[int] = ()) -> set[int]:
        """The inputs on which values depend, not through ``without``."""
        waiting, seen, found = list(values), set(without), set[int]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            operation = self.made_by.get(value)
            if operation is None:
                found.add(value)
            else:
                waiting.extend(operation.operands)
        return found

    def between(self, inputs: Iterable[int], results: Iterable[int]) -> Listing:
        """The operations that compute the results from these values."""
        waiting, seen, found = list(results), set(inputs), dict[int, Operation]()
        while waiting:
            value = waiting.pop()
            operation = self.made_by.get(value)
            if value in seen or operation is None:
                continue
            seen.add(value)
            found[self.place[value]] = operation
            waiting.extend(operation.operands)
        return replace(self.listing, operations=tuple(found[number] for number in sorted(found)), results=tuple(results))
