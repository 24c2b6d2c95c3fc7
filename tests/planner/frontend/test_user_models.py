"""Ordinary modules off the zoo's path: traced, planned on two devices, performed, and equal to eager training (SEMANTICS 6.1).

Each row is small, so that what it tests is the op set and not the machine: 10 samples (no other dim has that extent), two steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.frontend import SGD, Program
from planner.ir.sbp import S
from planner.opset import signatures
from planner.parallelism.make import PlanOptions, make_plan

BATCH, STEPS = 10, 2


class Model(nn.Module):
    """Layers by name, and what they do with the batch."""

    def __init__(self, forward: Callable[[Model, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._forward = forward

    def __getitem__(self, name: str) -> nn.Module:
        return self.layers[name]

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model, its input and its loss.

    x: the shape of a real input, or a tensor.  target: of the loss; a real one of the output's shape by default.
    """

    make: Callable[[], nn.Module]
    x: tuple[int, ...] | Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = F.mse_loss
    target: Callable[[Tensor], Tensor] = torch.randn_like


def _of(layer: Callable[[], nn.Module], *shape: int) -> Row:
    """One layer behind a trainable scale, so that its input's gradient is wanted too."""
    return Row(make=lambda: nn.Sequential(Scale(shape[1]), layer()), x=shape)


