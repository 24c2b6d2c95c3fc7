"""The recorder gives the graph of make_fx, or refuses, and then make_fx serves and the program says so."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils.checkpoint import checkpoint

import regista
from planner.frontend import SGD, Program
from planner.frontend.tracing import trace as tracing
from planner.frontend.tracing.recorder.record import Recorder
from planner.frontend.tracing.trace import Tracer
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph, Op, Ref
from planner.ir.text import content_id
from tests.planner.frontend.test_user_models import ROWS
from tests.planner.frontend.test_user_models import program as user_program
from zoo import ZOO

SMALL: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"layers": 2, "seq": 16},
    "gpt3": {"layers": 2, "seq": 16},
    "llama3": {"layers": 2, "seq": 16},
}
"""Models whose default size takes long to trace."""

RECORDER, MAKE_FX = "_recorded", "_made_fx"

NEEDS_MAKE_FX = {"complex"}
"""A complex literal is conjugated."""
WITH_OTHER_NAMES = {"short_time_fourier", "spectral_norm", "spectral_norm_of_attributes", "statistics"}
"""make_fx gives names to views of what they write that nothing reads, and makes a tensor whose shape is changed in place anew when it is read."""
OF_ANOTHER_VIEW = {"statistics"}
"""Of these a backward op differentiates another view of one tensor."""


def traced(program: Program, way: str) -> LogicalGraph:
    """The graph by one of the tracers; the other is closed.

    Raises:
        InvalidProgram: that tracer cannot serve.
    """

    def closed(*_: object) -> NoReturn:
        raise InvalidProgram("closed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, MAKE_FX if way == RECORDER else RECORDER, closed)
        return Program.graph(program)


def is_refused(program: Program) -> bool:
    try:
        traced(program, RECORDER)
    except InvalidProgram as error:
        if str(error) != "closed":
            raise
        return True
    return False


def assert_same(recorded: LogicalGraph, made_by_fx: LogicalGraph) -> None:
    assert content_id(recorded) == content_id(made_by_fx)  # not ==, for a nan among the literals equals nothing


@pytest.mark.representatives("mlp", "convnet")
@pytest.mark.parametrize("name", ["mlp", "convnet", "gpt", "vit", "unet"])
def test_the_recorder_gives_the_graph_of_make_fx(name: str) -> None:
    assert_same(traced(ZOO[name](), RECORDER), traced(ZOO[name](), MAKE_FX))


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the front end has logged."""
    return [record for record in caplog.records if record.name == "planner.frontend"]


