"""The front end: what it traces means what eager training does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from oracle import train_eagerly
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planner.frontend import SGD, AdamW, Program
from planner.ir.errors import InvalidProgram, RegistaError
from planner.ir.graph import ACCUMULATE, InputKind, LogicalGraph, Op, Role
from tests.planner.frontend.programs import RNG, SMALL, Around, X, Y, around, assert_close, assert_transparent, mse, zoo
from zoo import ZOO


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("name", list(SMALL))
@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01), SGD(0.1, momentum=0.9, nesterov=True), AdamW(1e-3, weight_decay=0.1)],
    ids=["sgd", "momentum", "nesterov", "adamw"],
)
def test_graph_trains_as_eager_torch_does(name: str, optimizer: SGD | AdamW, micro_batches: int) -> None:
    # Adam divides a gradient by its size: where the true gradient is zero (the key's bias), rounding decides the step, at most lr
    slack = 1e-4 if isinstance(optimizer, AdamW) else 1e-6
    assert_transparent(zoo(name, optimizer), micro_batches, parameters=slack)


def test_oracle_comparison_catches_a_planted_wrong_op() -> None:
    program = zoo("mlp")
    graph = program.graph()
    index = next(i for i, op in enumerate(graph.ops) if op.target == "aten.relu.default")
    wrong = replace(graph.ops[index], target="aten.sigmoid.default")
    ops = (*graph.ops[:index], wrong, *graph.ops[index + 1 :])
    with pytest.raises(AssertionError):
        assert_close(interpret(program, replace(graph, ops=ops), 1, 2), train_eagerly(program, 1, 2))


LOSSES: dict[str, tuple[Callable[..., object], Tensor]] = {
    "label smoothing": (
        lambda o, t: F.cross_entropy(o.transpose(1, 2), t, label_smoothing=0.1),
        torch.randint(0, 8, (4, 6), generator=RNG),
    ),
    "class weights": (nn.CrossEntropyLoss(weight=torch.arange(1.0, 7.0)), torch.randint(0, 6, (4, 8), generator=RNG)),
    "ignored targets, sum": (
        lambda o, t: F.cross_entropy(o.reshape(-1, 8), t.reshape(-1), ignore_index=3, reduction="sum"),
        torch.randint(0, 8, (4, 6), generator=RNG),
    ),
    "unreduced": (
        lambda o, t: F.cross_entropy(o.reshape(-1, 8), t.reshape(-1), reduction="none").pow(2).mean(),
        torch.randint(0, 8, (4, 6), generator=RNG),
    ),
    "2-d targets": (lambda o, t: F.cross_entropy(o.view(-1, 8, 2, 3), t), torch.randint(0, 8, (4, 2, 3), generator=RNG)),
    "binary": (F.binary_cross_entropy_with_logits, torch.rand(4, 6, 8, generator=RNG)),
    "huber": (nn.HuberLoss(), Y),
    "smooth l1": (nn.SmoothL1Loss(), Y),
    "mse sum": (nn.MSELoss(reduction="sum"), Y),
    "standardised": (lambda o, t: ((o - o.mean(-1, keepdim=True)) / (o.std(-1, keepdim=True) + 1e-5) * o.var() - t).abs().mean(), Y),
}


@pytest.mark.parametrize(("loss", "target"), LOSSES.values(), ids=list(LOSSES))
def test_decomposed_losses_equal_torch(loss: Callable[..., object], target: Tensor) -> None:
    torch.manual_seed(0)
    assert_transparent(Program(nn.Linear(8, 8), (X, target), loss), 2, 2)


MODULES: dict[str, Callable[[], Program]] = {
    "transformer layer": lambda: Program(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (X, Y), mse),
    "causal sdpa": lambda: around(lambda b, x: F.scaled_dot_product_attention(b(x), b(x), x, is_causal=True)),
    "lstm": lambda: around(lambda b, x: b(x)[0], nn.LSTM(8, 8, batch_first=True)),
    "pooling": lambda: Program(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(True), nn.MaxPool2d(2), nn.AvgPool2d(2)),
        (X.unsqueeze(1), torch.randn(4, 4, 1, 2, generator=RNG)),
        mse,
    ),
    "batch norm without affine or statistics": lambda: Program(
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6, affine=False, track_running_stats=False), nn.GroupNorm(2, 6)), (X, Y), mse
    ),
    "batch norm in eval": lambda: Program(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6)).eval(), (X, Y), mse),
    "embedding": lambda: Program(
        Around(nn.Embedding(9, 8, padding_idx=0), lambda b, i: b(i)), (torch.randint(0, 9, (4, 6), generator=RNG), Y), mse
    ),
    "weight norm": lambda: Program(torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), (X, Y), mse),
}


@pytest.mark.parametrize("make", MODULES.values(), ids=list(MODULES))
def test_common_modules_equal_eager(make: Callable[[], Program]) -> None:
    torch.manual_seed(0)
    assert_transparent(make(), 2, 2)


def _write_through_view(body: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = body(x).clone()
    out[:, 0] = 0
    return out


def _fill_piece_by_piece(body: nn.Module, x: Tensor) -> Tensor:
    out = torch.empty(x.shape)
    out[:, :3] = body(x)[:, :3]
    out[:, 3:].fill_(1.0)
    return out.mul_(2)


@pytest.mark.parametrize(
    "function",
    [_write_through_view, _fill_piece_by_piece, lambda body, x: F.relu(body(x), inplace=True)],
    ids=["view", "piece by piece", "relu after a folded linear"],
)
def test_writes_in_place_become_values(function: Callable[..., object]) -> None:
    graph = assert_transparent(around(function), 2, 2)
    assert not [op.target for op in graph.ops if op.target.split(".")[1].endswith("_")]


def test_checkpointed_parts_see_the_traced_parameters() -> None:
    """Symptom: gradients off by 1e-3.  Cause: backward ran after functional_call had put the module's own parameters back, so the
    recomputed forward baked them in as constants.  The fix runs loss and backward inside the swap."""
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    graph = assert_transparent(around(lambda b, x: checkpoint(b, x, use_reentrant=False), body), 1, 3)
    assert not [i for i in graph.inputs if i.kind is InputKind.CONSTANT]


class Averaging(nn.Module):
    ema: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        self.ema = self.ema * 0.9 + out.detach().mean((0, 1))
        self.count += 1
        self.ema[0] = 1.0
        return out - self.ema


def test_buffers_are_updated_once_per_micro_batch() -> None:
    program = Program(Averaging(), (X, Y), mse)
    graph = assert_transparent(program, 2)
    assert {"buffer:ema", "buffer:count"} <= graph.updates.keys()
    producers = graph.producers()
    assert {producers[graph.updates[b]].role for b in ("buffer:ema", "buffer:count")} == {Role.FORWARD}
    assert torch.equal(program.initial_state()["count"], torch.tensor(0))


def test_batch_norm_opens_into_sums_with_literal_counts() -> None:
    graph = zoo("convnet").graph(2)
    assert not [op.target for op in graph.ops if "norm" in op.target or "mean" in op.target]
    first = next(op for op in graph.ops if op.module == "stage1.bn1" and op.target == "aten.div.Tensor")
    assert first.args[1] == 4 * 8 * 8  # samples of a micro-batch x height x width


def test_tensor_attributes_become_constants() -> None:
    program = around(lambda body, x: body(x) * torch.tensor([2.0] * 8))
    graph = assert_transparent(program, 2)
    (constant,) = [i for i in graph.inputs if i.kind is InputKind.CONSTANT]
    assert torch.equal(program.initial_state()[constant.name], torch.full((8,), 2.0))
    assert constant.name in program.initial_state(2)


# -- the shape of the graph ------------------------------------------------------------------------------------------------------


def test_two_traces_give_equal_graphs() -> None:
    assert zoo("gpt", "adamw").graph(2) == zoo("gpt", "adamw").graph(2)


def test_graph_speaks_of_micro_batches() -> None:
    program = zoo("mlp")
    assert [program.graph(m).values["batch:input.0"].shape for m in (1, 2, 8)] == [(8, 16), (4, 16), (1, 16)]


def test_inputs_without_batch_dim_are_seen_whole() -> None:
    program = Program(Around(nn.Linear(8, 8), lambda b, x, scale: b(x) * scale), (X, torch.ones(8), Y), mse)
    graph = assert_transparent(program, 2)
    dims = {i.name: i.batch_dim for i in graph.inputs if i.kind is InputKind.BATCH}
    assert dims == {"input.0": 0, "input.1": None, "input.2": 0}


def test_tied_parameters_are_one_parameter_under_the_first_name() -> None:
    program = zoo("gpt", "adamw")
    graph = program.graph()
    names = [i.name for i in graph.inputs if i.kind is InputKind.PARAMETER]
    assert "wte.weight" in names and "lm_head.weight" not in names
    readers = {op.target for op in graph.consumers()["parameter:wte.weight"] if op.role is Role.FORWARD}
    assert readers == {"regista.embedding", "aten.t.default"}
    assert "lm_head.weight" in [i.name for i in ZOO["gpt"](**SMALL["gpt"], tied=0).graph().inputs]


def test_frozen_parameters_have_no_gradient_and_no_update() -> None:
    program = zoo("mlp", "adamw")
    program.module.get_parameter("head.weight").requires_grad_(False)
    graph = assert_transparent(program, 1, parameters=1e-4)
    assert "head.weight" in [i.name for i in graph.inputs if i.kind is InputKind.PARAMETER]
    assert "head.weight" not in graph.gradients and "parameter:head.weight" not in graph.updates
    assert "head.weight:exp_avg" not in program.initial_state()


def test_a_parameter_that_the_loss_does_not_reach_is_left_alone() -> None:
    program = around(lambda body, x: body[0](x), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    graph = assert_transparent(program, 1)
    assert set(graph.gradients) == {"body.0.weight", "body.0.bias"}


def test_no_device_enters_the_graph() -> None:
    for op in zoo("gpt").graph().ops:
        assert not {key for key, _ in op.kwargs} & {"device", "layout", "pin_memory", "memory_format"}


def test_every_op_is_read_or_named() -> None:
    for name in SMALL:
        graph = zoo(name).graph()
        read = {v for op in graph.ops for v in op.inputs} | {
            graph.loss,
            graph.mean_loss,
            *graph.gradients.values(),
            *graph.updates.values(),
        }
        assert all(any(out in read for out in op.outputs) for op in graph.ops)
        assert set(graph.values) == {i.value for i in graph.inputs} | {o for op in graph.ops for o in op.outputs if o is not None}


def test_accumulation_stands_between_gradients_and_update() -> None:
    graph = zoo("mlp", "adamw").graph(2)
    producers = graph.producers()
    accumulations = [op for op in graph.ops if op.role is Role.ACCUMULATE]
    assert {op.target for op in accumulations} == {ACCUMULATE} and len(accumulations) == 1 + len(graph.gradients)
    assert producers[graph.mean_loss].inputs == (graph.loss,)
    for op in graph.ops:
        if op.role is Role.UPDATE:
            assert op.target == "regista.adamw"
            assert all(v not in producers or producers[v].role is Role.ACCUMULATE for v in op.inputs)


def test_optimizer_state_is_named_after_the_parameter_and_starts_at_zero() -> None:
    program = zoo("mlp", "adamw")
    state = program.initial_state()
    assert {n.partition(":")[2] for n in state if n.startswith("head.bias:")} == {"exp_avg", "exp_avg_sq", "step"}
    assert program.graph().values["optimizer_state:head.bias:step"].shape == ()
    assert not any(state[n].any() for n in state if ":" in n)
    assert {n for n in zoo("mlp", SGD(0.1, momentum=0.5)).initial_state() if ":" in n} == {
        f"{n}:momentum_buffer" for n in program.graph().gradients
    }
    assert not [n for n in zoo("mlp", SGD(0.1)).initial_state() if ":" in n]


def test_initial_parameters_are_the_modules_own_values_and_detached_copies() -> None:
    program = zoo("gpt")
    state = program.initial_state()
    for name, parameter in program.module.named_parameters():
        assert torch.equal(state[name], parameter) and not state[name].requires_grad
        assert state[name].data_ptr() != parameter.data_ptr()


# -- roles, modules, origins -----------------------------------------------------------------------------------------------------


def _by_id(graph: LogicalGraph) -> dict[str, Op]:
    return {op.id: op for op in graph.ops}


@pytest.mark.parametrize("name", list(SMALL))
def test_every_backward_op_points_to_a_forward_op_of_its_module(name: str) -> None:
    graph = zoo(name).graph(2)
    ops = _by_id(graph)
    for op in graph.ops:
        assert (op.forward_of is not None) == (op.role is Role.BACKWARD)
        if op.forward_of is not None:
            assert ops[op.forward_of].role is Role.FORWARD and ops[op.forward_of].module == op.module


def test_gradient_products_carry_the_module_of_their_linear() -> None:
    graph = zoo("gpt").graph(2)
    products = [op for op in graph.ops if op.target == "aten.mm.default" and op.module == "h.1.mlp.c_fc"]
    assert [op.role for op in products] == [Role.FORWARD, Role.BACKWARD, Role.BACKWARD]
    assert {op.module for op in graph.ops if op.target == "aten.gelu_backward.default"} == {"h.0.mlp", "h.1.mlp"}
    assert {op.module for op in graph.ops if op.role is Role.UPDATE} >= {"wte", "h.0.attn.q", "ln_f"}


def test_a_mask_between_two_ops_does_not_take_the_origin_of_the_first() -> None:
    """The scale's gradient once pointed to the loss: slicing the mask, without gradient, carried the scale's sequence number."""
    graph = zoo("gpt").graph()
    ops = _by_id(graph)
    scales = [op for op in graph.ops if op.role is Role.BACKWARD and op.module == "h.0.attn" and op.target == "aten.mul.Tensor"]
    assert scales and all(ops[op.forward_of or ""].target == "aten.mul.Tensor" for op in scales)


# -- the user's things are left alone --------------------------------------------------------------------------------------------


def test_module_is_untouched_by_tracing() -> None:
    program = zoo("convnet")
    module = program.module
    module.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(module.state_dict())
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in module.modules()]
    identities = [id(p) for p in module.parameters()]
    program.graph(2)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in module.modules()] == hooks
    assert [id(p) for p in module.parameters()] == identities
    assert not torch.nn.modules.module._global_forward_hooks and not torch.nn.modules.module._global_forward_pre_hooks


class Remembering(nn.Module):
    def __init__(self, write: Callable[[Remembering, Tensor], None]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen = torch.zeros(8)
        self.last: Tensor | None = None
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.linear(x)
        self.write(self, x)
        return self.last + self.seen


def test_attributes_that_forward_assigns_are_put_back() -> None:
    module = Remembering(lambda m, x: None)
    assert_transparent(Program(module, (X, Y), mse), 2)
    assert module.last is None


def _replace(module: Remembering, x: Tensor) -> None:
    module.seen = module.seen + 1


def _add_in_place(module: Remembering, x: Tensor) -> None:
    module.seen.add_(1)


def _add_computed(module: Remembering, x: Tensor) -> None:
    module.seen.add_(x[0, 0])


@pytest.mark.parametrize("write", [_replace, _add_in_place, _add_computed])
def test_state_outside_of_buffers_is_refused_and_kept_as_it_was(write: Callable[[Remembering, Tensor], None]) -> None:
    module = Remembering(write)
    with pytest.raises(RegistaError, match="buffer"):
        Program(module, (X, Y), mse).graph()
    assert torch.equal(module.seen, torch.zeros(8))


def test_gradients_and_generator_of_the_user_survive() -> None:
    program = zoo("mlp")
    weight = program.module.get_parameter("head.weight")
    weight.grad = torch.ones_like(weight)
    state = torch.random.get_rng_state()
    program.graph()
    ZOO["mlp"](**SMALL["mlp"])
    assert torch.equal(weight.grad, torch.ones_like(weight)) and torch.equal(torch.random.get_rng_state(), state)


def test_zoo_gives_the_same_values_from_the_same_seed() -> None:
    first, second, other = ZOO["gpt"](**SMALL["gpt"]), ZOO["gpt"](**SMALL["gpt"]), ZOO["gpt"](**SMALL["gpt"], seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True))
    assert torch.equal(first.batch(3)[0], second.batch(3)[0]) and not torch.equal(first.batch(3)[0], first.batch(4)[0])
    assert not torch.equal(first.initial_state()["wte.weight"], other.initial_state()["wte.weight"])


def test_a_module_without_memory_has_a_graph_but_no_state() -> None:
    with torch.device("meta"):
        module = nn.Linear(8, 8)
    program = Program(module, (X, Y), mse)
    assert program.graph(2) == Program(nn.Linear(8, 8), (X, Y), mse).graph(2)
    with pytest.raises(InvalidProgram, match="no values"):
        program.initial_state()
