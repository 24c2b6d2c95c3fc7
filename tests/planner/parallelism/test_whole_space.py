"""The answer of the planner on random small problems against every choice of every shape: stages, device groups, micro-batches, recomputation, layouts.

More instances, as rows: python -m experiments.search_space.whole_space.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, nan

import pytest

from experiments.search_space import bounds_beside, whole_space
from experiments.search_space.bounds_beside import bytes_bounds
from experiments.search_space.covered_space import Space, least_bytes, staged
from experiments.search_space.whole_space import broken, checked, found, instance
from planner.ir.errors import OutOfMemory, Unsupported
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.proof import covered_text
from planner.parallelism.shape import shapes
from planner.search import Method, build_model, search
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.search.pins import parse_pins

SEEDS = {"two kinds": 4, "three shapes": 8, "embedding": 19, "recompute": 41, "refused": 14}


@pytest.mark.representatives("two kinds", "recompute")
@pytest.mark.parametrize("what", SEEDS)
def test_no_choice_of_any_shape_beats_a_bound_and_the_plan_is_the_best_within_the_gap(what: str) -> None:
    row = checked(instance(SEEDS[what]))
    assert not row["broken"], row


def test_the_bytes_that_blocks_of_the_first_stage_leave_to_others_are_not_demanded_of_it() -> None:
    """Counter-example: the bound was 1.2 of what the fullest device of the smallest plan holds, so that a plan that fits could be refused."""
    one = instance(754)
    space, bounds = Space(one), ShapeBounds(one.program.graph, one.batch, one.cluster, parse_pins(one.options.pins))
    for point in space.covered:
        assert max(bytes_bounds(bounds, point)) <= least_bytes(space, point)


def test_a_shape_of_which_no_tried_plan_fits_is_named_as_left_out_of_the_bound() -> None:
    """Counter-example: the bound was told of every shape, and choices of some below it were not shown to be too large."""
    one = instance(105)
    plan = found(one).plan
    whole, named = Space(one), Space(one, plan)
    assert min(whole.least_s(point) for point in whole.covered) < plan.search.lower_bound_s * 0.99
    assert plan.search.lower_bound_s <= min(named.least_s(point) for point in named.covered) * (1 + 1e-9)
    assert "of which no plan that was tried fits a device" in covered_text(plan)


def test_a_refusal_after_tries_says_that_it_is_no_proof() -> None:
    """Counter-example: of 23 bytes the planner's tries need 24; another plan, which the search takes for slower, needs 20."""
    one = instance(1060)
    with pytest.raises(OutOfMemory, match="no plan that was tried fits, which is no proof that none does"):
        found(one)
    assert any(Space(one).tried(inf, 12))


def test_a_given_mesh_leaves_as_many_stages_as_have_its_devices() -> None:
    """Counter-example: with mesh 2 on two devices, two stages were searched as well, and the plan was refused for using four devices."""
    one = instance(8)
    options = PlanOptions(stages=None, mesh=(2,), micro_batches=None, mode=one.options.mode)
    plan = search_plans(one.program.graph, model="net", batch_size=one.batch, cluster=one.cluster, options=options).plan
    assert plan.num_ranks == 2 and plan.options["stages"] == "1"
    with pytest.raises(Unsupported, match="mesh 1 has 1 places, of which 2 devices make 2 stages, and the model has 1 numbered blocks"):
        shapes(one.batch, one.cluster, mesh=(1,), most_stages=1)


ROW = {"answer": "plan", "memory_bytes": nan, "objective_s": 1.0, "lower_bound_s": 1.0, "covered_s": 1.0, "free_s": 1.0, "bound_share": 1.0}
ROW |= {"bytes_share": 1.0, "other_share": 1.0, "below": 0, "tried": 0, "quicker_fit": 0, "auto_sim_s": 1.0, "named_sim_s": 1.0}


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        *((name, 1.01) for name in ("lower_bound_s", "bound_share", "bytes_share", "other_share", "auto_sim_s")),
        ("objective_s", 0.99),
        ("objective_s", 1.02),
        ("lower_bound_s", 0.98),
        ("below", 1),
        ("quicker_fit", 1),
    ],
)
def test_a_row_that_is_off_by_a_hundredth_breaks_a_law(column: str, wrong: float) -> None:
    assert not broken(ROW) and broken(ROW | {column: wrong})


def _whole(times: float) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(*args: object, **named: object) -> Iterator[float]:
            return (times * bound_s for bound_s in whole_model_bounds(*args, **named))  # type: ignore[arg-type]

        monkeypatch.setattr(bounds_beside, "whole_model_bounds", wrong)

    return plant


def _first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound as it was: all that blocks of the first stage make is kept there."""
    monkeypatch.setattr(ShapeBounds, "_leaving_bytes", lambda self, shape: 0.0)


def _weighed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mistake in what pieces weigh, not in what is known before any piece is solved."""
    of = ShapeBounds.of
    monkeypatch.setattr(ShapeBounds, "of", lambda self, shape: replace(of(self, shape), leaving={}))


def _answer(times: float) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(*args: object, **named: object) -> object:
            plans = search_plans(*args, **named)  # type: ignore[arg-type]
            claim = replace(plans.plan.search, lower_bound_s=plans.plan.search.lower_bound_s * times)
            return replace(plans, plan=replace(plans.plan, search=claim))

        monkeypatch.setattr(whole_space, "search_plans", wrong)

    return plant


@pytest.mark.parametrize(
    ("seed", "plant", "says"),
    [
        (32, _whole(1.01), "a bound on a shape is above its least step"),
        (32, _answer(1.001), "the lower bound is above the least step of what it covers"),
        (32, _answer(0.9), "the plan is not proven within the gap"),
        (754, _first_stage, "a bound on a shape's bytes is above its least bytes"),
        (754, _weighed_whole, "a bound on a shape's bytes is above its least bytes"),
    ],
    ids=["bound of a shape", "bound too high", "open gap", "first stage", "first stage's pieces"],
)
def test_a_planted_wrong_bound_is_caught(
    seed: int, plant: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = instance(seed)
    plant(monkeypatch)
    assert says in str(checked(one)["broken"])


@pytest.mark.parametrize("seed", [154])
def test_at_any_multipliers_no_choice_within_memory_beats_the_bound_of_the_whole_model(seed: int) -> None:
    one = instance(seed)
    point = max(Space(one).covered, key=lambda p: (p.shape.stages, p.shape.micro_batches))
    shape, cluster = point.shape, one.cluster
    flight = tuple(min(shape.micro_batches, shape.stages - s) for s in range(shape.stages))
    given = staged(one, point, cluster)
    model = build_model(given, shape.mesh, cluster, parse_pins(one.options.pins), shape.micro_batches, limit_bytes=1e30, in_flight=flight)
    rng = random.Random(seed)
    best = list(search(model, Method.EXACT).choice)
    choices = [
        [s if rng.random() < 0.95 else rng.randrange(len(costs)) for s, costs in zip(best, model.problem.costs, strict=True)]
        for _ in range(200)
    ]
    allowed = [choice for choice in choices if model.problem.objective(choice) < inf]
    assert len(allowed) > 5
    for choice in allowed:
        memory_bytes = model.problem.peak(choice)
        multipliers = [rng.choice((0.0, 1e-12, 1e-9, 1e-6)) for _ in range(shape.stages)]
        *_, bound_s = whole_model_bounds(model, s_per_byte=multipliers, memory_bytes=memory_bytes)
        assert bound_s <= model.step_s(choice) * (1 + 1e-9), (multipliers, memory_bytes)
