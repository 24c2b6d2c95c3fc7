"""The op set: every signature of every rule is run on parts and put together (SEMANTICS 1.6).  A second opinion: test_dtensor_oracle.py."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from backend.ops.kernels import call, kernel
from planner.ir.errors import InvalidPlan, UnknownOp
from planner.ir.graph import Op, Ref, Role
from planner.ir.sbp import B, NdSbp, P, ReduceOp, S, Sbp
from planner.ir.sbp import Partial as PartialOf
from planner.ir.tensor import DType, TensorType
from planner.opset import Signature, flop, is_creation, is_view, known_targets, local_types, localize, signatures, traffic_bytes
from planner.opset.rule import FactorRule, derive
from tests.cases.opset_cases import CASES, Draw, cases
from tests.oracles.sbp_check import Case, disagreement, join_value, make_case, part_case, split_value

SEEDS = (0, 1, 2)
TARGETS = sorted(CASES)
THIRDS = {f"{k} of 3": TARGETS[k::3] for k in range(3)}


def shown(case: Case, parts: int = 2) -> list[str]:
    return [str(s) for s in signatures(case.op, case.types, parts)]


# --- every signature, by execution -------------------------------------------------------------------------------------------


def test_every_rule_has_a_case() -> None:
    assert known_targets() == CASES.keys()


@pytest.mark.representatives("0 of 3")
@pytest.mark.parametrize("targets", THIRDS.values(), ids=THIRDS)
def test_every_signature_puts_the_whole_together(targets: Sequence[str]) -> None:
    disagreements = [
        wrong
        for target in targets
        for seed in SEEDS
        for case in cases(target, seed)
        for parts in (2, 3)
        for signature in signatures(case.op, case.types, parts)
        if (wrong := disagreement(case, signature, parts, seed))
    ]
    assert not disagreements


def test_signatures_start_with_all_b_and_never_repeat() -> None:
    for target, case in ((name, case) for name in TARGETS for case in cases(name, 0)):
        for parts in (1, 2, 3):
            derived = signatures(case.op, case.types, parts)
            assert set(derived[0].inputs) <= {B} and set(derived[0].outputs) <= {B, None}, target
            assert len(set(derived)) == len(derived), target
            assert derived == signatures(case.op, case.types, parts), target
            assert parts > 1 or len(derived) == 1, target


@pytest.mark.representatives("1 of 3")
@pytest.mark.parametrize("targets", THIRDS.values(), ids=THIRDS)
def test_an_op_on_a_second_mesh_axis_follows_the_same_rules_on_its_local_types(targets: Sequence[str]) -> None:
    """SEMANTICS 1.5: axis after axis, each on the types that the axes before it left."""
    for target, case in ((name, case) for name in targets for case in cases(name, 1)):
        for first in signatures(case.op, case.types, 2):
            local = part_case(case, first, 2, random.Random(0), index=1)
            expected = local_types(case.op, first, case.types, 2)
            assert {name: local.types[name] for name in expected} == expected, target
            seconds = signatures(local.op, local.types, 3)
            assert seconds == signatures(case.op, local.types, 3), f"the rule of {target} reads a literal that localize has not rewritten"
            assert not [wrong for second in seconds if (wrong := disagreement(local, second, 3))]


def test_localize_changes_nothing_for_a_single_device() -> None:
    for target in TARGETS:
        for case in cases(target, 0):
            (only,) = signatures(case.op, case.types, 1)
            assert not disagreement(case, only, 1)


# --- the checker itself ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sbp", [B, P, S(0), S(1), PartialOf(ReduceOp.MAX), PartialOf(ReduceOp.MIN)])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_value_join_to_the_value(sbp: Sbp, parts: int) -> None:
    value = Draw(0).real(6, 6)
    assert torch.allclose(join_value(split_value(value, sbp, parts, random.Random(0)), sbp), value)


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        (make_case("aten.relu.default", Draw(0).real(6, 6)), Signature((P,), (P,))),
        (make_case("aten.mean.dim", Draw(0).real(6, 6), [0]), Signature((S(0),), (P,))),
        (make_case("aten._softmax.default", Draw(0).real(6, 6), 1, False), Signature((S(1),), (S(1),))),
        (make_case("aten.add.Scalar", Draw(0).real(6, 6), 1.0), Signature((P,), (P,))),
        (make_case("aten.mul.Tensor", Draw(0).real(6, 6), Draw(1).real(6, 6)), Signature((P, P), (P,))),
        (make_case("aten.view.default", Draw(0).real(2, 6, 4), [12, 4]), Signature((S(1),), (S(0),))),
        (make_case("aten.mm.default", Draw(0).real(6, 6), Draw(1).real(6, 6)), Signature((S(1), B), (P,))),
        (make_case("aten.addmm.default", *(Draw(k).real(6, 6) for k in range(3))), Signature((B, S(1), S(0)), (P,))),
        (make_case("aten.amax.default", Draw(0).real(6, 6), [0]), Signature((S(0),), (PartialOf(ReduceOp.MIN),))),
        (make_case("aten.mm.default", Draw(0).real(6, 6), Draw(1).real(6, 6)), Signature((S(0), B), (B,))),
    ],
    ids=lambda value: value.op.target if isinstance(value, Case) else str(value),
)
def test_a_planted_wrong_signature_is_caught(case: Case, wrong: Signature) -> None:
    assert disagreement(case, wrong, 2) is not None
    assert wrong not in signatures(case.op, case.types, 2)


# --- signatures written out --------------------------------------------------------------------------------------------------

R = Draw(7)
STORIES = {
    "mm": (
        make_case("aten.mm.default", R.real(4, 6), R.real(6, 2)),
        ["B, B -> B", "S(0), B -> S(0)", "B, S(1) -> S(1)", "S(1), S(0) -> P", "P, B -> P", "B, P -> P"],
    ),
    "mm of an odd dim": (
        make_case("aten.mm.default", R.real(3, 5), R.real(5, 4)),
        ["B, B -> B", "B, S(1) -> S(1)", "P, B -> P", "B, P -> P"],
    ),
    "add broadcasts": (
        make_case("aten.add.Tensor", R.real(4, 6), R.real(6)),
        ["B, B -> B", "S(0), B -> S(0)", "S(1), S(0) -> S(1)", "P, P -> P"],
    ),
    "relu": (make_case("aten.relu.default", R.real(4, 6)), ["B -> B", "S(0) -> S(0)", "S(1) -> S(1)"]),
    "amax": (make_case("aten.amax.default", R.real(4, 6), [1], True), ["B -> B", "S(0) -> S(0)", "S(1) -> P(max)"]),
    "fold batch and time": (make_case("aten.view.default", R.real(2, 4, 6), [8, 6]), ["B -> B", "S(0) -> S(0)", "S(2) -> S(1)", "P -> P"]),
    "unfold heads": (make_case("aten.view.default", R.real(4, 6), [4, 2, 3]), ["B -> B", "S(0) -> S(0)", "S(1) -> S(1)", "P -> P"]),
    "heads that do not divide": (make_case("aten.view.default", R.real(5, 6), [5, 3, 2]), ["B -> B", "P -> P"]),
    "embedding": (
        make_case("aten.embedding.default", R.real(8, 6), R.index(8, 4)),
        ["B, B -> B", "B, S(0) -> S(0)", "S(1), B -> S(1)", "P, B -> P"],
    ),
    "embedding backward": (
        make_case("aten.embedding_dense_backward.default", R.real(4, 6), R.index(8, 4), 8, -1, False),
        ["B, B -> B", "S(1), B -> S(1)", "S(0), S(0) -> P", "P, B -> P"],
    ),
    "embedding that knows its rows": (
        make_case("regista.embedding", R.real(8, 6), R.index(8, 4), torch.arange(8), 8),
        ["B, B, B -> B", "B, S(0), B -> S(0)", "S(1), B, B -> S(1)", "S(0), B, S(0) -> P", "P, B, B -> P"],
    ),
    "its gradient": (
        make_case("regista.embedding_backward", R.real(4, 6), R.index(8, 4), torch.arange(8), 8, -1),
        ["B, B, B -> B", "B, B, S(0) -> S(0)", "S(1), B, B -> S(1)", "S(0), S(0), B -> P", "P, B, B -> P"],
    ),
    "the picked logits": (
        make_case("regista.pick", R.real(4, 8), 1, R.index(8, 4, 1), torch.arange(8), 8),
        ["B, B, B -> B", "S(0), S(0), B -> S(0)", "S(1), B, S(0) -> P", "P, B, B -> P"],
    ),
    "their gradient": (
        make_case("regista.place", R.real(4, 1), 1, R.index(8, 4, 1), torch.arange(8), 8),
        ["B, B, B -> B", "S(0), S(0), B -> S(0)", "B, B, S(0) -> S(1)", "P, B, B -> P"],
    ),
    "x * x": (make_case("aten.mul.Tensor", *[R.real(4)] * 2), ["B, B -> B", "S(0), S(0) -> S(0)"]),
    "masks have no sum": (make_case("aten.clone.default", R.mask(4)), ["B -> B", "S(0) -> S(0)"]),
    "zeros": (make_case("aten.zeros.default", [4], dtype=torch.float64), [" -> B", " -> S(0)", " -> P"]),
    "adamw": (
        make_case("regista.adamw", R.real(4), R.real(4), R.real(4), R.positive(4), torch.tensor(1.0), 0.1, 0.9, 0.99, 1e-8, 0.0),
        ["B, B, B, B, B -> B, B, B, B", "S(0), S(0), S(0), S(0), B -> S(0), S(0), S(0), B"],
    ),
    "ones_like does not read": (make_case("aten.ones_like.default", R.real(4)), ["B -> B", "P -> B", "S(0) -> S(0)"]),
}


@pytest.mark.parametrize("story", STORIES)
def test_signatures_are_those_of_the_table(story: str) -> None:
    case, expected = STORIES[story]
    assert shown(case) == expected


def test_convolution_backward_splits_batch_and_channels() -> None:
    case = make_case(
        "aten.convolution_backward.default", R.real(2, 4, 3, 3), R.real(2, 6, 3, 3), R.real(4, 6, 1, 1), [4],
        [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True],
    )  # fmt: skip
    signatures_shown = shown(case)
    assert "S(0), S(0), B -> S(0), P, P" in signatures_shown
    assert "S(1), B, S(0) -> P, S(0), S(0)" in signatures_shown
    assert "B, S(1), S(1) -> S(1), S(1), B" in signatures_shown
    (by_channel,) = [s for s in signatures(case.op, case.types, 2) if str(s) == "S(1), B, S(0) -> P, S(0), S(0)"]
    assert localize(case.op, by_channel, case.types, 2).args[3] == (2,)


def test_a_grouped_convolution_splits_between_groups_and_nowhere_else() -> None:
    """Three groups of two channels: two parts would cut a group, three parts hold one group each."""
    case = make_case("aten.convolution.default", R.real(2, 6, 4), R.real(6, 2, 3), None, [1], [0], [1], False, [0], 3)
    assert shown(case) == ["B, B -> B", "S(0), B -> S(0)", "P, B -> P", "B, P -> P"]
    (by_group,) = [s for s in signatures(case.op, case.types, 3) if str(s) == "S(1), S(0) -> S(1)"]
    assert localize(case.op, by_group, case.types, 3).args[8] == 1


def test_a_bias_is_partial_where_the_channels_that_are_summed_are_split() -> None:
    case = make_case("aten.convolution.default", R.real(2, 6, 4), R.real(4, 6, 3), R.real(4), [1], [0], [1], False, [0], 1)
    assert "S(1), S(1), P -> P" in shown(case)


def test_a_result_that_nobody_reads_does_not_restrict() -> None:
    case = make_case("aten.max.dim", R.real(3, 4), 1)
    assert shown(case) == ["B -> B, B"]
    only_values = replace(case, op=replace(case.op, outputs=("out0", None)))
    assert [str(s) for s in signatures(only_values.op, only_values.types, 3)] == ["B -> B, -", "S(0) -> S(0), -"]


def test_literals_follow_the_local_shape() -> None:
    case = make_case("aten.view.default", R.real(2, 4, 6), [8, 6])
    split = Signature((S(0),), (S(0),))
    assert localize(case.op, split, case.types, 2).args[1] == (4, 6)
    assert local_types(case.op, split, case.types, 2) == {"out0": TensorType((4, 6), DType.FLOAT64)}


def test_an_uneven_split_is_refused() -> None:
    case = make_case("aten.relu.default", R.real(5, 6))
    with pytest.raises(InvalidPlan, match="cannot be cut into 2 equal parts by S\\(0\\)"):
        local_types(case.op, Signature((S(0),), (S(0),)), case.types, 2)


def test_a_forbidden_contraction_gives_no_signature() -> None:
    case = make_case("aten.sum.default", R.real(4))
    rule = FactorRule(operands=(("a",),), results=((),), reduce={"a": None})
    assert [str(s) for s in derive(rule, case.op, case.types, 2)] == ["B -> B"]


# --- work --------------------------------------------------------------------------------------------------------------------


def test_flop_of_products_is_2mnk() -> None:
    mm = make_case("aten.mm.default", R.real(4, 6), R.real(6, 3))
    assert flop(mm.op, mm.types) == 2 * 4 * 6 * 3
    assert traffic_bytes(mm.op, mm.types) == 8 * (4 * 6 + 6 * 3 + 4 * 3)
    bmm = make_case("aten.bmm.default", R.real(5, 4, 6), R.real(5, 6, 3))
    assert flop(bmm.op, bmm.types) == 5 * 2 * 4 * 6 * 3


def test_flop_of_a_convolution_counts_each_filter_at_each_place() -> None:
    x, w = R.real(2, 6, 5, 5), R.real(4, 3, 3, 3)
    forward = make_case("aten.convolution.default", x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    assert flop(forward.op, forward.types) == 2 * (2 * 4 * 5 * 5) * 3 * 3 * 3
    backward = make_case(
        "aten.convolution_backward.default", R.real(2, 4, 5, 5), x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True, True, False]
    )
    assert flop(backward.op, backward.types) == 2 * flop(forward.op, forward.types)


def test_views_do_no_work_and_creations_only_write() -> None:
    view = make_case("aten.t.default", R.real(4, 6))
    assert is_view(view.op) and not is_creation(view.op) and flop(view.op, view.types) == traffic_bytes(view.op, view.types) == 0
    full = make_case("aten.full.default", [4, 6], 1.0, dtype=torch.float32)
    assert is_creation(full.op) and not is_view(full.op) and traffic_bytes(full.op, full.types) == 4 * 6 * 4


def test_flop_of_the_parts_never_exceeds_the_whole() -> None:
    for target in TARGETS:
        for case in cases(target, 0):
            for signature in signatures(case.op, case.types, 2):
                part = part_case(case, signature, 2, random.Random(0))
                assert flop(part.op, part.types) <= flop(case.op, case.types)
                assert traffic_bytes(part.op, part.types) <= traffic_bytes(case.op, case.types)


# --- refusals ----------------------------------------------------------------------------------------------------------------


def test_an_op_of_ours_without_a_row_is_named_and_the_way_to_add_it_shown() -> None:
    op = Op(id="n7", target="regista.frobnicate", args=(Ref("x"),), outputs=("y",), role=Role.FORWARD, module="h.0")
    with pytest.raises(UnknownOp, match=r"(?s)op n7 \(regista.frobnicate, forward, module h.0\).*planner/opset/.*FactorRule.*test_opset"):
        signatures(op, {}, 2)
    for ask in (is_view, is_creation):
        with pytest.raises(UnknownOp):
            ask(op)
    with pytest.raises(UnknownOp, match="no overload of that name"):
        kernel("aten.frobnicate.default")
    with pytest.raises(UnknownOp, match="no kernel"):
        kernel("regista.frobnicate")


@pytest.mark.parametrize(
    "case", [make_case("aten.special_bessel_j0.default", R.positive(4, 6)), make_case("aten.linalg_matrix_exp.default", R.real(2, 4, 4))]
)
def test_an_op_of_torch_without_a_row_takes_and_gives_whole_tensors(case: Case) -> None:
    assert case.op.target not in known_targets()
    (only,) = signatures(case.op, case.types, 2)
    assert str(only) == "B -> B"
    assert disagreement(case, only, 2) is None
    assert localize(case.op, only, case.types, 2) == case.op
    assert flop(case.op, case.types) == case.env["v0"].numel()
    assert traffic_bytes(case.op, case.types) == 2 * 8 * case.env["v0"].numel()
    assert not is_view(case.op) and not is_creation(case.op)


def test_an_op_without_a_row_that_reads_nothing_is_a_creation() -> None:
    case = make_case("aten.kaiser_window.default", 16, dtype=torch.float64)
    assert case.op.target not in known_targets()
    assert is_creation(case.op) and flop(case.op, case.types) == 0 and traffic_bytes(case.op, case.types) == 16 * 8
    assert shown(case) == [" -> B"]


def test_a_view_of_a_part_without_matching_strides_is_copied() -> None:
    case = make_case("aten.view.default", R.real(4, 6), [24])
    transposed = R.real(6, 4).t()
    (result,) = call(case.op, {"v0": transposed})
    assert result is not None and torch.equal(result, transposed.reshape(24))


def test_the_op_set_needs_no_torch() -> None:
    code = "import sys, planner.opset; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nd_signatures_of_mm_are_those_of_the_papers_table_3() -> None:
    """(S0,B) x (B,S1) -> (S0,S1) and (S0,S1) x (B,S0) -> (S0,P) on a 2 x 2 mesh."""
    case = make_case("aten.mm.default", R.real(4, 8), R.real(8, 8))
    nd_signatures = set()
    for first in signatures(case.op, case.types, 2):
        local = part_case(case, first, 2, random.Random(0))
        for second in signatures(local.op, local.types, 2):
            lies = [
                NdSbp((a, b)) for a, b in zip((*first.inputs, first.outputs[0] or B), (*second.inputs, second.outputs[0] or B), strict=True)
            ]
            nd_signatures.add(" ".join(map(str, lies)))
    assert "S(0),B B,S(1) S(0),S(1)" in nd_signatures
    assert "S(0),S(1) B,S(0) S(0),P" in nd_signatures
    assert len(nd_signatures) == 36, "the product of the six 1-D signatures"
