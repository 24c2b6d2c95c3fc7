"""Decompositions used while tracing: down to the algebra that SBP sees, and no further.

A reduction over a split dim is P(sum) or P(max); an op that hides its reduction (a mean, a batch norm, a cross-entropy) would
have to be gathered first.  So those are opened here, and a synchronous batch norm or a vocabulary-parallel loss is found by the
planner rather than programmed.  Counts are Python literals of the traced (micro-batch) shape, so the statistics stay global.

    mean            sum / N
    batch norm      mu = sum(x)/N;  var = sum((x-mu)^2)/N;  y = (x-mu) rsqrt(var+eps) w + b
      its gradient  db = sum(g);  dw = sum(g xhat);  dx = w rsqrt(var+eps) (g - db/N - xhat dw/N)           [Ioffe & Szegedy 2015]
    log softmax     s = x - max(x);  y = s - log sum exp s;   dx = g - exp(y) sum(g)
    nll             -sum(mask pick(y, target)) / sum(mask);   dy = place(-mask, target)     (lookup.py: the classes can be split)
    embedding       rows of a table by an op that knows which rows it holds (lookup.py: the vocabulary can be split)
    group norm      as batch norm, with the sums over a sample's group instead of the batch
    log sum exp     m = max(x);  m + log sum exp (x - m)
    norms           sqrt(sum(x^2)), sum(|x|), max(|x|), ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OpOverload

from planner.frontend.tracing.lookup import slots_of
from planner.ir.errors import Unsupported

__all__ = ["decomposition_table"]

aten = torch.ops.aten
regista = torch.ops.regista

_LOW_PRECISION = (torch.float16, torch.bfloat16)


def _reduced(value: Tensor, reduction: int, count: int | Tensor) -> Tensor:
    """torch's reduction codes: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return value
    total = torch.sum(value)
    return total / count if reduction == 1 else total


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What functionalization leaves of a write: the source, in the written tensor's type."""
    return source.to(x.dtype).expand(x.shape)


def _mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return torch.sum(x, dtype=dtype) / x.numel()