@pytest.mark.representatives(*list(ZOO)[::3])
@pytest.mark.parametrize("name", ZOO)
def test_the_recorder_serves_every_model_of_the_zoo(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert ZOO[name](**SMALL.get(name, {})).tracer() is Tracer.RECORDER
    assert not told(caplog)


def test_a_crash_of_the_recorder_is_logged_once_with_its_cause(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It was taken for a module that cannot be traced, and every trace took ten times as long without a word."""

    def crashes(*_: object) -> NoReturn:
        raise AttributeError("module 'torch._C' has no attribute 'gone'")

    monkeypatch.setattr(Recorder, "placeholder", crashes)
    program = ZOO["mlp"](batch=8)
    assert program.tracer() is Tracer.MAKE_FX
    program.graph(2)
    (record,) = told(caplog)
    assert (record.name, record.levelname) == ("planner.frontend", "WARNING")
    assert "AttributeError: module 'torch._C' has no attribute 'gone'" in record.getMessage()
    assert_same(program.graph(), ZOO["mlp"](batch=8).graph())


def test_what_the_recorder_refuses_is_logged_and_a_program_that_nothing_can_trace_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert user_program("complex").tracer() is Tracer.MAKE_FX
    (record,) = told(caplog)
    assert "NotRecordable" in record.getMessage()
    caplog.clear()
    with pytest.raises(InvalidProgram):
        written(lambda x: x * 2 if x.sum() > 0 else x).graph()
    assert not told(caplog)


@pytest.mark.representatives(*list(ROWS)[::4])
@pytest.mark.parametrize("name", ROWS)
def test_user_models_have_the_same_graph_either_way_or_are_refused_by_the_recorder(name: str) -> None:
    refused = is_refused(user_program(name))
    assert refused == (name in NEEDS_MAKE_FX)
    if not refused:
        recorded, made_by_fx = traced(user_program(name), RECORDER), traced(user_program(name), MAKE_FX)
        if name in WITH_OTHER_NAMES:
            compared = slice(-1 if name in OF_ANOTHER_VIEW else None)
            assert [line[compared] for line in _by_number(recorded)] == [line[compared] for line in _by_number(made_by_fx)]
        else:
            assert_same(recorded, made_by_fx)


class Written(nn.Module):
    """A linear layer, then a function of its output that writes."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._forward = nn.Linear(4, 6), forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.layer(x)).sum()


def written(forward: Callable[[Tensor], Tensor]) -> Program:
    return Program(Written(forward), (torch.zeros(8, 4),))


def _view_before(x: Tensor) -> Tensor:
    rows = x * 3
    first = rows[0]
    rows.mul_(2.0)
    return rows + first


def _view_after(x: Tensor) -> Tensor:
    rows = x * 3
    rows.add_(1.0)
    return rows.t() * 2


def _through_a_view(x: Tensor) -> Tensor:
    rows = x * 3
    rows[:, 1] = 0.0
    return rows


def _of_a_constant(x: Tensor) -> Tensor:
    count = torch.tensor(1.0)
    count.add_(2.0)
    return x * count


def _two_views(x: Tensor) -> Tensor:
    rows = x * 3
    left, right = rows[:, :2], rows[:, 1:3]
    left.add_(1)
    right.mul_(2)
    return left.sum() + right * rows[:, 1:3]


def _views_of_views(x: Tensor) -> Tensor:
    rows = x * 3
    rows.t()[0].add_(1.0)
    rows.view(-1)[3:7] = 2.0
    rows.unsqueeze(0).squeeze(0)[2] = x[1]
    rows.diagonal().fill_(0.5)
    return rows


def _permuted(x: Tensor) -> Tensor:
    parts = (x * 3).view(2, 4, 6).permute(2, 0, 1)
    parts[1:3].mul_(x.mean())
    return parts + 1


def _of_several(x: Tensor) -> Tensor:
    rows = torch.zeros(8, 6)
    with torch.no_grad():
        left, right = rows.split([2, 4], 1)
        left.add_(2)
        right[:, 0].copy_(x[:, 1])
        rows.unbind(0)[1].zero_()
        rows.split(3)[1].mul_(3)
    return x * rows


def _of_parts_of_numbers(x: Tensor) -> Tensor:
    numbers = torch.view_as_complex((x * 2).view(8, 3, 2))
    torch.view_as_real(numbers)[..., 0].mul_(2)
    return torch.view_as_real(numbers)


def _detached(x: Tensor) -> Tensor:
    rows = x * 2
    rows.detach()[0] = 1.0
    return rows


def _one_by_one(x: Tensor) -> Tensor:
    rows = torch.empty_like(x)
    for n in range(4):
        rows[2 * n : 2 * n + 2] = x[2 * n : 2 * n + 2] * n
    return rows


def _by_turns(x: Tensor) -> Tensor:
    rows = x * 2
    row = rows[1]
    rows.mul_(2)
    row.add_(1)
    flat = rows.view(-1)
    rows.sub_(1)
    return flat * row.sum()


def _other_strides(x: Tensor) -> Tensor:
    rows = torch.empty(8, 6)
    rows.copy_(x.reshape(6, 8).t())
    rows[1].add_(1.0)
    return rows.view(-1) * torch.arange(48)


def _given_for_the_result(x: Tensor) -> Tensor:
    row, rows = x.new_zeros(6), x.new_empty(8, 6)
    with torch.no_grad():
        torch.add(x[0], 1.0, out=row)
        torch.mul(x, 2.0, out=rows)
        torch.sub(x[1], 1.0, out=rows[2])
    return x * row + rows


def _indexed(x: Tensor) -> Tensor:
    rows = x * 2
    rows[:, [0, 2]] = 1.0
    rows[rows > 0] = 0.0
    rows[torch.tensor([1, 2])] += x[:2]
    return rows


_WRITES = [
    *(
        _view_before,
        _view_after,
        _through_a_view,
        _of_a_constant,
        _two_views,
        _views_of_views,
        _permuted,
        _of_several,
        _of_parts_of_numbers,
    ),
    *(_detached, _one_by_one, _by_turns, _given_for_the_result, _indexed),
]


@pytest.mark.parametrize("forward", _WRITES)
def test_a_write_to_a_tensor_with_other_names_is_recorded_as_functionalization_makes_it(forward: Callable[[Tensor], Tensor]) -> None:
    assert not is_refused(written(forward))
    assert _by_number(traced(written(forward), RECORDER)) == _by_number(traced(written(forward), MAKE_FX))


def _by_number(graph: LogicalGraph) -> list[tuple[object, ...]]:
    """Ops with values by number: views that nothing reads are not in the graph, but their names were given.  Last: what an op differentiates."""
    number: dict[str, int] = {}
    for op in graph.ops:
        for value in (*op.inputs, *(v for v in op.outputs if v is not None)):
            number.setdefault(value, len(number))

    def told(given: object) -> object:
        if isinstance(given, Ref):
            return ("value", number[given.value])
        return tuple(map(told, given)) if isinstance(given, list | tuple) else given

    def line(op: Op) -> tuple[object, ...]:
        types = [graph.values[v] for v in op.outputs if v is not None]
        return op.target, told(op.args), told(op.kwargs), types, op.role, op.module, op.forward_of

    return [line(op) for op in graph.ops]


@pytest.mark.parametrize("forward", [*_WRITES, _other_strides])
def test_a_write_to_a_tensor_with_other_names_trains_as_in_torch(forward: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    module, x = Written(forward).double(), torch.randn(8, 4, dtype=torch.float64)
    program = Program(module, (x,), optimizer=SGD(lr=0.1))
    assert not is_refused(program)
    run = regista.run(regista.plan(program, "local:1"), program, steps=2, performer=regista.Performer.REFERENCE)
    plain, losses = copy.deepcopy(module), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain(x)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    assert run.losses == pytest.approx(losses, rel=1e-12)


def _through_an_overlap(x: Tensor) -> Tensor:
    rows = torch.zeros(8, 1)
    with torch.no_grad():
        rows.expand(8, 6).add_(1.0)
    return x * rows


def _through_a_constant(x: Tensor) -> Tensor:
    _TABLE[1:].add_(1.0)
    return x * _TABLE


def _by_strides_that_it_has_not_any_more(x: Tensor) -> Tensor:
    rows = torch.empty(8, 6)
    rows.copy_(x.reshape(6, 8).t())
    return rows.as_strided((3,), (2,), 1)


_TABLE = torch.ones(6)


@pytest.mark.parametrize("forward", [_through_an_overlap, _through_a_constant, _by_strides_that_it_has_not_any_more])
def test_a_write_that_no_value_of_the_step_can_stand_for_is_not_recorded(forward: Callable[[Tensor], Tensor]) -> None:
    assert is_refused(written(forward))


def _relu(x: Tensor) -> Tensor:
    return F.relu(x * 2, inplace=True) + x


def _twice(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(x)
    y.sub_(1.0)
    return y * x


def _filled(x: Tensor) -> Tensor:
    y = torch.ones_like(x)
    y.masked_fill_(x > 0, 3.0)
    return y * x


def _zeroed(x: Tensor) -> Tensor:
    return x + torch.ones(6).zero_() + torch.empty(8, 6).fill_(2.0)


def _constants(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.tensor(-1.0)) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def _attention(x: Tensor) -> Tensor:
    heads = x.view(2, 4, 2, 3).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _again(x: Tensor) -> Tensor:
    return checkpoint(lambda y: torch.tanh(y * 2) * y, x, use_reentrant=False)


@pytest.mark.parametrize("forward", [_relu, _twice, _filled, _zeroed, _constants, _attention, _again])
def test_the_recorder_takes(forward: Callable[[Tensor], Tensor]) -> None:
    assert_same(traced(written(forward), RECORDER), traced(written(forward), MAKE_FX))


def test_an_op_is_worked_out_once_however_many_layers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[object] = []
    original = Recorder._worked_out

    def counted(self: Recorder, func: OpOverload, *rest: Any) -> object:
        worked_out.append(func)
        return original(self, func, *rest)

    monkeypatch.setattr(Recorder, "_worked_out", counted)
    shallow, deep = (ZOO["gpt"](layers=layers, width=32, heads=2, vocab=64, seq=16) for layers in (2, 6))
    few = len(traced(shallow, RECORDER).ops), len(worked_out)
    worked_out.clear()
    many = len(traced(deep, RECORDER).ops), len(worked_out)
    assert many[0] > 2 * few[0]
    assert many[1] == few[1]


def test_a_frozen_encoder_keeps_its_ops_either_way() -> None:
    def program() -> Program:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval().requires_grad_(False)
        return Program(nn.Sequential(encoder, nn.Linear(8, 1), nn.Flatten(0)), (torch.zeros(4, 3, 8), torch.zeros(12)), F.mse_loss)

    assert_same(traced(program(), RECORDER), traced(program(), MAKE_FX))


def test_half_precision_regions_are_the_same_either_way() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return (self.layers(x) + self.layers(2 * x)).float().sum()

    recorded, made_by_fx = (traced(Program(Half(), (torch.zeros(6, 4),)), way) for way in (RECORDER, MAKE_FX))
    assert_same(recorded, made_by_fx)
    assert "aten._to_copy.default" in {op.target for op in recorded.ops}


class Counting(nn.Module):
    """Buffers that forward updates, in place and by a new value."""

    seen: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.seen += 1
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return (y - self.mean).square().mean() / self.seen


def test_updated_buffers_are_the_same_either_way() -> None:
    recorded, made_by_fx = (traced(Program(Counting(), (torch.zeros(8, 4),)), way) for way in (RECORDER, MAKE_FX))
    assert_same(recorded, made_by_fx)
    assert {"buffer:seen", "buffer:mean"} <= recorded.updates.keys()


def test_a_module_that_asks_for_a_value_gets_the_refusal_of_make_fx() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(InvalidProgram, match="lets a value decide what is computed"):
        written(forward).graph()


class Leaving(nn.Module):
    """Counts its calls, and says whether it is being traced: in a queue, which tracing does not put back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.calls, self.tracing = 0, SimpleQueue[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.tracing.put(torch.fx._symbolic_trace._is_fx_tracing_flag)
        return self.layer(x).sum()


@pytest.mark.parametrize("way", [RECORDER, MAKE_FX])
def test_either_way_tells_the_module_that_it_is_traced_and_leaves_it_as_it_was(way: str) -> None:
    module = Leaving()
    traced(Program(module, (torch.zeros(8, 4),)), way)
    told = [module.tracing.get() for _ in range(module.tracing.qsize())]
    assert module.calls == 0 and told and all(told)
    assert not torch.fx._symbolic_trace._is_fx_tracing_flag


class Router(nn.Module):
    """As routers of experts do it, its layer is converted to the format that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.layer.to(x.dtype)
        return self.layer(x).sum()


def test_a_layer_that_is_converted_to_its_own_format_is_the_same_layer() -> None:
    recorded, made_by_fx = (traced(Program(Router(), (torch.zeros(8, 4),)), way) for way in (RECORDER, MAKE_FX))
    assert_same(recorded, made_by_fx)
