"""What a torch.optim.Optimizer says: its groups' rules and parameters; and what is attached to it that no rule could carry.

Flags that choose how torch computes (foreach, fused, capturable) change no meaning and are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from planner.frontend.optim.adaptive import Adadelta, Adamax, NAdam, RAdam
from planner.frontend.optim.rules import SGD, Adafactor, Adagrad, Adam, AdamW, LazyAdam, Muon, Optimizer, RMSprop
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["check_untouched", "group_names", "rule_of"]

_KINDS: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.SparseAdam,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adafactor,
    torch.optim.Muon,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adadelta,
)
_MUST_BE_OFF = ("differentiable", "dampening")


def _shown(given: torch.optim.Optimizer) -> str:
    return f"torch.optim.{type(given).__name__}"


def check_untouched(given: torch.optim.Optimizer) -> None:
    """Refuse a kind without a rule, and what is wrapped around every ``step``, which the graph of a step would leave out.

    Raises:
        InvalidProgram: the kind.   Unsupported: what is attached.
    """
    if type(given) not in _KINDS:
        names = ", ".join(kind.__name__ for kind in _KINDS)
        raise InvalidProgram(f"optimizer of kind {type(given).__name__} is unknown; of torch.optim there are {names}, without subclasses")
    # those of this optimizer alone are refused where all hooks are (planner.frontend.tracing.hooks)
    hooks = {**torch_optimizer._global_optimizer_pre_hooks, **torch_optimizer._global_optimizer_post_hooks}
    if hooks:
        shown = ", ".join(getattr(hook, "__qualname__", repr(hook)) for hook in hooks.values())
        raise Unsupported(
            f"{_shown(given)} calls {shown}, a hook of all optimizers, around its step, which a plan does not perform; remove it"
        )
    wrapped = vars(given).get("step")
    if wrapped is not None and not getattr(wrapped, "_wrapped_by_lr_sched", False):
        raise Unsupported(
            f"the step of this {_shown(given)} was replaced by {wrapped!r}, which a plan does not perform; give it as torch made it"
        )


def group_names(given: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> tuple[tuple[str, ...], ...]:
    """Per group the names of its parameters, in the module's order.

    Raises:
        InvalidProgram: a group names no parameter, or one that is not the module's, or one of another group.
    """
    name_of = {id(parameter): name for name, parameter in parameters.items()}
    group_of: dict[str, int] = {}
    for number, group in enumerate(given.param_groups):
        if not group["params"]:
            raise InvalidProgram(f"group {number} of {_shown(given)} names no parameter; give it some, or leave it out")
        for place, parameter in enumerate(group["params"]):
            name = name_of.get(id(parameter))
            if name is None:
                raise InvalidProgram(
                    f"parameter {place} of group {number} of {_shown(given)}, of shape {list(parameter.shape)}, is not one of the module's "
                    f"({', '.join(list(parameters)[:4])} ...); build the optimizer from the parameters of this very module"
                )
            if name in group_of:
                raise InvalidProgram(
                    f"parameter {name} is in group {group_of[name]} and in group {number} of {_shown(given)}; keep it in one of the two"
                )
            group_of[name] = number
    return tuple(tuple(name for name in parameters if group_of.get(name) == number) for number in range(len(given.param_groups)))


def rule_of(given: torch.optim.Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """The rule of one group.

    Raises:
        Unsupported: an option that the rule does not have.
    """
    if on := [name for name in _MUST_BE_OFF if group.get(name)]:
        raise Unsupported(f"{_shown(given)}({', '.join(f'{n}={group[n]}' for n in on)}) is not supported; leave {', '.join(on)} off")
    lr, decay, maximize = float(group["lr"]), float(group.get("weight_decay", 0.0)), bool(group.get("maximize"))
    match given:
        case torch.optim.SGD():
            return SGD(lr, float(group["momentum"]), decay, bool(group["nesterov"]), maximize)
        case torch.optim.Adam():  # AdamW is one of them
            decoupled, amsgrad, eps = bool(group["decoupled_weight_decay"]), bool(group["amsgrad"]), float(group["eps"])
            if decoupled and not amsgrad:
                return AdamW(lr, _betas(group), eps, decay, maximize)
            return Adam(lr=lr, betas=_betas(group), eps=eps, weight_decay=decay, decoupled=decoupled, amsgrad=amsgrad, maximize=maximize)
        case torch.optim.SparseAdam():
            return LazyAdam(lr=lr, betas=_betas(group), eps=float(group["eps"]), dense=False, maximize=maximize)
        case torch.optim.Adamax():
            return Adamax(lr=lr, betas=_betas(group), eps=float(group["eps"]), weight_decay=decay, maximize=maximize)
        case torch.optim.NAdam():
            return NAdam(
                lr=lr,
                betas=_betas(group),
                eps=float(group["eps"]),
                weight_decay=decay,
                momentum_decay=float(group["momentum_decay"]),
                decoupled=bool(group["decoupled_weight_decay"]),
                maximize=maximize,
            )
        case torch.optim.RAdam():
            eps, decoupled = float(group["eps"]), bool(group["decoupled_weight_decay"])
            return RAdam(lr=lr, betas=_betas(group), eps=eps, weight_decay=decay, decoupled=decoupled, maximize=maximize)
        case torch.optim.Adadelta():
            return Adadelta(lr=lr, rho=float(group["rho"]), eps=float(group["eps"]), weight_decay=decay, maximize=maximize)
        case torch.optim.Adagrad():
            return Adagrad(lr=lr, lr_decay=float(group["lr_decay"]), weight_decay=decay, eps=float(group["eps"]), maximize=maximize)
        case torch.optim.RMSprop():
            return RMSprop(
                lr=lr,
                alpha=float(group["alpha"]),
                eps=float(group["eps"]),
                weight_decay=decay,
                momentum=float(group["momentum"]),
                centered=bool(group["centered"]),
                maximize=maximize,
            )
        case torch.optim.Adafactor():
            eps1, eps2 = group["eps"]
            return Adafactor(
                lr=lr,
                beta2_decay=float(group["beta2_decay"]),
                eps=(None if eps1 is None else float(eps1), float(eps2)),
                d=float(group["d"]),
                weight_decay=decay,
                maximize=maximize,
            )
        case torch.optim.Muon():
            a, b, c = (float(number) for number in group["ns_coefficients"])
            return Muon(
                lr=lr,
                weight_decay=decay,
                momentum=float(group["momentum"]),
                nesterov=bool(group["nesterov"]),
                coefficients=(a, b, c),
                eps=float(group["eps"]),
                num_iterations=int(group["ns_steps"]),
                adjust_lr=group["adjust_lr_fn"],
            )
    raise AssertionError(f"{_shown(given)} has no rule")  # check_untouched refuses it


def _betas(group: Mapping[str, Any]) -> tuple[float, float]:
    """The decay rates of a group's two moments."""
    first, second = map(float, group["betas"])
    return first, second
