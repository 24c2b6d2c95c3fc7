"""ZeRO as choices of the search: the layouts in which states are stored, and how a stored parameter is delivered to its readers.

level  parameters        gradients (m > 1)  optimizer state   bytes sent per step and device (T bytes, n devices, m = 1 micro-batch)
0      as they are read  any layout         as its parameter  2 T (n-1)/n   all-reduce
1      as they are read  any layout         split             2 T (n-1)/n   reduce-scatter, all-gather of the update
2      as they are read  split              split             2 T (n-1)/n   the same; (m + 1) T (n-1)/n with m > 1 micro-batches
3      split             split              split             3 T (n-1)/n   all-gather forward and backward, reduce-scatter

In mixed precision the working copies are the parameters of this table, and the parameters are optimizer state.

"split" means along every mesh axis that some dim allows.  If no level is given, the search chooses all layouts; where memory is limited, it
may also gather a parameter again for the backward part, which is the only part of level 3 that costs time.
[Rajbhandari et al. 2020, ZeRO, section 7]
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from planner.ir.sbp import NdSbp, Split

__all__ = ["LEVELS", "DeliveryMode", "most_split", "num_splits"]

LEVELS = (0, 1, 2, 3)


class DeliveryMode(Enum):
    """How a value is delivered to the readers on a stage.

    ANY: the model counts no bytes, so it does not distinguish the modes.   IN_PLACE: the stage has the value already.
    COPIED: the value is boxed once, and all readers share the copy.
    REGATHERED: in every micro-batch the value is boxed for the forward part of a block, freed, and boxed again for the backward part.
    """

    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name

    ANY = "any"
    IN_PLACE = "as it is"
    COPIED = "kept"
    REGATHERED = "again"


def num_splits(sbp: NdSbp) -> int:
    """Number of mesh axes along which a layout splits."""
    return sum(isinstance(entry, Split) for entry in sbp.entries)


def most_split(layouts: Sequence[NdSbp]) -> tuple[bool, ...]:
    """For each layout, whether no other of them splits along more axes."""
    most = max(num_splits(sbp) for sbp in layouts)
    return tuple(num_splits(sbp) == most for sbp in layouts)
