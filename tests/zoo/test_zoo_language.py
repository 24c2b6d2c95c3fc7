"""The language models of the zoo: published sizes, rules for every op, training on two devices as on one (SEMANTICS 6.1), and what their
big tensors are cut along: the vocabulary, the heads, the experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest
import torch
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly

from backend.reference import perform
from planner.frontend import AdamW, Program, load_program
from planner.frontend.tracing.lookup import embedding, pick, place
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Boxing, PlacedTensor, Plan, TaskKind
from planner.ir.sbp import Partial, ReduceOp
from planner.opset import known_targets, signatures
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO
from zoo.language.t5 import buckets

BATCH, STEPS = 4, 2

_SMALL = {"layers": 1, "width": 32, "heads": 4, "seq": 16}
TINY: dict[str, dict[str, int | str]] = {
    "gpt2": {**_SMALL, "vocab": 64},
    "gpt3": {**_SMALL, "vocab": 64, "size": "alpa-350M"},
    "bert": {**_SMALL, "vocab": 64},
    "dnabert": {**_SMALL, "kmer": 3},
    "llama3": {**_SMALL, "kv_heads": 2, "hidden": 64, "vocab": 64},
    "t5": {**_SMALL, "hidden": 64, "vocab": 64},
    "moe": {**_SMALL, "layers": 2, "experts": 4, "hidden": 64, "vocab": 64},
    "deepseek": {**_SMALL, "layers": 2, "dense": 1, "hidden": 64, "vocab": 64, "head": 8, "rotary": 4, "q_rank": 16, "kv_rank": 8}
    | {"experts": 8, "asked": 2, "groups": 4, "groups_asked": 2, "expert_hidden": 24},
}

# GPT-2, BERT (masked-language head, tied decoder), Llama 3, DeepSeek-V3 (without the block that predicts the token after next, and without the
# 256 biases of 58 layers, which no gradient moves) and T5 v1.0: the parameter counts of the released weights.  GPT-3: 12 L d^2 and
# the rest of the paper's 175B row.
PUBLISHED: dict[str, tuple[str, dict[str, int | str], int]] = {
    "gpt2 117M": ("gpt2", {}, 124_439_808),
    "gpt2 345M": ("gpt2", {"size": "345M"}, 354_823_168),
    "gpt2 762M": ("gpt2", {"size": "762M"}, 774_030_080),
    "gpt2 1.5B": ("gpt2", {"size": "1.5B"}, 1_557_611_200),
    "gpt3 175B": ("gpt3", {}, 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048 + 2) * 12288),
    "bert base": ("bert", {}, 109_514_298),
    "bert large": ("bert", {"size": "large"}, 335_174_458),
    "llama3 8B": ("llama3", {}, 8_030_261_248),
    "llama3 70B": ("llama3", {"size": "70B"}, 70_553_706_496),
    "llama3 405B": ("llama3", {"size": "405B"}, 405_853_388_800),
    "deepseek V3": ("deepseek", {}, 671_026_419_200 - 58 * 256),
    "t5 small": ("t5", {"size": "small"}, 60_506_624),
    "t5 base": ("t5", {}, 222_903_552),
    "t5 large": ("t5", {"size": "large"}, 737_668_096),
    "t5 3B": ("t5", {"size": "3B"}, 2_851_598_336),
    "t5 11B": ("t5", {"size": "11B"}, 11_307_321_344),
}

NAMED = [
    *(("gpt3", size) for size in ("125M", "350M", "760M", "1.3B", "2.7B", "6.7B", "13B", "175B")),
    *(("gpt3", f"alpa-{size}") for size in ("350M", "760M", "1.3B", "2.6B", "6.7B", "15B", "39B")),
    *(("moe", size) for size in ("380M", "690M", "1.3B", "2.4B", "10B", "27B", "70B")),
]


@cache
def tiny(name: str) -> Program:
    """AdamW with a large eps: where a gradient is exactly 0, 1e-8 would turn rounding noise into full steps."""
    made = ZOO[name](batch=BATCH, **TINY[name])
    return Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name=name, data=made.data)


@cache
def graph(name: str) -> LogicalGraph:
    return tiny(name).graph()


def planned(program: Program, *pins: str, mesh: tuple[int, ...] = (2,)) -> Plan:
    devices = 2 ** len(mesh)
    options = PlanOptions(pins=pins, mesh=mesh)
    return make_plan(program.graph(), model="test", batch_size=program.batch_size, cluster=roomy_cluster(devices), options=options)


def assert_trains_as_one(program: Program, plan: Plan) -> None:
    outcome = perform(plan, program.initial_state(), program.batch, STEPS, gradients=True)
    assert_transparent(outcome, train_eagerly(program, 1, STEPS))


def boxed(plan: Plan) -> Iterator[tuple[Boxing, PlacedTensor]]:
    """What moves inside a stage, and how."""
    for task in plan.tasks:
        if task.kind is TaskKind.BOXING:
            assert isinstance(task.body, Boxing)
            for read in task.reads:
                yield task.body, plan.regst[read.regst].tensors[read.index]


# --- sizes -------------------------------------------------------------------------------------------------------------------


def numbers(name: str, **options: int | str) -> int:
    """Trainable numbers of a model that is never built."""
    return sum(parameter.numel() for parameter in ZOO[name](batch=1, **options)._module.parameters())


@pytest.mark.parametrize("row", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(row: str) -> None:
    name, options, count = PUBLISHED[row]
    assert numbers(name, **options) == count


@pytest.mark.parametrize(("name", "size"), NAMED)
def test_a_model_has_the_size_that_its_name_says(name: str, size: str) -> None:
    unit = {"M": 1e6, "B": 1e9}[size[-1]]
    assert numbers(name, size=size) == pytest.approx(float(size[:-1].rpartition("-")[2]) * unit, rel=0.05)


def test_gpt2_of_the_command_line_is_gpt2_small() -> None:
    program = load_program("zoo:gpt2?layers=12&batch=16&seq=128", ZOO)
    shapes = {i.name: program.graph().values[i.value].shape for i in program.graph().inputs}
    assert shapes["wte.weight"] == (50257, 768) and shapes["wpe.weight"] == (1024, 768) and shapes["input.0"] == (16, 128)
    assert shapes["h.11.mlp.c_fc.weight"] == (3072, 768) and "h.12.ln_1.weight" not in shapes
    assert program._module.h[0].attn.heads == 12  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zoo:gpt2?size=2B", "gpt2 has no size '2B'; it has 117M, 345M"),
        ("zoo:gpt2?heads=7", "7 heads do not divide a width of 768"),
        ("zoo:gpt2?seq=2000", "2000 tokens exceed the context of 1024"),
        ("zoo:gpt3?dtype=fp8", "dtype 'fp8' is unknown; it is one of fp32, bf16"),
        ("zoo:bert?seq=513", "513 tokens exceed the 512 positions"),
        ("zoo:dnabert?kmer=9", "9-mers"),
        ("zoo:llama3?kv_heads=5", "5 key-value heads do not divide"),
        ("zoo:moe?layers=1", "1 layers and 8 experts"),
        ("zoo:deepseek?dense=61", "61 dense of 61 layers; at least one layer has experts"),
        ("zoo:deepseek?groups=7", "7 groups do not divide the experts, 256"),
        ("zoo:deepseek?asked=130", "each token asks 130 of 256 experts, in 4 of 8 groups"),
        ("zoo:deepseek?batch=1&seq=128", "256 experts for 1 samples of 128 tokens, 128 in all"),
        ("zoo:moe?experts=16&batch=1&seq=8", "16 experts for 1 samples of 8 tokens, 8 in all"),
    ],
)
def test_a_wrong_size_is_refused_with_the_numbers(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        load_program(text, ZOO)


# --- the front end and the op set ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_every_op_has_a_rule_that_distributes(name: str) -> None:
    traced = graph(name)
    assert {op.target for op in traced.ops} <= known_targets()
    whole = [
        op.where()
        for op in traced.ops
        if any(extent % 2 == 0 for value in op.inputs for extent in traced.values[value].shape)
        and len(signatures(op, traced.values, 2)) == 1
    ]
    assert not whole, "with an even dim to cut, every op has a way to lie on two devices"


@pytest.mark.parametrize("name", TINY)
def test_two_devices_train_like_one(name: str) -> None:
    assert_trains_as_one(tiny(name), planned(tiny(name), "input.*=S(0)"))


@pytest.mark.parametrize("name", ["gpt2", "llama3", "moe", "deepseek"])
def test_bf16_trains_in_bf16(name: str) -> None:
    program = ZOO[name](batch=BATCH, **TINY[name], dtype="bf16")
    outcome = perform(planned(program, "input.*=S(0)"), program.initial_state(), program.batch, STEPS)
    torch.testing.assert_close(outcome.losses, train_eagerly(program, 1, STEPS).losses, rtol=0.02, atol=0)
    trained = {n: outcome.states[n].dtype for n, _ in program.module.named_parameters()}
    assert set(trained.values()) == {torch.bfloat16}
    assert {outcome.states[f"{n}:exp_avg_sq"].dtype for n in trained} == {torch.bfloat16}


# --- the vocabulary ----------------------------------------------------------------------------------------------------------

VOCAB = 1024  # no other dim has that extent


@cache
def wide_vocabulary(tied: int) -> Program:
    made = ZOO["gpt"](layers=1, width=32, heads=4, vocab=VOCAB, batch=2, seq=8, tied=tied)
    return Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name="gpt", data=made.data)


@pytest.mark.parametrize(
    ("tied", "pins", "mesh"),
    [
        (0, ("wte.weight=S(0)", "lm_head.weight=S(0)"), (2,)),
        (1, ("wte.weight=S(0)",), (2,)),
        (1, ("wte.weight=S(0),S(0)",), (2, 2)),
    ],
)
def test_embedding_and_loss_split_the_vocabulary(tied: int, pins: tuple[str, ...], mesh: tuple[int, ...]) -> None:
    """Table, head and logits stay where they are; per token a row of the table, a maximum and a sum cross, never the logits."""
    program = wide_vocabulary(tied)
    plan = planned(program, *pins, mesh=mesh)
    assert not [(body, tensor) for body, tensor in boxed(plan) if VOCAB in tensor.shape]
    assert any(Partial(ReduceOp.MAX) in body.src.entries for body, _ in boxed(plan)), "the largest logit of a token is found together"
    assert_trains_as_one(program, plan)


def test_the_search_splits_the_vocabulary_without_being_told() -> None:
    plan = planned(wide_vocabulary(1))
    assert not [tensor for _, tensor in boxed(plan) if VOCAB in tensor.shape]


def test_an_index_outside_the_table_is_refused_on_a_part_too() -> None:
    slots, index = torch.arange(4, 8), torch.tensor([[3, 8]])
    with pytest.raises(IndexError, match=r"3\.\.8 do not fit a table of 8"):
        embedding(torch.randn(4, 2), index, slots, 8)
    with pytest.raises(IndexError, match=r"3\.\.8 do not fit a table of 8"):
        pick(torch.randn(1, 4), 1, index, slots, 8)
    with pytest.raises(IndexError, match=r"3\.\.8 do not fit a table of 8"):
        place(torch.randn(1, 2), 1, index, slots, 8)


# --- heads, experts, positions -----------------------------------------------------------------------------------------------


def test_a_cut_of_the_key_value_heads_cuts_the_query_heads() -> None:
    """Grouped-query attention: after pinned columns and rows, attention moves nothing until its output projection is added up."""
    program = tiny("llama3")
    columns = [f"layers.0.attention.{name}_proj.weight=S(0)" for name in "qkv"]
    whole = ["input.*=B", "out:layers.0.input_norm=B", "out:layers.0=B"]
    plan = planned(program, *columns, "layers.0.attention.o_proj.weight=S(1)", *whole)
    heads = TINY["llama3"]["heads"]
    assert not [tensor for body, tensor in boxed(plan) if heads in tensor.shape[1:3] and len(tensor.shape) == 4]
    assert_trains_as_one(program, plan)


def test_experts_stay_and_tokens_travel() -> None:
    """Expert parallelism: the tokens of each expert, [E, G, C, M], go there and back by all-to-all; no expert's weight ever moves."""
    experts, hidden = 4, 384
    made = ZOO["moe"](layers=2, width=32, heads=4, experts=experts, hidden=hidden, vocab=64, batch=BATCH, seq=16)
    program = Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name="moe", data=made.data)
    plan = planned(program, "input.*=S(0)", "h.1.mlp.w_*=S(0)")
    moved = list(boxed(plan))
    assert not [tensor for _, tensor in moved if hidden in tensor.shape]
    travels = [tensor.shape for body, tensor in moved if body.collective.value == "all_to_all" and experts in tensor.shape]
    assert len(travels) >= 4, f"there and back, forward and backward; found {travels}"
    assert_trains_as_one(program, plan)