class Scale(nn.Module):
    """A factor per feature or channel, on dim 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(-1, *[1] * (x.ndim - 2))


def _on(forward: Callable[[Tensor], Tensor], *shape: int) -> Row:
    """A function of scaled inputs."""
    return Row(make=lambda: Model(lambda m, x: forward(m["scale"](x)), scale=Scale(shape[1])), x=shape)


def _loss(loss: Callable[[Tensor, Tensor], Tensor], target: Callable[[Tensor], Tensor], classes: int = 6) -> Row:
    return Row(make=lambda: nn.Linear(4, classes), x=(BATCH, 4), loss=loss, target=target)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


class SelfAttention(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.0, batch_first=True)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, **self.options)[0]
        return out


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def _causal(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(_heads(x), _heads(x.cos()), _heads(x.sin()), is_causal=True)


def _masked(x: Tensor) -> Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(_heads(x), _heads(x.cos()), _heads(x.sin()), attn_mask=mask)


def _biased(x: Tensor) -> Tensor:
    bias = torch.arange(16.0).view(4, 4) / 16
    return F.scaled_dot_product_attention(_heads(x), _heads(x.cos()), _heads(x.sin()), attn_mask=bias)


def _joined(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    c, d, e = x.split([1, 2, 3], 1)
    return torch.cat([torch.stack([a, b], 1).flatten(1), d * 2, torch.roll(c + e, 1, 1), torch.flip(x, [1])], 1)


def _last_token(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[0]) % x.shape[1]
    return x[torch.arange(x.shape[0]), index]


def _masked_mean(x: Tensor) -> Tensor:
    mask = (x > -0.5).to(x.dtype)
    return (x * mask).sum(1) / mask.sum(1).clamp(min=1)


def _algebra(x: Tensor) -> Tensor:
    y = torch.where(x > 0, x, x.exp()).clamp(-1, 2) + x.pow(3) + x.square().add(1).pow(0.5) + torch.maximum(x, x.cos())
    return y + torch.minimum(x, x.sin()) + x.abs().clamp(min=0.1).log() + x[:, 1:2] * x.clamp(max=1)


def _slices(x: Tensor) -> Tensor:
    return x[:, 1:5:2] + x[..., 2:4] * x[:, -1:] + x[:, 0, None]


def _distances(x: Tensor) -> Tensor:
    return F.cosine_similarity(F.normalize(x, dim=1), x.cos(), dim=-1) + x.norm(dim=1) + x.std(1) + x.logsumexp(1)


def _norms(x: Tensor) -> Tensor:
    orders = (0, 0.5, 1, 2, 3, float("inf"), float("-inf"))
    norms = [torch.linalg.vector_norm(x, order, dim=1) for order in orders]
    return torch.stack(norms, 1) + x.norm() + torch.logsumexp(x[:, :, None], (1, 2))[:, None]


def _repeats(x: Tensor) -> Tensor:
    return x.repeat(1, 2) + x[:, None].repeat(1, 3, 2).sum(1) + x.repeat(2, 1, 2)[1] + x.repeat_interleave(2, 1) + torch.tile(x, (2,))


def _truths(x: Tensor) -> Tensor:
    y = x + 3 * (x > 2).all(1, keepdim=True) + (x > 1).any(-1, keepdim=True) * x
    return y + x.prod(1, keepdim=True) + torch.diagonal(x[:, None] * x[:, :, None], dim1=1, dim2=2) + torch.lerp(x, x.cos(), 0.3)


def _turned(x: Tensor) -> Tensor:
    """Rotary positions as complex numbers, and a complex literal."""
    angles = torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4))
    turned = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * angles).flatten(-2)
    return turned + torch.exp(1j * x).real + torch.complex(x, x.cos()).abs()


def _spectrogram(x: Tensor) -> Tensor:
    return torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs()


def _sampled(x: Tensor) -> Tensor:
    grid = x[:, :2].permute(0, 2, 3, 1).tanh()
    turned = F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3) * 0.9, [len(x), 4, 5, 5], align_corners=False)
    return F.grid_sample(x, grid, align_corners=False) + F.grid_sample(x, turned, mode="nearest", align_corners=False)


def _unpooled(x: Tensor) -> Tensor:
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(pooled.square(), places, 2)


def _decomposed(x: Tensor) -> Tensor:
    positive = x @ x.mT + torch.eye(4)
    spectrum = torch.linalg.svdvals(x) + torch.linalg.eigvalsh(positive) + torch.linalg.slogdet(positive)[1][:, None]
    return torch.linalg.cholesky(positive) + spectrum[:, None] + torch.linalg.solve_triangular(positive.tril(), x, upper=False)


def _scattered(x: Tensor) -> Tensor:
    index = torch.arange(60).view(10, 6)[: len(x)] % 4
    y = torch.zeros(len(x), 6).scatter_reduce(1, index, x, "mean").scatter_reduce(1, index, x.cos(), "amax")
    y = y + x.index_add(1, torch.tensor([0, 2, 2]), x[:, :3].sin()).index_copy(1, torch.tensor([1, 3]), x[:, :2])
    return y + x.masked_scatter(torch.arange(6) > 3, x.cos()) + x.index_fill(1, torch.tensor([5]), 0.5) + x.take(index)


def _special(x: Tensor) -> Tensor:
    y = x.sigmoid() * 0.8 + 0.1
    z = torch.lgamma(y) + torch.erfinv(y) + torch.logit(y) + torch.hypot(x, y) + torch.fmax(x, y) + torch.atanh(y) + torch.asinh(x)
    return z + torch.copysign(x, y) + F.softshrink(x) + F.hardshrink(x) + torch.special.entr(y) + torch.nan_to_num(x) + torch.frac(x)


class FourierLayer(nn.Module):
    """A layer of a Fourier neural operator: complex weights per frequency."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.view_as_complex(self.weight)
        return torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x), weight), n=8)


def _padded(m: Model, x: Tensor) -> Tensor:
    padding = (torch.arange(x.shape[1]) >= 3).expand(x.shape[:2])
    out: Tensor = m["encoder"](x, src_key_padding_mask=padding)
    return out


def _classes(y: Tensor) -> Tensor:
    return torch.arange(len(y)) % y.shape[1]


def _rare(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y, target, weight=torch.arange(1.0, y.shape[1] + 1))


