"""What the bytes of a peak are for, counted from the times of the acts of one rank per class (simulator.analysis.forecast).

    begin of the first act that writes it          last ack arrives at the producer
      |----------------- block live --------------------|                             (planner.ir.actors.ledger)

If the count does not equal the engine's peak to the byte (because acts without duration lie at the peak), the result is None.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.ir.plan import RegstKind
from simulator.analysis.category import Category, regst_bytes
from simulator.compiled.arrays import CompiledPlan, Floats, Ints, KernelResult

__all__ = ["PeakContents"]

_FREED, _TAKEN, _FREED_LATE = 0, 1, 2
"""Order of the changes at one time: blocks freed, blocks taken, and then blocks freed by acts without duration, which also began at that time."""


class PeakContents:
    """What each rank class of a played Plan holds at its peak."""

    def __init__(self, compiled: CompiledPlan, played: KernelResult, steps: int) -> None:
        self.compiled, self.played, self.total = compiled, played, steps * compiled.tables.acts
        self.begin_s = self._begins()
        self.sizes = regst_bytes(compiled.plan)
        t = compiled.tables
        self.regst_of: dict[int, str] = {}
        self.deliveries: dict[int, list[int]] = {}
        for regst, ports in compiled.out_of.items():
            for port in ports:
                for delivery in range(t.delivery_first[port], t.delivery_first[port + 1]):
                    if t.delivery_store[delivery] >= 0:
                        self.regst_of[int(t.delivery_store[delivery])] = regst
                        self.deliveries.setdefault(int(t.delivery_store[delivery]), []).append(delivery)

    def at_peak(self, c: int) -> Mapping[Category, int] | None:
        """Category -> bytes at the class's worst moment."""
        t, played = self.compiled.tables, self.played
        state = dict.fromkeys(Category, 0)
        for regst in self.compiled.plan.regsts:
            if regst.kind is RegstKind.STATE and c in self.compiled.ranks.members[regst.placement]:
                for category, part in self.sizes[regst.id].items():
                    state[category] += part
        owners: list[Mapping[Category, int]] = []
        columns: list[tuple[Floats, Ints, Ints, Ints]] = []  # times, blocks more, when within the instant, owner
        for store in np.flatnonzero(t.store_class == c).tolist():
            times_s, change, place_in_instant = self._store(store)
            columns.append((times_s, change, place_in_instant, np.full(len(change), len(owners))))
            owners.append(self.sizes[self.regst_of[store]])
        for actor, (_, mine) in enumerate(self.compiled.actors):
            if mine == c and t.workspace[actor]:
                span = slice(played.base[actor], played.base[actor + 1])
                times_s = np.concatenate((played.start_s[span], played.end_s[span]))
                change = np.repeat(np.array([1, -1]), self.total[actor])
                late = played.end_s[span] == played.start_s[span]
                place_in_instant = np.concatenate((np.full(len(late), _TAKEN), np.where(late, _FREED_LATE, _FREED)))
                columns.append((times_s, change, place_in_instant, np.full(len(change), len(owners))))
                owners.append({Category.WORKSPACE: int(t.workspace[actor])})
        held_bytes = dict(state)
        if columns:
            at_s, change, place_in_instant, owner = (np.concatenate(column) for column in zip(*columns, strict=True))
            order = np.lexsort((place_in_instant, at_s))
            change, owner = change[order], owner[order]
            weights = np.array([sum(parts.values()) for parts in owners], dtype=np.int64)
            upto = int(np.cumsum(change * weights[owner]).argmax()) + 1
            blocks = np.bincount(owner[:upto], weights=change[:upto], minlength=len(owners)).astype(np.int64)
            for parts, count in zip(owners, blocks.tolist(), strict=True):
                for category, part in parts.items():
                    held_bytes[category] += count * part
        peak = int(self.compiled.state_bytes[c] + played.peak_bytes[c])
        return held_bytes if sum(held_bytes.values()) == peak else None

    def _begins(self) -> Floats:
        """When each act took its stream: ready, and the act before it over.  In a collective that is before the start, when all are there."""
        t, played = self.compiled.tables, self.played
        begin_s = played.start_s.copy()
        for lane in range(len(t.lane_first) - 1):
            actors = t.lane_actor[t.lane_first[lane] : t.lane_first[lane + 1]]
            at = np.concatenate([np.arange(played.base[a], played.base[a + 1]) for a in actors])
            at = at[np.lexsort((played.end_s[at], played.start_s[at]))]
            before_s = np.concatenate(([0.0], played.end_s[at[:-1]]))
            begin_s[at] = np.maximum(played.ready_s[at], before_s)
        return begin_s

    def _store(self, store: int) -> tuple[Floats, Ints, Ints]:
        """(times, change of the level, place within the instant) of one Regst on a rank class; several senders hold the block they fill together."""
        deliveries = [self._delivery(delivery) for delivery in self.deliveries[store]]
        if len(deliveries) == 1:
            return deliveries[0]
        times_s, change, place_in_instant = (np.concatenate(column) for column in zip(*deliveries, strict=True))
        who = np.repeat(np.arange(len(deliveries)), [len(delivery[0]) for delivery in deliveries])
        order = np.lexsort((place_in_instant, times_s))
        blocks_held = np.zeros((len(deliveries), len(order)), dtype=np.int64)
        blocks_held[who[order], np.arange(len(order))] = change[order]
        level = np.cumsum(blocks_held, axis=1).max(axis=0)
        return times_s[order], np.diff(level, prepend=0), place_in_instant[order]

    def _delivery(self, delivery: int) -> tuple[Floats, Ints, Ints]:
        """One producer's blocks: taken with the first act that writes them, given back with the last ack."""
        t, base, start_s, end_s = self.compiled.tables, self.played.base, self.played.start_s, self.played.end_s
        port = int(np.searchsorted(t.delivery_first, delivery, side="right")) - 1
        actor = int(np.searchsorted(t.out_first, port, side="right")) - 1
        per_block = int(t.out_acts[port])
        taken_s = self.begin_s[base[actor] : base[actor + 1] : per_block]
        number = np.arange(len(taken_s))
        channels = range(t.chan_first[delivery], t.chan_first[delivery + 1])
        if channels:
            freed_s, late = np.full(len(number), -np.inf), np.zeros(len(number), dtype=np.bool_)
        else:
            freed_s = end_s[base[actor] : base[actor + 1]][per_block - 1 :: per_block]
            late = freed_s == start_s[base[actor] : base[actor + 1]][per_block - 1 :: per_block]
        for channel in channels:
            reader = int(t.chan_dst[channel])
            last = (number + 1) * int(t.in_acts[t.chan_in[channel]]) - 1
            over = last < self.total[reader]
            at = base[reader] + np.where(over, last, 0)
            back_s = np.where(over, end_s[at] + t.ack_s[channel], np.inf)
            late = (late & (back_s <= freed_s)) | ((back_s >= freed_s) & (back_s == start_s[at]))
            freed_s = np.maximum(freed_s, back_s)
        ended = np.isfinite(freed_s)
        times_s = np.concatenate((taken_s, freed_s[ended]))
        place_in_instant = np.concatenate((np.full(len(taken_s), _TAKEN), np.where(late[ended], _FREED_LATE, _FREED)))
        return times_s, np.repeat(np.array([1, -1]), [len(taken_s), int(ended.sum())]), place_in_instant
