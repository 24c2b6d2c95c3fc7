"""Ten-line training scripts with something in them that a plan might drop: each trains as plain torch does, or is refused by name.

A case makes its module (and optimizer) twice: one is trained by the ordinary loop of torch, the other by the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planner.frontend import Program
from planner.ir.errors import RegistaError

_RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=_RNG), torch.randn(8, 4, generator=_RNG)
STEPS = 3

Forward = Callable[["Net", Tensor], object]


class Net(nn.Module):
    """Two layers and a buffer; ``function`` says what forward does with them."""

    factor: Tensor

    def __init__(self, function: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("factor", torch.ones(4))
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def _both(m: Net, x: Tensor) -> Tensor:
    out: Tensor = m.second(m.first(x).tanh())
    return out


@dataclass(frozen=True, kw_only=True)
class Script:
    """make: the module.   optimizer: of its parameters.   refused: words of the refusal; empty: it trains as torch does, to a tolerance."""

    make: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = lambda module: torch.optim.SGD(module.parameters(), lr=0.1)
    loss: Callable[[Any, Tensor], Any] = F.mse_loss
    refused: str = ""
    tolerance: float = 1e-5


def _script(function: Forward, refused: str = "", **others: Any) -> Script:
    return Script(make=partial(Net, function), refused=refused, **others)


def _optimized(make: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer], refused: str = "") -> Script:
    return Script(make=partial(Net, _both), optimizer=lambda module: make(module.parameters()), refused=refused)


# -- what forward does -----------------------------------------------------------------------------------------------------------


def _buffer_that_counts(m: Net, x: Tensor) -> Tensor:
    m.factor += 0.5
    return _both(m, x) * m.factor


def _buffer_replaced(m: Net, x: Tensor) -> Tensor:
    m.factor = m.factor * 0.9
    return _both(m, x) * m.factor


def _no_grad_part(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = m.first(x).tanh()
    out: Tensor = m.second(hidden + m.first(x))
    return out


def _detached(m: Net, x: Tensor) -> Tensor:
    hidden = m.first(x)
    out: Tensor = m.second(hidden.detach() * hidden.sigmoid())
    return out


def _set_grad_enabled(m: Net, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        scale = m.first(x).mean()
    return _both(m, x) * (1 + scale)


def _autocast(m: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = m.first(x)
    out: Tensor = m.second(hidden.float())
    return out


def _checkpointed(m: Net, x: Tensor) -> object:
    return checkpoint(partial(_both, m), x, use_reentrant=False)


def _inplace_relu_on_a_layer(m: Net, x: Tensor) -> Tensor:
    out: Tensor = m.second(F.relu(m.first(x), inplace=True))
    return out


def _inplace_relu_on_the_input(m: Net, x: Tensor) -> Tensor:
    return _both(m, F.relu(x, inplace=True))


def _gradient_penalty(m: Net, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_(True)
    out = _both(m, x)
    (of_input,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out + of_input.square().mean()


class _Straight(torch.autograd.Function):
    """The sign, with the identity's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 0.5


def _custom_function(m: Net, x: Tensor) -> Tensor:
    out: Tensor = m.second(_Straight.apply(m.first(x)))  # type: ignore[no-untyped-call]
    return out


def _backward_in_forward(m: Net, x: Tensor) -> Tensor:
    out = _both(m, x)
    torch.autograd.backward(out.sum(), retain_graph=True)
    return out


