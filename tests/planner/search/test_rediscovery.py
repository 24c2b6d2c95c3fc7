"""The strategies that people found by hand are found by search, each with the traffic that its closed form gives.

Bytes are what one device sends per step; n devices; a number has 4 bytes.  For a tensor of T bytes on n devices (SEMANTICS 2):

    all-reduce 2 T (n-1)/n      all-gather, reduce-scatter T (n-1)/n      all-to-all T (n-1)/n^2

Each test says what makes its answer the right one: what moves less, and that computing on all devices beats doing it n times over.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from traffic import SCALAR, cluster, layouts, moves

from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.plan import Boxing, Plan
from planner.parallelism.make import PlanOptions, make_plan
from regista.clusters import resolve_cluster
from zoo import ZOO


def plan_of(program: Program, mesh: tuple[int, ...], where: Cluster, *, pins: tuple[str, ...] = ()) -> Plan:
    plan = make_plan(
        program.graph(1), model=program.name, batch_size=program.batch_size, cluster=where, options=PlanOptions(mesh=mesh, pins=pins)
    )
    assert plan.search.lower_bound_s == plan.search.objective_s
    return plan


def sent(plan: Plan, *parts: str, least: float = 0.0) -> float:
    """Bytes of all moves of these parts, of those above ``least``."""
    return sum(m.sent for m in moves(plan) if m.part in parts and m.sent > least)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.relu(self.up(x)))
        return out


def residual(batch: int, width: int, hidden: int, depth: int) -> Program:
    module = nn.Sequential(*(Block(width, hidden) for _ in range(depth)))
    return Program(module, (torch.randn(batch, width), torch.randn(batch, width)), F.mse_loss, "sgd", name="residual")


def test_mlp_is_cut_column_then_row_with_one_all_reduce_each_way() -> None:
    """Megatron-LM.  64 rows and weights of 2 x 512 x 2048: activations are 1/64 of the weights, so they travel and weights stay.

    Every block's sum is reduced once forward; every block but the first, whose input needs no gradient, once backward:
    (2 d - 1) all-reduces of M W numbers:  (2d - 1) 2 (n-1)/n 4 M W.
    """
    n, batch, width, depth = 4, 64, 512, 3
    plan = plan_of(residual(batch, width, 2048, depth), (n,), cluster(n))
    all_reduces = [m for m in moves(plan) if m.part != "loss"]
    assert [m.collective for m in all_reduces] == [Collective.ALL_REDUCE] * (2 * depth - 1)
    assert [m.part for m in all_reduces].count("fwd") == depth
    assert sum(m.sent for m in all_reduces) == (2 * depth - 1) * 2 * (n - 1) / n * 4 * batch * width
    lies = layouts(plan)
    for block in range(depth):
        assert (lies[f"{block}.up.weight"], lies[f"{block}.up.bias"], lies[f"{block}.down.weight"]) == ("S(0)", "S(0)", "S(1)")


def test_many_rows_and_small_weights_are_data_parallel() -> None:
    """4096 rows of 64 features: one activation is 16 times the weights, so gradients travel:  2 (n-1)/n 4 parameters, once per step."""
    n, width, hidden, depth = 4, 64, 128, 2
    plan = plan_of(residual(4096, width, hidden, depth), (n,), cluster(n))
    parameters = depth * (2 * width * hidden + width + hidden)
    assert sent(plan, "fwd", "bwd") == 0
    assert sent(plan, "grad", "param") == 2 * (n - 1) / n * 4 * parameters
    assert set(layouts(plan).values()) == {"B"}


def test_the_update_is_sharded_at_the_bytes_of_an_all_reduce() -> None:
    """Weight-update sharding, ZeRO-1 [Xu et al. 2020; Rajbhandari et al. 2020]: reduce-scatter + all-gather = T (n-1)/n + T (n-1)/n.

    The same bytes as the plan whose optimizer states are pinned whole, less work, and 1/n of the state of every matrix.
    """
    n = 4
    program = ZOO["mlp"](batch=4096, width=64, hidden=128, depth=1, classes=16, optimizer="adamw")
    free = plan_of(program, (n,), cluster(n))
    whole = plan_of(program, (n,), cluster(n), pins=("*:exp_avg*=B",))
    assert sent(free, "grad", "param") == sent(whole, "grad", "param")
    assert {m.collective for m in moves(whole)} == {Collective.ALL_REDUCE}
    assert free.search.objective_s < whole.search.objective_s
    lies = layouts(free)
    for matrix in ("blocks.0.up.weight", "blocks.0.down.weight"):
        assert (lies[matrix], lies[f"{matrix}:exp_avg"], lies[f"{matrix}:exp_avg_sq"]) == ("B", "S(0)", "S(0)")


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_is_cut_by_heads(batch: int) -> None:
    """Megatron-LM.  128 rows (or 64) against 12 x 256 x 256 weights per layer: queries, keys and values by columns, the output by rows.

    Per layer one all-reduce after attention and one after the feed-forward, forward and backward; and one backward of the logits' input:
    (4 d + 1) all-reduces of M W numbers, beside which only maxima and sums of the loss travel (M numbers each).
    """
    n, seq, width, depth = 4, 64, 256, 2
    program = ZOO["gpt"](layers=depth, width=width, heads=8, vocab=512, batch=batch, seq=seq, tied=0, optimizer="sgd")
    plan = plan_of(program, (n,), cluster(n))
    lies = layouts(plan)
    for layer in range(depth):
        at = f"h.{layer}"
        assert [lies[f"{at}.attn.{name}.weight"] for name in ("q", "k", "v", "c_proj")] == ["S(0)", "S(0)", "S(0)", "S(1)"]
        assert [lies[f"{at}.mlp.{name}.weight"] for name in ("c_fc", "c_proj")] == ["S(0)", "S(1)"]
    rows = batch * seq
    large = [m for m in moves(plan) if prod(m.shape) == rows * width]
    assert {m.collective for m in large} == {Collective.ALL_REDUCE}
    assert sum(m.sent for m in large) == (4 * depth + 1) * 2 * (n - 1) / n * 4 * rows * width
    small = [m for m in moves(plan) if prod(m.shape) != rows * width and m.part in ("fwd", "bwd")]
    assert all(prod(m.shape) == rows for m in small)


def test_embedding_and_loss_are_parallel_over_the_vocabulary() -> None:
    """Megatron-LM.  A tied table of 8192 x 256 against 128 rows: it is cut by words, and nothing of vocabulary size ever travels.

    Of the logits only the maximum and the sum of exponentials do, M numbers each:  2 x 2 (n-1)/n 4 M.
    """
    n, seq, vocab = 4, 128, 8192
    program = ZOO["gpt"](layers=1, width=256, heads=8, vocab=vocab, batch=1, seq=seq, tied=1)
    plan = plan_of(program, (n,), cluster(n))
    lies = layouts(plan)
    assert [lies[f"wte.weight{slot}"] for slot in ("", ":exp_avg", ":exp_avg_sq")] == ["S(0)"] * 3
    assert not [m for m in moves(plan) if vocab in m.shape]
    of_logits = [m for m in moves(plan) if prod(m.shape) == seq]
    assert sum(m.sent for m in of_logits) == 2 * 2 * (n - 1) / n * 4 * seq


def test_vgg_with_a_million_classes_splits_the_head_and_the_batch_of_the_rest() -> None:
    """TePDist's example, in its published size on 8 V100: convolutions by batch, the three wide layers by features.

    Gradients of convolutions, P parameters:                                             2 (n-1)/n 4 P
    Wide layers, M images: features to the first by all-to-all and back (2 M 25088 (n-1)/n^2); its sum reduce-scattered and gathered
    backward (2 M 4096 (n-1)/n); the second's sum and its gradient all-reduced (2 x 2 M 4096 (n-1)/n); of the logits, maxima and sums.
    Less than gathering features and reduce-scattering their gradients (2 M (25088 + 4096) (n-1)/n), and 1/700 of the head's gradient.
    """
    n, images, classes = 8, 256, 1_000_000
    program = ZOO["vgg19"](batch=images, classes=classes)
    plan = plan_of(program, (n,), resolve_cluster("tepdist-m8"))
    lies = layouts(plan)
    convolutions = {name: at for name, at in lies.items() if name.startswith("blocks.")}
    assert set(convolutions.values()) == {"B"} and len(convolutions) == 32
    assert (lies["fc3.weight"], lies["fc3.bias"]) == ("S(0)", "S(0)")
    assert "B" not in (lies["fc1.weight"], lies["fc2.weight"])
    channels = (3, 64, 64, 128, 128, *(256,) * 4, *(512,) * 8)
    parameters = sum(9 * a * b + b for a, b in zip(channels, channels[1:], strict=False))
    assert sent(plan, "grad", "param") == 2 * (n - 1) / n * 4 * parameters
    features, hidden = 512 * 7 * 7, 4096
    wide = 4 * images * (2 * features * (n - 1) / n**2 + (2 + 4) * hidden * (n - 1) / n)
    assert sent(plan, "fwd", "bwd", least=4 * images * 2) == wide
    assert wide < 4 * images * (2 * (features + hidden) * (n - 1) / n + 4 * hidden * (n - 1) / n)
    assert not [m for m in moves(plan) if classes in m.shape]


def head(batch: int, width: int, classes: int) -> Program:
    body = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, classes, bias=False))
    data = (torch.randn(batch, width), torch.randint(0, classes, (batch,)))
    return Program(body, data, F.cross_entropy, "sgd", name="head")


@pytest.mark.parametrize(("batch", "layout"), [(256, "S(0)"), (1008, "S(0)"), (1024, "B"), (4096, "B")])
def test_a_classifier_changes_sides_where_its_weights_outweigh_its_activations(batch: int, layout: str) -> None:
    """One weird trick [Krizhevsky 2014].  Behind a data-parallel body (pinned), a layer of W features and C classes:

    by batch      its gradient                                     2 (n-1)/n 4 W C
    by classes    gather x, reduce-scatter its gradient            2 (n-1)/n 4 M W
                  all-reduce maxima and sums, gather the scale     2 (n-1)/n 4 M (1 + 1 + 1/2)

    They meet at M = C W / (W + 2.5), about as many rows as classes: at 1014 here.  Only the smaller side is ever sent.
    """
    n, width, classes = 4, 256, 1024
    where = cluster(n, rate=1e10, memory=1e14, bandwidth=1e9, latency=1e-9)
    plan = plan_of(head(batch, width, classes), (n,), where, pins=("input.0=S(0)", "out:0=S(0)"))
    assert layouts(plan)["1.weight"] == layout
    share = 2 * (n - 1) / n * 4
    by_batch, by_classes = share * width * classes, share * batch * (width + 2.5)
    of_body = share * width * width
    assert sent(plan, "fwd", "bwd", "grad", "param", least=2 * SCALAR) == of_body + min(by_batch, by_classes)


def test_large_embedding_tables_are_sharded_and_the_rest_is_data_parallel() -> None:
    """DLRM [Naumov et al. 2019].  Tables of 10^6 rows against 4096 clicks: rows stay, vectors travel by all-to-all from columns to clicks.

    Per sharded table 4096 vectors of 16 numbers there and as many gradients back:  2 x 4 M 16 (n-1)/n^2.  The table of 583 rows and all
    layers are whole: their gradients travel, 2 (n-1)/n 4 P.
    """
    n, clicks, vector = 4, 4096, 16
    program = ZOO["dlrm"](batch=clicks, rows=1 << 20, tables=4, width=64)
    plan = plan_of(program, (n,), cluster(n, latency=1e-7))
    lies = layouts(plan)
    assert [lies[f"tables.{k}.weight"] for k in (2, 3)] == ["S(1)", "S(1)"]
    assert {lies[name] for name in lies if name.startswith(("bottom.", "top."))} == {"B"}
    sharded = sum(lies[f"tables.{k}.weight"] == "S(1)" for k in range(4))
    exchanged = [m for m in moves(plan) if m.part in ("fwd", "bwd")]
    assert {m.collective for m in exchanged} == {Collective.ALL_TO_ALL}
    assert sum(m.sent for m in exchanged) == sharded * 2 * 4 * clicks * vector * (n - 1) / n**2
    whole = [i for i in program.graph(1).inputs if lies.get(i.name) == "B" and f"gradient:{i.name}" in program.graph(1).values]
    parameters = sum(program.graph(1).values[i.value].numel for i in whole)
    assert sent(plan, "grad", "param") == 2 * (n - 1) / n * 4 * parameters


GROUPS, SEQ, WIDTH, HIDDEN, EXPERTS = 16, 32, 64, 512, 8


def mixture() -> Program:
    return ZOO["moe"](layers=2, width=WIDTH, heads=4, experts=EXPERTS, hidden=HIDDEN, vocab=64, batch=GROUPS, seq=SEQ, optimizer="sgd")


def test_experts_are_split_with_two_all_to_alls_each_way_and_attention_is_data_parallel() -> None:
    """GShard [Lepikhin et al. 2020].  8 experts of 2 x 64 x 512 numbers, 16 samples of 32 tokens, room for C = 8 tokens per expert and sample:

    dispatch and combine move [E, G, C, M] = 8 x 16 x 8 x 64 numbers by all-to-all, forward and backward:  4 x 4 E G C M (n-1)/n^2;
    experts never travel, all other gradients once.
    """
    n, program = 4, mixture()
    plan = plan_of(program, (n,), cluster(n))
    lies = layouts(plan)
    assert (lies["h.1.mlp.w_in"], lies["h.1.mlp.w_out"]) == ("S(0)", "S(0)")
    assert {at for name, at in lies.items() if ".attn." in name} == {"B"}
    exchanged = [m for m in moves(plan) if m.part in ("fwd", "bwd")]
    assert [m.collective for m in exchanged] == [Collective.ALL_TO_ALL] * 4
    room = 2 * SEQ // EXPERTS
    assert sum(m.sent for m in exchanged) == 4 * 4 * EXPERTS * GROUPS * room * WIDTH * (n - 1) / n**2
    graph = program.graph(1)
    trained = {name: graph.values[f"parameter:{name}"].numel for name in graph.gradients}
    rest = sum(trained.values()) - 2 * EXPERTS * WIDTH * HIDDEN
    assert sent(plan, "grad", "param") == 2 * (n - 1) / n * 4 * rest


def test_the_simulator_prices_an_all_to_all_by_the_bytes_it_sends() -> None:
    """As the search does:  latency + [E, G, C, M] x 4 (n-1)/n^2 / bandwidth.  Both sides hold 1/n of the tensor, which was once taken for all."""
    n = 4
    where = cluster(n)
    plan = plan_of(mixture(), (n,), where)
    exchanges = [t for t in plan.tasks if isinstance(t.body, Boxing) and t.body.collective is Collective.ALL_TO_ALL]
    sent_s = 4 * EXPERTS * GROUPS * (2 * SEQ // EXPERTS) * WIDTH * (n - 1) / n**2 / where.node.bandwidth_bytes_per_s
    for task in exchanges:
        assert AnalyticCost(where).act_s(plan, task, 0) == pytest.approx(where.node.latency_s + sent_s)


def test_tensor_parallel_inside_the_node_and_data_parallel_across() -> None:
    """4 nodes of 8 with slow ports, and M rows with  2 H d / (2d - 1) < M < 4 x 2 H d / (2d - 1)  (2731 < 4096 < 10923):

    across, bytes of one of 8 lines   gradients  2 (3/4) 4 (2 W H d / 8)   <   sums of rows  2 (3/4) 4 (2d - 1) W M / 8
    inside, bytes of one of 4 lines   gradients  2 (7/8) 4 (2 W H d)       >   sums of rows  2 (7/8) 4 (2d - 1) W M / 4
    """
    width, hidden, depth, batch = 512, 2048, 2, 4096
    where = cluster(32, nodes=4, rate=1e11, memory=1e13, bandwidth=1e10, nic=1e9)
    plan = plan_of(residual(batch, width, hidden, depth), (4, 8), where)
    lies = layouts(plan)
    for block in range(depth):
        assert (lies[f"{block}.up.weight"], lies[f"{block}.down.weight"]) == ("B,S(0)", "B,S(1)")
    assert {(m.axis, m.part in ("grad", "param")) for m in moves(plan) if m.part != "loss"} == {(1, False), (0, True)}
    # A block's parameters on one of 8 devices: both matrices and the upper bias cut; the lower bias follows the cut of its update.
    per_device = 2 * width * hidden // 8 + hidden // 8
    biases = {m.name: m.shape for m in moves(plan) if m.name.endswith("down.bias")}
    assert len(biases) == depth
    lower = sum(m.sent for m in moves(plan) if m.name.endswith("down.bias"))
    assert sent(plan, "grad", "param") - lower == 2 * 3 / 4 * 4 * depth * per_device
    assert sent(plan, "fwd", "bwd") == (2 * depth - 1) * 2 * 7 / 8 * 4 * width * batch / 4


@pytest.mark.parametrize(("size", "layout"), [("70B", "S(1)"), ("8B", "B")])
def test_the_output_projection_of_llama_changes_sides_where_tokens_outnumber_features(size: str, layout: str) -> None:
    """autoparallel's golden decisions, one Llama 3 layer in its published size, 8192 tokens in bf16 on 8 H100.

    The feed-forward is Megatron's for both.  The output projection of N = K features (row: the sum of M N numbers is reduce-scattered;
    over tokens: N K weights are gathered, and the rows' all-to-all costs 1/n of either) is cut by rows for N = 8192 >= M (70B) and
    goes over the tokens, its weight whole, for N = 4096 < M (8B).
    """
    program = ZOO["llama3"](size=size, layers=1, batch=1, seq=8192, dtype="bf16", optimizer="sgd")
    lies = layouts(plan_of(program, (8,), resolve_cluster("dgx-h100")))
    feed_forward = [lies[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
    assert feed_forward == ["S(0)", "S(0)", "S(1)"]
    assert lies["layers.0.attention.o_proj.weight"] == layout


@pytest.mark.parametrize(("kernels", "gap"), [("", 0.05), ("a100-80gb-sxm", 0.06)])
def test_gpt3_in_three_dimensions_is_megatrons(kernels: str, gap: float) -> None:
    """Megatron-LM: pipeline over nodes, data over nodes, tensor inside a node.  Four blocks of GPT-3 175B in bf16 on 4 DGX A100.

    On the inner axis (8 devices of a node) queries, keys, values and the feed-forward's first matrix are cut by columns, the second by rows,
    and activations travel there only (once more after the embedding).  Between the 2 data-parallel nodes go a device's shares of the
    blocks' matrices, 12 width^2 / 8 numbers each: reduce-scattered, updated in parts, and gathered.
    """
    width, layers = 12288, 4
    program = ZOO["gpt3"](layers=layers, batch=32, dtype="bf16")
    options = PlanOptions(stages=2, mesh=(2, 8), micro_batches=8)
    where = resolve_cluster("dgx-a100:4")
    where = replace(where, device=replace(where.device, kernels=kernels))
    plan = make_plan(program.graph(8), model=program.name, batch_size=32, cluster=where, options=options)
    lies = layouts(plan)
    for block in range(layers):
        columns = [lies[f"h.{block}.{name}.weight"] for name in ("attn.q", "attn.k", "attn.v", "mlp.c_fc")]
        assert (columns, lies[f"h.{block}.mlp.c_proj.weight"]) == (["B,S(0)"] * 4, "B,S(1)")
    between = [m for m in moves(plan) if m.axis == 0]
    assert {m.name for m in between if m.part in ("fwd", "bwd") and m.sent > SCALAR * 8} <= {"add", "add_48"}
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        matrices = sum(m.sent for m in between if m.collective is collective and m.part in ("grad", "param"))
        assert matrices == layers * 2 * (12 * width**2 // 8) / 2
    assert plan.search.objective_s <= plan.search.lower_bound_s * (1 + gap)
