"""SEMANTICS 6.1 where it is easiest to break: each of these has a cell in the matrix, or a plan of its own, and a mistake that must show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from matrix import (
    MODELS,
    OPTIMIZER,
    STEPS,
    WAYS,
    assert_transparent,
    expected,
    options_for,
    plan_for,
    program,
    roomy_cluster,
    trained,
    widened,
)
from oracle import train_eagerly
from torch import Tensor
from wrong_performers import Wrong

from backend import perform
from backend.run_folder.outcome import Outcome
from planner.frontend import Program
from planner.ir.actors.routes import Piece
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing, Plan, Task, TaskKind
from planner.ir.traces.trace import check_trace
from planner.parallelism.make import PlanOptions, make_plan
from planner.stages import assign_stages, prepare
from zoo import ZOO

NORMED = ("convnet", "resnet50", "unet")


def performed(plan: Plan, source: Program, by: type[Wrong] = Wrong) -> tuple[Outcome, int]:
    """The outcome after STEPS, and how often the performer made its mistake."""
    performer = by(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True)
    return performer.run(), performer.slips


def in_stages(model: str, cuts: Sequence[str], micro_batches: int = 4) -> Plan:
    source, stages = program(model), len(cuts) + 1
    options = PlanOptions(stages=stages, micro_batches=micro_batches, cuts=tuple(cuts))
    graph = source.graph(micro_batches)
    return make_plan(graph, model=model, batch_size=source.batch_size, cluster=roomy_cluster(stages), options=options)


def transfers(plan: Plan) -> list[Task]:
    return [task for task in plan.tasks if task.kind is TaskKind.TRANSFER]


# Batch norm.


class KeepsItsOwnStatistics(Wrong):
    """The sums of batch norm stay those of the device's own samples, as in frameworks whose batch norm is not synchronised."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if "all_reduce.fwd" not in task.id:
            return super().run_boxing(task, body, parts)
        self.slips += 1
        return [part * len(parts) for part in parts]


@pytest.mark.representatives("convnet")
@pytest.mark.parametrize("model", NORMED)
def test_batch_norm_under_data_parallelism_counts_the_whole_batch(model: str) -> None:
    plan, eager = plan_for(model, "data2"), expected(model, 1)
    outcome, _ = performed(plan, program(model))
    statistics = {name: value for name, value in eager.buffers.items() if "running" in name}
    assert statistics
    for name, value in statistics.items():
        torch.testing.assert_close(outcome.states[name], value, rtol=1e-5, atol=1e-6)
    alone, slips = performed(plan, program(model), KeepsItsOwnStatistics)
    assert slips
    assert any(not torch.allclose(alone.states[name], value, rtol=1e-2, atol=1e-3) for name, value in statistics.items())
    with pytest.raises(AssertionError):
        assert_transparent(alone, eager)


# Mixture of experts.