def _weight_written(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.first.weight.clamp_(-0.1, 0.1)
    return _both(m, x)


def _weight_data_written(m: Net, x: Tensor) -> Tensor:
    m.first.weight.data.mul_(0.5)
    return _both(m, x)


def _eval_inside(m: Net, x: Tensor) -> Tensor:
    m.eval()
    return _both(m, x) * (2 if m.training else 1)


def _half_precision_inside(m: Net, x: Tensor) -> Tensor:
    return _both(m, x.double().float()) + m.first(x).to(torch.bfloat16).float()[:, :4]


def _retained(m: Net, x: Tensor) -> Tensor:
    hidden = m.first(x)
    hidden.retain_grad()
    out: Tensor = m.second(hidden.tanh())
    return out


# -- what the module is ----------------------------------------------------------------------------------------------------------


def _shared_weight() -> nn.Module:
    net = Net(_both)
    net.second = nn.Linear(6, 6)
    net.second.weight = net.first.weight
    net.function = lambda m, x: _both(m, x)[:, :4]
    return net


def _frozen_layer() -> nn.Module:
    net = Net(_both)
    net.first.requires_grad_(False)
    return net


def _trainable_attribute() -> nn.Module:
    net = Net(lambda m, x: _both(m, x) * m.scale)
    object.__setattr__(net, "scale", torch.ones(4, requires_grad=True))
    return net


def _parameter_in_a_list() -> nn.Module:
    net = Net(lambda m, x: _both(m, x) * m.hidden_parameters[0])  # type: ignore[index, operator]
    object.__setattr__(net, "hidden_parameters", [nn.Parameter(torch.ones(4))])
    return net


def _batch_norm(mode: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=0.3)).train(mode)


def _old_weight_norm() -> nn.Module:
    net = Net(_both)
    torch.nn.utils.weight_norm(net.first)  # deprecated by torch, and in use
    return net


def _spectral_norm() -> nn.Module:
    net = Net(_both)
    torch.nn.utils.parametrizations.spectral_norm(net.first)
    return net


def _state_dict_hook() -> nn.Module:
    net = Net(_both)
    net.register_state_dict_post_hook(lambda *_: None)
    return net


def _forward_hook(hook: Callable[..., object], *, pre: bool = False) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = Net(_both)
        (net.first.register_forward_pre_hook if pre else net.first.register_forward_hook)(hook)
        return net

    return make


def _compiled() -> nn.Module:
    return torch.jit.trace(Net(_both), X, check_trace=False)


def _layer_replaced_by_a_hook(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
    return out * 0.3


def _input_scaled(_module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] * 2,)


# -- what the optimizer is -------------------------------------------------------------------------------------------------------


def _second_layer_only(module: nn.Module) -> torch.optim.Optimizer:
    assert isinstance(module, Net)
    return torch.optim.SGD(module.second.parameters(), lr=0.1)


def _two_groups(module: nn.Module) -> torch.optim.Optimizer:
    assert isinstance(module, Net)
    groups = [{"params": module.first.parameters(), "lr": 0.3}, {"params": module.second.parameters(), "weight_decay": 0.1}]
    return torch.optim.SGD(groups, lr=0.1)