ROWS: dict[str, Row] = {
    "encoder_layer": Row(make=lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), x=(BATCH, 4, 8)),
    "encoder_layer_pre_norm_gelu": Row(
        make=lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True),
        x=(BATCH, 4, 8),
    ),
    "attention": Row(make=SelfAttention, x=(BATCH, 4, 8)),
    "attention_without_weights": Row(make=lambda: SelfAttention(need_weights=False), x=(BATCH, 4, 8)),
    "sdpa_causal": _on(_causal, BATCH, 4, 8),
    "sdpa_mask": _on(_masked, BATCH, 4, 8),
    "sdpa_bias": _on(_biased, BATCH, 4, 8),
    "encoder_with_padding": Row(
        make=lambda: Model(_padded, encoder=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)), x=(BATCH, 4, 8)
    ),
    "group_norm_plain": _of(lambda: nn.GroupNorm(2, 4, affine=False), BATCH, 4, 3),
    "norms": _on(_norms, BATCH, 6),
    "repeats": _on(_repeats, BATCH, 6),
    "truths": _on(_truths, BATCH, 6),
    "group_norm": _of(lambda: nn.GroupNorm(2, 4), BATCH, 4, 3, 3),
    "instance_norm": _of(lambda: nn.InstanceNorm2d(4, affine=True), BATCH, 4, 3, 3),
    "layer_norm": _of(lambda: nn.LayerNorm(6), BATCH, 4, 6),
    "rms_norm": _of(lambda: nn.RMSNorm(6), BATCH, 4, 6),
    "batch_norm_2d_input": _of(lambda: nn.BatchNorm1d(6), BATCH, 6),
    "lstm": Row(make=lambda: Recurrent(nn.LSTM(4, 6, batch_first=True)), x=(BATCH, 3, 4)),
    "lstm_two_way": Row(make=lambda: Recurrent(nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True)), x=(BATCH, 3, 4)),
    "gru": Row(make=lambda: Recurrent(nn.GRU(4, 6, batch_first=True)), x=(BATCH, 3, 4)),
    "rnn": Row(make=lambda: Recurrent(nn.RNN(4, 6, batch_first=True)), x=(BATCH, 3, 4)),
    "lstm_projected": Row(make=lambda: Recurrent(nn.LSTM(4, 6, 2, proj_size=2, bias=False, batch_first=True)), x=(BATCH, 3, 4)),
    "rnn_relu_two_way": Row(make=lambda: Recurrent(nn.RNN(4, 6, 2, "relu", bidirectional=True, batch_first=True)), x=(BATCH, 3, 4)),
    "conv1d": _of(lambda: nn.Conv1d(4, 6, 3, padding=1, stride=2), BATCH, 4, 6),
    "conv3d": _of(lambda: nn.Conv3d(2, 4, 2), BATCH, 2, 3, 3, 3),
    "conv_transpose2d": _of(lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), BATCH, 4, 3, 3),
    "avg_pool2d": _of(lambda: nn.AvgPool2d(2), BATCH, 4, 6, 6),
    "avg_pool1d": _of(lambda: nn.AvgPool1d(2), BATCH, 4, 6),
    "adaptive_pool_1": _of(lambda: nn.AdaptiveAvgPool2d(1), BATCH, 4, 5, 5),
    "adaptive_pool_2x3": _of(lambda: nn.AdaptiveAvgPool2d((2, 3)), BATCH, 4, 5, 5),
    "max_pool2d": _of(lambda: nn.MaxPool2d(3, 2, 1), BATCH, 4, 6, 6),
    "max_pool1d": _of(lambda: nn.MaxPool1d(2), BATCH, 4, 6),
    "upsample": _of(lambda: nn.Upsample(scale_factor=2), BATCH, 4, 3, 3),
    "upsample_bilinear": _of(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), BATCH, 4, 3, 3),
    "conv_groups": _of(lambda: nn.Conv2d(4, 6, 3, padding=(2, 1), stride=2, dilation=(2, 1), groups=2), BATCH, 4, 6, 6),
    "conv_depthwise": _of(lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), BATCH, 4, 5, 5),
    "conv_transpose_groups": _of(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), BATCH, 4, 3, 3),
    "adaptive_max_pool2d": _of(lambda: nn.AdaptiveMaxPool2d(2), BATCH, 4, 5, 5),
    "max_pool3d": _of(lambda: nn.MaxPool3d(2), BATCH, 2, 4, 4, 4),
    "avg_pool3d": _of(lambda: nn.AvgPool3d(2), BATCH, 2, 4, 4, 4),
    "adaptive_pool3d": _of(lambda: nn.AdaptiveAvgPool3d(2), BATCH, 2, 3, 3, 3),
    "reflection_pad2d": _of(lambda: nn.ReflectionPad2d((1, 2, 0, 1)), BATCH, 4, 3, 3),
    "replication_pad3d": _of(lambda: nn.ReplicationPad3d(1), BATCH, 2, 3, 3, 3),
    "unfold": _of(lambda: nn.Unfold(2, padding=1), BATCH, 4, 3, 3),
    "fold": _of(lambda: nn.Fold((3, 3), 2), BATCH, 8, 4),
    "upsample_bicubic": _of(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), BATCH, 4, 3, 3),
    "upsample_linear": _of(lambda: nn.Upsample(scale_factor=2, mode="linear"), BATCH, 4, 3),
    "upsample_trilinear": _of(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), BATCH, 2, 3, 3, 3),
    "upsample_nearest_exact": _of(lambda: nn.Upsample(size=5, mode="nearest-exact"), BATCH, 4, 3),
    "pixel_shuffle": _of(lambda: nn.PixelShuffle(2), BATCH, 4, 3, 3),
    "embedding": Row(
        make=lambda: nn.Sequential(nn.Embedding(12, 6, padding_idx=0), nn.Linear(6, 4)), x=torch.arange(BATCH * 4).view(BATCH, 4) % 12
    ),
    "bce_logits": _loss(F.binary_cross_entropy_with_logits, torch.rand_like),
    "bce": _loss(lambda y, t: F.binary_cross_entropy(y.sigmoid(), t), torch.rand_like),
    "bce_pos_weight": _loss(lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=torch.tensor(3.0)), torch.rand_like),
    "l1": _loss(F.l1_loss, torch.randn_like),
    "smooth_l1": _loss(F.smooth_l1_loss, torch.randn_like),
    "huber": _loss(F.huber_loss, torch.randn_like),
    "label_smoothing": _loss(lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1), _classes),
    "class_weights": _loss(_rare, _classes),
    "soft_classes": _loss(F.cross_entropy, lambda y: torch.softmax(torch.randn_like(y), 1)),
    "kl_div": _loss(lambda y, t: F.kl_div(F.log_softmax(y, -1), t, reduction="batchmean"), lambda y: torch.softmax(torch.randn_like(y), 1)),
    "kl_div_log": _loss(
        lambda y, t: F.kl_div(F.log_softmax(y, -1), t, reduction="sum", log_target=True),
        lambda y: torch.log_softmax(torch.randn_like(y), 1),
    ),
    "picked_by_target": _loss(lambda y, t: -(y[torch.arange(len(y)), t].sigmoid() * y[:, 0]).mean(), _classes),
    "joined": _on(_joined, BATCH, 6),
    "einsum": _on(lambda x: torch.einsum("bij,bkj->bik", x, x.cos()) + torch.einsum("bij->bi", x)[..., None], BATCH, 3, 4),
    "indexing": _on(_last_token, BATCH, 4, 6),
    "slices": _on(_slices, BATCH, 6),
    "fourier": _on(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2) + torch.fft.fft2(x).abs(), BATCH, 6, 8),
    "complex": _on(_turned, BATCH, 6, 8),
    "fourier_layer": Row(make=FourierLayer, x=(BATCH, 4, 8)),
    "short_time_fourier": _on(_spectrogram, BATCH, 32),
    "distances_of_points": _on(lambda x: torch.cdist(x, x.cos()) + torch.cdist(x, x.sin(), p=1), BATCH, 6, 4),
    "grid_sample": _on(_sampled, BATCH, 4, 5, 5),
    "antialiased": _on(lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True), BATCH, 4, 5, 5),
    "unpool": _on(_unpooled, BATCH, 4, 6, 6),
    "weight_norm": _of(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), BATCH, 6),
    "spectral_norm": _of(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), BATCH, 6),
    "spectral_norm_of_attributes": _of(lambda: nn.utils.spectral_norm(nn.Linear(6, 4)), BATCH, 6),
    "inverse": _on(lambda x: torch.linalg.inv(x + 5 * torch.eye(4)) + torch.linalg.solve(x + 5 * torch.eye(4), x), BATCH, 4, 4),
    "decompositions": _on(_decomposed, BATCH, 4, 4),
    "statistics": _on(lambda x: x.median(1)[0] + x.kthvalue(2, 1)[0] + x.sort(dim=1, stable=True)[0][:, 0] + x.quantile(0.3, 1), BATCH, 6),
    "scans": _on(lambda x: x.logcumsumexp(1) + x.cummax(1)[0] + x.cummin(1)[0] + x.cumprod(1), BATCH, 6),
    "scatters": _on(_scattered, BATCH, 6),
    "bins": _on(lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0])), BATCH, 6),
    "windows": _on(lambda x: x.unfold(1, 3, 2), BATCH, 7),
    "diagonals": _on(lambda x: torch.diag_embed(x) + torch.eye(6), BATCH, 6),
    "bilinear": Row(make=lambda: Model(lambda m, x: m["layer"](x, x.cos()), layer=nn.Bilinear(6, 6, 4)), x=(BATCH, 6)),
    "special": _on(_special, BATCH, 6),
    "cumsum": _on(lambda x: x.cumsum(1), BATCH, 6),
    "masked_mean": _on(_masked_mean, BATCH, 6, 4),
    "algebra": _on(_algebra, BATCH, 6),
    "distances": _on(_distances, BATCH, 6),
    **{
        name: _of(layer, BATCH, 6)
        for name, layer in {
            "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
            "silu": nn.SiLU,
            "softplus": nn.Softplus,
            "leaky_relu": nn.LeakyReLU,
            "elu": nn.ELU,
            "selu": nn.SELU,
            "hardswish": nn.Hardswish,
            "hardsigmoid": nn.Hardsigmoid,
            "relu6": nn.ReLU6,
            "mish": nn.Mish,
            "prelu": nn.PReLU,
            "log_sigmoid": nn.LogSigmoid,
            "glu": nn.GLU,
            "tanh": nn.Tanh,
            "softmax": lambda: nn.Softmax(-1),
        }.items()
    },
}

