"""What the update ops compute: functions of values, so that a step is a value and not an effect.

All follow torch.optim's single-tensor code (foreach=False) operation by operation, so they agree to the last bits.  The learning rate, and of
a schedule that cycles it momentum or beta1, are numbers, or 0-d tensors where they are inputs of the step; planner.frontend.optim.rules says
which states there are.

Source: torch.optim.{sgd,adam,adagrad,rmsprop,adamax,nadam,radam,adadelta,_adafactor,_muon}._single_tensor_*, torch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from planner.ir.errors import InvalidProgram

__all__ = ["KERNELS", "Rate", "adamw_update", "checked_decay", "number", "sgd_update"]

Rate = float | Tensor


def number(value: Rate) -> float:
    """A learning rate or a momentum as a number (on an accelerator this waits for the device)."""
    return float(value.item()) if isinstance(value, Tensor) else value


def sgd_update(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, lr: Rate, momentum: Rate, weight_decay: float, nesterov: bool
) -> list[Tensor]:
    """One SGD step of one parameter.  Torch starts the buffer at the first gradient; zeros give the same value.

    Returns:
        [new parameter] without momentum, [new parameter, new momentum_buffer] with it.
    """
    rate = number(lr)
    grad = _with_l2_term(grad, param, weight_decay)
    if momentum_buffer is None:
        return [param.add(grad, alpha=-rate)]
    momentum = number(momentum)
    buffer = momentum_buffer.mul(momentum).add_(grad)
    direction = grad.add(buffer, alpha=momentum) if nesterov else buffer
    return [param.add(direction, alpha=-rate), buffer]


def adamw_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Rate,
    beta1: Rate,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> list[Tensor]:
    """One AdamW step of one parameter.

    Returns:
        [new parameter, new exp_avg, new exp_avg_sq, new step].
    """
    return adam_update(param, grad, exp_avg, exp_avg_sq, step, None, lr, beta1, beta2, eps, weight_decay, True)


def adam_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    max_exp_avg_sq: Tensor | None,
    lr: Rate,
    beta1: Rate,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> list[Tensor]:
    """One Adam step of one parameter.

    Returns:
        [new parameter, new exp_avg, new exp_avg_sq, new step], with amsgrad also the new max_exp_avg_sq.
    """
    beta1 = number(beta1)
    rate, step = (number(lr) if step.is_cpu else lr), step + 1
    param, grad = _decayed(param, grad, rate, weight_decay, decoupled)
    average, square = _moments(grad, exp_avg, exp_avg_sq, beta1, beta2)
    largest = square if max_exp_avg_sq is None else torch.maximum(max_exp_avg_sq, square)
    if step.is_cpu:
        count = step.item()
        denominator = (largest.sqrt() / (1 - beta2**count) ** 0.5).add_(eps)
        new = param.addcdiv(average, denominator, value=-number(rate) / (1 - beta1**count))
    else:
        # On an accelerator item() would wait for the device; 1 - beta2 cancels, so the correction is formed in float64.
        exact = step.double()
        scale = (1 - torch.pow(beta2, exact)).sqrt().to(param.dtype)
        size = (rate / (1 - torch.pow(beta1, exact))).to(param.dtype)
        new = param.sub(average / (largest.sqrt() / scale).add_(eps) * size)
    return [new, average, square, step] if max_exp_avg_sq is None else [new, average, square, step, largest]


def adagrad_update(
    param: Tensor, grad: Tensor, total: Tensor, step: Tensor, lr: Rate, lr_decay: float, weight_decay: float, eps: float
) -> list[Tensor]:
    """One Adagrad step of one parameter: [new parameter, new sum, new step]."""
    step = step + 1
    grad = _with_l2_term(grad, param, weight_decay)
    rate = number(lr) / (1 + (step.item() - 1) * lr_decay)
    total = total.addcmul(grad, grad, value=1)
    return [param.addcdiv(grad, total.sqrt().add_(eps), value=-rate), total, step]


def rmsprop_update(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    step: Tensor,
    momentum_buffer: Tensor | None,
    grad_avg: Tensor | None,
    lr: Rate,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: Rate,
) -> list[Tensor]:
    """One RMSprop step of one parameter: [new parameter, new square_avg, new step], then the states that are not None, in their order."""
    rate = number(lr)
    grad = _with_l2_term(grad, param, weight_decay)
    square = square_avg.mul(alpha).addcmul_(grad, grad, value=1 - alpha)
    average = None if grad_avg is None else grad_avg.lerp(grad, 1 - alpha)
    root = (square.sqrt() if average is None else square.addcmul(average, average, value=-1).sqrt_()).add_(eps)
    buffer = None if momentum_buffer is None else momentum_buffer.mul(number(momentum)).addcdiv_(grad, root)
    new = param.addcdiv(grad, root, value=-rate) if buffer is None else param.add(buffer, alpha=-rate)
    return [new, square, step + 1, *(state for state in (buffer, average) if state is not None)]


def adamax_update(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_inf: Tensor, step: Tensor, lr: Rate, beta1: Rate, *numbers: float
) -> list[Tensor]:
    """One Adamax step of one parameter: [new parameter, new exp_avg, new exp_inf, new step].   numbers: beta2, eps, weight_decay."""
    beta2, eps, weight_decay = numbers
    rate, beta1, step = number(lr), number(beta1), step + 1
    grad = _with_l2_term(grad, param, weight_decay)
    average = exp_avg.lerp(grad, 1 - beta1)
    largest = torch.maximum(exp_inf.mul(beta2), grad.abs().add_(eps))
    return [param.addcdiv(average, largest, value=-(rate / (1 - beta1 ** step.item()))), average, largest, step]


def nadam_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    mu_product: Tensor,
    lr: Rate,
    beta1: Rate,
    *numbers: float,
) -> list[Tensor]:
    """One NAdam step of one parameter: [new parameter, new exp_avg, new exp_avg_sq, new step, new mu_product].

    Args:
        mu_product: the product of the momenta so far; before the first step it is 1, whatever is held.
        numbers: beta2, eps, weight_decay, momentum_decay, decoupled.
    """
    beta2, eps, weight_decay, momentum_decay, decoupled = numbers
    rate, beta1, step = number(lr), number(beta1), step + 1
    count = step.item()
    param, grad = _decayed(param, grad, rate, weight_decay, decoupled)
    mu, mu_next = (beta1 * (1.0 - 0.5 * (0.96 ** (k * momentum_decay))) for k in (count, count + 1))
    product = (mu_product if count > 1 else torch.ones_like(mu_product)) * mu
    average, square = _moments(grad, exp_avg, exp_avg_sq, beta1, beta2)
    root = square.div(1 - beta2**count).sqrt().add_(eps)
    new = param.addcdiv(grad, root, value=-rate * (1.0 - mu) / (1.0 - product.item()))
    return [new.addcdiv_(average, root, value=(-rate * mu_next) / (1.0 - product.item() * mu_next)), average, square, step, product]


def radam_update(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Rate, beta1: Rate, *numbers: float
) -> list[Tensor]:
    """One RAdam step of one parameter: [new parameter, new exp_avg, new exp_avg_sq, new step].

    Args:
        numbers: beta2, eps, weight_decay, decoupled.
    """
    beta2, eps, weight_decay, decoupled = numbers
    rate, beta1, step = number(lr), number(beta1), step + 1
    count = step.item()
    param, grad = _decayed(param, grad, rate, weight_decay, decoupled)
    average, square = _moments(grad, exp_avg, exp_avg_sq, beta1, beta2)
    correction = 1 - beta2**count
    longest = 2 / (1 - beta2) - 1  # of the moving average, and its length so far
    length = longest - 2 * count * beta2**count / correction
    update = average / (1 - beta1**count) * rate
    if length > 5.0:
        rectified = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
        update = update * (correction**0.5 / square.sqrt().add_(eps)) * rectified
    return [param.add(update, alpha=-1.0), average, square, step]


def _decayed(param: Tensor, grad: Tensor, rate: Rate, weight_decay: float, decoupled: float) -> tuple[Tensor, Tensor]:
    """Parameter and gradient with weight decay: of the parameter where it is decoupled, else as a term of the gradient."""
    if decoupled and weight_decay != 0:
        return param.mul(1 - rate * weight_decay), grad
    return param, grad if decoupled else _with_l2_term(grad, param, weight_decay)


def _with_l2_term(grad: Tensor, param: Tensor, weight_decay: float) -> Tensor:
    """The gradient of the loss plus half of weight_decay times the parameter's squares."""
    return grad.add(param, alpha=weight_decay) if weight_decay != 0 else grad