class KeepsTokensAtHome(Wrong):
    """Its all-to-all sends nothing: every device's experts see the tokens that the device has."""

    def run_boxing(self, task: Task, body: Boxing, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        results = super().run_boxing(task, body, parts)
        if "all_to_all" not in task.id:
            return results
        self.slips += 1
        return [part.reshape(result.shape) for part, result in zip(parts, results, strict=True)]


def test_tokens_reach_experts_on_other_devices_and_come_back() -> None:
    plan = plan_for("moe", "data2_experts2")
    stored = {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states}
    assert stored["h.1.mlp.w_in"] == stored["h.1.mlp.w_out"] == "S(0)"
    for part in ("fwd", "bwd"):
        assert sum(f"all_to_all.{part}" in task.id for task in plan.tasks) == 2, "to the experts and back"
    outcome, _ = performed(plan, program("moe"))
    assert_transparent(outcome, expected("moe", 1))
    wrong, slips = performed(plan, program("moe"), KeepsTokensAtHome)
    assert slips
    with pytest.raises(AssertionError):
        assert_transparent(wrong, expected("moe", 1))


def test_the_moe_of_the_matrix_sends_tokens_to_every_expert_and_turns_some_away() -> None:
    """Else routing would be tested with nothing to route."""
    source, seen = program("moe"), []
    experts = source.module.get_submodule("h.1.mlp")
    hook = experts.gate.register_forward_hook(lambda _, __, logits: seen.append(logits.detach()))
    source.loss_of(source.module, source.batch(0))
    hook.remove()
    chosen = seen[0].topk(2, dim=-1).indices  # (batch, seq, 2)
    counts = torch.stack([(chosen == e).sum((1, 2)) for e in range(experts.experts)])  # per expert and group
    assert (counts.sum(1) > 0).all()
    assert (counts > experts.capacity).any()


# Weights that several stages read.


class LosesTheTiedGradient(Wrong):
    """What another stage adds to the gradient of a weight never arrives."""

    def run_transfer(self, task: Task, piece: Piece, value: Tensor) -> Tensor:
        if ".grad." not in task.id:
            return super().run_transfer(task, piece, value)
        self.slips += 1
        return torch.zeros_like(value)


TIED = {
    "gpt": ("wte.weight", ("h.1",)),
    "bert": ("word.weight", ("layers.1",)),
    "t5": ("shared.weight", ("encoder.blocks.0.norm_ff", "decoder.relative", "decoder.blocks.0.norm_cross")),
}


@pytest.mark.representatives("gpt")
@pytest.mark.parametrize("model", TIED)
def test_a_weight_that_several_stages_read_is_trained_by_all_of_them(model: str) -> None:
    """GPT's and BERT's embedding is the head on the last stage; T5's is read by stages 0 and 1 and is the head on stage 3."""
    name, cuts = TIED[model]
    plan = in_stages(model, cuts)
    outcome, _ = performed(plan, program(model))
    assert_transparent(outcome, expected(model, plan.micro_batches))
    wrong, slips = performed(plan, program(model), LosesTheTiedGradient)
    assert slips
    with pytest.raises(AssertionError, match=name):
        assert_transparent(wrong, expected(model, plan.micro_batches))


@pytest.mark.representatives("gpt")
@pytest.mark.parametrize("model", TIED)
def test_the_gradient_of_a_tied_weight_crosses_once_per_step_and_stage(model: str) -> None:
    """Not once per micro-batch: acc(a + b + c) = acc(a) + acc(b) + acc(c), also where three stages meet."""
    name, cuts = TIED[model]
    plan = in_stages(model, cuts)
    shape = program(model).module.get_parameter(name).shape
    crossing = [t for t in transfers(plan) for a in t.writes if plan.regst[a.regst].tensors[a.index].shape == tuple(shape)]
    assert {task.acts for task in crossing} == {1}
    readers = {"gpt": 1, "bert": 1, "t5": 2}[model]  # stages other than the home
    assert sum(".grad." in task.id for task in crossing) == readers
    assert sum(".param." in task.id for task in crossing) == readers


def test_gradients_that_meet_on_a_stage_are_added_there_before_they_are_accumulated() -> None:
    """T5 in two stages: stage 0 embeds the source; stage 1 embeds the target and is the head, so two of three gradients meet there."""
    graph = program("t5").graph(4)
    staged = prepare(graph, assign_stages(graph, 2, (MODELS["t5"].half,)), 2)
    parts = [
        op
        for op in staged.graph.ops
        if op.outputs[0] and op.outputs[0].startswith("gradient:shared.weight.") and op.role.value == "accumulate"
    ]
    assert sorted(staged.stage[op.id] for op in parts) == [0, 1]


def test_gradients_of_two_stages_on_one_placement_leave_it_as_one_sum() -> None:
    """T5 interleaved, four stages on two placements: the embedding is read by stages 0, 1 and 3, and 1 and 3 lie together."""
    plan = plan_for("t5", "interleaved2")
    shape = tuple(program("t5").module.get_parameter("shared.weight").shape)
    crossing = [t.id for t in transfers(plan) for a in t.writes if plan.regst[a.regst].tensors[a.index].shape == shape]
    assert sorted(crossing) == ["s0-s1.param.0", "s1-s0.param.0"]  # the weight there, the sum of gradients back


# Activations that skip stages.


class LosesTheSkip(Wrong):
    """What skips a stage arrives as zeros."""

    skip = ""

    def run_transfer(self, task: Task, piece: Piece, value: Tensor) -> Tensor:
        if not task.id.startswith(self.skip):
            return super().run_transfer(task, piece, value)
        self.slips += 1
        return torch.zeros_like(value)


SKIPS = {
    "t5": (("encoder.blocks.0.norm_ff", "decoder.relative", "decoder.blocks.0.norm_cross"), 1, 3),
    "unet": (("down.1", "up.0", "up.1"), 0, 3),
}


@pytest.mark.representatives("fwd-unet")
@pytest.mark.parametrize("model", SKIPS)
@pytest.mark.parametrize("part", ["fwd", "bwd"])
def test_what_skips_stages_goes_straight_to_its_reader_and_its_gradient_straight_back(model: str, part: str) -> None:
    """T5's encoder output passes by the stage of the decoder's self attention; U-Net's first level passes by the bottom of the U."""
    cuts, src, dst = SKIPS[model]
    plan = in_stages(model, cuts)
    route = f"s{src}-s{dst}.fwd" if part == "fwd" else f"s{dst}-s{src}.bwd"
    assert any(task.id.startswith(route) for task in transfers(plan))
    outcome, _ = performed(plan, program(model))
    assert_transparent(outcome, expected(model, plan.micro_batches))
    check_trace(plan, outcome.trace)
    wrong, slips = performed(plan, program(model), type("Loses", (LosesTheSkip,), {"skip": route}))
    assert slips
    with pytest.raises(AssertionError):
        assert_transparent(wrong, expected(model, plan.micro_batches))


# Extents that a mesh does not divide.

UNEVEN = {
    "batch": ("mlp", {"batch": 9, "width": 16, "hidden": 32}, "input.0=S(0)", r"input\.0 has shape \(9, 16\)"),
    "hidden size": ("mlp", {"batch": 64, "width": 16, "hidden": 33}, "blocks.*.up.weight=S(0)", r"up\.weight has shape \(33, 16\)"),
    "vocabulary": (
        "gpt",
        {"layers": 1, "width": 16, "heads": 2, "vocab": 33, "batch": 8, "seq": 8},
        "wte.weight=S(0)",
        r"wte\.weight has shape \(33, 16\)",
    ),
}


def uneven(what: str, pins: tuple[str, ...] = ()) -> tuple[Plan, Program]:
    model, sizes, _, _ = UNEVEN[what]
    source = trained(ZOO[model](**sizes), model)
    options = PlanOptions(pins=pins)
    return make_plan(source.graph(1), model=model, batch_size=source.batch_size, cluster=roomy_cluster(2), options=options), source


@pytest.mark.parametrize("what", UNEVEN)
def test_with_an_extent_that_the_mesh_does_not_divide_a_plan_is_found_and_equals_one_device(what: str) -> None:
    """The planner cuts other dims and leaves this one whole: every part of every tensor is as large as every other."""
    plan, source = uneven(what)
    assert any(task.kind is TaskKind.BOXING for task in plan.tasks), "it is distributed"
    for regst in plan.regsts:
        for tensor in regst.tensors:
            assert tensor.sbp.splits_evenly(tensor.shape, plan.placement[regst.placement].mesh)
    outcome, _ = performed(plan, source)
    assert_transparent(outcome, train_eagerly(source, 1, STEPS))


@pytest.mark.parametrize("what", UNEVEN)
def test_a_pin_that_would_cut_unevenly_is_refused_with_the_shape_and_the_mesh(what: str) -> None:
    _, _, pin, says = UNEVEN[what]
    with pytest.raises(Unsupported, match=says + ", which does not split evenly on mesh 2; choose another dim"):
        uneven(what, (pin,))


# What no plan of ours can say yet.

REFUSED = {
    "a convolution cut by rows needs its neighbours' rows": (
        "convnet",
        {"pins": ("out:stage1.conv1=S(2)",)},
        r"convolution.* cannot return S\(2\) on mesh 2; its rule allows B; S\(0\); S\(1\); P",
    ),
    "ZeRO-3 gathers follow 1F1B and GPipe only": (
        "gpt",
        {"zero": 3, "stages": 2, "micro_batches": 4, "schedule": WAYS["zb_h1"].schedule},
        "ZeRO level 3 with schedule zb-h1: its gathers follow 1f1b or gpipe",
    ),
    "a linear layer inside tensor parallelism cannot return a part of the sequence": (
        "gpt",
        {"pins": ("out:h.0.attn.c_proj=S(1)",)},
        r"module h\.0\.attn\.c_proj.* cannot return S\(1\)",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_is_refused_with_the_way_out(why: str) -> None:
    model, asked, says = REFUSED[why]
    options = PlanOptions(**asked)  # type: ignore[arg-type]
    graph = program(model).graph(options.micro_batches or 1)
    with pytest.raises(Unsupported, match=says):
        make_plan(graph, model=model, batch_size=program(model).batch_size, cluster=roomy_cluster(2), options=options)


def test_recompute_is_not_refused_where_a_block_keeps_something() -> None:
    for model in ("mlp", "resnet50"):
        assert plan_for(model, "recompute_data2").options["recompute"] == "blocks"


# Rounding, and nothing else.


@pytest.mark.representatives("mlp", "gpt")
@pytest.mark.parametrize("model", MODELS)
def test_in_float64_a_plan_equals_one_device_ten_thousand_times_as_exactly(model: str) -> None:
    """So what float32's tolerance lets pass is rounding; 3 steps of nets with relu and batch norm included."""
    plan = plan_for(model, "data2", "fp64")
    outcome, _ = performed(plan, program(model, "fp64"))
    assert_transparent(outcome, expected(model, 1, "fp64"), factor=1e-4)


@pytest.mark.thorough
def test_resnet_of_seed_0_where_a_relu_stands_on_its_kink_agrees_in_float64() -> None:
    """The story of the seeds in the matrix: with seed 0 a gradient of ResNet's third step is off by 0.5 % in float32 (data parallel, 2).

    Cause: some relu's input is nearer to 0 than the order of a sum can tell, so its slope is 0 in one training and 1 in the other.  In
    float64 the same plan agrees to 1e-13 [measured], so no gradient is lost.
    """
    made = ZOO["resnet50"](**{**MODELS["resnet50"].sizes, "seed": 0})
    exact = widened(made, "resnet50", torch.float64)
    options = options_for("resnet50", "data2")
    plan = make_plan(exact.graph(1), model="resnet50", batch_size=16, cluster=roomy_cluster(2), options=options)
    outcome = perform(plan, exact.initial_state(1), exact.batch, STEPS, gradients=True)
    assert exact.optimizer == OPTIMIZER
    assert_transparent(outcome, train_eagerly(exact, 1, STEPS), factor=1e-6)
