"""Live bytes over time, per rank and category, with the peak's instant and owners; from a Plan and a trace of it, simulated or measured.

    bytes        workspace   __|^|__        a level holds from its time to the next;
               activations  _|     |_       at one instant several may follow each other (acts without duration)
    state    ________________________

The trace is replayed on the ledger that the simulator itself keeps (planner.ir.actors.ledger), so of a simulated trace

    max of the total       == Trace.peak_bytes        to the byte
    max without workspace  == Trace.register_bytes    to the byte

Of a measured trace the times are measured and the sizes are the Plan's; workspace, which a run does not see, stands as the Plan says it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from planner.ir.actors.actor import Actor, ActorId, Message
from planner.ir.actors.ledger import Ledger, Place
from planner.ir.errors import Mismatch
from planner.ir.plan import Plan, RegstKind
from planner.ir.traces.trace import Act, Trace
from simulator.analysis.category import Category, regst_bytes
from simulator.analysis.replay import Cause, ReplayObserver, replay

__all__ = ["MemoryCurve", "Owner", "memory_curves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds bytes at the peak: ``blocks`` blocks of a Regst, or the workspace of a running task (0 blocks)."""

    id: str
    category: Category
    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Level ``i`` of every category holds from ``times_s[i]`` to ``times_s[i + 1]``; times never decrease.

    peak_at: number of the first level that is the highest in total.   owners: who holds it, the largest first; they add up to peak_bytes.
    """

    rank: int
    times_s: tuple[float, ...]
    levels_bytes: Mapping[Category, tuple[int, ...]]
    peak_at: int
    owners: tuple[Owner, ...]

    @property
    def total_bytes(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(*self.levels_bytes.values(), strict=True)))

    @property
    def register_bytes(self) -> tuple[int, ...]:
        """The total without workspace."""
        return tuple(map(sum, zip(*(v for c, v in self.levels_bytes.items() if c is not Category.WORKSPACE), strict=True)))

    @property
    def peak_bytes(self) -> int:
        return sum(levels[self.peak_at] for levels in self.levels_bytes.values())

    @property
    def peak_s(self) -> float:
        """The peak's instant, in seconds on the trace's clock."""
        return self.times_s[self.peak_at]


def memory_curves(plan: Plan, trace: Trace, ranks: Collection[int] | None = None) -> Mapping[int, MemoryCurve]:
    """The curves of some ranks (None: all), from the begin of the trace's first act on.

    Raises:
        Mismatch: the trace is of another plan, or a rank is not the plan's.   InvalidTrace: see simulator.analysis.replay.

    Source: SEMANTICS 3.2, 3.3 (a block is live from its first write until its last ack), 5 law 5; the categories are Megatron's and ZeRO's.
    """
    wanted = tuple(range(plan.num_ranks)) if ranks is None else tuple(sorted(set(ranks)))
    if unknown := set(wanted) - set(range(plan.num_ranks)):
        raise Mismatch(f"memory of ranks {sorted(unknown)[:8]} is asked for; the plan has ranks 0 .. {plan.num_ranks - 1}")
    recorder = _Recorder(wanted)
    replay(plan, trace, recorder)
    return {rank: recorder.curve(rank) for rank in wanted}


class _Recorder(ReplayObserver):
    """Keeps the ledger of a replay and writes down every change: (time, id, blocks, bytes)."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.changes: dict[int, list[tuple[float, str, int, int]]] = {rank: [] for rank in ranks}
        self.now_s = float("-inf")
        self.first_s: float | None = None

    def start(self, plan: Plan, actors: dict[ActorId, Actor]) -> None:
        self.plan = plan
        self.parts = regst_bytes(plan)
        self.ledger = Ledger(self._note)
        self.ledger.start(plan, actors)

    def _note(self, rank: Place, what: str, blocks: int, size_bytes: int) -> None:
        if isinstance(rank, int) and rank in self.changes:
            self.changes[rank].append((self.now_s, what, blocks, size_bytes))

    def began(self, actor: Actor, act: Act, begin_s: float, cause: Cause | None) -> None:
        self.now_s = begin_s
        self.first_s = begin_s if self.first_s is None else self.first_s
        self.ledger.began(actor)

    def ended(self, actor: Actor, act: Act) -> None:
        self.now_s = max(self.now_s, act.end_s)
        self.ledger.ended(actor)

    def received(self, actor: Actor, message: Message, now_s: float) -> None:
        self.now_s = now_s
        self.ledger.received(actor, message)

    def curve(self, rank: int) -> MemoryCurve:
        now: dict[Category, int] = dict.fromkeys(Category, 0)
        held = {r.id: 1 for r in self.plan.regsts if r.kind is RegstKind.STATE and rank in self.plan.placement[r.placement].ranks}
        for regst in held:
            for category, size_bytes in self.parts[regst].items():
                now[category] += size_bytes
        changes = self.changes[rank]
        times_s = [self.first_s or 0.0]
        levels = {category: [level] for category, level in now.items()}
        for at_s, what, blocks, size_bytes in changes:
            if blocks:
                for category, part_bytes in self.parts[what].items():
                    now[category] += blocks * part_bytes
            else:
                now[Category.WORKSPACE] += size_bytes
            times_s.append(at_s)
            for category, level in now.items():
                levels[category].append(level)
        totals = [sum(level) for level in zip(*levels.values(), strict=True)]
        peak_at = totals.index(max(totals))
        return MemoryCurve(
            rank=rank,
            times_s=tuple(times_s),
            levels_bytes={category: tuple(level) for category, level in levels.items()},
            peak_at=peak_at,
            owners=self._owners(held, changes[:peak_at]),
        )

    def _owners(self, state: Mapping[str, int], changes: list[tuple[float, str, int, int]]) -> tuple[Owner, ...]:
        blocks: dict[str, int] = defaultdict(int, state)
        workspace: dict[str, int] = defaultdict(int)
        for _, what, more, size_bytes in changes:
            if more:
                blocks[what] += more
            else:
                workspace[what] += size_bytes
        owners = [
            Owner(id=regst, category=category, blocks=count, size_bytes=count * part_bytes)
            for regst, count in blocks.items()
            for category, part_bytes in self.parts[regst].items()
            if count * part_bytes
        ]
        owners += [Owner(id=t, category=Category.WORKSPACE, blocks=0, size_bytes=n) for t, n in workspace.items() if n]
        return tuple(sorted(owners, key=lambda owner: (-owner.size_bytes, owner.id)))
