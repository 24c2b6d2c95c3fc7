"""scaled_dot_product_attention is one op each way, whoever calls it; what the op does not cover, and ``eager``, is torch's decomposition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as imported_by_name
from torch.utils.checkpoint import checkpoint

from backend.reference import perform
from planner.frontend import Program
from planner.frontend.tracing.trace import Tracer
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph, Role
from planner.ir.plan import Fragment
from planner.ir.sbp import S
from planner.ir.tensor import DType
from planner.opset import flop, localize, signatures
from planner.parallelism.make import PlanOptions, make_plan

BATCH, WIDTH = 4, 8


class Attending(nn.Module):
    """Queries, keys and values of two heads are linear in x; ``attend`` makes of them what a head reads."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], groups: int = 2) -> None:
        super().__init__()
        self.groups, self.attend = groups, attend
        self.q = nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * groups * WIDTH // 2)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (2, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.groups, -1)).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        made: Tensor = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return made


def program(attend: Callable[..., Tensor], groups: int = 2, steps: int = 6, **options: object) -> Program:
    torch.manual_seed(0)
    x = torch.randn(BATCH, steps, WIDTH)
    return Program(Attending(attend, groups), (x, x.flip(0)), F.mse_loss, **options)  # type: ignore[arg-type]


def attention_ops(graph: LogicalGraph) -> tuple[int, int]:
    made = Counter(op.target for op in graph.ops)
    return made["regista.attention"], made["regista.attention_backward"]


def _each_sample(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Operands of three dims."""
    return F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view(q.shape)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Operands of two dims."""
    return torch.stack([torch.stack([imported_by_name(*map(lambda t: t[n, h], (q, k, v))) for h in range(2)]) for n in range(q.shape[0])])  # noqa: C417


SEEN = torch.ones(6, 6, dtype=torch.bool).tril(1)  # each sees the next one, too

WHOLE: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "imported by name": lambda q, k, v: imported_by_name(q, k, v),
    "of the operator": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2),
    "of three dims": _each_sample,
    "booleans": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN),
    "booleans of one sample": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN[None, None]),
    "booleans of each sample": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN.expand(q.shape[0], 1, 6, 6)),
    "booleans of each head": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SEEN.expand(2, 6, 6)),
    "numbers": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(36.0).view(6, 6) / 36),
    "fewer keys": lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, :4], v[:, :, :4]),
    "causal, fewer queries": lambda q, k, v: F.pad(F.scaled_dot_product_attention(q[:, :, :4], k, v, is_causal=True), (0, 0, 0, 2)),
}


@pytest.mark.representatives("causal", "booleans of each sample", "of three dims")
@pytest.mark.parametrize("name", WHOLE)
def test_attention_is_one_op_each_way_and_trains_as_torchs_does(name: str) -> None:
    source = program(WHOLE[name])
    assert attention_ops(source.graph()) == (1, 1)
    assert source.tracer() is Tracer.RECORDER
    _trains_as_torch(source)


def test_grouped_queries_are_one_op_that_is_split_with_the_heads_of_keys() -> None:
    source = program(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), groups=1)
    assert attention_ops(source.graph()) == (1, 1)
    _trains_as_torch(source)


def test_sequences_without_samples_and_heads_are_attention_too() -> None:
    assert attention_ops(program(_one_by_one).graph()) == (2 * BATCH, 2 * BATCH)
    _trains_as_torch(program(_one_by_one))


def _trains_as_torch(source: Program) -> None:
    options = PlanOptions(pins=("input.0=S(0)",))
    plan = make_plan(source.graph(), model="attending", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    outcome = perform(plan, source.initial_state(), source.batch, 2, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, 2))


def _trained_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=q @ k.transpose(-2, -1))


DECOMPOSED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "a mask that needs a gradient": _trained_bias,
    "weights are dropped": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
    "broadcast operands": lambda q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1]),
    "mapped by torch.func": lambda q, k, v: torch.func.vmap(F.scaled_dot_product_attention)(q, k, v),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_the_op_does_not_cover_is_torchs_decomposition(name: str) -> None:
    graph = program(DECOMPOSED[name]).graph()
    assert attention_ops(graph) == (0, 0)
    assert any("softmax" in op.target or op.target == "aten.exp.default" for op in graph.ops)


def test_eager_attention_is_torchs_decomposition_with_the_same_numbers() -> None:
    source = program(WHOLE["causal"], attention="eager")
    assert attention_ops(source.graph()) == (0, 0)
    assert attention_ops(source.in_formats("fp32", None, "fused").graph()) == (1, 1)
    _trains_as_torch(source)


def test_an_unknown_form_of_attention_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="attention 'flash' is not known; choose from fused, eager"):
        program(WHOLE["causal"], attention="flash")


def test_torchs_operator_is_torchs_own_afterwards() -> None:
    program(WHOLE["causal"]).graph()
    q = torch.randn(1, 2, 3, 4, requires_grad=True)
    assert "regista" not in type(F.scaled_dot_product_attention(q, q, q).grad_fn).__name__.lower()


def test_under_autocast_attention_is_computed_in_the_low_format_and_its_row_numbers_are_wide() -> None:
    graph = program(WHOLE["causal"], precision="bf16-mixed").graph()
    (op,) = (op for op in graph.ops if op.target == "regista.attention")
    assert {graph.values[value].dtype for value in op.inputs} == {DType.BFLOAT16}
    assert [graph.values[value].dtype for value in op.outputs if value] == [DType.BFLOAT16, DType.FLOAT32]


