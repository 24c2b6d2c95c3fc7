"""DTensor as an oracle of the op rules: every signature that it calls legal on a mesh of two is ours too.

One-sided: DTensor is incomplete (a view of 8x16 as 4x2x16 may not keep S(0)); what we allow beyond it, test_opset.py runs.  Asked are the
cases of every rule, on combinations of S(d), B and P per operand; where DTensor would first redistribute, its answer is the legal
signature that it would go to.  Left out are layouts without a twin of ours (averages, masked partials) and uneven splits.

What DTensor allows and we do not stands in EXCUSES.  An excuse that says DTensor is wrong is not believed either: the signature is run on
parts, and must not give the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from planner.ir.graph import Arg, Dt, Ref
from planner.ir.sbp import B, NdSbp, P, ReduceOp, S, Sbp, Split
from planner.ir.sbp import Partial as PartialOf
from planner.ir.tensor import DType
from planner.opset import Signature, signatures
from tests.cases.opset_cases import CASES, cases
from tests.oracles.sbp_check import Case, disagreement

PARTS = 2
MOST_COMBINATIONS = 128
PROPAGATOR = DTensor._op_dispatcher.sharding_propagator


def _overload(target: str) -> torch._ops.OpOverload:
    namespace, name, variant = target.split(".")
    overload: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    return overload


def _has_strategy(target: str) -> bool:
    tables = (PROPAGATOR.op_strategy_funcs, PROPAGATOR.op_to_rules, PROPAGATOR.op_single_dim_strategy_funcs)
    return any(_overload(target) in table for table in tables)


_NOT_ASKED = frozenset({"aten._grouped_mm.default"})
"""DTensor works out the type of its result in bfloat16 alone, in which random parts of a sum do not add up closely enough for our cases."""

TARGETS = sorted(target for target in CASES if target.startswith("aten.") and target not in _NOT_ASKED and _has_strategy(target))


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PARTS)
    yield DeviceMesh("cpu", list(range(PARTS)))
    dist.destroy_process_group()


def _twin(placement: Placement) -> Sbp | None:
    """Our name for a placement; None where it has none (averages, products, masked partials, strided shards)."""
    if type(placement) is Shard:
        return S(placement.dim)
    if isinstance(placement, Replicate):
        return B
    if type(placement) is Partial and placement.reduce_op in ("sum", "min", "max"):
        return PartialOf(ReduceOp(placement.reduce_op))
    return None


def _combinations(choices: list[list[Placement]]) -> Iterator[tuple[Placement, ...]]:
    """All of them; where they are too many, those with one layout besides B."""
    few = prod(map(len, choices)) <= MOST_COMBINATIONS
    for picked in product(*(range(len(c)) for c in choices)):
        if few or len(set(picked) - {0}) <= 1:
            yield tuple(c[i] for c, i in zip(choices, picked, strict=True))


def _answers(case: Case, mesh: DeviceMesh) -> Iterator[Signature]:
    """What DTensor calls legal for this op on these shapes."""
    op = _overload(case.op.target)
    info = PROPAGATOR.op_to_schema_info.get(op) or PROPAGATOR.op_to_schema_info_for_single_dim_strategy.get(op)
    values = list(dict.fromkeys(case.op.inputs))
    choices = [
        [Replicate(), Partial("sum"), *(Shard(d) for d, extent in enumerate(case.types[v].shape) if extent % PARTS == 0)] for v in values
    ]
    for placements in _combinations(choices):
        specs = {
            v: DTensorSpec(mesh, (placement,), tensor_meta=TensorMeta(case.env[v].shape, case.env[v].stride(), case.env[v].dtype))
            for v, placement in zip(values, placements, strict=True)
        }

        def lower(arg: Arg, specs: dict[str, DTensorSpec] = specs) -> object:
            match arg:
                case Ref(value):
                    return specs[value]
                case Dt(dtype):
                    return getattr(torch, dtype.value)
                case tuple():
                    return [lower(item) for item in arg]
            return arg

        schema = OpSchema(op, tuple(map(lower, case.op.args)), {k: lower(v) for k, v in case.op.kwargs}, schema_info=info)
        try:
            answer = PROPAGATOR.propagate_op_sharding_non_cached(schema)
        except (RuntimeError, AssertionError, NotImplementedError, IndexError, ValueError):
            continue  # it refuses
        if answer.output_spec is None:
            continue
        taken = answer.redistribute_schema if answer.needs_redistribute else schema
        leaves = tree_leaves((taken.args_schema, taken.kwargs_schema), is_leaf=lambda leaf: isinstance(leaf, DTensorSpec))
        inputs = [_twin(spec.placements[0]) for spec in leaves if isinstance(spec, DTensorSpec)]
        result_specs = answer.output_spec if isinstance(answer.output_spec, tuple | list) else (answer.output_spec,)
        outputs = [None if spec is None else _twin(spec.placements[0]) for spec in result_specs]
        if None in inputs or any(o is None and spec is not None for o, spec in zip(outputs, result_specs, strict=True)):
            continue
        signature = Signature(tuple(i for i in inputs if i is not None), tuple(outputs))
        if _is_ours_to_judge(case, signature):
            yield signature


def _is_ours_to_judge(case: Case, signature: Signature) -> bool:
    """One layout per value, even splits, and an operand for each layout."""
    if len(signature.inputs) != len(case.op.inputs) or len(signature.outputs) != len(case.op.outputs):
        return False
    lies = [*zip(case.op.inputs, signature.inputs, strict=True), *zip(case.op.outputs, signature.outputs, strict=True)]
    seen: dict[str, Sbp] = {}
    for value, sbp in lies:
        if value is None or sbp is None:
            continue
        if seen.setdefault(value, sbp) != sbp:
            return False
        inside = not isinstance(sbp, Split) or sbp.dim < case.types[value].ndim
        if inside and not NdSbp((sbp,)).splits_evenly(case.types[value].shape, (PARTS,)):
            return False
    return True


def _covered(signature: Signature, ours: tuple[Signature, ...]) -> bool:
    """Ours has it, up to outputs that nobody reads."""

    def agrees(one: Signature) -> bool:
        pairs = zip(one.outputs, signature.outputs, strict=True)
        return one.inputs == signature.inputs and all(a is None or b is None or a == b for a, b in pairs)

    return any(map(agrees, ours))


# --- What DTensor allows and we do not ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Excuse:
    """applies: to which cases and signatures;  wrong: DTensor's signature gives another value (proven by running it)."""

    reason: str
    applies: Callable[[Case, Signature], bool]
    wrong: bool = True