def test_experts_that_are_asked_by_index_stay_and_their_tokens_travel() -> None:
    """Either each choice goes to its expert and back by all-to-all, or, where that is quicker, each device gathers all tokens, picks
    those of its own experts, and what they give is added up."""
    hidden = 384
    made = ZOO["deepseek"](batch=BATCH, **(TINY["deepseek"] | {"expert_hidden": hidden}))
    program = Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name="deepseek", data=made.data)
    plan = planned(program, "input.*=S(0),S(0)", "layers.1.mlp.w_*=S(0),S(0)", mesh=(2, 2))
    moved = [(body.collective.value, tensor) for body, tensor in boxed(plan)]
    assert not [tensor for _, tensor in moved if hidden in tensor.shape and TINY["deepseek"]["experts"] in tensor.shape]
    tokens = BATCH * 16 * 32
    choices = [way for way, tensor in moved if way == "all_to_all" and prod(tensor.shape) == 2 * tokens]
    whole = [way for way, tensor in moved if way in ("all_gather", "reduce_scatter") and prod(tensor.shape) == tokens]
    assert len(choices) >= 4 or {"all_gather", "reduce_scatter"} <= set(whole), f"there and back, forward and backward; found {moved}"
    assert_trains_as_one(program, plan)


def test_each_token_gets_what_the_experts_that_it_asks_give_it() -> None:
    """Written anew, token by token, from the paper's equations 12 to 15 and the rule of groups; with room for all."""
    made = ZOO["deepseek"](batch=2, **TINY["deepseek"], capacity=4.0)
    layer = made.module.get_submodule("layers.1.mlp")
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.gate.weight.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
        layer.bias.copy_(torch.linspace(-0.3, 0.3, 8))  # type: ignore[operator, union-attr]
        expected = layer.shared(x)  # type: ignore[operator]
        for sample in range(2):
            for position, token in enumerate(x[sample]):
                affinity = torch.sigmoid(layer.gate(token))  # type: ignore[operator]
                biased = (affinity + layer.bias).tolist()
                pairs = sorted(range(4), key=lambda group: -(biased[2 * group] + biased[2 * group + 1]))[:2]
                best = sorted((e for group in pairs for e in (2 * group, 2 * group + 1)), key=lambda expert: -biased[expert])[:2]
                for expert in best:
                    share = 2.5 * affinity[expert] / affinity[best].sum()
                    inner = torch.nn.functional.silu(token @ layer.w_gate[expert]) * (token @ layer.w_up[expert])  # type: ignore[index]
                    expected[sample, position] += share * (inner @ layer.w_down[expert])  # type: ignore[index]
        torch.testing.assert_close(layer(x)[0], expected)


def test_a_full_expert_takes_no_more_tokens() -> None:
    """All tokens want one expert: with room for 2 the first two get in, the others pass by on the residual."""
    program = ZOO["moe"](layers=2, width=8, heads=2, experts=2, hidden=16, vocab=16, batch=1, seq=4, capacity=1.0)
    layer = program.module.get_submodule("h.1.mlp")
    with torch.no_grad():
        layer.gate.weight.zero_()
        layer.gate.weight[0, 0] = 10.0  # type: ignore[index]
        out, _ = layer(torch.ones(1, 4, 8))
    assert layer.capacity == 2
    assert out[0, :2].abs().sum(-1).min() > 0 and out[0, 2:].abs().max() == 0


def test_relative_positions_fall_into_the_buckets_of_t5() -> None:
    """One way (the decoder): 0..15 exactly, then wider; both ways: 0..7 back, 16 + 0..7 ahead."""
    past = buckets(200, two_way=False)[199].flip(0)
    assert past[:16].tolist() == list(range(16)) and past[16] == 16 and past[127] == past[199] == 31
    both = buckets(9, two_way=True)
    assert both[8].flip(0).tolist() == [*range(8), 8] and both[0, 1:].tolist() == [17, 18, 19, 20, 21, 22, 23, 24]
