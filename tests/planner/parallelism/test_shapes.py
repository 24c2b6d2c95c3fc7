"""The shape search: its bounds hold, its pieces stand for the whole, its cuts are even, its memory is the Plan's."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator
from planner.cost import AnalyticCost
from planner.ir.actors.peak import live_bytes
from planner.ir.cluster import Cluster
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.graph import Role
from planner.ir.plan import Plan
from planner.opset import is_view
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import PlanOptions, make_plan, search_plans
from planner.parallelism.memory import again_of
from planner.parallelism.options import SHARES
from planner.parallelism.proven import Proof, ProvenBound
from planner.parallelism.shape import Shape, shapes
from planner.parallelism.shape_search import ShapeSearch
from planner.search import build_model, find_layouts, search
from planner.search.bounds.bottleneck import bottleneck_bound
from planner.search.bounds.guided import solve_guided
from planner.search.bounds.pieces import forward_part, model_pieces
from planner.search.bounds.scaled import scaled_pieces
from planner.search.methods.method import Method
from planner.search.strategies import op_shape
from planner.solve import solve_exactly
from planner.solve.limited.memory import least_demand
from planner.stages import assign_stages, prepare
from planner.stages.assign import _even_cut
from planner.stages.dag import crossing_bytes, work_dag
from planner.stages.recompute import recompute_of
from regista import api
from regista.clusters import resolve_cluster
from zoo import ZOO

MODEL = "zoo:gpt?layers=4&width=64&heads=4&vocab=96&seq=16&batch=16"
SHAPES = (
    Shape(1, 1, (4,)),
    Shape(1, 4, (2, 2)),
    Shape(2, 4, (2,)),
    Shape(4, 8, (1,)),
    Shape(2, 4, (2,), recompute="blocks"),
    Shape(2, 4, (2,), recompute="50%"),
)

program_of = cache(api.program_of)
"""Traced once for all laws: none changes a program."""


def four() -> Cluster:
    return replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=4)


@cache
def shares_of_four() -> ShapeBounds:
    return ShapeBounds(program_of(MODEL).graph, 16, four(), ())


def between(shares: ShapeBounds, shape: Shape, room: float) -> float:
    """A limit between what equal shares of the model hold at least (0.0) and what they hold where memory does not bind (1.0), in bytes."""
    share = replace(shares.of(shape), first=())
    least, most = share.smallest.held_bytes, share.cheapest.held_bytes
    return least + room * (max(most, least) - least)


@pytest.mark.representatives("0.5-1 stages of 4, 1 micro-batches", "0.2-2 stages of 2, 4 micro-batches")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("room", [1.0, 0.5, 0.2])
def test_no_plan_of_a_shape_beats_the_shapes_bounds(shape: Shape, room: float) -> None:
    program, cluster = program_of(MODEL), four()
    shares = shares_of_four()
    share = shares.of(shape)
    limit = between(shares, shape, room)
    graph = program.graph(shape.micro_batches)
    staged = prepare(graph, assign_stages(graph, shape.stages), shape.stages, recompute=again_of(graph, shape.recompute, cluster).ops)
    flight = [min(shape.micro_batches, shape.stages - s) for s in range(shape.stages)]
    model = build_model(staged, shape.mesh, cluster, (), shape.micro_batches, limit_bytes=limit * 1.5, in_flight=flight)
    step_s = model.step_s(search(model, Method.EXACT, seconds=10.0).choice)
    assert shares.roofline_s(shape) <= step_s * (1 + 1e-9)
    assert shares.forward_part_s(shape) <= shares.largest_piece_s(shape) * (1 + 1e-9)
    assert shares.largest_piece_s(shape) <= step_s * (1 + 1e-9)
    assert share.unlimited_s <= step_s * (1 + 1e-9)
    assert share.bound_within(limit * 1.5)[0] <= step_s * (1 + 1e-9)
    assert share.bound_within(limit * 1.5, only_bound=True)[0] == pytest.approx(share.bound_within(limit * 1.5)[0], rel=1e-9)
    assert max(share.least_bytes, shares.floor_bytes(shape)) <= model.problem.peak(least_demand(model.problem)) * (1 + 1e-9)


def quick_links(devices: int) -> Cluster:
    """Sending takes no time, so that a step is little more than its ops."""
    cluster = replace(four(), devices_per_node=devices)
    return replace(cluster, node=replace(cluster.node, bandwidth_bytes_per_s=1e18, latency_s=0.0))


@pytest.mark.parametrize("recompute", ["", "blocks", "40%", "attention"])
def test_bounds_of_more_stages_than_blocks_are_below_the_step(recompute: str) -> None:
    """Bounds took two blocks for whole where eight stages cut inside of them, and for recomputed what such a cut leaves kept: 1.5 times the step."""
    program, cluster, shape = (
        ZOO["gpt"](layers=2, width=64, heads=4, vocab=32, batch=8, seq=64),
        quick_links(8),
        Shape(8, 4, (1,), recompute),
    )
    options = PlanOptions(stages=8, micro_batches=4, mesh=(1,), recompute=recompute_of(recompute or "none"))
    step_s = make_plan(program.graph(4), model="gpt", batch_size=8, cluster=cluster, options=options).search.objective_s
    bounds = ShapeBounds(program.graph, 8, cluster, ())
    for bound_s in (bounds.roofline_s(shape), bounds.forward_part_s(shape), bounds.largest_piece_s(shape), bounds.of(shape).unlimited_s):
        assert 0.5 * step_s < bound_s <= step_s * (1 + 1e-9)


def test_bounds_of_a_cut_inside_of_a_block_know_what_it_leaves_kept() -> None:
    program, shape, cuts = program_of(MODEL), Shape(2, 4, (1,), "blocks"), ("h.1.mlp",)
    graph = program.graph(4)
    bounds = ShapeBounds(program.graph, 16, quick_links(2), (), even=False, stages_of=lambda graph, shape: assign_stages(graph, 2, cuts))
    whole = ShapeBounds(program.graph, 16, quick_links(2), (), even=False, stages_of=lambda graph, shape: assign_stages(graph, 2, ("h.2",)))
    staged = prepare(graph, assign_stages(graph, 2, cuts), 2, recompute=again_of(graph, "blocks", quick_links(2)).ops).graph

    def ops_of(bounds: ShapeBounds) -> int:
        return sum(piece.times * sum(not is_view(op) for op in piece.graph.ops) for piece in bounds.pieces_of(shape))

    assert ops_of(bounds) <= sum(not is_view(op) for op in staged.ops) < ops_of(whole)


def test_a_bound_of_one_share_is_none_of_the_next() -> None:
    """The choice that keeps 60 % is none of those that keep 80 % with more computed again: other ops, perhaps with fewer collectives."""
    for tried, after in (("", "80%"), ("80%", "60%"), ("20%", "blocks")):
        shape = Shape(1, 4, (2, 2), tried)
        search_of = ShapeSearch(ShapeBounds(program_of(MODEL).graph, 16, four(), ()), lambda *_: (1.0, 1.0), recompute=(*SHARES, "blocks"))
        search_of.known[shape] = ProvenBound(fitting=Proof(1e4), all_plans=Proof(1e3))
        search_of._with_recompute(shape)
        [(bound_s, following, *_)] = search_of._queue
        assert following.recompute == after
        assert bound_s == (1e3 if not tried else search_of.bounds.roofline_s(following)) <= 1e3


def test_the_forward_part_has_all_forward_ops_of_its_piece_and_reads_parameters_in_any_layout() -> None:
    piece = max(model_pieces(program_of(MODEL).graph(4)), key=lambda piece: piece.times)
    part = forward_part(piece)
    assert [op.id for op in part.graph.ops] == [op.id for op in piece.graph.ops if op.role is Role.FORWARD]
    assert not part.graph.updates
    assert part.saved_bytes == piece.saved_bytes


@pytest.mark.representatives("h.1-1")
@pytest.mark.parametrize("mesh", [(1,), (2,)], ids=["1", "2"])
@pytest.mark.parametrize("cut", ["h.1", "h.3", ""])
def test_no_shape_is_refused_that_has_a_plan_which_fits(cut: str, mesh: tuple[int, ...]) -> None:
    """The first stage was taken to hold half of the model; cut at h.1 it holds a quarter, and the other stage keeps fewer micro-batches."""
    program, shape = program_of(MODEL), Shape(2, 4, mesh)
    cluster = replace(four(), devices_per_node=2 * mesh[0])
    options = PlanOptions(stages=2, micro_batches=4, mesh=mesh, cuts=(cut,) if cut else (), recompute=False)
    tightest: Plan | None = None
    for room in (1.0, 0.5, 0.4, 0.3, 0.25, 0.2):
        memory = int(12e6 * room / mesh[0])
        small = replace(cluster, device=replace(cluster.device, memory_bytes=memory))
        try:
            tightest = make_plan(program.graph(4), model=MODEL, batch_size=16, cluster=small, options=options)
        except OutOfMemory:
            break
    assert tightest is not None
    just = replace(cluster, device=replace(cluster.device, memory_bytes=max(live_bytes(tightest).values())))
    bounds = ShapeBounds(program.graph, 16, just, (), even=not cut)
    assert ShapeSearch(bounds, lambda *_: (1e3, 0.0)).best([shape])[0] == shape


@pytest.mark.representatives("2 stages of 2, 4 micro-batches")
@pytest.mark.parametrize("shape", [s for s in SHAPES if s.stages > 1], ids=str)
def test_the_bottleneck_bound_lies_between_the_mean_bound_and_the_step(shape: Shape) -> None:
    program, cluster = program_of(MODEL), four()
    graph = program.graph(shape.micro_batches)
    staged = prepare(graph, assign_stages(graph, shape.stages), shape.stages, recompute=again_of(graph, shape.recompute, cluster).ops)
    model = build_model(staged, shape.mesh, cluster, (), shape.micro_batches)
    solution = search(model, Method.EXACT)
    bound_s, other = bottleneck_bound(model, solution.choice)
    assert bound_s <= min(model.step_s(solution.choice), model.step_s(other)) * (1 + 1e-9)
    assert bound_s >= solution.lower_bound / shape.stages * (1 - 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("room", [0.7, 0.4, 0.1])
def test_the_guided_search_fits_and_its_bound_is_below_the_best_that_fits(room: float) -> None:
    program, cluster, shape = program_of(MODEL), four(), Shape(2, 4, (2,))
    shares = shares_of_four()
    limit = between(shares, shape, room)
    graph = program.graph(4)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    model = build_model(staged, shape.mesh, cluster, (), 4, limit_bytes=limit, in_flight=(2, 1))
    guided = solve_guided(model, shares.s_per_byte(shape, limit), limit)
    best = search(model, Method.EXACT, seconds=20.0)
    assert guided is not None
    solution, _ = guided
    assert model.problem.feasible(solution.choice)
    assert solution.lower_bound <= best.objective * (1 + 1e-9)
    assert solution.objective >= best.lower_bound * (1 - 1e-9)


def test_the_guided_search_finds_prices_by_itself_where_the_pieces_say_that_memory_binds_nowhere() -> None:
    program, cluster, shape = program_of(MODEL), four(), Shape(2, 4, (2,))
    graph = program.graph(4)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    limit = between(shares_of_four(), shape, 0.5)
    model = build_model(staged, shape.mesh, cluster, (), 4, limit_bytes=limit, in_flight=(2, 1))
    assert not model.problem.feasible(solve_exactly(replace(model.problem, demands=())).choice)
    guided = solve_guided(model, (0.0, 0.0), limit)
    assert guided is not None and model.problem.feasible(guided[0].choice)


def test_a_long_model_is_searched_by_prices_without_being_told_any(monkeypatch: pytest.MonkeyPatch) -> None:
    program, shape = program_of(MODEL), Shape(2, 4, (2,))
    limit = between(shares_of_four(), shape, 0.5)
    graph = program.graph(4)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    model = build_model(staged, shape.mesh, four(), (), 4, limit_bytes=limit, in_flight=(2, 1))
    best = find_layouts(model, limit_bytes=limit, memory_bytes=limit).assignment()
    monkeypatch.setattr(sys.modules["planner.search.assign"], "_LONG", 0)
    monkeypatch.setattr(sys.modules["planner.search.assign"], "search", None)  # the general solver
    assignment = find_layouts(model, limit_bytes=limit, memory_bytes=limit).assignment()
    assert assignment.held_bytes <= limit
    assert assignment.lower_bound_s <= best.objective_s * (1 + 1e-9) and assignment.objective_s >= best.lower_bound_s * (1 - 1e-9)


def test_pieces_of_a_third_size_follow_from_two() -> None:
    program = program_of(MODEL)
    one, two, wanted = (model_pieces(program.graph(m)) for m in (1, 2, 4))
    made = scaled_pieces(one, two, (16, 8), 4)
    assert made is not None
    for left, right in zip(made, wanted, strict=True):
        assert (left.times, left.saved_bytes, left.state_bytes) == (right.times, right.saved_bytes, right.state_bytes)
        for a, b in zip(left.graph.ops, right.graph.ops, strict=True):
            costly = op_shape(replace(a, args=_without_floats(a.args)), left.graph.values)
            assert costly == op_shape(replace(b, args=_without_floats(b.args)), right.graph.values)


def _without_floats(args: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(_without_floats(a) if isinstance(a, tuple) else (0.0 if isinstance(a, float) else a) for a in args)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_an_even_cut_has_the_least_fullest_part_and_no_empty_one(work: list[int], parts: int) -> None:
    if parts > len(work):
        return
    cut = _even_cut(np.array(work, dtype=float), parts)
    assert len(cut) == parts - 1 and cut == sorted(set(cut)) and all(0 < c < len(work) for c in cut)

    def fullest(borders: tuple[int, ...]) -> int:
        ends = (0, *borders, len(work))
        return max(sum(work[a:b]) for a, b in zip(ends, ends[1:], strict=False))

    assert fullest(tuple(cut)) == min(fullest(c) for c in combinations(range(1, len(work)), parts - 1))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_stage_of_a_gpt_has_work(stages: int) -> None:
    graph = program_of("zoo:gpt?layers=4&batch=12").graph(stages)
    stage = assign_stages(graph, stages)
    assert {stage[op.id] for op in graph.ops if op.role is Role.FORWARD} == set(range(stages))


def test_a_dry_run_by_the_compiled_engine_counts_the_planners_live_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["simulator.live_bytes"], "_SMALL", 0)
    cluster = four()
    plan = make_plan(
        program_of(MODEL).graph(4), model="gpt", batch_size=16, cluster=cluster, options=PlanOptions(stages=2, mesh=(2,), micro_batches=4)
    )
    cost = AnalyticCost(cluster)
    assert dict(simulator.dry_run(plan)) == live_bytes(plan)
    assert dict(simulator.dry_run(plan, cost)) == live_bytes(plan, cost.folded_s(plan))
    assert simulator.dry_run.at(plan, (cost, None, cost)) == tuple(simulator.dry_run(plan, one) for one in (cost, None, cost))


@pytest.mark.thorough
def test_a_searched_shape_is_within_the_gap_of_every_shape_worked_out() -> None:
    program, cluster = program_of(MODEL), four()
    plan = search_plans(
        program.graph,
        model="gpt",
        batch_size=16,
        cluster=cluster,
        options=PlanOptions(stages=None, micro_batches=None),
        dry_run=simulator.dry_run,
    ).plan
    assert plan.search.lower_bound_s <= plan.search.objective_s
    for stages, mesh, m in ((1, (4,), 1), (1, (2, 2), 1), (2, (2,), 2), (2, (2,), 4), (4, (1,), 8)):
        options = PlanOptions(stages=stages, mesh=mesh, micro_batches=m)
        other = make_plan(program.graph(m), model="gpt", batch_size=16, cluster=cluster, options=options)
        assert plan.search.objective_s <= other.search.objective_s * 1.01
        assert plan.search.lower_bound_s <= other.search.objective_s * (1 + 1e-9)


def test_a_balanced_cut_of_the_graph_crosses_no_more_than_the_even_one_and_makes_a_plan() -> None:
    program = program_of("zoo:unet?batch=8&image=16&width=8&layers=2")
    graph = program.graph(4)
    dag = work_dag(graph, 4)
    even, cut = assign_stages(graph, 2), assign_stages(graph, 2, balance=0.6, micro_batches=4)
    by_piece = [[stage[piece.ops[0]] for piece in dag.groups] for stage in (even, cut)]
    assert crossing_bytes(dag, by_piece[1]) <= crossing_bytes(dag, by_piece[0])
    options = PlanOptions(stages=2, mesh=(2,), micro_batches=4, balance=0.6)
    plan = make_plan(graph, model=program.name, batch_size=8, cluster=four(), options=options)
    assert plan.options["balance"] == "0.6"
    assert {p.id for p in plan.placements} == {"s0", "s1"}
    with pytest.raises(Unsupported, match="give one of the two"):
        assign_stages(graph, 2, ["up"], balance=0.6)


@pytest.mark.thorough
def test_a_search_within_less_than_the_memory_proves_nothing_about_the_memory() -> None:
    program, cluster, shape = program_of(MODEL), four(), Shape(1, 4, (2, 2))
    share = shares_of_four().of(shape)
    memory = share.cheapest.held_bytes * 2
    limit = (share.smallest.held_bytes + share.cheapest.held_bytes) / 2
    graph = program.graph(4)
    staged = prepare(graph, assign_stages(graph, 1), 1)
    model = build_model(staged, shape.mesh, cluster, (), 4, limit_bytes=limit, in_flight=(1,))
    assert find_layouts(model, limit_bytes=limit, memory_bytes=limit).assignment().lower_bound_s > 0
    assert find_layouts(model, limit_bytes=limit, memory_bytes=memory).assignment().lower_bound_s == 0


@pytest.mark.thorough
def test_a_shape_is_entered_once() -> None:
    program, cluster = program_of(MODEL), four()
    worked: list[Shape] = []

    def never_fits(shape: Shape, _: bool) -> tuple[float, float]:
        worked.append(shape)
        raise OutOfMemory("not even nearly")

    share = shares_of_four().of(Shape(1, 4, (2, 2)))
    tight = int(share.smallest.held_bytes + share.cheapest.held_bytes) // 2
    small = replace(cluster, device=replace(cluster.device, memory_bytes=tight))
    search_of = ShapeSearch(ShapeBounds(program.graph, 16, small, ()), never_fits, recompute=("blocks",))
    with pytest.raises(OutOfMemory):
        search_of.best(shapes(16, small, most_stages=4))
    assert worked and len(worked) == len(set(worked))


def test_after_a_shape_that_did_not_fit_those_with_as_many_samples_at_once_wait_for_a_plan_and_no_bound_leaves_them_out() -> None:
    program = program_of(MODEL)
    bounds, candidates = ShapeBounds(program.graph, 16, four(), ()), shapes(16, four(), most_stages=4)
    worked: list[Shape] = []

    def samples(shape: Shape) -> float:
        return 16 / shape.micro_batches / math.prod(shape.mesh)

    def first_does_not_fit(shape: Shape, _: bool) -> tuple[float, float]:
        worked.append(shape)
        if len(worked) == 1:
            raise OutOfMemory("too large")
        return 1e3, 1e3

    search = ShapeSearch(bounds, first_does_not_fit)
    _, bound_s = search.best(candidates)
    first, second = worked[:2]
    assert samples(second) < samples(first) and any(samples(shape) >= samples(first) for shape in candidates if shape != first)
    assert len(worked) == len(candidates) and bound_s <= 1e3


def test_where_nothing_fits_shapes_that_were_put_off_are_tried_too() -> None:
    program = program_of(MODEL)
    worked: list[Shape] = []

    def never_fits(shape: Shape, _: bool) -> tuple[float, float]:
        worked.append(shape)
        raise OutOfMemory("not even nearly")

    candidates = shapes(16, four(), most_stages=4)
    with pytest.raises(OutOfMemory):
        ShapeSearch(ShapeBounds(program.graph, 16, four(), ()), never_fits).best(candidates)
    assert sorted(worked) == sorted(candidates)


@given(st.integers(1, 200))
def test_every_shape_slices_the_batch_evenly(batch: int) -> None:
    assert all(batch % shape.micro_batches == 0 for shape in shapes(batch, four(), most_stages=4))


def test_a_batch_without_samples_has_no_shapes() -> None:
    with pytest.raises(Unsupported, match="give at least 1 sample"):
        shapes(0, four(), most_stages=4)
