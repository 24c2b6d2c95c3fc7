"""Recurrent layers are one op per layer and direction, whatever the number of steps, and compute what torch's layers compute."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matrix import roomy_cluster
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from planner.frontend import Program
from planner.frontend.recurrent import recurrent_layers
from planner.frontend.tracing.trace import Tracer
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph, Role
from planner.ir.plan import Fragment, TaskKind
from planner.opset import flop
from planner.parallelism.make import PlanOptions, make_plan

KINDS: dict[str, tuple[Callable[..., nn.RNNBase], dict[str, object]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm of two layers both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm projected": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 3}),
    "lstm without bias": (nn.LSTM, {"bias": False, "batch_first": True}),
    "gru": (nn.GRU, {}),
    "gru of two layers both ways": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru without bias": (nn.GRU, {"bias": False}),
    "rnn": (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    "rnn of relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
    "rnn without bias": (nn.RNN, {"bias": False}),
}


def layer(kind: str, **more: object) -> nn.RNNBase:
    make, options = KINDS[kind]
    torch.manual_seed(0)
    return make(5, 4, **(options | more)).double()


def results(module: nn.RNNBase, x: Tensor, given: object) -> list[Tensor]:
    """Outputs, last states, and the gradients of everything that a weighted sum of them depends on."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    output, states = module(x, given) if given is not None else module(x)
    made = [output, *(states if isinstance(states, tuple) else (states,))]
    sum((k + 1) * (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum() for k, y in enumerate(made)).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    return [*(y.detach() for y in made), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True], ids=["no states given", "states given"])
def test_a_recurrent_layer_computes_what_torch_computes(kind: str, given: bool) -> None:
    module, x = layer(kind), torch.randn(3, 3, 5, dtype=torch.float64)
    states = None
    if given:
        made = module(x)[1]
        states = tuple(torch.rand_like(s) for s in made) if isinstance(made, tuple) else torch.rand_like(made)
    expected = results(module, x, states)
    with recurrent_layers():
        computed = results(module, x, states)
    assert len(computed) == len(expected)
    for mine, torchs in zip(computed, expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-12)


def test_a_sequence_without_a_batch_and_one_step_are_recurrences_too() -> None:
    module = layer("lstm")
    for x in (torch.randn(3, 5, dtype=torch.float64), torch.randn(1, 2, 5, dtype=torch.float64)):
        expected = results(module, x, None)
        with recurrent_layers():
            computed = results(module, x, None)
        for mine, torchs in zip(computed, expected, strict=True):
            torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-12)


def test_others_may_write_beside_the_operands_while_an_adjoint_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and activations lie in one block of memory; a write of another thread counted as a change of the operands."""
    module = sys.modules["planner.frontend.recurrent.lstm"]
    performed, shapes = module._performed, ((3, 2, 5), (16, 5), (16, 3), (16,), (16,), (2, 3), (2, 4), (3, 4))
    block = torch.randn(1000, dtype=torch.float64)
    starts = [0, *accumulate(prod(shape) for shape in shapes)]
    operands = [block[first : first + prod(shape)].view(shape) for first, shape in zip(starts, shapes, strict=False)]
    gradient, kept = torch.randn(3, 2, 3, dtype=torch.float64), (None,) * 4
    expected = torch.ops.regista.lstm_backward(gradient, None, *kept, *operands, False, True)

    def performed_beside_a_writer(*given: Any, **named: Any) -> Any:
        made = performed(*given, **named)
        block[-1] = 0.0
        return made

    monkeypatch.setattr(module, "_performed", performed_beside_a_writer)
    for mine, expect in zip(torch.ops.regista.lstm_backward(gradient, None, *kept, *operands, False, True), expected, strict=True):
        torch.testing.assert_close(mine, expect, rtol=0, atol=0)


def test_torchs_functions_are_back_afterwards() -> None:
    before = torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu  # type: ignore[attr-defined]
    codes, names = (pack_padded_sequence.__code__, pad_packed_sequence.__code__), set(vars(nn.utils.rnn))
    with recurrent_layers():
        assert pack_padded_sequence.__code__ is not codes[0]
        assert torch._VF.lstm is not before[0]  # type: ignore[attr-defined]
    assert codes == (pack_padded_sequence.__code__, pad_packed_sequence.__code__)
    assert names == set(vars(nn.utils.rnn))
    assert before == (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)  # type: ignore[attr-defined]


@cache
def torch_has_lstms_in_bfloat16() -> bool:
    """Not on every processor: without AVX-512 torch's own layer raises that there is no primitive for it."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            layer("lstm").float()(torch.randn(3, 2, 5))
        except RuntimeError:
            return False
    return True


needs_lstms_in_bfloat16 = pytest.mark.skipif("not torch_has_lstms_in_bfloat16()", reason="torch has no LSTM in bfloat16 on this processor")


