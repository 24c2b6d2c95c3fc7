"""Attention over a sequence that is cut (context parallelism): the ways that its signatures are, and which of them is asked for.

way        inside of attention       before it                        behind it, in the backward part            sent by a device, T: bytes of a tensor
gathered   queries S(2), keys B      all-gather of keys and values    reduce-scatter of their gradients          (p-1)/p T each
heads      all S(1)                  all-to-all of queries, keys,     all-to-all of the result and of all        (p-1)/p^2 T each
                                     values                           gradients

[Jacobs et al. 2023, Ulysses: heads.   Dubey et al. 2024, Llama 3, section 3.3.2: gathered]
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from planner.ir.errors import Unsupported
from planner.ir.graph import Op
from planner.ir.sbp import NdSbp, Split
from planner.ir.tensor import TensorType
from planner.search.strategies import Strategy

__all__ = ["Context", "attending", "is_attention"]

_QUERIES = {"regista.attention": 0, "regista.attention_backward": 1}
"""Target -> the operand that is the queries [N, H, S, E]; keys and values stand behind it."""
_HEADS, _ROWS = 1, 2


class Context(Enum):
    """How attention is performed where a sequence is cut."""

    GATHERED = "gathered"
    HEADS = "heads"

    def takes(self, queries: NdSbp) -> bool:
        """Whether queries that lie so are attended to in this way."""
        cut = {entry.dim for entry in queries.entries if isinstance(entry, Split)}
        return _ROWS in cut if self is Context.GATHERED else _HEADS in cut and _ROWS not in cut

    def sent_bytes(self, queries_bytes: float, keys_bytes: float, parts: int) -> float:
        """Bytes that a device sends for one attention, forward and backward, where the sequence is cut into ``parts`` before and behind it.

        Args:
            queries_bytes, keys_bytes: of all queries (or results), and of all keys (or values).
        """
        if self is Context.GATHERED:
            return 4 * keys_bytes * (parts - 1) / parts
        return 4 * (queries_bytes + keys_bytes) * (parts - 1) / parts**2


def is_attention(op: Op) -> bool:
    """Whether the op is attention as a whole, forward or backward."""
    return op.target in _QUERIES


def attending(
    op: Op, types: Mapping[str, TensorType], strategies: tuple[Strategy, ...], way: Context, mesh: tuple[int, ...]
) -> tuple[Strategy, ...]:
    """The strategies of attention that go this way.

    Raises:
        Unsupported: heads, or rows, are fewer than parts or do not divide among them.
    """
    place = _QUERIES[op.target]
    taken = tuple(s for s in strategies if way.takes(s.inputs[place]))
    if taken:
        return taken
    queries = types[op.inputs[place]]
    what, extent = ("rows", queries.shape[_ROWS]) if way is Context.GATHERED else ("heads", queries.shape[_HEADS])
    raise Unsupported(
        f"{op.where()}: context {way.value} cuts its {extent} {what} on mesh {'x'.join(map(str, mesh))}, and no axis divides them (keys and "
        "values may have fewer heads); take another mesh, another way, or leave the context to the search"
    )
