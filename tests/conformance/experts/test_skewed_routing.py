"""SEMANTICS 6.1 and 12.5 where tokens crowd: the mixture of the matrix, with a gate whose first choice is expert 0 for every token.

ln_2 adds 3 to the first feature of what the gate reads, and expert 0 weighs it by 2.  Of 128 choices of 64 tokens expert 0 gets 64: twice the
even load, the most that two of four allow.  It has 2 places per sample of 4 tokens, so half of them are turned away, on whatever rank it lies.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from matrix import OPTIMIZER, STEPS, assert_transparent, plan_for, program, roomy_cluster
from oracle import Outcome as Eager
from oracle import train_eagerly
from torch import Tensor
from wrong_performers import Wrong

from backend import perform, run
from planner.cost.routing import ExpertLoad, Routing
from planner.frontend import Program
from planner.ir.plan import Boxing, Plan, Task
from planner.parallelism.make import PlanOptions, make_plan

WAYS = {
    "2 ranks of 2 experts": (2,),
    "4 ranks of an expert": (4,),
    "2 halves of the batch, each on 2 ranks of experts": (2, 2),
}


@cache
def crowded(places: int = 2) -> Program:
    """Places: of an expert, per sample."""
    made = program("moe")
    module = copy.deepcopy(made.module)
    with torch.no_grad():
        module.get_submodule("h.1.ln_2").bias[0] = 3.0  # type: ignore[index]
        layer = module.get_submodule("h.1.mlp")
        layer.gate.weight[0, 0] = 2.0  # type: ignore[index]
    layer.capacity = places
    return Program(module, made.example_inputs, made.loss, OPTIMIZER, name="moe", data=made.data)


@cache
def alone(places: int = 2) -> Eager:
    return train_eagerly(crowded(places), 1, STEPS)


@cache
def plan_on(mesh: tuple[int, ...]) -> Plan:
    if mesh == (2,):
        return plan_for("moe", "data2_experts2")
    rows, experts = ("S(0)", "S(0)") if len(mesh) == 1 else ("S(0),S(0)", "B,S(0)")
    source, devices = crowded(), 4
    pins = (f"input.0={rows}", f"out:h.?.attn={rows}", f"out:h.?.ln_2={rows}", f"h.1.mlp.w_*={experts}")
    options = PlanOptions(mesh=mesh, pins=pins, load=ExpertLoad(routing=Routing(), top_k=2))
    return make_plan(source.graph(1), model="moe", batch_size=source.batch_size, cluster=roomy_cluster(devices), options=options)


def choices(source: Program, best: int) -> Tensor:
    """How many tokens have each expert among their best, shape [experts]."""
    seen: list[Tensor] = []
    gate = source.module.get_submodule("h.1.mlp").gate
    assert isinstance(gate, torch.nn.Module)
    hook = gate.register_forward_hook(lambda _, __, logits: seen.append(logits.detach()))
    with torch.no_grad():
        source.loss_of(source.module, source.batch(0))
    hook.remove()
    return torch.bincount(seen[0].topk(best, dim=-1).indices.flatten(), minlength=4)


class TurnsTokensAwayOnArrival(Wrong):
    """A rank of experts that finds itself too full forgets the last place of its first expert, which no single device does."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        results = super().run_boxing(task, body, parts)
        if "all_to_all.fwd.0" not in task.id:
            return results
        self.slips += 1
        first = results[0].clone()
        first[0, ..., -1, :] = 0
        return [first, *results[1:]]


def test_the_gate_sends_every_token_to_one_expert_first() -> None:
    assert choices(crowded(), 1).tolist() == [64, 0, 0, 0]
    assert choices(crowded(), 2).max() == 64 and choices(program("moe"), 2).max() < 48


@pytest.mark.representatives("2 ranks of 2 experts")
@pytest.mark.parametrize("way", WAYS)
def test_crowded_experts_on_ranks_train_as_one_device_and_drop_the_tokens_that_it_drops(way: str) -> None:
    plan = plan_on(WAYS[way])
    stored = {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states}
    assert stored["h.1.mlp.w_in"] == stored["h.1.mlp.w_out"] == ("B,S(0)" if len(WAYS[way]) == 2 else "S(0)")
    assert {part for part in ("fwd", "bwd") for task in plan.tasks if "all_to_all" in task.id and part in task.id} == {"fwd", "bwd"}
    source = crowded()
    outcome = perform(plan, source.initial_state(1), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, alone())
    with pytest.raises(AssertionError):  # with room for all, one device trains otherwise: what is dropped matters
        assert_transparent(outcome, alone(places=4))


def test_a_rank_that_turns_tokens_away_on_arrival_is_caught() -> None:
    plan, source = plan_on((4,)), crowded()
    performer = TurnsTokensAwayOnArrival(plan, source.initial_state(1), source.batch, STEPS, gradients=True)
    outcome = performer.run()
    assert performer.slips
    with pytest.raises(AssertionError):
        assert_transparent(outcome, alone())


@pytest.mark.processes
@pytest.mark.thorough
def test_crowded_experts_train_as_one_device_on_processes() -> None:
    plan, source = plan_on((4,)), crowded()
    outcome = run(plan, source.initial_state(1), source.batch, STEPS, gradients=True, timeout_s=120)
    assert_transparent(outcome, alone())
