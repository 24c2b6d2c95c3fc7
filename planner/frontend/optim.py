"""Optimizers as one op per parameter: functional, so that a step is a value and not an effect.

    regista.sgd    (param, grad, momentum_buffer | None, lr, momentum, weight_decay, nesterov)
                   -> [param', momentum_buffer']        the second only with momentum
    regista.adamw  (param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay)
                   -> [param', exp_avg', exp_avg_sq', step']

Both follow torch.optim's single-tensor code (foreach=False) operation by operation, so they agree to the last bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["SGD", "AdamW", "Optimizer", "adamw_update", "as_optimizer", "sgd_update"]


@dataclass(frozen=True, slots=True)
class SGD:
    """torch.optim.SGD with dampening 0.

    Args:
        lr: step size.
        momentum: 0 keeps no state; otherwise the state ``momentum_buffer`` has the parameter's shape.
        weight_decay: L2 term added to the gradient.
        nesterov: look-ahead momentum.
    """

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _refuse_negative(self, ("lr", "momentum", "weight_decay"))
        if self.nesterov and self.momentum == 0:
            raise InvalidProgram("SGD(nesterov=True) needs momentum > 0; give a momentum or drop nesterov")

    @property
    def target(self) -> str:
        return "regista.sgd"

    @property
    def slots(self) -> tuple[str, ...]:
        """State tensors per parameter, in the order in which the op takes and returns them."""
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def num_state_arguments(self) -> int:
        """State arguments of the op; those beyond ``slots`` are None."""
        return 1

    @property
    def hyper_parameters(self) -> tuple[float | bool, ...]:
        return (self.lr, self.momentum, self.weight_decay, self.nesterov)


@dataclass(frozen=True, slots=True)
class AdamW:
    """torch.optim.AdamW (decoupled weight decay).

    Args:
        lr: step size.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times lr.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _refuse_negative(self, ("lr", "eps", "weight_decay"))
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidProgram(f"AdamW(betas={self.betas}): two numbers in [0, 1) are needed")

    @property
    def target(self) -> str:
        return "regista.adamw"

    @property
    def slots(self) -> tuple[str, ...]:
        """State tensors per parameter; ``step`` is a 0-d float32, the others have the parameter's shape."""
        return ("exp_avg", "exp_avg_sq", "step")

    @property
    def num_state_arguments(self) -> int:
        return 3

    @property
    def hyper_parameters(self) -> tuple[float | bool, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay)


Optimizer = SGD | AdamW


def _refuse_negative(optimizer: Optimizer, names: Sequence[str]) -> None:
    for name in names:
        if not getattr(optimizer, name) >= 0:
            raise InvalidProgram(f"{type(optimizer).__name__}({name}={getattr(optimizer, name)}) must be at least 0")


@torch.library.custom_op("regista::sgd", mutates_args=())
def sgd_update(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, lr: float, momentum: float, weight_decay: float, nesterov: bool
) -> list[Tensor]:
    """One SGD step of one parameter.

    Returns:
        [new parameter] without momentum, [new parameter, new momentum_buffer] with it.

    Source: torch.optim.sgd._single_tensor_sgd.  Torch starts the buffer at the first gradient; zeros give the same value.
    """
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    if momentum_buffer is None:
        return [param.add(grad, alpha=-lr)]
    buffer = momentum_buffer.mul(momentum).add_(grad)
    direction = grad.add(buffer, alpha=momentum) if nesterov else buffer
    return [param.add(direction, alpha=-lr), buffer]