def _patched_step(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


class _OwnSGD(torch.optim.SGD):
    """Somebody's own rule."""


SCRIPTS: dict[str, Script] = {
    "a buffer that counts": _script(_buffer_that_counts),
    "a buffer that is replaced": _script(_buffer_replaced),
    "a part under no_grad": _script(_no_grad_part),
    "detach": _script(_detached),
    "set_grad_enabled(False)": _script(_set_grad_enabled),
    "autocast inside": _script(_autocast, tolerance=1e-2),
    "gradient checkpointing": _script(_checkpointed),
    "an in-place relu on a layer": _script(_inplace_relu_on_a_layer),
    "an in-place relu on the input": _script(_inplace_relu_on_the_input, "input.0 in place"),
    "a gradient penalty": _script(_gradient_penalty),
    "a custom autograd function": _script(_custom_function),
    "a backward pass in forward": _script(_backward_in_forward, r"backward\(\) .*gradient of first\.weight"),
    "a weight written in forward": _script(_weight_written, "first.weight in place"),
    "a weight's data written in forward": _script(_weight_data_written, "first.weight"),
    "eval() in forward": _script(_eval_inside),
    "other precisions inside": _script(_half_precision_inside, tolerance=1e-2),
    "retain_grad": _script(_retained),
    "a shared weight": Script(make=_shared_weight),
    "a frozen layer": Script(make=_frozen_layer),
    "a trainable tensor that is no parameter": Script(make=_trainable_attribute, refused="no parameter of the module"),
    "a parameter in a list": Script(make=_parameter_in_a_list, refused="no parameter of the module"),
    "batch norm that trains": Script(make=partial(_batch_norm, True)),
    "batch norm in eval mode": Script(make=partial(_batch_norm, False)),
    "the old weight norm": Script(make=_old_weight_norm),
    "spectral norm": Script(make=_spectral_norm),
    "a state_dict hook": Script(make=_state_dict_hook),
    "a forward hook that changes the output": Script(make=_forward_hook(_layer_replaced_by_a_hook)),
    "a forward pre-hook that changes the input": Script(make=_forward_hook(_input_scaled, pre=True)),
    "maximize": _optimized(partial(torch.optim.SGD, lr=0.1, maximize=True)),
    "amsgrad": _optimized(partial(torch.optim.AdamW, lr=1e-2, amsgrad=True, foreach=False)),
    "foreach": _optimized(partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)),
    "dampening": _optimized(partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5), "dampening"),
    "differentiable": _optimized(partial(torch.optim.SGD, lr=0.1, differentiable=True), "differentiable"),
    "an optimizer of one's own": _optimized(partial(_OwnSGD, lr=0.1), "_OwnSGD"),
    "an optimizer of one layer": Script(make=partial(Net, _both), optimizer=_second_layer_only),
    "two groups": Script(make=partial(Net, _both), optimizer=_two_groups),
    "a hook of the optimizer's step": Script(make=partial(Net, _both), optimizer=_patched_step, refused="step pre-hook"),
    "a loss that is no scalar": _script(_both, "scalar", loss=lambda y, t: y - t),
    "a loss that tells more": _script(_both, "scalar|float", loss=lambda y, t: (F.mse_loss(y, t), y)),
    "a loss that is cut off": _script(_both, "does not depend", loss=lambda y, t: F.mse_loss(y.detach(), t)),
    "a loss with a number of Python": _script(_both, "decide", loss=lambda y, t: F.mse_loss(y, t) * float(y.mean())),
}


def _torch_losses(script: Script, steps: int = STEPS) -> tuple[float, ...]:
    module = script.make()
    optimizer = script.optimizer(module)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = script.loss(module(X.clone()), Y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return tuple(losses)


@pytest.mark.representatives(*list(SCRIPTS)[::2])
@pytest.mark.filterwarnings("ignore")  # torch warns of what it will take away
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_trains_as_torch_trains_it_or_is_refused_by_name(script: Script) -> None:
    module = script.make()

    def planned() -> Program:
        program = Program(module, (X, Y), script.loss, script.optimizer(module))
        program.graph()
        return program

    if script.refused:
        with pytest.raises(RegistaError, match=script.refused):
            planned()
        return
    program = planned()
    found = interpret(program, program.graph(), 1, STEPS)
    assert found.losses == pytest.approx(_torch_losses(script), rel=script.tolerance)


def test_an_optimizer_of_one_layer_leaves_the_other_where_it_was() -> None:
    module = Net(_both)
    before = copy.deepcopy(module.first.weight.detach())
    program = Program(module, (X, Y), F.mse_loss, _second_layer_only(module))
    assert torch.equal(interpret(program, program.graph(), 1, 2).parameters["first.weight"], before)


def test_data_that_does_not_follow_from_the_step_is_refused() -> None:
    """data(step) is asked by each rank, for each micro-batch: a generator that goes on would give each of them another batch."""
    generator = torch.Generator().manual_seed(0)
    program = Program(Net(_both), (X, Y), F.mse_loss, data=lambda step: (torch.randn(8, 6, generator=generator), Y))
    with pytest.raises(RegistaError, match=r"data\(0\) gives another input\.0 when it is asked again"):
        program.batches(2)(0)


def test_data_that_follows_from_the_step_is_each_steps_own() -> None:
    def data(step: int) -> tuple[Tensor, Tensor]:
        return torch.randn(8, 6, generator=torch.Generator().manual_seed(step)), Y

    batches = Program(Net(_both), (X, Y), F.mse_loss, data=data).batches(2)
    assert torch.equal(batches(0)[0], batches(0)[0]) and not torch.equal(batches(0)[0], batches(1)[0])
