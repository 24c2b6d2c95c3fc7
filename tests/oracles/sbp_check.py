"""A signature is checked by execution, not believed (SEMANTICS 1.6).

    logical inputs --split--> parts --localized op on every part--> parts of the outputs --join--> compare with the op on the whole

P parts are independent random numbers of both signs that add up to the logical value: equal shares would let relu(P) -> P pass.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.ops.kernels import HERE, Place, call
from planner.ir.graph import Arg, Dt, Op, Ref, Role
from planner.ir.sbp import Broadcast, Partial, ReduceOp, Sbp, Split
from planner.ir.tensor import DType, TensorType
from planner.opset import Signature, local_types, localize

__all__ = ["Case", "disagreement", "join_value", "make_case", "part_case", "split_value", "tolerance", "type_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op with a tensor for every value it reads and the type of every value it reads or writes; ``place``: of the part that it is."""

    op: Op
    types: Mapping[str, TensorType]
    env: Mapping[str, Tensor]
    compare: bool = True
    place: Place = HERE


def type_of(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), DType.parse(str(tensor.dtype)))


def make_case(target: str, *args: object, compare: bool = True, draw: int | None = None, **kwargs: object) -> Case:
    """A case from real arguments: the same tensor object twice is one value read twice; lists become tuples.

    Args:
        compare: False where the op's values are not defined (empty): then only shapes are compared.
        draw: of a random op.
    """
    names: dict[int, str] = {}
    env: dict[str, Tensor] = {}

    def lower(arg: object) -> Arg:
        if isinstance(arg, Tensor):
            name = names.setdefault(id(arg), f"v{len(names)}")
            env[name] = arg
            return Ref(name)
        if isinstance(arg, list | tuple):
            return tuple(lower(item) for item in arg)
        if isinstance(arg, torch.dtype):
            return Dt(DType.parse(str(arg)))
        assert arg is None or isinstance(arg, bool | int | float | str)
        return arg

    op = Op(
        id="case",
        target=target,
        args=tuple(map(lower, args)),
        kwargs=tuple((k, lower(v)) for k, v in kwargs.items()),
        outputs=(),
        role=Role.FORWARD,
        draw=draw,
    )
    return _typed(op, env, compare)


def _typed(op: Op, env: Mapping[str, Tensor], compare: bool, place: Place = HERE) -> Case:
    results = call(op, env, place=place)
    named = replace(op, outputs=tuple(None if r is None else f"out{k}" for k, r in enumerate(results)))
    types = {name: type_of(value) for name, value in env.items()}
    types |= {f"out{k}": type_of(r) for k, r in enumerate(results) if r is not None}
    return Case(op=named, types=types, env=env, compare=compare, place=place)


def split_value(value: Tensor, sbp: Sbp, parts: int, rng: random.Random) -> list[Tensor]:
    """The parts of a logical tensor; those of a P are random and of both signs."""
    match sbp:
        case Broadcast():
            return [value] * parts
        case Split(dim=dim, turn=turn):
            pieces = [p.clone() for p in torch.tensor_split(value, parts, dim)]
            return [pieces[(place - turn) % parts] for place in range(parts)]
        case Partial(op=ReduceOp.SUM):
            noise = [_noise(value, rng) for _ in range(parts - 1)]
            return [*noise, value - sum(noise, torch.zeros_like(value))]
        case Partial(op=reduce):
            sign = 1 if reduce is ReduceOp.MIN else -1
            pieces = [value + sign * _noise(value, rng).abs() for _ in range(parts)]
            pieces[rng.randrange(parts)] = value
            return pieces


def _noise(value: Tensor, rng: random.Random) -> Tensor:
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    if value.dtype.is_floating_point:
        return 2 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return torch.randint(-9, 10, value.shape, generator=generator).to(value.dtype)


def tolerance(case: Case) -> float:
    """Sums in another order agree to the last digits of the narrowest type in play."""
    narrow = any(t.dtype.is_floating and t.dtype is not DType.FLOAT64 for t in case.types.values())
    return 1e-4 if narrow else 1e-9


def join_value(pieces: Sequence[Tensor], sbp: Sbp, close: float = 1e-9) -> Tensor:
    """The logical tensor of its parts.

    Raises:
        ValueError: the copies of a B differ.
    """
    match sbp:
        case Broadcast():
            if any(not torch.allclose(p, pieces[0], rtol=close, atol=close, equal_nan=True) for p in pieces):
                raise ValueError("the copies of a B result differ")
            return pieces[0]
        case Split(dim=dim, turn=turn):
            return torch.cat([pieces[(part + turn) % len(pieces)] for part in range(len(pieces))], dim)
        case Partial(op=reduce):
            stacked = torch.stack(list(pieces))
            by = {ReduceOp.SUM: torch.sum, ReduceOp.MIN: torch.amin, ReduceOp.MAX: torch.amax}[reduce]
            return by(stacked, 0).to(pieces[0].dtype)  # type: ignore[operator, no-any-return]


def part_case(case: Case, signature: Signature, parts: int, rng: random.Random, index: int = 0) -> Case:
    """The localized op with part ``index`` of every operand: what the next mesh axis starts from."""
    local = localize(case.op, signature, case.types, parts)
    env = {v: p[index] for v, p in _operands(case, signature, parts, rng).items()}
    return _typed(local, env, case.compare, _part_of(case.place, parts, index))


def _part_of(place: Place, parts: int, index: int) -> Place:
    return Place(mesh=(*place.mesh, parts), coordinate=(*place.coordinate, index), micro_batch=place.micro_batch)


def _operands(case: Case, signature: Signature, parts: int, rng: random.Random) -> dict[str, list[Tensor]]:
    lies = dict(zip(case.op.inputs, signature.inputs, strict=True))
    return {value: split_value(case.env[value], sbp, parts, rng) for value, sbp in lies.items()}


def disagreement(case: Case, signature: Signature, parts: int, seed: int = 0) -> str | None:
    """What is wrong with the signature on this case; None if the parts put together are the whole."""
    pieces = _operands(case, signature, parts, random.Random(seed))
    local = localize(case.op, signature, case.types, parts)
    expected_types = local_types(case.op, signature, case.types, parts)
    close = tolerance(case)
    try:
        ran = [call(local, {v: p[i] for v, p in pieces.items()}, place=_part_of(case.place, parts, i)) for i in range(parts)]
    except Exception as error:
        return f"{case.op.target} {signature}: the op does not run on the parts: {error}"
    for k, (whole, name, sbp) in enumerate(zip(call(case.op, case.env, place=case.place), case.op.outputs, signature.outputs, strict=True)):
        if name is None or whole is None or sbp is None:
            continue
        outputs = [r[k] for r in ran]
        if any(o is None or type_of(o) != expected_types[name] for o in outputs):
            shown = [None if o is None else str(type_of(o)) for o in outputs]
            return f"{case.op.target} {signature}: output {k} has parts {shown}, local_types says {expected_types[name]}"
        try:
            joined = join_value([o for o in outputs if o is not None], sbp, close)
        except ValueError as error:
            return f"{case.op.target} {signature}: output {k}: {error}" if case.compare else None
        if joined.shape != whole.shape:
            return f"{case.op.target} {signature}: output {k} is put together to {tuple(joined.shape)}, the whole is {tuple(whole.shape)}"
        if case.compare and not torch.allclose(joined, whole, rtol=close, atol=close, equal_nan=True):
            return f"{case.op.target} {signature}: output {k} differs by {(joined.double() - whole.double()).abs().max().item():.3g}"
    return None
