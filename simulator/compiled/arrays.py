"""A Plan and its prices as arrays, one row per class of equal ranks: the input of the two kernels.

    actor --has--> out ports --have--> deliveries (one per rank class that holds the block) --have--> channels --> in ports --of--> actors

Rows are numbered so that everything of one owner is contiguous: ``first[x] : first[x + 1]``.  A channel carries the ready messages of one
producer to one consumer and the acks back; both kernels count on channels what planner.ir.actors.actor counts in its ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.plan import Plan, Task
from simulator.compiled.columns import Floats, Ints, Records
from simulator.compiled.flow_tables import FlowTables
from simulator.compiled.rank_classes import RankClasses
from simulator.network.act_flows import Contention

__all__ = ["CompiledPlan", "Floats", "Ints", "KernelResult", "Records", "PlanArrays", "check_bytes"]

MOST_BYTES = 2**60
"""Sums of block bytes stay far below 2^63, where 64-bit counters would wrap."""


def check_bytes(size_bytes: int) -> None:
    """Refuse sums of bytes that the kernels' counters might not hold.

    Raises:
        Unsupported: MOST_BYTES or more.
    """
    if size_bytes >= MOST_BYTES:
        raise Unsupported(
            f"the blocks of this plan may hold {size_bytes} bytes, more than the compiled engine can count (2^60); use engine simpy"
        )


class PlanArrays(NamedTuple):
    """All arrays of a Plan.  Indices: A actors, I in ports, O out ports, N deliveries, C channels, L lanes, G groups, S stores, K rank classes."""

    acts: Ints  # A: acts per step
    lane: Ints  # A: where it runs
    priority: Ints  # A: rank of its priority among all priorities
    duration_s: Floats  # A: of one act; in a group: the slowest member's
    group: Ints  # A: collective it meets in, or -1
    workspace: Ints  # A: bytes while it runs
    rank_class: Ints  # A
    in_first: Ints  # A + 1 -> I
    in_acts: Ints  # I: acts per block
    in_full: Ints  # I: blocks readable at the start (1: state)
    in_chan_first: Ints  # I + 1 -> in_chan
    in_chan: Ints  # channels, grouped by in port
    out_first: Ints  # A + 1 -> O
    out_acts: Ints  # O
    out_quota: Ints  # O
    out_full: Ints  # O: blocks produced at the start (1: state)
    delivery_first: Ints  # O + 1 -> N
    chan_first: Ints  # N + 1 -> C
    chan_src: Ints  # C: actor that produces
    chan_dst: Ints  # C: actor that consumes
    chan_in: Ints  # C
    chan_out: Ints  # C
    chan_delivery: Ints  # C
    ready_s: Floats  # C: latency of a ready message
    ack_s: Floats  # C: latency of an ack
    delivery_store: Ints  # N: or -1 where blocks have no bytes
    store_first: Ints  # S + 1 -> store_delivery
    store_delivery: Ints  # deliveries, grouped by store
    store_class: Ints  # S
    store_bytes: Ints  # S: of one block
    group_first: Ints  # G + 1 -> group_actor
    group_actor: Ints  # actors, grouped by group
    lane_first: Ints  # L + 1 -> lane_actor
    lane_actor: Ints  # actors, grouped by lane
    order_first: Ints  # L + 1 -> order
    order: Ints  # actors in the order of one step, where it is fixed: by the Plan, or because a lane has one actor


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPlan:
    """A Plan ready to be simulated many times.

    free: streams whose order is chosen while playing.   has_sizes: bytes of blocks are known, so peaks can be counted.
    out_of: regst -> its out ports.   state_bytes: per rank class.
    contention: what acts feel of each other, and flows: its arrays; None: every act takes its price.
    """

    plan: Plan
    cost_id: str
    ranks: RankClasses
    tables: PlanArrays
    actors: tuple[tuple[Task, int], ...]
    free: tuple[str, ...]
    has_sizes: bool
    out_of: Mapping[str, tuple[int, ...]]
    state_bytes: Ints
    flows: FlowTables | None
    contention: Contention | None

    def with_quotas(self, quotas: Mapping[str, int]) -> CompiledPlan:
        """The same with other quotas, without compiling again; equal to compiling ``plan.with_quotas(quotas)``.

        Raises:
            InvalidPlan: an unknown regst, or a quota < 1.   Unsupported: blocks of 2^60 bytes and more.
        """
        quota = self.tables.out_quota.copy()
        for regst, blocks in quotas.items():
            if regst not in self.plan.regst or blocks < 1:
                raise InvalidPlan(f"quota {blocks} for regst {regst}: it must be a regst of plan {self.plan.model}, with at least 1 block")
            for port in self.out_of.get(regst, ()):
                quota[port] = blocks
        check_bytes(int(self.tables.store_bytes.sum()) * int(quota.max(initial=1)))
        return replace(self, plan=self.plan.with_quotas(quotas), tables=self.tables._replace(out_quota=quota))


class KernelResult(NamedTuple):
    """The result of a kernel.  Act k of actor a stands at ``base[a] + k``.

    complete: all acts were performed.   ready_s, start_s: empty unless asked for.
    peak_bytes, register_bytes: per rank class, without state; zeros unless asked for.
    """

    complete: bool
    base: Ints
    ready_s: Floats
    start_s: Floats
    end_s: Floats
    peak_bytes: Ints
    register_bytes: Ints
