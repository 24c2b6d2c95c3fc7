"""The optimizer that people have is taken as it is: rule, groups and state; what cannot be carried is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, nan

import pytest
import torch
from interpret import interpret
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from trainer import train_plainly

import regista
from backend.initial import Given, program_values
from planner.frontend import AdamW, Program
from planner.frontend.optim.clipping import ClipNorm
from planner.frontend.optim.rules import Adam
from planner.frontend.optim.updates import adam_update
from planner.ir.errors import InvalidProgram, RegistaError, Unsupported
from planner.ir.graph import InputKind

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

KINDS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "sgd upwards": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "adam with amsgrad, upwards": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, maximize=True),
    "adam, decoupled": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, foreach=True),
    "adamw with amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, weight_decay=0.01),
    "rmsprop, centered, with momentum": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.9, centered=True, maximize=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
    "adamax, upwards": lambda p: torch.optim.Adamax(p, lr=1e-3, maximize=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2, weight_decay=0.1, momentum_decay=0.1),
    "nadam, decoupled": lambda p: torch.optim.NAdam(p, lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2, betas=(0.9, 0.5), weight_decay=0.1),
    "radam, rectified": lambda p: torch.optim.RAdam(p, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, decoupled_weight_decay=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.8, weight_decay=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-1, weight_decay=0.01),
}
RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=RNG), torch.randn(8, 3, generator=RNG)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def program_with(module: nn.Module, optimizer: object) -> Program:
    return Program(module, (X, Y), mse, optimizer, data=lambda step: (X + step / 7, Y - step / 9))  # type: ignore[arg-type]


def assert_as_plain(
    program: Program, optimizer: torch.optim.Optimizer, steps: int = 4, micro_batches: int = 2, *, rel: float = 1e-5
) -> None:
    wanted = train_plainly(program, optimizer, steps, micro_batches=micro_batches)
    got = interpret(program, program.graph(micro_batches), micro_batches, steps)
    assert got.losses == pytest.approx(wanted.losses, rel=rel)
    for name, value in wanted.parameters.items():
        torch.testing.assert_close(got.parameters[name], value, rtol=rel, atol=rel)


@pytest.mark.parametrize("kind", KINDS)
def test_a_torch_optimizer_trains_as_it_does_in_torch(kind: str) -> None:
    module = small()
    optimizer = KINDS[kind](module.parameters())
    assert_as_plain(program_with(module, optimizer), optimizer)


def test_muon_trains_its_matrices_as_it_does_in_torch() -> None:
    module = small()
    for linear in (module[0], module[2]):
        linear.bias.requires_grad_(False)  # type: ignore[union-attr, operator]
    optimizer = torch.optim.Muon([module[0].weight, module[2].weight], lr=1e-2)  # type: ignore[list-item]
    # the orthogonal matrix is computed in bfloat16, so its last bits follow the way of the products
    assert_as_plain(program_with(module, optimizer), optimizer, micro_batches=1, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_has_made_steps_goes_on_where_it_stands(kind: str) -> None:
    module = small()
    optimizer = KINDS[kind](module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        mse(module(X), Y).backward()
        optimizer.step()
    program = program_with(module, optimizer)
    assert_as_plain(program, optimizer)
    held = {name: value for name, value in program.initial_state().items() if name.partition(":")[2]}
    if kind != "sgd":
        assert held and any(bool((value != 0).any()) for value in held.values())


def decay_groups(module: nn.Module) -> torch.optim.AdamW:
    decayed = [p for p in module.parameters() if p.ndim > 1]
    plain = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.3}, {"params": plain, "weight_decay": 0.0, "lr": 1e-3, "betas": (0.5, 0.6)}]
    return torch.optim.AdamW(groups, lr=2e-2)


def test_each_group_has_its_own_numbers() -> None:
    module = small()
    optimizer = decay_groups(module)
    program = program_with(module, optimizer)
    assert_as_plain(program, optimizer)
    assert [(group.rule, group.parameters) for group in program.groups] == [
        (AdamW(2e-2, weight_decay=0.3), ("0.weight", "2.weight")),
        (AdamW(1e-3, (0.5, 0.6), weight_decay=0.0), ("0.bias", "2.bias")),
    ]


def test_a_parameter_in_no_group_is_frozen_without_gradient_and_state() -> None:
    module = small()
    optimizer = torch.optim.Adam([module[2].weight], lr=1e-2)  # type: ignore[list-item]
    program = program_with(module, optimizer)
    assert_as_plain(program, optimizer)
    graph = program.graph()
    assert set(graph.gradients) == {"2.weight"}
    assert {i.name.partition(":")[0] for i in graph.inputs if i.kind is InputKind.OPTIMIZER_STATE} == {"2.weight"}
    tanh = {op.target for op in graph.ops}
    assert "aten.tanh.default" in tanh and "aten.tanh_backward.default" not in tanh, "no gradient is computed that nobody needs"


def test_amsgrad_of_adamw_is_adam_with_decoupled_decay() -> None:
    module = small()
    optimizer = torch.optim.AdamW(module.parameters(), amsgrad=True)
    assert program_with(module, optimizer).optimizer == Adam(weight_decay=0.01, decoupled=True, amsgrad=True)


def test_one_group_keeps_the_graph_that_our_own_optimizer_gives() -> None:
    module = small()
    ours, theirs = (program_with(module, o).graph() for o in (AdamW(3e-3), torch.optim.AdamW(module.parameters(), lr=3e-3)))
    assert ours == theirs


class Own(torch.optim.SGD):
    pass


def with_hook(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def with_own_step(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    return optimizer


def without_parameters(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": list(module.parameters())}, {"params": []}])


def overlapping(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([{"params": [p]} for p in module.parameters()])
    optimizer.param_groups[1]["params"].append(next(module.parameters()))
    return optimizer


REFUSED: dict[str, tuple[Callable[[nn.Module], object], type[RegistaError], str]] = {
    "no rule": (lambda m: torch.optim.LBFGS(m.parameters()), InvalidProgram, "kind LBFGS is unknown; of torch.optim there are SGD, Adam"),
    "a subclass": (lambda m: Own(m.parameters()), InvalidProgram, "kind Own is unknown"),
    "dampening": (lambda m: torch.optim.SGD(m.parameters(), momentum=0.9, dampening=0.1), Unsupported, r"SGD\(dampening=0.1\)"),
    "a hook": (lambda m: with_hook(torch.optim.SGD(m.parameters())), Unsupported, "step post-hook"),
    "another step": (lambda m: with_own_step(torch.optim.SGD(m.parameters())), Unsupported, "step of this torch.optim.SGD was replaced"),
    "an empty group": (without_parameters, InvalidProgram, "group 1 of torch.optim.SGD names no parameter"),
    "overlapping groups": (overlapping, InvalidProgram, "parameter 0.weight is in group 0 and in group 1"),
    "another module's": (
        lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.zeros(5))]),
        InvalidProgram,
        r"parameter 4 of group 0 .* of shape \[5\], is not one of the module's \(0.weight, 0.bias",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_carried_is_refused_by_name(case: str) -> None:
    make, kind, words = REFUSED[case]
    module = small()
    with pytest.raises(kind, match=words):
        program_with(module, make(module))


def test_an_optimizer_of_parameters_that_the_loss_does_not_need_is_refused() -> None:
    module = small()
    module.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    with pytest.raises(InvalidProgram, match=r"none of the 1 parameters in the optimizer's groups \(unused\)"):
        program_with(module, torch.optim.SGD([module.unused])).graph()


def test_a_state_of_another_shape_is_refused() -> None:
    module = small()
    optimizer = torch.optim.Adam(module.parameters())
    optimizer.state[module[0].weight] = {"exp_avg": torch.zeros(3)}
    with pytest.raises(InvalidProgram, match=r"0.weight:exp_avg of shape \[3\], and \[12, 6\] is needed"):
        program_with(module, optimizer).initial_state()


def test_groups_have_no_one_rule() -> None:
    module = small()
    with pytest.raises(Unsupported, match="2 groups"):
        _ = program_with(module, decay_groups(module)).optimizer


def test_a_hook_of_all_optimizers_is_refused_by_name() -> None:
    def counts(*_: object) -> None: ...

    handle = register_optimizer_step_post_hook(counts)
    try:
        module = small()
        with pytest.raises(Unsupported, match="counts, a hook of all optimizers"):
            program_with(module, torch.optim.SGD(module.parameters()))
    finally:
        handle.remove()


def clipped_norm(parameters: Iterable[Tensor]) -> object:
    return torch.nn.utils.clip_grad_norm_(parameters, 0.1)


def clipped_largest(parameters: Iterable[Tensor]) -> object:
    return torch.nn.utils.clip_grad_norm_(parameters, 0.05, norm_type=inf)


def clipped_value(parameters: Iterable[Tensor]) -> object:
    return torch.nn.utils.clip_grad_value_(parameters, 0.02)


CLIPPED: dict[str, tuple[dict[str, object], Callable[[Iterable[Tensor]], object]]] = {
    "norm": ({"clip_norm": 0.1}, clipped_norm),
    "norm that is never reached": ({"clip_norm": 1e6}, lambda parameters: None),
    "largest": ({"clip_norm": ClipNorm(max_norm=0.05, norm_type=inf)}, clipped_largest),
    "value": ({"clip_value": 0.02}, clipped_value),
    "norm, then value": (
        {"clip_norm": 0.1, "clip_value": 0.02},
        lambda parameters: clipped_value((clipped_norm(p := list(parameters)), p)[1]),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CLIPPED)
def test_gradients_are_clipped_as_torch_clips_them(case: str, dtype: torch.dtype) -> None:
    options, clip = CLIPPED[case]
    module = small().to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9, maximize=True)
    program = Program(module, (X.to(dtype), Y.to(dtype)), mse, optimizer, **options)  # type: ignore[arg-type]
    wanted = train_plainly(program, optimizer, 4, micro_batches=2, clip=clip)
    got = interpret(program, program.graph(2), 2, 4)
    assert got.losses == pytest.approx(wanted.losses, rel=1e-6)
    for name, value in wanted.parameters.items():
        torch.testing.assert_close(got.parameters[name], value)


UNCLIPPABLE: dict[str, tuple[dict[str, object], str]] = {
    "zero norm": ({"clip_norm": 0}, "clip_norm=0.0: the norm must be above 0"),
    "nan": ({"clip_norm": nan}, "clip_norm=nan"),
    "no number": ({"clip_norm": "1"}, "clip_norm is a str"),
    "another norm": ({"clip_norm": lambda: ClipNorm(max_norm=1.0, norm_type=1)}, "norm_type 1 is unknown; write 2 or math.inf"),
    "negative value": ({"clip_value": -1.0}, "clip_value=-1.0: the value must be above 0"),
}


@pytest.mark.parametrize("case", UNCLIPPABLE)
def test_a_bound_that_clips_nothing_or_all_is_refused(case: str) -> None:
    options, words = UNCLIPPABLE[case]
    module = small()
    with pytest.raises(InvalidProgram, match=words):
        Program(module, (X, Y), mse, **{k: v() if callable(v) else v for k, v in options.items()})  # type: ignore[arg-type]


def test_weights_from_elsewhere_leave_the_optimizer_its_state() -> None:
    module = small()
    optimizer = torch.optim.Adagrad(module.parameters(), initial_accumulator_value=0.5)
    values = program_values(program_with(module, optimizer), 1, weights=Given(dict(module.named_parameters())))
    assert torch.equal(values.part("0.bias:sum", ((0, 12),)), torch.full((12,), 0.5))
    assert torch.equal(values.part("0.bias", ((2, 3),)), module[0].bias[2:5])  # type: ignore[index]


def test_a_moving_average_follows_each_trained_parameter_from_its_first_value_on() -> None:
    module = small()
    optimizer = torch.optim.AdamW(module[0].parameters(), lr=0.1)  # type: ignore[operator]
    program = Program(module, (X, Y), mse, optimizer, ema=0.75)
    average = module[0].weight.detach().clone()  # type: ignore[union-attr, operator]
    for steps in range(1, 4):
        average = 0.75 * average + 0.25 * train_plainly(program, optimizer, steps).parameters["0.weight"]
    plan = regista.plan(program, "local:2", pins=["input.*=S(0)"], zero=1)
    outcome = regista.run(plan, program, steps=3, performer=regista.Performer.REFERENCE)
    torch.testing.assert_close(outcome.states["0.weight:ema"], average, rtol=1e-5, atol=1e-6)
    assert program.averages == {"0.weight": "0.weight:ema", "0.bias": "0.bias:ema"}
    with pytest.raises(Unsupported, match="begin with the module's own"):
        program_values(program, 1, weights=Given({}))


@pytest.mark.parametrize("decay", [0.0, 1.0, nan])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(InvalidProgram, match=r"ema=.*between 0 and 1"):
        Program(small(), (X, Y), mse, ema=decay)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_on_an_accelerator_adam_asks_the_device_for_no_number(amsgrad: bool) -> None:
    """A tensor on the meta device has none to give."""
    param, step = torch.empty(3, 4, device="meta"), torch.empty((), device="meta")
    rate = torch.empty((), dtype=torch.float64, device="meta")
    for lr in (0.1, rate):
        made = adam_update(param, param, param, param, step, param if amsgrad else None, lr, 0.9, 0.99, 1e-8, 0.1, True)
        assert [value.shape for value in made] == [(3, 4)] * 3 + [()] + [(3, 4)] * amsgrad
        assert all(value.dtype == torch.float32 for value in made)