def _moments(grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """Exponential moving averages of the gradient and of its square, after this gradient."""
    return exp_avg.lerp(grad, 1 - beta1), exp_avg_sq.mul(beta2).addcmul_(grad, grad, value=1 - beta2)


def adadelta_update(
    param: Tensor, grad: Tensor, square_avg: Tensor, acc_delta: Tensor, step: Tensor, lr: Rate, rho: float, eps: float, weight_decay: float
) -> list[Tensor]:
    """One Adadelta step of one parameter: [new parameter, new square_avg, new acc_delta, new step]."""
    grad = _with_l2_term(grad, param, weight_decay)
    square = square_avg.mul(rho).addcmul_(grad, grad, value=1 - rho)
    delta = acc_delta.add(eps).sqrt_().div_(square.add(eps).sqrt_()).mul_(grad)
    return [param.add(delta, alpha=-number(lr)), square, acc_delta.mul(rho).addcmul_(delta, delta, value=1 - rho), step + 1]


def adafactor_update(
    param: Tensor,
    grad: Tensor,
    step: Tensor,
    row_var: Tensor | None,
    col_var: Tensor | None,
    variance: Tensor | None,
    lr: Rate,
    beta2_decay: float,
    eps2: float,
    d: float,
    weight_decay: float,
    eps1: float | None,
) -> list[Tensor]:
    """One Adafactor step of one whole parameter: [new parameter, new step, the states that are not None]."""
    rate, step = number(lr), step + 1
    smallest = torch.finfo(param.dtype).eps if eps1 is None else eps1
    count = step.item()
    mixed = count**beta2_decay
    alpha = max(eps2, param.norm(2).item() / param.numel() ** 0.5) * min(rate, 1 / count**0.5)
    if weight_decay != 0:
        param = param.mul(1 - rate * weight_decay)
    if row_var is not None and col_var is not None:
        rows = row_var.lerp(torch.norm(grad, dim=-1, keepdim=True).square_().div_(grad.size(-1)), mixed)
        columns = col_var.lerp(torch.norm(grad, dim=-2, keepdim=True).square_().div_(grad.size(-2)), mixed)
        states = [rows, columns]
        estimate = (rows @ columns).div_(rows.mean(dim=-2, keepdim=True).clamp_(min=smallest))
    else:
        assert variance is not None
        states = [variance.lerp(grad * grad, mixed)]
        estimate = states[0].clone()
    update = estimate.clamp_(min=smallest * smallest).rsqrt_().mul_(grad)
    scale = max(1.0, update.norm(2).item() / (update.numel() ** 0.5 * d))
    return [param.add(update, alpha=-alpha / scale), step, *states]


def muon_update(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    lr: Rate,
    weight_decay: float,
    momentum: Rate,
    nesterov: bool,
    a: float,
    b: float,
    c: float,
    eps: float,
    num_iterations: int,
    adjust_lr: str | None,
) -> list[Tensor]:
    """One Muon step of one whole matrix: [new parameter, new momentum_buffer].  The iteration computes in bfloat16, as torch's does."""
    rate, momentum = number(lr), number(momentum)
    buffer = momentum_buffer.lerp(grad, 1 - momentum)
    update = grad.lerp(buffer, momentum) if nesterov else buffer
    rows, columns = param.shape
    x = update.bfloat16()
    x = x.T if rows > columns else x
    x = x.div(x.norm().clamp(min=eps))
    for _ in range(num_iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    ratio = 0.2 * math.sqrt(max(rows, columns)) if adjust_lr == "match_rms_adamw" else math.sqrt(max(1, rows / columns))
    return [param.mul(1 - rate * weight_decay).add_(x.T if rows > columns else x, alpha=-rate * ratio), buffer]


def moving_average(average: Tensor, param: Tensor, decay: float) -> list[Tensor]:
    """decay x average + (1 - decay) x param."""
    return [average.lerp(param, 1 - decay)]


def checked_decay(decay: float | None) -> float | None:
    """Raises InvalidProgram: not between 0 and 1."""
    if decay is not None and not 0 < decay < 1:
        raise InvalidProgram(
            f"ema={decay}: the decay of a moving average lies between 0 and 1, 0.999 for instance; leave ema out to keep none"
        )
    return decay


KERNELS: Mapping[str, Callable[..., list[Tensor]]] = {
    "regista.sgd": sgd_update,
    "regista.adamw": adamw_update,
    "regista.adam": adam_update,
    "regista.adagrad": adagrad_update,
    "regista.rmsprop": rmsprop_update,
    "regista.adafactor": adafactor_update,
    "regista.muon": muon_update,
    "regista.adamax": adamax_update,
    "regista.nadam": nadam_update,
    "regista.radam": radam_update,
    "regista.adadelta": adadelta_update,
    "regista.moving_average": moving_average,
}
"""Target -> what it computes."""
