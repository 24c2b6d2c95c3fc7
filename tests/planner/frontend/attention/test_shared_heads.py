"""Heads of keys that a module repeats for the queries that share them are the op's own business: same graph, same step as enable_gqa."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.cost import AnalyticCost
from planner.cost.clusters import preset
from planner.frontend import Program
from planner.ir.graph import LogicalGraph
from planner.parallelism.make import PlanOptions, make_plan
from zoo.language.llama import Attention, Llama, llama3
from zoo.text import next_tokens

HEADS, GROUPS, TIME, EXTENT, BATCH = 4, 2, 6, 4, 4
WIDTH = HEADS * EXTENT


def expanded(x: Tensor) -> Tensor:
    """As transformers repeats heads."""
    samples, groups, time, extent = x.shape
    return x[:, :, None, :, :].expand(samples, groups, HEADS // groups, time, extent).reshape(samples, HEADS, time, extent)


def interleaved(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // x.shape[1], dim=1)


class Shared(nn.Module):
    """Grouped queries; ``attend`` takes q [N, H, T, E], k and v [N, G, T, E]."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, GROUPS * EXTENT), nn.Linear(WIDTH, GROUPS * EXTENT)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, EXTENT)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        made: Tensor = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return made


def program(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Program:
    torch.manual_seed(0)
    x = torch.randn(BATCH, TIME, WIDTH)
    return Program(Shared(attend), (x, x.flip(0)), F.mse_loss)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def repeating(repeat: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True)


def seen_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The repeated keys are read by more than the attention, so their gradient is not its alone."""
    keys = expanded(k)
    return F.scaled_dot_product_attention(q, keys, expanded(v), is_causal=True) + keys.tanh()


def shown(graph: LogicalGraph) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Ops and what they read, but copies, which depend on how torch would lay a gradient out, and slices, which are views."""
    ops = [op for op in graph.ops if op.target not in ("aten.clone.default", "aten.slice.Tensor")]
    return [(op.target, [graph.values[value].shape for value in op.inputs]) for op in ops]


@pytest.mark.parametrize("repeat", [expanded, interleaved])
def test_a_module_that_repeats_heads_has_the_graph_of_one_that_says_they_are_shared(repeat: Callable[[Tensor], Tensor]) -> None:
    assert sorted(shown(program(repeating(repeat)).graph())) == sorted(shown(program(grouped).graph()))


@pytest.mark.parametrize("attend", [repeating(expanded), seen_twice])
def test_a_module_that_repeats_heads_trains_on_two_devices_like_on_one(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    source = program(attend)
    plan = make_plan(source.graph(), model="m", batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(pins=("input.*=S(0)",)))
    assert_transparent(perform(plan, source.initial_state(), source.batch, 2, gradients=True), train_eagerly(source, 1, 2))


def test_repeated_keys_that_are_read_otherwise_stay_where_their_gradient_is_a_sum_of_both() -> None:
    (backward,) = (op for op in program(seen_twice).graph().ops if op.target == "regista.attention_backward")
    assert len(backward.inputs) == 6
    shapes = [program(seen_twice).graph().values[value].shape for value in backward.inputs[2:4]]
    assert shapes == [(BATCH, HEADS, TIME, EXTENT)] * 2


def test_a_concatenation_with_nothing_is_its_other_operand() -> None:
    """A cache of keys that is empty in training cost a copy per layer, and an all-gather, since what is not there cannot be split."""

    def cached(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (torch.cat([torch.tensor([]), y], dim=-2) for y in (k, v))
        return grouped(q, k, v)

    assert sorted(shown(program(cached).graph())) == sorted(shown(program(grouped).graph()))


class AsTransformersWritesIt(Attention):
    """Rotated by slices, heads repeated, the mask written out."""

    def _rotated(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * self.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (linear(x).view(batch, time, -1, self.size).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj))
        share = self.heads // self.kv_heads
        k, v = self._rotated(k), v
        k, v = (
            y[:, :, None].expand(batch, self.kv_heads, share, time, self.size).reshape(batch, self.heads, time, self.size) for y in (k, v)
        )
        place = torch.arange(time)
        mixed = F.scaled_dot_product_attention(self._rotated(q), k, v, attn_mask=place[None, :] <= place[:, None])
        out: Tensor = self.o_proj(mixed.transpose(1, 2).contiguous().view(batch, time, width))
        return out


def test_the_same_llama_written_as_in_transformers_takes_the_step_of_the_zoo_within_3_percent() -> None:
    """Its loss is computed in float32, the zoo's in the format of the logits; that is what is left between them."""
    sizes = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 2, "hidden": 1408, "vocab": 2048}
    module = Llama(**sizes, seq=512)
    for layer in module.layers:
        other = AsTransformersWritesIt(512, 8, 2, 512)
        other.load_state_dict(layer.attention.state_dict())
        layer.attention = other

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), target.view(-1))

    data = next_tokens(64, 512, 2048, 0)
    theirs = Program(module.to(torch.bfloat16), data(0), loss, "adamw", data=data)
    ours = llama3(**sizes, batch=64, seq=512, dtype="bf16")
    steps = []
    for source in (ours, theirs):
        options = PlanOptions(mesh=(8,), zero=0, recompute=False)
        plan = make_plan(source.graph(), model="llama", batch_size=64, cluster=preset("dgx-h100:1"), options=options)
        cost = AnalyticCost(plan.cluster)
        steps.append(sum(task.acts * cost.act_s(plan, task, 0) for task in plan.tasks))
    assert steps[1] == pytest.approx(steps[0], rel=0.03)
