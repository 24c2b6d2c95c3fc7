"""Attention over a sequence that is cut (context parallelism): the ways that its signatures are, and which of them is asked for.

way        inside of attention           forward                        backward                          a device sends in all
gathered   queries S(2), keys B          all-gather of keys, values     reduce-scatter of dK, dV          4 (p-1)/p K
heads      all S(1)                      all-to-all of Q, K, V, O       all-to-all of all gradients       4 (p-1)/p^2 (Q + K)
ring       queries S(2), keys S(2)+t     p - 1 shifts of keys, values   p - 1 of keys, values,            2 (3 p-2)/p K
           in step t of p                                               p of dK, dV

Q, K: bytes of all queries, of all keys.  A ring sends most, but while others are attended to, and no device holds all keys.  Causal, every
way but ``heads`` waits for the device that has the last rows, which computes nearly twice the mean.

[Jacobs et al. 2023, Ulysses: heads.   Liu et al. 2023: ring.   Dubey et al. 2024, Llama 3, section 3.3.2: gathered]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from planner.ir.errors import Unsupported
from planner.ir.graph import Op, Ref
from planner.ir.sbp import NdSbp, Split
from planner.ir.tensor import TensorType
from planner.search.strategies import Ring, Strategy

__all__ = ["Context", "attending", "context_of", "is_attention", "is_long", "ring_axis", "rings"]

_QUERIES = {"regista.attention": 0, "regista.attention_backward": 1}
"""Target -> the operand that is the queries [N, H, S, E]; keys and values stand behind it."""
_HEADS, _ROWS = 1, 2
_LONG = 16_384
"""Rows from which on the search looks at rings, unless they are asked for; shorter sequences are searched as quickly as before."""


class Context(Enum):
    """How attention is performed where a sequence is cut."""

    GATHERED = "gathered"
    HEADS = "heads"
    RING = "ring"

    def takes(self, queries: NdSbp, keys: NdSbp) -> bool:
        """Whether queries and keys that lie so are attended to in this way."""
        cut = {entry.dim for entry in queries.entries if isinstance(entry, Split)}
        if self is Context.HEADS:
            return _HEADS in cut and _ROWS not in cut
        return _ROWS in cut and (_axis(queries, keys) is not None) == (self is Context.RING)

    def sent_bytes(self, queries_bytes: float, keys_bytes: float, parts: int) -> float:
        """Bytes that a device sends for one attention, forward and backward, where the sequence is cut into ``parts`` before and behind it.

        Args:
            queries_bytes, keys_bytes: of all queries (or results), and of all keys (or values).
        """
        match self:
            case Context.GATHERED:
                return 4 * keys_bytes * (parts - 1) / parts
            case Context.HEADS:
                return 4 * (queries_bytes + keys_bytes) * (parts - 1) / parts**2
            case Context.RING:
                return 2 * keys_bytes * (3 * parts - 2) / parts


def context_of(way: str | None) -> Context | None:
    """The way of that name; None: left to the search.

    Raises:
        Unsupported: no way of attention over a cut sequence has that name.
    """
    ways = [known.value for known in Context]
    if way is not None and way not in ways:
        raise Unsupported(f"context {way!r} is not known; choose from {', '.join(ways)}, or leave it to the search")
    return None if way is None else Context(way)


def is_attention(op: Op) -> bool:
    """Whether the op is attention as a whole, forward or backward."""
    return op.target in _QUERIES


def is_long(op: Op, types: Mapping[str, TensorType]) -> bool:
    """Whether rings are worth to be looked at."""
    return types[op.inputs[_QUERIES[op.target]]].shape[_ROWS] >= _LONG


def ring_axis(op: Op, inputs: tuple[NdSbp, ...]) -> int | None:
    """The mesh axis along which attention with such operands is a ring; None: it is none."""
    if op.target not in _QUERIES:
        return None
    place = _QUERIES[op.target]
    return _axis(inputs[place], inputs[place + 1])


def _axis(queries: NdSbp, keys: NdSbp) -> int | None:
    return next((a for a, (q, k) in enumerate(zip(queries.entries, keys.entries, strict=True)) if q == k == Split(_ROWS)), None)


def rings(op: Op, types: Mapping[str, TensorType], strategies: tuple[Strategy, ...], mesh: tuple[int, ...]) -> tuple[Strategy, ...]:
    """A ring for each strategy of attention in which one axis cuts the rows of queries."""
    return tuple(_rings(op, types, strategies, mesh))


def _rings(op: Op, types: Mapping[str, TensorType], strategies: tuple[Strategy, ...], mesh: tuple[int, ...]) -> Iterator[Strategy]:
    place, backward = _QUERIES[op.target], op.target == "regista.attention_backward"
    queries, keys = (types[value].shape[_ROWS] for value in op.inputs[place : place + 2])
    if isinstance(op.args[place + 3], Ref) or queries != keys or None in op.outputs[: 3 if backward else 1]:
        return
    for gathered in strategies:
        axes = [axis for axis, entry in enumerate(gathered.inputs[place].entries) if entry == Split(_ROWS) and mesh[axis] > 1]
        if len(axes) != 1:
            continue
        (axis,) = axes
        moved = (place + 1, place + 2)
        inputs = tuple(lies.replace(axis, Split(_ROWS)) if k in moved else lies for k, lies in enumerate(gathered.inputs))
        outputs = tuple(lies.replace(axis, Split(_ROWS)) if backward and k else lies for k, lies in enumerate(gathered.outputs))
        total_bytes = sum(gathered.part.types[gathered.part.op.inputs[k]].size_bytes for k in moved)
        ring = Ring(axis, 2 * mesh[axis] - 1 if backward else mesh[axis] - 1, total_bytes, 2 if backward else 0, _steps(gathered))
        yield gathered._replace(inputs=inputs, outputs=outputs, ring=ring)


def _steps(gathered: Strategy) -> tuple[Strategy, Strategy]:
    """The work of the last device in the first step, on the diagonal, and in each other, whose keys it all sees."""
    local, place = gathered.part, _QUERIES[gathered.part.op.target]
    flag = 7 if place else 4
    types = dict(local.types)
    for value in (*local.op.inputs[place + 1 : place + 3], *(v for v in local.op.outputs[1:] if place and v is not None)):
        shape = list(types[value].shape)
        shape[_ROWS] = types[local.op.inputs[place]].shape[_ROWS]
        types[value] = types[value].with_shape(tuple(shape))
    whole = types[local.op.inputs[place]].shape
    ops = (
        replace(local.op, args=(*local.op.args[:-2], whole, ())) if local.op.args[flag] else local.op,
        replace(local.op, args=(*local.op.args[:flag], False, local.op.args[flag + 1])),
    )
    first, other = (gathered._replace(part=replace(local, op=op, types=types)) for op in ops)
    return first, other


def attending(
    op: Op, types: Mapping[str, TensorType], strategies: tuple[Strategy, ...], way: Context, mesh: tuple[int, ...]
) -> tuple[Strategy, ...]:
    """The strategies of attention that go this way.

    Raises:
        Unsupported: heads, or rows, are fewer than parts or do not divide among them.
    """
    place = _QUERIES[op.target]
    taken = tuple(s for s in strategies if way.takes(s.inputs[place], s.inputs[place + 1]))
    if taken:
        return taken
    queries = types[op.inputs[place]]
    what, extent = ("heads", queries.shape[_HEADS]) if way is Context.HEADS else ("rows", queries.shape[_ROWS])
    raise Unsupported(
        f"{op.where()}: context {way.value} cuts its {extent} {what} on mesh {'x'.join(map(str, mesh))}, and no axis divides them (keys and "
        "values may have fewer heads, and a ring takes no mask but a causal one); take another mesh, another way, or leave the context to the search"
    )