@torch.library.custom_op("regista::adamw", mutates_args=())
def adamw_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> list[Tensor]:
    """One AdamW step of one parameter.

    Returns:
        [new parameter, new exp_avg, new exp_avg_sq, new step].

    Source: torch.optim.adam._single_tensor_adam.
    """
    step = step + 1
    decayed = param.mul(1 - lr * weight_decay)
    average = exp_avg.lerp(grad, 1 - beta1)
    square = exp_avg_sq.mul(beta2).addcmul_(grad, grad, value=1 - beta2)
    if step.is_cpu:
        count = step.item()
        denominator = (square.sqrt() / (1 - beta2**count) ** 0.5).add_(eps)
        return [decayed.addcdiv_(average, denominator, value=-lr / (1 - beta1**count)), average, square, step]
    # On an accelerator item() would wait for the device; 1 - beta2 cancels, so the correction is formed in float64.
    exact = step.double()
    scale = (1 - torch.pow(beta2, exact)).sqrt().to(param.dtype)
    size = (lr / (1 - torch.pow(beta1, exact))).to(param.dtype)
    return [decayed.sub_(average / (square.sqrt() / scale).add_(eps) * size), average, square, step]


@sgd_update.register_fake
def _sgd_fake(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, lr: float, momentum: float, weight_decay: float, nesterov: bool
) -> list[Tensor]:
    return [torch.empty_like(param)] if momentum_buffer is None else [torch.empty_like(param), torch.empty_like(momentum_buffer)]


@adamw_update.register_fake
def _adamw_fake(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> list[Tensor]:
    return [torch.empty_like(value) for value in (param, exp_avg, exp_avg_sq, step)]


def as_optimizer(given: object, trainable: Mapping[str, Tensor]) -> Optimizer:
    """Our optimizer for what the user gave.

    Args:
        given: None (SGD with lr 0.01), one of ours, "sgd", "adamw", or a torch.optim.SGD / AdamW over all trainable parameters.
        trainable: name -> parameter, to check a torch optimizer against.

    Raises:
        InvalidProgram: the kind is unknown.
        Unsupported: a torch optimizer with several groups, other options, state, or other parameters.
    """
    if given is None:
        return SGD()
    if isinstance(given, SGD | AdamW):
        return given
    if isinstance(given, str):
        if given not in ("sgd", "adamw"):
            raise InvalidProgram(f"optimizer {given!r} is unknown; write 'sgd' or 'adamw', or give SGD(...) or AdamW(...)")
        return SGD() if given == "sgd" else AdamW()
    if type(given) is torch.optim.SGD or type(given) is torch.optim.AdamW:
        return _converted(given, trainable)
    shown = given.__name__ if isinstance(given, type) else type(given).__name__
    raise InvalidProgram(
        f"optimizer of kind {shown} is unknown; give 'sgd', 'adamw', SGD(...), AdamW(...) or an instance of torch.optim.SGD / AdamW"
    )


_MUST_BE_OFF = ("amsgrad", "maximize", "capturable", "differentiable", "dampening")


def _converted(given: torch.optim.Optimizer, trainable: Mapping[str, Tensor]) -> Optimizer:
    kind = type(given).__name__
    if len(given.param_groups) != 1:
        raise Unsupported(
            f"torch.optim.{kind} has {len(given.param_groups)} parameter groups; only one is supported, with one set of options"
        )
    group = given.param_groups[0]
    if on := [name for name in _MUST_BE_OFF if group.get(name)]:
        raise Unsupported(f"torch.optim.{kind}({', '.join(f'{n}={group[n]}' for n in on)}) is not supported; leave {', '.join(on)} off")
    if given.state:
        raise Unsupported(f"torch.optim.{kind} has already stepped and holds state; give a fresh one")
    held = {id(p) for p in group["params"] if p.requires_grad}
    if missing := [name for name, p in trainable.items() if id(p) not in held]:
        raise Unsupported(
            f"torch.optim.{kind} does not hold {missing[0]} ({len(missing)} trainable parameters in all); "
            "give it module.parameters(), or freeze those with requires_grad_(False)"
        )
    if len(held) != len(trainable):
        raise Unsupported(
            f"torch.optim.{kind} holds {len(held)} parameters but the module has {len(trainable)}; give it module.parameters()"
        )
    if isinstance(given, torch.optim.SGD):
        return SGD(float(group["lr"]), float(group["momentum"]), float(group["weight_decay"]), bool(group["nesterov"]))
    first, second = group["betas"]
    return AdamW(float(group["lr"]), (float(first), float(second)), float(group["eps"]), float(group["weight_decay"]))
