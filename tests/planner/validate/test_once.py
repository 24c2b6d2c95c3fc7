"""A proof is not repeated where only the record of a Plan has changed, and is where anything else has."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from matrix import program, read_plan

from planner.ir.errors import PlanDoesNotComputeProgram
from planner.ir.plan import Plan
from planner.validate import ProvenPlans, once, validate


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
