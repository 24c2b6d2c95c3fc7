"""What draws in torch, as it stands in modules: planned on two devices, and equal to plain PyTorch with the same draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from backend import perform
from planner.frontend import SGD, Program
from planner.frontend.tracing.trace import Tracer
from planner.ir.graph import Effect
from planner.parallelism.make import PlanOptions, make_plan

STEPS, BATCH = 2, 8


class Body(nn.Module):
    """x [8, 6, 4] -> [8, 6, 4] by a linear layer, a function that draws, and another layer."""

    def __init__(self, inside: nn.Module | None = None, between: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.first, self.last, self.inside = nn.Linear(4, 4), nn.Linear(4, 4), inside
        self.between = (between,)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.inside is not None:
            output = self.inside(x)
            x = output[0] if isinstance(output, tuple) else output
        if self.between[0] is not None:
            x = self.between[0](x)
        out: Tensor = self.last(x)
        return out


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.part, x, use_reentrant=False)
        return out


def stochastic_depth(x: Tensor) -> Tensor:
    """As torchvision and timm write it: whole samples are dropped."""
    noise = torch.empty((x.shape[0], 1, 1), dtype=x.dtype).bernoulli_(0.7).div_(0.7)
    return x + x.sin() * noise


def masked(x: Tensor) -> Tensor:
    return torch.where(torch.rand(x.shape) < 0.5, x, 0.0)


def sampled(x: Tensor) -> Tensor:
    chosen = torch.multinomial(x.detach().softmax(-1).reshape(-1, 4), 1)
    return x * (1 + chosen.reshape(*x.shape[:-1], 1).to(x.dtype))


def native(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.4, True)[0]


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Body(nn.Dropout(0.5)),
    "dropout in place": lambda: Body(nn.Dropout(0.5, inplace=True)),
    "dropout of everything": lambda: Body(between=lambda x: x + F.dropout(x, 1.0)),
    "dropout1d": lambda: Body(nn.Dropout1d(0.4)),
    "alpha dropout": lambda: Body(nn.AlphaDropout(0.4)),
    "feature alpha dropout": lambda: Body(nn.FeatureAlphaDropout(0.4)),
    "attention": lambda: Body(between=lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)),
    "causal attention": lambda: Body(between=lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3, is_causal=True)),
    "multi-head attention": lambda: Body(Attended()),
    "encoder layer": lambda: Body(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)),
    "decoder": lambda: Body(between=None, inside=nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)),
    "stochastic depth": lambda: Body(between=stochastic_depth),
    "rand": lambda: Body(between=masked),
    "rand_like": lambda: Body(between=lambda x: x * torch.rand_like(x)),
    "randn": lambda: Body(between=lambda x: x + 0.1 * torch.randn(x.shape)),
    "randn_like": lambda: Body(between=lambda x: x + 0.1 * torch.randn_like(x)),
    "normal_": lambda: Body(between=lambda x: x + torch.empty_like(x).normal_(0.5, 0.1)),
    "uniform_": lambda: Body(between=lambda x: x * torch.empty_like(x).uniform_(0.5, 1.5)),
    "exponential_": lambda: Body(between=lambda x: x * torch.empty_like(x).exponential_()),
    "normal of tensors": lambda: Body(between=lambda x: torch.normal(x.detach(), 0.1) + x),
    "bernoulli of tensors": lambda: Body(between=lambda x: x * torch.bernoulli(x.detach().sigmoid())),
    "gumbel": lambda: Body(between=lambda x: F.gumbel_softmax(x, tau=0.7)),
    "rrelu": lambda: Body(nn.RReLU()),
    "multinomial": lambda: Body(between=sampled),
    "randint": lambda: Body(between=lambda x: x * torch.randint(1, 4, x.shape).to(x.dtype)),
    "native dropout": lambda: Body(between=native),
    "lstm": lambda: Body(nn.LSTM(4, 4, num_layers=2, dropout=0.3, batch_first=True)),
    "gru": lambda: Body(nn.GRU(4, 4, num_layers=2, dropout=0.3, batch_first=True)),
    "checkpoint": lambda: Body(Checkpointed()),
    "dropout of a weight": lambda: Body(between=lambda x: x @ F.dropout(torch.eye(4), 0.3)),
    "dropout under no_grad": lambda: Body(between=lambda x: x + F.dropout(x.detach(), 0.3)),
    "dropout of half": lambda: Body(between=lambda x: F.dropout(x.to(torch.bfloat16), 0.3).to(x.dtype)),
}


def program(name: str, dtype: torch.dtype = torch.float32) -> Program:
    torch.manual_seed(0)
    batch = torch.randn(BATCH, 6, 4, dtype=dtype), torch.randn(BATCH, 6, 4, dtype=dtype)
    return Program(MODULES[name]().to(dtype), batch, F.mse_loss, SGD(lr=0.1), name="body", seed=3)


@pytest.mark.representatives("encoder layer", "stochastic depth", "gumbel", "rrelu", "checkpoint", "multinomial", "dropout of half")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_draws_trains_on_two_devices_like_plain_pytorch(name: str) -> None:
    made = program(name)
    for micro_batches in (1, 2):
        graph = made.graph(micro_batches)
        assert any(op.effect is Effect.RANDOM for op in graph.ops) or name == "dropout of everything"
        options = PlanOptions(pins=("input.0=S(0)",), micro_batches=micro_batches)
        plan = make_plan(graph, model="body", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
        outcome = perform(plan, made.initial_state(micro_batches), made.batch, STEPS, gradients=True)
        assert_transparent(outcome, train_eagerly(made, micro_batches, STEPS))


WRITES = {"dropout in place", "alpha dropout", "feature alpha dropout"}
"""They write into views, or draw what they then write into."""


def test_the_recorder_traces_all_that_do_not_write_into_views() -> None:
    slow = {name for name in MODULES if name not in WRITES and program(name).tracer() is not Tracer.RECORDER}
    assert not slow
