"""The whole space of a small instance: every shape, cut and order of kinds, which of them the record of a plan names, and all choices of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import inf

from experiments.search_space.brute_force import Every, every_choice
from experiments.search_space.choices import MOST, Choices, TooMany, Way, choices_of
from experiments.search_space.small_instances import Instance
from planner.cost import AnalyticCost
from planner.ir.actors.peak import live_bytes
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.errors import DeadLock, Unsupported
from planner.ir.graph import Mode, Role
from planner.ir.plan import Plan
from planner.lower.build import Recipe, lower
from planner.opset import flop
from planner.parallelism.one_shape import staged_graph
from planner.parallelism.options import PlanOptions
from planner.parallelism.shape import Shape
from planner.schedule import Schedule
from planner.search.model import Assignment
from planner.search.routes import routes_of
from planner.search.strategies import relabel
from planner.stages import Staged, check_recompute
from planner.stages.recompute import recompute_of
from planner.stages.recompute.asked import BLOCKS

__all__ = ["Point", "Space", "least_bytes", "points"]


@dataclass(frozen=True, slots=True)
class Point:
    """A shape, the first blocks of its later stages (empty: where the planner cuts), and whether two kinds stand in the other order."""

    shape: Shape
    cut: tuple[str, ...] = ()
    turned: bool = False


def points(one: Instance, plan: Plan | None) -> tuple[list[Point], list[Point]]:
    """(what the record of a plan names, everything else).   plan: None: what the instance's options leave open.

    Stages are of equal size, at most one per block; meshes have at most two axes; of micro-batches, the record names the powers of two per stage,
    and where none of these divides the batch, the least divisor of at least one per stage.
    """
    options, total = one.options, one.cluster.num_devices
    given = _record(plan) if plan is not None else {}
    given_up = plan.options.get("given_up", "").split("; ") if plan is not None else []
    covered: list[Point] = []
    every: list[Point] = []
    for p in range(1, total + 1):
        if total % p or p > max(one.blocks, 1) or any(part.num_devices % (total // p) for part in one.cluster.parts):
            continue
        size = total // p
        meshes = [(size,), *((a, size // a) for a in range(2, size) if size % a == 0)]
        divisors = [m for m in range(1, one.batch + 1) if one.batch % m == 0]
        named = [m for m in divisors if m % p == 0 and ((m // p) & (m // p - 1)) == 0 and m // p <= 64]
        named = named or [m for m in divisors if m >= p][:1] or [1]
        if one.program.mode is Mode.TRAIN and options.recompute is None:
            recomputed = ["", BLOCKS]
        else:
            recomputed = [options.again]
        for mesh, m, recompute in ((a, m, r) for a in meshes for m in divisors for r in recomputed):
            shape = Shape(p, m, mesh, recompute)
            asked = (options.stages in (None, p), options.mesh in (None, mesh), options.micro_batches in (None, m))
            if not all(asked):
                continue
            is_named = (m in named or options.micro_batches is not None) and all(_part(shape, k) == v for k, v in given.items())
            is_named = is_named and str(shape) not in given_up
            cuts = [tuple(f"h.{b}" for b in borders) for borders in combinations(range(1, one.blocks), p - 1)] if p > 1 else []
            for cut, turned in ((c, t) for c in [(), *cuts] for t in ((False, True) if one.cluster.parts else (False,))):
                place = covered if is_named and not cut and not turned else every
                place.append(Point(shape, cut, turned))
    return covered, every


def _part(shape: Shape, name: str) -> object:
    return {"stages": shape.stages, "mesh": shape.mesh, "micro_batches": shape.micro_batches, "recompute": shape.recompute}[name]


def _shape(plan: Plan) -> Shape:
    stages = int(plan.options["stages"])
    mesh = next(place.mesh for place in plan.placements if len(place.ranks) == plan.cluster.num_devices // stages)
    return Shape(stages, plan.micro_batches, mesh, plan.options["recompute"].removeprefix("none"))


def _record(plan: Plan) -> dict[str, object]:
    """The parts of the shape that were not open, as the plan has them."""
    is_open = plan.options.get("open", "").split(",")
    return {name: _part(_shape(plan), name) for name in ("stages", "mesh", "micro_batches", "recompute") if name not in is_open}


class Space:
    """All choices of an instance.

    covered: what the record names.   elsewhere: the rest, as far as it is small enough.   count: combinations of what is covered.

    Raises:
        TooMany: more than 10^6 combinations are covered.
    """

    def __init__(self, one: Instance, plan: Plan | None = None) -> None:
        self.one = one
        self.is_limited = one.memory_share < inf
        self.limit_bytes = float(one.cluster.device.memory_bytes) if self.is_limited else inf
        self._choices: dict[tuple[Point, bool], Choices] = {}
        self._every: dict[tuple[Point, bool], Every] = {}
        covered, elsewhere = points(one, plan)
        self.count, self.covered, self.elsewhere = 0, list[Point](), list[Point]()
        for point in covered:
            if self._state(point):
                self.covered.append(point)
                self.count += self.choices(point).count
                if self.count > MOST:
                    raise TooMany(f"seed {one.seed}: more than {MOST} combinations")
        for point in elsewhere:
            try:
                if self._state(point):
                    self.elsewhere.append(point)
            except TooMany:
                continue

    def _state(self, point: Point) -> bool:
        """Whether there is such a point at all; its decisions are stated."""
        try:
            if point.shape.recompute:
                check_recompute(self.one.program.graph(point.shape.micro_batches))
            self.choices(point)
            if self.is_limited:
                self.choices(point, counts_bytes=False)
        except Unsupported:  # nothing to recompute, or no such cut
            return False
        return True

    def choices(self, point: Point, *, counts_bytes: bool | None = None) -> Choices:
        """Its decisions, with their bytes where memory is limited, unless that is said."""
        counts = self.is_limited if counts_bytes is None else counts_bytes
        if (point, counts) not in self._choices:
            cluster = self.cluster(point)
            self._choices[point, counts] = choices_of(
                staged(self.one, point, cluster),
                point.shape.mesh,
                cluster,
                point.shape.micro_batches,
                pins=self.one.options.pins,
                counts_bytes=counts,
            )
        return self._choices[point, counts]

    def cluster(self, point: Point) -> Cluster:
        given = self.one.cluster
        return mixed_cluster(given.name, "", given.parts[::-1], given.between) if point.turned else given

    def every(self, point: Point, *, counts_bytes: bool | None = None) -> Every:
        """All choices of a point."""
        counts = self.is_limited if counts_bytes is None else counts_bytes
        if (point, counts) not in self._every:
            self._every[point, counts] = every_choice(self.choices(point, counts_bytes=counts))
        return self._every[point, counts]

    def least_s(self, point: Point, *, untied: bool = False) -> float:
        """The least step of a point, of choices whose counted bytes fit."""
        return self.every(point).least_s(self.limit_bytes, untied=untied)

    def free_s(self, point: Point) -> float:
        """The least step of a point, whatever its choices hold."""
        return self.every(point, counts_bytes=False).least_s()

    def point_of(self, plan: Plan) -> Point:
        return Point(_shape(plan))

    def below(self, below_s: float) -> int:
        """How many choices are quicker than that, whatever they hold."""
        return sum(int((self.every(point, counts_bytes=False).step_s < below_s).sum()) for point in self.covered)

    def tried(self, below_s: float, most: int) -> list[bool]:
        """Whether choices quicker than that fit, when they are lowered: per point, the quickest, and those that hold least."""
        tries: list[bool] = []
        for point in self.covered:
            free, counted = self.every(point, counts_bytes=False), self.every(point, counts_bytes=True)
            picks = [(False, place) for place in islice(free.cheapest(below_s), most)]
            picks += [(True, place) for place in counted.smallest(most, below_s)]
            for counts, place in picks:
                every = counted if counts else free
                tries.append(self._fits(point, self.choices(point, counts_bytes=counts), every.choice(place)))
        return tries

    def _fits(self, point: Point, choices: Choices, choice: tuple[int, ...]) -> bool:
        """Whether a device holds the plan of a choice."""
        cluster = self.cluster(point)
        try:
            plan = lowered(self.one, point, cluster, choices, choice)
        except (Unsupported, DeadLock):
            return False
        if max(device_bytes(plan).values()) <= self.limit_bytes:
            return True
        cost = AnalyticCost(cluster)
        return max(*live_bytes(plan).values(), *live_bytes(plan, cost.folded_s(plan)).values()) <= self.limit_bytes


def staged(one: Instance, point: Point, cluster: Cluster) -> Staged:
    """The graph of a point, cut."""
    shape = point.shape
    options = PlanOptions(
        stages=shape.stages, micro_batches=shape.micro_batches, cuts=point.cut, recompute=recompute_of(shape.recompute or "none")
    )
    return staged_graph(one.program.graph(shape.micro_batches), options, cluster)


def least_bytes(space: Space, point: Point) -> float:
    """The least bytes, over all choices of a point, of the device that holds most."""
    every = space.every(point, counts_bytes=True)
    return float(every.held_bytes[every.step_s < inf].min())


def flop_of_stages(given: Staged) -> tuple[int, ...]:
    """Forward flop of each stage, the largest first."""
    work = [0] * given.num_stages
    for op in given.graph.ops:
        if op.role is Role.FORWARD:
            work[given.stage[op.id]] += flop(op, {v: given.graph.values[v] for v in (*op.inputs, *(o for o in op.outputs if o))})
    return tuple(sorted(work, reverse=True))


def lowered(one: Instance, point: Point, cluster: Cluster, choices: Choices, choice: tuple[int, ...]) -> Plan:
    """The Plan of one choice."""
    given, shape = choices.staged, point.shape
    by_id = {op.id: op for op in given.graph.ops}
    ops = {name: relabel(menu[choice[node]].local, by_id[name]) for name, (node, menu) in choices.ops.items()}
    states = {value: layouts[choice[node]] for value, (node, layouts) in choices.states.items()}
    taken = {key: ways[choice[node]] for key, (node, ways) in choices.shared.items()}
    delivered = {key: sbp for key, (sbp, _) in taken.items()}
    pinned = {value: sbp for value, sbp in choices.pinned.items() if value not in states}
    assignment = Assignment(
        ops=ops,
        states=states,
        pinned=pinned,
        method="tried",
        objective_s=1.0,
        lower_bound_s=0.0,
        delivered=delivered,
        held_bytes=0.0,
        regathered=frozenset(key for key, (_, way) in taken.items() if way is Way.AGAIN),
        routes=routes_of(given, choices.costs, ops=ops, states=states, pinned=pinned, delivered=delivered),
    )
    recipe = Recipe(
        model="net",
        batch_size=one.batch,
        micro_batches=shape.micro_batches,
        mesh=shape.mesh,
        bucket_bytes=one.options.bucket_bytes,
        schedule=Schedule.ONE_F_ONE_B,
    )
    return lower(given, assignment, cluster, recipe)