def test_an_evaluation_keeps_no_number_per_row() -> None:
    graph = program(WHOLE["causal"]).evaluating(True).graph()
    (op,) = (op for op in graph.ops if op.target == "regista.attention")
    assert op.outputs[1] is None


def _penalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The gradient of attention is a part of what is trained, so it is differentiated in its turn."""
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (of_queries,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    return out + of_queries


def test_gradients_of_gradients_are_those_of_torch() -> None:
    source = program(_penalised)
    forward, backward = attention_ops(source.graph())
    assert (forward, backward) == (1, 1)
    with sdpa_kernel(SDPBackend.MATH):  # torch differentiates no fused kernel twice
        _trains_as_torch(source)


def test_attention_in_a_checkpointed_part_is_computed_again() -> None:
    source = program(lambda q, k, v: checkpoint(WHOLE["causal"], q, k, v, use_reentrant=False))
    assert attention_ops(source.graph()) == (2, 1)
    assert [op.again for op in source.graph().ops if op.target == "regista.attention"] == [False, True]
    _trains_as_torch(source)


def test_no_tensor_of_the_step_is_as_large_as_the_weights() -> None:
    """SEMANTICS 10.1."""
    steps = 64
    for form, largest in (("fused", BATCH * steps * 2 * WIDTH), ("eager", BATCH * 2 * steps * steps)):
        graph = program(WHOLE["causal"], steps=steps, attention=form).graph()
        assert max(type_.numel for type_ in graph.values.values()) == largest


def test_causal_attention_has_about_half_the_flop_and_the_backward_pass_two_and_a_half_times_those() -> None:
    def flop_of(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[int, int]:
        graph = program(attend, steps=256).graph()
        ops = {op.role: op for op in graph.ops if op.target.startswith("regista.attention")}
        return flop(ops[Role.FORWARD], graph.values), flop(ops[Role.BACKWARD], graph.values)

    whole, whole_backward = flop_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    causal, causal_backward = flop_of(WHOLE["causal"])
    pairs, width = BATCH * 2 * 256 * 256, WIDTH // 2
    assert whole == pairs * (4 * width + 4)
    assert whole_backward == pairs * (10 * width + 5)
    for half, all_ in ((causal, whole), (causal_backward, whole_backward)):
        assert 0.5 * all_ < half < 0.503 * all_


def _written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[2])
    mask = (place[None, :] <= place[:, None])[None, None].expand(q.shape[0], 1, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _added_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.full((q.shape[2], q.shape[2]), torch.finfo(q.dtype).min).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)


@pytest.mark.parametrize("attend", [_written_out, _added_out], ids=["booleans", "numbers"])
def test_a_causal_mask_that_is_made_of_constants_is_the_same_step_as_is_causal(attend: Callable[..., Tensor]) -> None:
    assert program(attend).graph() == program(WHOLE["causal"]).graph()


def test_a_mask_of_constants_that_hides_nothing_is_left_out() -> None:
    made = program(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.bool))).graph()
    assert made == program(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)).graph()


@pytest.mark.parametrize(
    "mask",
    [lambda x: SEEN, lambda x: SEEN.T, lambda x: torch.ones(6, 6).tril() - 1.0, lambda x: (x[:, :1, :, 0] != 0).unsqueeze(1).tril()],
    ids=["a diagonal more", "from behind", "minus one", "of the batch"],
)
def test_any_other_mask_stays(mask: Callable[[Tensor], Tensor]) -> None:
    graph = program(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q.detach()))).graph()
    assert {len(op.inputs) for op in graph.ops if op.target == "regista.attention"} == {4}


def test_the_queries_of_causal_attention_are_split_and_each_part_knows_its_place() -> None:
    """One long sample: its tokens are cut, keys and values are gathered, and their gradients are added up."""
    torch.manual_seed(0)
    x = torch.randn(1, 8, WIDTH)
    source = Program(Attending(WHOLE["causal"]), (x, x.flip(1)), F.mse_loss)
    pins = ("input.0=S(1)", "input.1=S(1)", "out:q=S(1)", "out:kv=B", "out:out=S(1)")
    plan = make_plan(source.graph(), model="attending", batch_size=1, cluster=roomy_cluster(2), options=PlanOptions(pins=pins))
    bodies = [task.body for task in plan.tasks if isinstance(task.body, Fragment)]
    cuts = [op.args[-1] for body in bodies for op in body.ops if op.target.startswith("regista.attention")]
    assert cuts == [(2,), (2,)]
    outcome = perform(plan, source.initial_state(), source.batch, 2, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, 2))


def test_a_part_of_the_queries_is_priced_as_the_last_which_sees_the_most() -> None:
    graph = program(WHOLE["causal"], steps=8).graph()
    (op,) = (op for op in graph.ops if op.target == "regista.attention")
    (split,) = (s for s in signatures(op, graph.values, 4) if s.inputs[0] == S(2))
    types = dict(graph.values) | {op.inputs[0]: graph.values[op.inputs[0]].with_shape((BATCH, 2, 2, 4))}
    per_pair = 2 * WIDTH + 4
    assert flop(localize(op, split, graph.values, 4), types) == BATCH * 2 * (7 + 8) * per_pair