@needs_lstms_in_bfloat16
def test_what_the_ops_do_not_cover_is_torchs_own() -> None:
    module, x = layer("lstm").float(), torch.randn(3, 2, 5)
    with recurrent_layers(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert "LstmBackward" not in type(module(x)[0].grad_fn).__name__


def packed_results(module: nn.RNNBase, x: Tensor, lengths: Tensor | list[int], total_length: int | None) -> list[Tensor]:
    """Outputs behind packing and padding, last states and all gradients, from first states that are not zero."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    states = module(x.detach())[1]
    first = tuple(s.detach() + 1 for s in states) if isinstance(states, tuple) else states.detach() + 1
    packed, last = module(pack_padded_sequence(x, lengths, module.batch_first, enforce_sorted=False), first)
    y, of_each = pad_packed_sequence(packed, module.batch_first, -2.0, total_length)
    made = [y, *(last if isinstance(last, tuple) else (last,))]
    sum((k + 1) * (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum() for k, y in enumerate(made)).backward()  # type: ignore[union-attr]
    assert x.grad is not None
    return [of_each, *(y.detach() for y in made), x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("known", "total_length"),
    [pytest.param(False, 6), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((False, 8), (True, None), (True, 7)))],
)
def test_packed_sequences_are_computed_as_torch_computes_them(kind: str, known: bool, total_length: int | None) -> None:
    module = layer(kind)
    x = torch.randn(*((3, 6) if module.batch_first else (6, 3)), 5, dtype=torch.float64)
    lengths = [3, 5, 2] if known else torch.tensor([3, 5, 2])
    expected = packed_results(module, x, lengths, total_length)
    with recurrent_layers():
        computed = packed_results(module, x, lengths, total_length)
    for mine, torchs in zip(computed, expected, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-12)


def test_what_stands_behind_the_end_of_a_sequence_is_not_read() -> None:
    module, x = layer("lstm of two layers both ways"), torch.randn(6, 3, 5, dtype=torch.float64)
    lengths = torch.tensor([3, 5, 2])
    spoilt = torch.where(torch.arange(6).view(6, 1, 1) < lengths.view(1, 3, 1), x, float("nan"))
    with recurrent_layers():
        for mine, other in zip(
            module(pack_padded_sequence(x, lengths, enforce_sorted=False))[1],
            module(pack_padded_sequence(spoilt, lengths, enforce_sorted=False))[1],
            strict=True,
        ):
            assert torch.equal(mine, other)


@needs_lstms_in_bfloat16
def test_packed_sequences_under_autocast_are_torchs_layers() -> None:
    module, x, lengths = layer("lstm").float(), torch.randn(3, 2, 5), torch.tensor([3, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = pad_packed_sequence(module(pack_padded_sequence(x, lengths))[0])[0]
        with recurrent_layers():
            computed = pad_packed_sequence(module(pack_padded_sequence(x, lengths))[0], total_length=3)[0]
    assert computed.dtype is expected.dtype
    torch.testing.assert_close(computed, expected, rtol=2e-2, atol=2e-2)


class Tagged(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self, kind: str, **more: object) -> None:
        super().__init__()
        self.body = layer(kind, **more).float()
        self.head = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0])
        return out


def program(kind: str, steps: int, **more: object) -> Program:
    module = Tagged(kind, batch_first=True, **more)
    x = torch.randn(4, steps, 5)
    with torch.no_grad():
        y = torch.randn(module(x).shape)
    return Program(module, (x, y), F.mse_loss)


def targets(graph: LogicalGraph) -> Counter[str]:
    return Counter(op.target for op in graph.ops)


@pytest.mark.parametrize("kind", ["lstm of two layers both ways", "gru", "rnn"])
def test_a_recurrent_layer_is_one_op_per_layer_and_direction_however_many_steps(kind: str) -> None:
    few, many = program(kind, 3), program(kind, 50)
    assert targets(few.graph()) == targets(many.graph())
    assert many.tracer() is Tracer.RECORDER
    name, directions = kind.split()[0], 1 + ("both ways" in kind)
    layers = 2 if "two layers" in kind else 1
    made = targets(many.graph())
    assert made[f"regista.{name}"] == made[f"regista.{name}_backward"] == layers * directions or name == "rnn"


def test_the_gradient_of_an_input_that_nobody_trains_is_not_computed() -> None:
    ops = [op for op in program("lstm of two layers both ways", 3).graph().ops if op.target == "regista.lstm_backward"]
    assert sorted(op.args[-1] for op in ops) == [False, False, True, True]


def test_data_parallelism_splits_a_recurrence_along_its_batch() -> None:
    graph = program("lstm", 8).graph()
    options = PlanOptions(pins=("input.0=S(0)",))
    plan = make_plan(graph, model="tagged", batch_size=4, cluster=roomy_cluster(2), options=options)
    for kind, role in ((TaskKind.FORWARD, Role.FORWARD), (TaskKind.BACKWARD, Role.BACKWARD)):
        whole = sum(flop(op, graph.values) for op in graph.ops if op.role is role)
        on_each = sum(task.body.flop for task in plan.tasks if task.kind is kind and isinstance(task.body, Fragment))
        assert 0.5 * whole <= on_each < 0.51 * whole


class Smooth(nn.Module):
    """Penalizes the gradient of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layer("lstm").float()

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.body(x)[0].square().sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return y + slope.square().sum()


def test_a_gradient_of_a_gradient_through_a_recurrence_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidProgram, match=r"gradient of a gradient through lstm is asked for.*nn.LSTMCell"):
        Program(Smooth(), (torch.randn(4, 3, 5),)).graph()
