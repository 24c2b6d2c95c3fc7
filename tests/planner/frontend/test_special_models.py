"""Models that need more than a row of test_user_models: split tables of bags, buffers that forward updates, ops without a rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram, UnknownOp
from planner.opset import flop
from planner.parallelism.make import PlanOptions, make_plan, search_plans
from planner.parallelism.replicated import Replicated, replicated_work
from tests.planner.frontend.test_user_models import BATCH, STEPS, program


def test_bags_of_embeddings_train_on_two_devices_like_on_one() -> None:
    """Bags hold indices from one offset to the next, so the batch is whole and the columns of the table may be split."""
    model = nn.Sequential(nn.EmbeddingBag(12, 6, mode="sum"), nn.Linear(6, 4))
    source = Program(model, torch.arange(BATCH * 4).view(BATCH, 4) % 12, lambda y: y.square().mean(), SGD(lr=0.05))
    options = PlanOptions(pins=("0.weight=S(1)",), strict=True)
    plan = make_plan(source.graph(), model="bags", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    assert_transparent(perform(plan, source.initial_state(), source.batch, STEPS, gradients=True), train_eagerly(source, 1, STEPS))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_buffer_that_forward_updates_and_backward_reads_is_copied_first(stages: int) -> None:
    """Spectral norm's vectors: the state has one block, and forward waited for ever until backward had read it."""
    layers = [nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)) for _ in range(2)]
    source = Program(nn.Sequential(*layers), torch.randn(BATCH, 6), lambda y: y.square().mean(), SGD(lr=0.05))
    options = PlanOptions(stages=stages, micro_batches=2, cuts=("1",) if stages == 2 else ())
    plan = make_plan(source.graph(2), model="spectral", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    assert_transparent(perform(plan, source.initial_state(2), source.batch, STEPS, gradients=True), train_eagerly(source, 2, STEPS))


class Positions(nn.Module):
    """A table that is made anew where it does not fit the input.   made: the new one, of a sequence's extent and the input."""

    def __init__(self, made: Callable[[int, Tensor], Tensor], grow: bool = False) -> None:
        super().__init__()
        self.linear, self.made, self.grow = nn.Linear(6, 6), made, grow
        self.register_buffer("table", torch.zeros(1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table.shape[0] != x.shape[1] or self.grow:
            self.table = self.made(self.table.shape[0] + 1 if self.grow else x.shape[1], x)
        return (torch.tanh(self.linear(x)) * self.table.square().mean()).square().mean()


def _distances(count: int, x: Tensor) -> Tensor:
    places = torch.arange(float(count))
    return (places[:, None] - places).abs()


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2)])
def test_a_buffer_that_the_first_step_makes_of_another_size_has_it_from_the_start(stages: int, micro_batches: int) -> None:
    """ConViT's table of relative positions: its Plan had a block of the first size, and a worker failed on the second one."""
    source = Program(nn.Sequential(nn.Linear(6, 6), Positions(_distances)), torch.randn(BATCH, 5, 6), optimizer=SGD(lr=0.05))
    options = PlanOptions(stages=stages, micro_batches=micro_batches, cuts=("1",) if stages == 2 else ())
    plan = make_plan(source.graph(micro_batches), model="table", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    performed = perform(plan, source.initial_state(micro_batches), source.batch, STEPS, gradients=True)
    assert_transparent(performed, train_eagerly(source, micro_batches, STEPS))
    assert source.module[1].table.shape == (1, 1)  # type: ignore[index, union-attr]  # the user's module is left alone


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Positions(lambda count, x: x[0, :, :1] + torch.zeros(count)), "float32.1, 1. one of float32.5, 5., from the step's inputs"),
        (Positions(_distances, grow=True), "float32.1, 1. one of float32.2, 2., and .* computes with it: the next step is another one"),
    ],
)
def test_a_buffer_whose_size_changes_is_refused_where_the_next_step_is_another_one(module: Positions, reason: str) -> None:
    x = torch.randn(BATCH, 5 if not module.grow else 2, 6)
    with pytest.raises(InvalidProgram, match=f"forward makes buffer table of {reason}.*run the module once"):
        Program(module, x, optimizer=SGD(lr=0.05)).graph()


class ScaledHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key = (layer(x).view(*x.shape[:-1], 2, 4).permute(0, 2, 1, 3) for layer in (self.query, self.key))
        query /= 2.0
        return (key @ query.transpose(-1, -2)).square().mean()


def test_a_value_that_forward_changes_through_a_view_of_another_order_has_its_gradient() -> None:
    """DeBERTa's positions are scaled in place once their heads stand in front: autograd writes their gradient through the same views, and
    what it wrote lay in the order of the heads, of which the way back to the layer's result is no view."""
    source = Program(ScaledHeads(), torch.randn(BATCH, 3, 8), optimizer=SGD(lr=0.05))
    plan = make_plan(source.graph(), model="heads", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(pins=("input.0=S(0)",)))
    assert_transparent(perform(plan, source.initial_state(), source.batch, STEPS, gradients=True), train_eagerly(source, 1, STEPS))


def test_a_repeated_value_is_dense_as_torch_s_is() -> None:
    """A bias of attention is repeated for each sample, then seen by view() as one per sample and head."""

    class Repeated(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scores = super().forward(x)[:3].repeat(BATCH, 1, 1).view(BATCH * 3, -1)
            return scores.square().mean() * x.repeat(1, 1).mean()

    source = Program(Repeated(6, 6), torch.randn(BATCH, 6), optimizer=SGD(lr=0.05))
    plan = make_plan(source.graph(), model="repeated", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions())
    assert_transparent(perform(plan, source.initial_state(), source.batch, STEPS, gradients=True), train_eagerly(source, 1, STEPS))


class Experts(nn.Module):
    """Rows sorted by expert, each group by its own matrix, in float32, which torch describes for bfloat16 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.matrices = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        weights, expert = self.gate(x).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        ends = torch.histc(expert.float(), bins=4, min=0, max=3).cumsum(0).to(torch.int32)
        made = nn.functional.grouped_mm(x[order], self.matrices, offs=ends)
        weights = (weights / 2).unsqueeze_(0).squeeze_(0)  # make_fx traces what changes a shape in place
        return (made * weights.view(-1)[order, None]).square().mean()


def test_grouped_products_in_float32_train_on_two_devices_like_on_one() -> None:
    source = Program(Experts(), torch.randn(12, 8), optimizer=SGD(lr=0.05))
    plan = make_plan(source.graph(), model="experts", batch_size=12, cluster=roomy_cluster(2), options=PlanOptions(pins=("matrices=S(2)",)))
    assert_transparent(perform(plan, source.initial_state(), source.batch, STEPS, gradients=True), train_eagerly(source, 1, STEPS))


class MatrixExponential(nn.Module):
    """An op that has no rule, in forward and in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


def without_rule() -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(MatrixExponential()), nn.Linear(4, 2))
    return Program(model, torch.randn(BATCH, 4, 4), lambda y: y.square().mean(), SGD(lr=0.01))


def test_an_op_without_a_rule_is_performed_with_whole_inputs_and_named_with_its_cost() -> None:
    source = without_rule()
    with pytest.warns(
        Replicated, match=r"no SBP rule for aten.linalg_matrix_exp.default \(2\): .* whole inputs, \d+\.\d% of .* flop"
    ) as warned:
        plan = search_plans(
            source.graph, model="far", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(pins=("input.0=S(0)",))
        ).plan
    assert len([w for w in warned if w.category is Replicated]) == 1
    outcome = perform(plan, source.initial_state(), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, STEPS))


def test_the_share_of_an_op_without_a_rule_is_that_of_the_whole_step() -> None:
    """Of 10 samples of 4 x 4: matrix_exp has 160 of flop, its backward, of matrices twice as large, 640."""
    graph = without_rule().graph()
    work = replicated_work(graph, 1)
    assert work is not None and work.targets == {"aten.linalg_matrix_exp.default": 2}
    assert work.flop_share == (160 + 640) / sum(flop(op, graph.values) for op in graph.ops)


def test_a_plan_whose_ops_all_have_rules_warns_of_none() -> None:
    assert replicated_work(program("softmax").graph(), 1) is None


def test_a_strict_plan_refuses_an_op_without_a_rule_with_its_module() -> None:
    source = without_rule()
    refused = pytest.raises(UnknownOp, match=r"aten.linalg_matrix_exp.default, forward, module 1\.0\) has no SBP rule")
    with refused:
        make_plan(source.graph(), model="far", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(strict=True))