# A look-up by (sample, index) runs over the batch; nn.MultiheadAttention folds [time, sample] into one dim, in which
# a split of the samples is not contiguous.  Such ops take the batch whole: gathered, but right.
NEEDS_THE_WHOLE_BATCH = {
    *("indexing", "picked_by_target", "scatters"),
    *("encoder_layer", "encoder_layer_pre_norm_gelu", "encoder_with_padding", "attention", "attention_without_weights"),
}


def program(name: str) -> Program:
    row = ROWS[name]
    module = row.make()
    x = row.x if isinstance(row.x, Tensor) else torch.randn(row.x)
    with torch.no_grad():
        target = row.target(copy.deepcopy(module)(x))
    return Program(module, (x, target), row.loss, SGD(lr=0.05, momentum=0.9), name=name)


@pytest.mark.representatives(*list(ROWS)[::3])
@pytest.mark.parametrize("name", ROWS)
def test_two_devices_train_like_one(name: str) -> None:
    source = program(name)
    options = PlanOptions(pins=("input.0=S(0)",))
    plan = make_plan(source.graph(), model=name, batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    outcome = perform(plan, source.initial_state(), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, STEPS))


@pytest.mark.representatives(*sorted(ROWS.keys() - NEEDS_THE_WHOLE_BATCH)[::3])
@pytest.mark.parametrize("name", sorted(ROWS.keys() - NEEDS_THE_WHOLE_BATCH))
def test_no_op_stops_the_batch(name: str) -> None:
    """An op whose first operand has the batch as a dim may lie with that dim split: data parallelism needs no gather."""
    graph = program(name).graph()
    for op in graph.ops:
        if op.role.per_micro_batch and op.inputs and BATCH in (shape := graph.values[op.inputs[0]].shape):
            split = S(shape.index(BATCH))
            assert any(s.inputs[0] == split for s in signatures(op, graph.values, 2)), op.where()