def _mean_dim(x: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    return torch.sum(x, dims, keepdim, dtype=dtype) / prod(x.shape[d] for d in dims)


def _var(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = list(dim) if dim else list(range(x.ndim))
    count = prod(x.shape[d] for d in dims)
    mean = torch.sum(x, dims, True) / count
    centred = x - mean
    var = torch.sum(centred * centred, dims, keepdim) / max(count - (1 if correction is None else correction), 0)
    return var, mean if keepdim else torch.squeeze(mean, dims)


def _std(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return torch.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(torch.mm(a, b), bias, alpha, beta)


def _baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled_sum(torch.bmm(a, b), bias, alpha, beta)


def _scaled_sum(product: Tensor, bias: Tensor, alpha: float, beta: float) -> Tensor:
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


def _mv(a: Tensor, b: Tensor) -> Tensor:
    return torch.squeeze(torch.mm(a, torch.unsqueeze(b, 1)), 1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.sum(a * b)


def _mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    difference = x - target
    return _reduced(difference * difference, reduction, difference.numel())


def _mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    difference = x - target
    return difference * (2.0 / difference.numel() if reduction == 1 else 2.0) * grad


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = x.to(torch.float32) if x.dtype in _LOW_PRECISION else x
    shifted = wide - torch.amax(wide, [dim], True) if x.ndim else wide - wide
    result = shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))
    return result if half_to_float else result.to(x.dtype)


def _log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    return (grad - torch.exp(output) * torch.sum(grad, [dim], True)).to(input_dtype)


@dataclass(frozen=True, slots=True)
class _Targets:
    """class_dim; ignored: mask of targets that do not count; index: legal indices with the class dim; weight of each target."""

    class_dim: int
    ignored: Tensor
    index: Tensor
    weight: Tensor


def _targets(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> _Targets:
    class_dim = 1 if x.ndim > 1 else 0
    ignored = torch.eq(target, ignore_index)
    legal = torch.masked_fill(target, ignored, 0)
    if weight is None:
        each = torch.ne(target, ignore_index).to(x.dtype)
    else:
        each = torch.masked_fill(torch.gather(weight, 0, torch.reshape(legal, [-1])).view(target.shape), ignored, 0)
    return _Targets(class_dim, ignored, torch.unsqueeze(legal, class_dim), each)


def _nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    t = _targets(x, target, weight, ignore_index)
    classes = x.shape[t.class_dim]
    slots, _ = slots_of(classes)
    picked = torch.neg(torch.squeeze(regista.pick(x, t.class_dim, t.index, slots, classes), t.class_dim))
    # masked_fill and not a product: an ignored target's -inf would turn into nan
    losses = torch.masked_fill(picked if weight is None else picked * t.weight, t.ignored, 0)
    count = torch.sum(t.weight)
    return _reduced(losses, reduction, count), count


def _nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    t = _targets(x, target, weight, ignore_index)
    scale = grad / total_weight if reduction == 1 else grad
    each = (t.weight if weight is not None or reduction else torch.ones_like(grad)) * scale
    source = torch.unsqueeze(torch.neg(torch.masked_fill(each, t.ignored, 0)), t.class_dim)
    classes = x.shape[t.class_dim]
    slots, step = slots_of(classes)
    return regista.place(source, t.class_dim, t.index, slots, classes, step)  # type: ignore[no-any-return]


def _embedding(weight: Tensor, index: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    rows = weight.shape[0]
    return regista.embedding(weight, index, slots_of(rows)[0], rows)  # type: ignore[no-any-return]


def _embedding_backward(grad: Tensor, index: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    if scale_grad_by_freq:  # counts all indices, and stays what it is
        return NotImplemented  # type: ignore[no-any-return]
    slots, step = slots_of(rows)
    return regista.embedding_backward(grad, index, slots, rows, padding_idx, step)  # type: ignore[no-any-return]


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    return torch.reshape(value, [1, value.shape[0]] + [1] * (like.ndim - 2))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in _LOW_PRECISION else x


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(y, mean, rsqrt(var + eps), new running_mean, new running_var); the running variance takes the unbiased one, as torch does."""
    dims = [d for d in range(x.ndim) if d != 1]
    value = _wide(x)
    if training or running_mean is None or running_var is None:
        count = x.numel() // x.shape[1]
        mean = torch.sum(value, dims) / count
        centred = value - _per_channel(mean, x)
        var = torch.sum(centred * centred, dims) / count
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / max(count - 1, 1))
            running_mean = running_mean * (1 - momentum) + mean * momentum
            running_var = running_var * (1 - momentum) + unbiased * momentum
    else:
        mean, var = _wide(running_mean), _wide(running_var)
        centred = value - _per_channel(mean, x)
    invstd = torch.rsqrt(var + eps)
    result = centred * _per_channel(invstd, x)
    if weight is not None:
        result = result * _per_channel(weight, x)
    if bias is not None:
        result = result + _per_channel(bias, x)
    return result.to(x.dtype), mean, invstd, running_mean, running_var


def _batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)[:3]


def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dims = [d for d in range(x.ndim) if d != 1]
    count = x.numel() // x.shape[1]
    if training and save_mean is not None and save_invstd is not None:
        mean, invstd = save_mean, save_invstd
    elif running_mean is not None and running_var is not None:
        mean, invstd = _wide(running_mean), torch.rsqrt(_wide(running_var) + eps)
    else:
        raise Unsupported("batch norm without statistics cannot be differentiated; keep track_running_stats on or train it")
    g = _wide(grad)
    normal = (_wide(x) - _per_channel(mean, x)) * _per_channel(invstd, x)
    grad_bias = torch.sum(g, dims)
    grad_weight = torch.sum(g * normal, dims)
    scale = _per_channel(invstd if weight is None else invstd * weight, x)
    if training:
        g = g - _per_channel(grad_bias / count, x) - normal * _per_channel(grad_weight / count, x)
    grad_x = (g * scale).to(x.dtype)
    return grad_x if output_mask[0] else None, grad_weight if output_mask[1] else None, grad_bias if output_mask[2] else None


def _groups(x: Tensor, samples: int, channels: int, positions: int, groups: int) -> Tensor:
    """x [N, C, ...] as [N, groups, C/groups, positions]: the dims of each are factors of the view, so the batch and the groups split."""
    return torch.reshape(_wide(x), [samples, groups, channels // groups, positions])


def _by_group(weight: Tensor, groups: int) -> Tensor:
    return torch.reshape(_wide(weight), [1, groups, weight.shape[0] // groups, 1])


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, samples: int, channels: int, positions: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, rsqrt(var + eps)), the latter two [N, groups]."""
    value = _groups(x, samples, channels, positions, groups)
    count = channels // groups * positions
    mean = torch.sum(value, [2, 3], True) / count
    centred = value - mean
    invstd = torch.rsqrt(torch.sum(centred * centred, [2, 3], True) / count + eps)
    result = centred * invstd
    if weight is not None:
        result = result * _by_group(weight, groups)
    if bias is not None:
        result = result + _by_group(bias, groups)
    return torch.reshape(result, x.shape).to(x.dtype), torch.squeeze(mean, [2, 3]), torch.squeeze(invstd, [2, 3])


def _group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    g, value = (_groups(t, samples, channels, positions, groups) for t in (grad, x))
    mean, invstd = (torch.reshape(t, [samples, groups, 1, 1]) for t in (mean, invstd))
    normal = (value - mean) * invstd
    grad_weight = torch.reshape(torch.sum(g * normal, [0, 3]), [channels]) if output_mask[1] else None
    grad_bias = torch.reshape(torch.sum(g, [0, 3]), [channels]) if output_mask[2] else None
    if not output_mask[0]:
        return None, grad_weight, grad_bias
    if weight is not None:
        g = g * _by_group(weight, groups)
    count = channels // groups * positions
    means = torch.sum(g, [2, 3], True) / count, torch.sum(g * normal, [2, 3], True) / count
    grad_x = (g - means[0] - normal * means[1]) * invstd
    return torch.reshape(grad_x, x.shape).to(x.dtype), grad_weight, grad_bias


def _logsumexp(x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    largest = torch.amax(x, dims, True)
    # where the largest is infinite, x - largest would be nan
    largest = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
    result = torch.log(torch.sum(torch.exp(x - largest), dims, True)) + largest
    return result if keepdim else torch.squeeze(result, dims)


def _vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = list(dim) if dim else list(range(x.ndim))
    kind = x.dtype if dtype is None else dtype
    value = _wide(x.to(kind))
    if order == 2:
        result = torch.sqrt(torch.sum(value * value, dims, keepdim))
    elif order == 1:
        result = torch.sum(torch.abs(value), dims, keepdim)
    elif order == 0:
        result = torch.sum(torch.ne(value, 0).to(value.dtype), dims, keepdim)
    elif order == float("inf"):
        result = torch.amax(torch.abs(value), dims, keepdim)
    elif order == float("-inf"):
        result = torch.amin(torch.abs(value), dims, keepdim)
    else:
        result = torch.pow(torch.sum(torch.pow(torch.abs(value), order), dims, keepdim), 1 / order)
    return result.to(kind)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Each dim of extent s, r times over, is [r, s] folded; a repeat of 1 leaves its dim as it is, so that it can be split."""
    extents = [1] * (len(repeats) - x.ndim) + list(x.shape)
    pairs = [(r, s) if r != 1 and s != 1 else (1, r * s) if s != 1 else (r, 1) for r, s in zip(repeats, extents, strict=True)]
    apart = torch.reshape(x, [e for (_, s) in pairs for e in (1, s)])
    return torch.reshape(apart.expand([e for pair in pairs for e in pair]), [r * s for r, s in pairs])


def decomposition_table() -> dict[OpOverload, Callable[..., object]]:
    """Op overload -> the function that replaces it while tracing."""
    borrowed = get_decompositions(
        [
            aten.binary_cross_entropy,
            aten.binary_cross_entropy_backward,
            aten.binary_cross_entropy_with_logits,
            aten.huber_loss,
            aten.huber_loss_backward,
            aten.smooth_l1_loss,
            aten.smooth_l1_loss_backward,
            aten.select_backward,
            aten._safe_softmax,
            aten._prelu_kernel,
            aten._prelu_kernel_backward,
            aten.addcdiv,
            aten.addcmul,
            aten.celu,
            aten.diagonal_backward,
            aten.glu,
            aten.glu_backward,
            aten.lerp,
            aten.log_sigmoid_backward,
            aten.log_sigmoid_forward,
            aten.logaddexp,
            aten.pixel_shuffle,
            aten.pixel_unshuffle,
            aten.soft_margin_loss,
            aten.soft_margin_loss_backward,
            aten.std_mean,
            aten.threshold,
            aten.xlogy,
        ]
    )
    table: dict[OpOverload, Callable[..., object]] = {op: function for op, function in borrowed.items() if isinstance(op, OpOverload)}
    table.update(
        {
            aten.copy.default: _copy,
            aten.fill.Tensor: _copy,
            aten.mean.default: _mean,
            aten.mean.dim: _mean_dim,
            aten.var.correction: _var,
            aten.var_mean.correction: _var_mean,
            aten.std.correction: _std,
            aten.addmm.default: _addmm,
            aten.baddbmm.default: _baddbmm,
            aten.mv.default: _mv,
            aten.dot.default: _dot,
            aten.mse_loss.default: _mse_loss,
            aten.mse_loss_backward.default: _mse_loss_backward,
            aten._log_softmax.default: _log_softmax,
            aten._log_softmax_backward_data.default: _log_softmax_backward,
            aten.embedding.default: _embedding,
            aten.embedding_dense_backward.default: _embedding_backward,
            aten.nll_loss_forward.default: _nll_loss_forward,
            aten.nll_loss_backward.default: _nll_loss_backward,
            aten.nll_loss2d_forward.default: _nll_loss_forward,
            aten.nll_loss2d_backward.default: _nll_loss_backward,
            aten._native_batch_norm_legit_functional.default: _batch_norm,
            aten._native_batch_norm_legit.no_stats: _batch_norm_no_stats,
            aten.native_batch_norm_backward.default: _batch_norm_backward,
            aten.native_group_norm.default: _group_norm,
            aten.native_group_norm_backward.default: _group_norm_backward,
            aten.logsumexp.default: _logsumexp,
            aten.linalg_vector_norm.default: _vector_norm,
            aten.repeat.default: _repeat,
        }
    )
    return table
