"""What a Chakra execution trace holds: nodes of one rank, and what each waits for among those of its own rank.

Ranks meet in two ways only: a collective has a node of the same name on each rank of its process group, and a send on one rank has a receive of the
same source, destination and tag on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from planner.ir.tensor import TensorType

__all__ = ["ChakraTrace", "Node", "NodeKind", "Value"]

Value = bool | int | float | str


class NodeKind(IntEnum):
    """NodeType of the schema.  What Regista writes are COMPUTE, SEND, RECEIVE and COLLECTIVE."""

    INVALID = 0
    METADATA = 1
    LOAD = 2
    STORE = 3
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7
    STORAGE = 8
    BATCH = 9
    CHECKPOINT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """start_s, duration_s: seconds; the schema has whole microseconds, so what Regista writes has ``duration_s`` among its attributes, too.

    data_deps: nodes whose results it reads.   ctrl_deps: nodes that have to end before it starts, for their stream or their block.
    reads, writes: types of tensors, where they are known.
    """

    id: int
    name: str
    kind: NodeKind
    start_s: float
    duration_s: float
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    reads: tuple[TensorType, ...] = ()
    writes: tuple[TensorType, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraTrace:
    """nodes: of each rank, in an order in which none comes before one that it waits for.   groups: process group -> its ranks."""

    about: Mapping[str, Value]
    nodes: Mapping[int, tuple[Node, ...]]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
