"""What acts feel of each other, folded to classes of equal ranks: the arrays of the pacing kernel, and the sets of acts whose speeds are known.

    flow --is on--> links (classes of equal ones) --have--> flows       flow --slows the computing of--> rank classes

A flow stands for all acts of one task that are alike, and has as many copies on a link as there are of them on it.  rank_classes.py splits ranks
until every flow of a class is on equal links with equal shares and every link of a class has equally many equal flows.  Then speeds that are max-min
fair for the classes are so for all: each link is as full as its class, and each act's bottleneck is its class's; and max-min fair speeds are unique.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.ir.plan import Task
from simulator.compiled.columns import Floats, Ints
from simulator.compiled.rank_classes import FlowClasses
from simulator.network.act_flows import speeds

__all__ = ["FlowTables", "KnownSets", "SetArrays", "flow_tables", "no_flows"]


class SetArrays(NamedTuple):
    """Sets of flows that were under way together, by open addressing: slot -> key, first and number of its flows; flows and their speeds."""

    key: Ints
    first: Ints
    size: Ints  # 0: the slot is free
    flow: Ints
    speed: Floats


class KnownSets:
    """Speeds per set of flows under way; mutable, as a game that meets a new set asks for it and goes on.

    users: link class -> (flow, share, copies).   key: of each flow, drawn at random; a set's is the XOR of its flows' keys.
    """

    def __init__(self, users: Sequence[Sequence[tuple[int, float, int]]], key: Ints) -> None:
        self._users, self._key = users, key
        self._on: dict[int, list[int]] = {}
        for link, flows in enumerate(users):
            for flow, _, _ in flows:
                self._on.setdefault(flow, []).append(link)
        self._sets, self._stored = 0, 0
        self.arrays = _empty(64, 256)

    def speeds_of(self, flows: Sequence[int]) -> dict[int, float]:
        """Speed of each of these flows while they are under way, and no others on their links."""
        active = frozenset(flows)
        links = dict.fromkeys(link for flow in flows for link in self._on.get(flow, ()))
        users = {link: [(f, share) for f, share, copies in self._users[link] if f in active for _ in range(copies)] for link in links}
        return dict.fromkeys(flows, 1.0) | speeds(users)

    def learn(self, flows: Sequence[int]) -> None:
        """Work out and keep the speeds of a set."""
        known = self.speeds_of(flows)
        if 2 * (self._sets + 1) > len(self.arrays.key):
            old, self.arrays = self.arrays, _empty(2 * len(self.arrays.key), len(self.arrays.flow))
            self.arrays = self.arrays._replace(flow=old.flow, speed=old.speed)
            for slot in np.flatnonzero(old.size):
                self._put(int(old.key[slot]), int(old.first[slot]), int(old.size[slot]))
        if self._stored + len(known) > len(self.arrays.flow):
            more = len(self.arrays.flow) + len(known)
            self.arrays = self.arrays._replace(
                flow=np.append(self.arrays.flow, np.zeros(more, dtype=np.int64)), speed=np.append(self.arrays.speed, np.zeros(more))
            )
        self._put(int(np.bitwise_xor.reduce(self._key[list(known)])), self._stored, len(known))
        span = slice(self._stored, self._stored + len(known))
        self.arrays.flow[span], self.arrays.speed[span] = list(known), list(known.values())
        self._sets, self._stored = self._sets + 1, self._stored + len(known)

    def _put(self, key: int, first: int, size: int) -> None:
        mask = len(self.arrays.key) - 1
        slot = key & mask
        while self.arrays.size[slot]:
            slot = (slot + 1) & mask
        self.arrays.key[slot], self.arrays.first[slot], self.arrays.size[slot] = key, first, size


def _empty(slots: int, stored: int) -> SetArrays:
    key, first, size = np.zeros((3, slots), dtype=np.int64)
    return SetArrays(key, first, size, np.zeros(stored, dtype=np.int64), np.zeros(stored))


@dataclass(frozen=True, slots=True, eq=False)
class FlowTables:
    """Indices: A actors, F flows, M link classes, K rank classes.

    flow: A: flow of its acts, or -1.   paced: A: 1 where its speed changes by links, 2 where by the communication beside it, 0 never.
    link_first, link: F + 1 -> link classes.   user_first: M + 1: room for the flows on a link class.   talk_first, talk: F + 1 -> rank classes.
    lane_first, lane: K + 1 -> lanes with acts that feel communication.   alone: F: speed of a flow with nobody else on its links.
    """

    flow: Ints
    paced: Ints
    link_first: Ints
    link: Ints
    user_first: Ints
    talk_first: Ints
    talk: Ints
    lane_first: Ints
    lane: Ints
    key: Ints
    alone: Floats
    slowdown: float
    known: KnownSets


def flow_tables(
    classes: FlowClasses,
    slowdown: float,
    actors: Sequence[tuple[Task, int]],
    lane_of: Sequence[int],
    duration_s: Sequence[float],
    num_classes: int,
) -> FlowTables:
    """The arrays of these flows.

    Args:
        actors, lane_of, duration_s: per row of PlanArrays.   num_classes: of ranks.
    """
    size = len(classes.links)
    flow = np.full(len(actors), -1, dtype=np.int64)
    paced = np.zeros(len(actors), dtype=np.int64)
    lanes: list[dict[int, None]] = [{} for _ in range(num_classes)]
    for a, (task, c) in enumerate(actors):
        if duration_s[a] == 0:
            continue
        flow[a] = classes.of.get((task.id, c), -1)
        if flow[a] >= 0 and classes.links[flow[a]]:
            paced[a] = 1
        elif slowdown != 1 and task.kind.is_compute:
            paced[a] = 2
            lanes[c][lane_of[a]] = None
    key = np.random.default_rng(0).integers(-(2**62), 2**62, size=size, dtype=np.int64)
    known = KnownSets(classes.users, key)
    return FlowTables(
        flow=flow,
        paced=paced,
        **_rows("link", classes.links),
        user_first=_rows("user", [sorted({f for f, _, _ in users}) for users in classes.users])["user_first"],
        **_rows("talk", classes.talking),
        **_rows("lane", [list(here) for here in lanes]),
        key=key,
        alone=np.array([known.speeds_of([f])[f] for f in range(size)], dtype=np.float64),
        slowdown=slowdown,
        known=known,
    )


def no_flows(num_actors: int, num_classes: int) -> FlowTables:
    """The arrays of a game whose acts feel nothing."""
    none = flow_tables(FlowClasses({}, (), (), ()), 1.0, (), (), (), num_classes)
    return replace(none, flow=np.full(num_actors, -1, dtype=np.int64), paced=np.zeros(num_actors, dtype=np.int64))


def _rows(name: str, rows: Sequence[Sequence[int]]) -> Mapping[str, Ints]:
    first = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64))).astype(np.int64)
    return {f"{name}_first": first, name: np.array([x for row in rows for x in row], dtype=np.int64)}
