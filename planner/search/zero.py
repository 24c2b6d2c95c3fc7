"""ZeRO as choices of the search: where states are stored, and how a parameter that is stored split reaches those who read it.

level  parameters           gradients of several micro-batches   optimizer state      sent per step and device (T bytes, n devices, 1 micro-batch)
0      where they are read  free                                 beside its parameter  2 T (n-1)/n   all-reduce
1      where they are read  free                                 split                 2 T (n-1)/n   reduce-scatter, all-gather of the update
2      where they are read  split                                split                 2 T (n-1)/n   the same; (m + 1) T (n-1)/n with m micro-batches
3      split                split                                split                 3 T (n-1)/n   all-gather forward and backward, reduce-scatter

"split" is along every mesh axis that some dim allows.  Without a level the search is free; it may then gather a parameter again for the
backward part where memory is limited, which is the one thing of level 3 that costs time.   [Rajbhandari et al. 2020, ZeRO, section 7]
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from planner.ir.sbp import NdSbp, Split

__all__ = ["LEVELS", "DeliveryMode", "most_split", "num_splits"]

LEVELS = (0, 1, 2, 3)


class DeliveryMode(Enum):
    """How a stage has what is delivered to it.

    ANY: not told apart, since nobody counts bytes.   IN_PLACE: what is there already.   COPIED: boxed once, there for all who read it.
    REGATHERED: boxed for the forward part of a block, freed, and boxed again for its backward part, in every micro-batch.
    """

    ANY = "any"
    IN_PLACE = "as it is"
    COPIED = "kept"
    REGATHERED = "again"


def num_splits(sbp: NdSbp) -> int:
    """Number of axes along which a layout num_splits."""
    return sum(isinstance(entry, Split) for entry in sbp.entries)


def most_split(layouts: Sequence[NdSbp]) -> tuple[bool, ...]:
    """Which of the layouts split along as many axes as any of them does."""
    most = max(num_splits(sbp) for sbp in layouts)
    return tuple(num_splits(sbp) == most for sbp in layouts)
