"""--schedule auto: of the schedules that can be asked for on the shape found, none is quicker than the chosen one; the Plan records all."""

from __future__ import annotations

from dataclasses import replace

import pytest

import regista
from planner.ir.errors import InvalidPlan, RegistaError, Unsupported
from planner.ir.plan import Plan
from planner.parallelism.proof import covered_text
from regista.clusters import resolve_cluster
from regista.schedules import compared_schedules, schedules_text

MODEL = "zoo:mlp?depth={depth}&width={width}&hidden={width}&batch=8"
BY_NAME = (
    {"schedule": "1f1b"},
    {"schedule": "gpipe"},
    {"schedule": "zb-h1"},
    {"schedule": "zb-h2"},
    {"schedule": "zb-auto"},
    {"schedule": "zb-auto", "hold": 4},
    {"schedule": "interleaved", "interleave": 2},
    {"schedule": "interleaved", "interleave": 4},
)


def step_s(plan: Plan) -> float:
    return regista.simulate(plan, engine="simpy").settled_step_s(plan)


@pytest.mark.representatives("4-16-2")
@pytest.mark.parametrize(("depth", "width", "micro_batches"), [(4, 16, 2), (4, 512, 4), (2, 512, 8), (8, 512, 4), (4, 1024, 8), (3, 64, 4)])
def test_no_schedule_asked_for_by_name_is_quicker_on_the_shape(depth: int, width: int, micro_batches: int) -> None:
    cluster = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=2)
    session = regista.PlannerSession(MODEL.format(depth=depth, width=width))
    shape = {"stages": 2, "mesh": (1,), "micro_batches": micro_batches}
    chosen = session.plan(cluster, schedule="auto", **shape)
    steps = []
    for asked in BY_NAME:
        try:
            steps.append(step_s(session.plan(cluster, **shape, **asked)))
        except RegistaError:
            continue
    compared = compared_schedules(chosen)
    assert len(compared) == len(BY_NAME)
    assert sorted(one.step_s for one in compared if one.step_s is not None) == pytest.approx(sorted(steps), rel=1e-9)
    assert step_s(chosen) == pytest.approx(min(steps), rel=1e-9) == compared[0].step_s


@pytest.mark.thorough
def test_where_memory_refuses_a_schedule_the_record_says_why_and_another_is_chosen() -> None:
    """GPipe holds all 8 micro-batches, 1F1B two on its first stage."""
    session = regista.PlannerSession(MODEL.format(depth=4, width=512).replace("batch=8", "batch=4096"))
    roomy = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=2)
    shape = {"stages": 2, "mesh": (1,), "micro_batches": 8, "recompute": False}
    held = {one.name: one.peak_bytes for one in compared_schedules(session.plan(roomy, schedule="auto", **shape))}
    assert held["1f1b"] is not None and held["gpipe"] is not None and held["gpipe"] > held["1f1b"]
    between = (held["1f1b"] + held["gpipe"]) // 2
    tight = replace(roomy, device=replace(roomy.device, memory_bytes=between))
    chosen = session.plan(tight, schedule="auto", **shape)
    (refused,) = (one for one in compared_schedules(chosen) if one.name == "gpipe")
    assert refused.step_s is None and "but a device of" in refused.why_not
    assert chosen.options["schedule"] != "gpipe" and "gpipe refused" in schedules_text(chosen)


def test_the_bound_of_a_plan_with_another_schedule_is_not_said_to_be_about_schedules() -> None:
    session = regista.PlannerSession(MODEL.format(depth=4, width=16))
    chosen = session.plan("local:2", schedule="auto", stages=2, micro_batches=4)
    assert "priced as 1f1b" in covered_text(chosen)
    assert schedules_text(chosen).startswith(f"{compared_schedules(chosen)[0].name}, the quickest of ")


def test_one_stage_has_no_schedule_and_its_plan_is_the_same() -> None:
    session = regista.PlannerSession(MODEL.format(depth=2, width=16))
    given, automatic = (session.plan("local:2", schedule=schedule) for schedule in ("1f1b", "auto"))
    assert given.plan_id == automatic.plan_id and not compared_schedules(automatic) and not schedules_text(automatic)


@pytest.mark.parametrize("given", [{"interleave": 2}, {"hold": 3}])
def test_what_auto_chooses_itself_cannot_be_given(given: dict[str, int]) -> None:
    with pytest.raises(
        Unsupported, match=f"{next(iter(given))} = .* with schedule auto, which tries several; leave it out, or name the schedule"
    ):
        regista.plan(MODEL.format(depth=2, width=16), "local:2", stages=2, micro_batches=2, schedule="auto", **given)


@pytest.mark.parametrize("text", ["{", "[1]", "[{}]", '[{"name": 3}]', '[{"name": "1f1b", "step_s": "soon"}]', "7"])
def test_a_record_that_somebody_else_wrote_is_refused(text: str) -> None:
    plan = regista.plan(MODEL.format(depth=2, width=16), "local:2")
    with pytest.raises(InvalidPlan, match="has a record of schedules that does not say name, step, bubble and bytes"):
        compared_schedules(replace(plan, options={**plan.options, "schedules": text}))
