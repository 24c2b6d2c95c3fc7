"""A proof is not repeated where only the record of a Plan has changed, and is where anything else has."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from matrix import program, read_plan

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.plan import Fragment, Plan
from planner.validate import ProvenPlans, once, validate
from planner.validate.fragments import FragmentProver
from tests.planner.validate.test_edits import WRONG


def test_what_differs_in_its_record_alone_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, proven = read_plan("mlp", "zero1", "fp32"), list[Plan]()
    validate = once.validate
    monkeypatch.setattr(once, "validate", lambda plan, *given, **named: proven.append(plan) or validate(plan, *given, **named))
    proofs = ProvenPlans(program("mlp", "fp32"))
    recorded = replace(plan, options={**plan.options, "robust": "0.1"}, search=replace(plan.search, lower_bound_s=0.0))
    for again in (plan, plan, recorded, replace(recorded, cluster=replace(plan.cluster, name="another"))):
        proofs.prove(again)
    assert proven == [plan]


def test_any_other_field_that_was_made_anew_is_proven_anew() -> None:
    plan = read_plan("mlp", "zero1", "fp32")
    proofs = ProvenPlans(program("mlp", "fp32"))
    proofs.prove(plan)
    wrong = replace(plan, states=plan.states[1:])
    with pytest.raises(PlanDoesNotComputeProgram):
        proofs.prove(wrong)
    read = {"tasks", "regsts", "states", "placements", "gradients", "loss", "outputs", "batch_inputs", "micro_batches"}
    assert read <= {f.name for f in fields(Plan)} - once._RECORD


@pytest.mark.parametrize("variant", ["zero1", "pipeline2_data2"])
def test_a_proof_reads_no_order_of_streams(variant: str) -> None:
    plan = read_plan("mlp", variant, "fp32")
    assert validate(replace(plan, streams=()), program("mlp", "fp32"), is_verified=True) == validate(
        plan, program("mlp", "fp32"), is_verified=True
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_computes_something_else_is_refused_after_the_right_one_was_proven(name: str) -> None:
    """Planted: a fragment that was proven is taken to compute the same whatever it reads."""
    model, way, edit, says = WRONG[name]
    plan, proofs = read_plan(model, way, "fp32"), ProvenPlans(program(model))
    for _ in range(2):
        proofs.prove(plan)
        with pytest.raises(PlanDoesNotComputeProgram) as refused:
            proofs.prove(edit(plan))
        assert re.search(says, str(refused.value)), refused.value


def test_fragments_of_the_plan_proven_last_are_not_proven_again_where_they_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, executed = read_plan("gpt", "pipeline2", "fp32"), list[str]()
    results = FragmentProver.results
    monkeypatch.setattr(FragmentProver, "results", lambda prover, task, *given: executed.append(task.id) or results(prover, task, *given))
    proofs = ProvenPlans(program("gpt"))
    proofs.prove(plan)
    computing = [task.id for task in plan.tasks if isinstance(task.body, Fragment)]
    assert sorted(executed) == sorted(computing)
    executed.clear()
    anew = next(task for task in plan.tasks if isinstance(task.body, Fragment))
    proofs.prove(replace(plan, tasks=tuple(replace(t, body=replace(t.body, ops=t.body.ops)) if t is anew else t for t in plan.tasks)))
    assert executed == [anew.id]
