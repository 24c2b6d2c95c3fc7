"""What a lower bound ranges over stands in the Plan: open parts of the shape with their ranges, and no more than was searched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir.cluster import Cluster
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan, search_plans
from planner.parallelism.proof import covered_text
from planner.parallelism.shape import shapes
from regista.api import program_of
from regista.clusters import resolve_cluster
from regista.views.tables.explanation import gap_text

MODEL = "zoo:mlp?depth=2&width=8&hidden=8&batch=12"


def eight() -> Cluster:
    return resolve_cluster("p3.16xlarge:1")


def searched(options: PlanOptions) -> Plan:
    return search_plans(program_of(MODEL).graph, model="mlp", batch_size=12, cluster=eight(), options=options).plan


def test_a_mesh_of_three_axes_is_no_searched_shape_and_the_certificate_says_so() -> None:
    """The bound was told of plans of any shape; 2x2x2 devices and three micro-batches on one stage can be asked for and are not among those."""
    open_shapes = shapes(12, eight(), most_stages=2)
    assert (2, 2, 2) not in {s.mesh for s in open_shapes} and 3 not in {s.micro_batches for s in open_shapes if s.stages == 1}
    outside = PlanOptions(stages=1, mesh=(2, 2, 2), micro_batches=3)
    assert make_plan(program_of(MODEL).graph(3), model="mlp", batch_size=12, cluster=eight(), options=outside).micro_batches == 3
    plan = searched(PlanOptions(stages=None, micro_batches=None))
    for words in ("meshes of at most 2 axes", "a power of two of them up to 64 per stage", "stages of equal size", "priced as 1f1b"):
        assert words in covered_text(plan) and words in gap_text(plan)


def test_what_was_given_is_not_said_to_have_been_searched() -> None:
    one = searched(PlanOptions(stages=1, micro_batches=1, mesh=(8,), recompute=False))
    assert covered_text(one) == "all layouts of this plan's shape; acts added up at the prices they have alone"
    pinned = replace(one, options={**one.options, "pins": "up.weight=S(0)"})
    assert covered_text(pinned).startswith("all layouts that the pins and the ZeRO level allow of this plan's shape")
    meshes = searched(PlanOptions(stages=1, micro_batches=1, recompute=False))
    assert "meshes of at most 2 axes; the rest of the shape as here" in covered_text(meshes) and "stages" not in covered_text(meshes)


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [("open", "stages,colour", r"names \['colour'\], not stages, mesh"), ("schedule", "2f2b", "is '2f2b', not one of 1f1b")],
)
def test_a_record_that_no_search_writes_is_refused_by_name(option: str, text: str, says: str) -> None:
    """Found by damaged files: a traceback of the screen that shows the Plan."""
    one = searched(PlanOptions(stages=1, micro_batches=1, mesh=(8,), recompute=False))
    with pytest.raises(InvalidPlan, match=says):
        gap_text(replace(one, options={**one.options, option: text}))