def _splits(signature: Signature) -> bool:
    return any(isinstance(sbp, Split) for sbp in signature.inputs)


def _negative(position: int) -> Callable[[Case, Signature], bool]:
    def applies(case: Case, signature: Signature) -> bool:
        dim = case.op.args[position]
        return isinstance(dim, int) and dim < 0 and _splits(signature)

    return applies


def _partial_bool(case: Case, signature: Signature) -> bool:
    lies = (*zip(case.op.inputs, signature.inputs, strict=True), *zip(case.op.outputs, signature.outputs, strict=True))
    return any(v is not None and isinstance(sbp, PartialOf) and case.types[v].dtype is DType.BOOL for v, sbp in lies)


_ALL_DIMS = Excuse("an empty list of dims means all of them, DTensor takes it for none", lambda c, s: c.op.args[1] == () and _splits(s))
_VANISHES = Excuse(
    "a dim cut down to 1 would be squeezed on the parts; DTensor performs another op there",
    lambda c, s: any(isinstance(sbp, Split) and c.types[v].shape[sbp.dim] == PARTS for v, sbp in zip(c.op.inputs, s.inputs, strict=True)),
)
_FROM_THE_END = "DTensor does not count a negative dim from the front"
_NO_SUM = Excuse("booleans have no sum with us; DTensor adds them as integers", _partial_bool, wrong=False)

