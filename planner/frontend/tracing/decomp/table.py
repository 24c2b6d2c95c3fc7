"""The table of decompositions: what torch's own table opens, and what ours does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._decomp import get_decompositions
from torch._ops import OpOverload

from planner.frontend.random.table import random_table
from planner.frontend.tracing.decomp import losses, norms, reductions, strides
from planner.frontend.tracing.decomp.libraries import library_table

__all__ = ["decomposition_table"]

aten = torch.ops.aten


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
            aten.rrelu_with_noise_backward,
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
            aten.native_dropout_backward,
            aten.pixel_shuffle,
            aten.pixel_unshuffle,
            aten.soft_margin_loss,
            aten.soft_margin_loss_backward,
            aten.std_mean,
            aten.threshold,
            aten.addmv,
            aten.addr,
            aten.affine_grid_generator,
            aten.aminmax,
            aten.channel_shuffle,
            aten.dist,
            aten.logaddexp2,
            aten.multi_margin_loss,
            aten.norm,
            aten.rot90,
            aten.xlogy,
        ]
    )
    table: dict[OpOverload, Callable[..., object]] = {op: function for op, function in borrowed.items() if isinstance(op, OpOverload)}
    table.update(random_table())
    table.update(library_table())
    table.update(
        {
            aten.copy.default: reductions.copy,
            aten.fill.Tensor: reductions.copy,
            aten.mean.default: reductions.mean,
            aten.mean.dim: reductions.mean_dim,
            aten.var.correction: reductions.var,
            aten.var_mean.correction: reductions.var_mean,
            aten.std.correction: reductions.std,
            aten.addmm.default: reductions.addmm,
            aten.addbmm.default: reductions.addbmm,
            aten.baddbmm.default: reductions.baddbmm,
            aten.as_strided.default: strides.as_strided,
            aten.as_strided_scatter.default: strides.as_strided_scatter,
            aten.empty_strided.default: strides.empty_strided,
            aten.new_empty_strided.default: strides.new_empty_strided,
            aten.mv.default: reductions.mv,
            aten.trace.default: reductions.trace,
            aten.dot.default: reductions.dot,
            aten.mse_loss.default: losses.mse_loss,
            aten.mse_loss_backward.default: losses.mse_loss_backward,
            aten._log_softmax.default: losses.log_softmax,
            aten._log_softmax_backward_data.default: losses.log_softmax_backward,
            aten.embedding.default: losses.embedding,
            aten.embedding_dense_backward.default: losses.embedding_backward,
            aten.nll_loss_forward.default: losses.nll_loss_forward,
            aten.nll_loss_backward.default: losses.nll_loss_backward,
            aten.nll_loss2d_forward.default: losses.nll_loss_forward,
            aten.nll_loss2d_backward.default: losses.nll_loss_backward,
            aten._native_batch_norm_legit_functional.default: norms.batch_norm,
            aten._native_batch_norm_legit.no_stats: norms.batch_norm_no_stats,
            aten.native_batch_norm_backward.default: norms.batch_norm_backward,
            aten.native_group_norm.default: norms.group_norm,
            aten.native_group_norm_backward.default: norms.group_norm_backward,
            aten.logsumexp.default: reductions.logsumexp,
            aten.linalg_vector_norm.default: reductions.vector_norm,
            aten.repeat.default: reductions.repeat,
        }
    )
    return table