EXCUSES: dict[str, tuple[Excuse, ...]] = {
    "aten.amax.default": (_ALL_DIMS,),
    "aten.amin.default": (_ALL_DIMS,),
    "aten.mean.dim": (_ALL_DIMS,),
    "aten.sum.dim_IntList": (_ALL_DIMS, _NO_SUM),
    "aten.cumsum.default": (Excuse(_FROM_THE_END, _negative(1)),),
    "aten.cumprod.default": (Excuse(_FROM_THE_END, _negative(1)),),
    "aten.logcumsumexp.default": (Excuse(_FROM_THE_END, _negative(1)),),
    "aten.cummax.default": (Excuse(_FROM_THE_END, _negative(1)),),
    "aten.cummin.default": (Excuse(_FROM_THE_END, _negative(1)),),
    "aten.nansum.default": (
        Excuse("parts of a sum may be nan where the sum is none, and the other way round", lambda c, s: P in s.inputs),
    ),
    "aten.special_xlog1py.default": (
        Excuse("0 times the logarithm of 0 is 0 for the whole and undefined for parts of the 0", lambda c, s: P in s.inputs, wrong=False),
    ),
    "aten.linalg_solve_triangular.default": (
        Excuse("the batch of one side alone is split, so matrices and sides do not meet", lambda c, s: s.inputs[0] != s.inputs[1]),
    ),
    "aten.select_backward.default": (Excuse(_FROM_THE_END, _negative(2)),),
    "aten.gather.default": (
        Excuse(
            "the index has fewer rows than the table, so their parts do not meet",
            lambda c, s: c.types[c.op.inputs[0]].shape != c.types[c.op.inputs[1]].shape and _splits(s),
        ),
    ),
    "aten.embedding_dense_backward.default": (
        Excuse("scale_grad_by_freq counts the whole index, a part of it has other frequencies", lambda c, s: c.op.args[4] is True),
    ),
    "aten.index_put.default": (
        Excuse("DTensor takes a mask of two dims for an index of one", lambda c, s: c.types[c.op.inputs[1]].dtype is DType.BOOL),
    ),
    "aten.squeeze.default": (_VANISHES,),
    "aten.squeeze.dim": (_VANISHES,),
    "aten.squeeze.dims": (_VANISHES,),
    "aten.any.default": (_NO_SUM,),
    "aten.any.dim": (_NO_SUM,),
    "aten.any.dims": (_NO_SUM,),
    "aten.all.dims": (_NO_SUM,),
    "aten._to_copy.default": (_NO_SUM,),
    "aten.empty_like.default": (Excuse("what empty holds adds up to nothing in particular", lambda c, s: s.outputs == (P,), wrong=False),),
}


def _refuted(case: Case, signature: Signature) -> bool:
    """The parts do not give the whole, or the result has no such dim."""
    for value, sbp in zip(case.op.outputs, signature.outputs, strict=True):
        if value is not None and isinstance(sbp, Split) and sbp.dim >= case.types[value].ndim:
            return True
    return any(disagreement(case, signature, PARTS, seed) is not None for seed in range(3))


@pytest.mark.representatives(
    "aten.mm.default",
    "aten.bmm.default",
    "aten.add.Tensor",
    "aten.mul.Tensor",
    "aten.div.Tensor",
    "aten.sum.dim_IntList",
    "aten.amax.default",
    "aten._softmax.default",
    "aten.native_layer_norm.default",
    "aten.embedding.default",
    "aten.t.default",
    "aten.permute.default",
    "aten.view.default",
    "aten.relu.default",
    "aten.gelu.default",
    "aten.where.self",
    "aten.convolution.default",
)
@pytest.mark.parametrize("target", TARGETS)
def test_every_signature_that_dtensor_allows_is_ours_or_excused(target: str, mesh: DeviceMesh) -> None:
    said = 0
    for case in cases(target, seed=0):
        ours = signatures(case.op, case.types, PARTS)
        for signature in dict.fromkeys(_answers(case, mesh)):
            said += 1
            if _covered(signature, ours):
                continue
            excuse = next((e for e in EXCUSES.get(target, ()) if e.applies(case, signature)), None)
            shapes = ", ".join(str(case.types[v]) for v in case.op.inputs)
            assert excuse is not None, f"{target} of {shapes}: DTensor allows {signature}, we do not; add it to the rule or to EXCUSES"
            assert not excuse.wrong or _refuted(case, signature), f"{target} of {shapes}: {signature} is right, so it is no excuse"
    assert said, "the oracle says nothing"


def test_dtensor_has_a_strategy_for_most_of_our_ops() -> None:
    """Otherwise the test above would hold for want of questions."""
    asked = [target for target in CASES if target.startswith("aten.")]
    assert len(TARGETS) >= 190, f"{len(TARGETS)} of {len(asked)}"
