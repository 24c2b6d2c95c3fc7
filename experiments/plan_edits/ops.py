"""Edits of the ops inside of fragments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from experiments.plan_edits.kinds import Edit, EditKind, Editor, Reason
from experiments.plan_edits.surgery import fragments, with_fragment
from planner.ir.graph import Arg, Dt, Op, Ref, substitute
from planner.ir.plan import Fragment, Plan, Task
from planner.ir.sbp import NdSbp, Partial
from planner.ir.tensor import DType

__all__ = ["EDITORS"]

BOXING = "regista.boxing"
_COMMUTATIVE = frozenset({"aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default", "aten.minimum.default", "aten.eq.Tensor"})

_TWINS: Sequence[Sequence[str]] = (
    ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.maximum.default", "aten.minimum.default"),
    ("aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar", "aten.pow.Tensor_Scalar"),
    ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor", "aten.div.Tensor"),
    ("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.exp.default", "aten.sigmoid.default", "aten.tanh.default"),
    ("aten.sqrt.default", "aten.rsqrt.default", "aten.reciprocal.default", "aten.exp.default", "aten.log.default", "aten.abs.default"),
    ("aten.gelu.default", "aten.silu.default", "aten.relu.default", "aten.erf.default", "aten.tanh.default"),
    ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default"),
    ("aten.amax.default", "aten.amin.default"),
    ("aten.sum.default", "aten.mean.default"),
    ("aten.eq.Scalar", "aten.ne.Scalar", "aten.gt.Scalar", "aten.lt.Scalar", "aten.ge.Scalar", "aten.le.Scalar"),
    ("aten.eq.Tensor", "aten.ne.Tensor", "aten.gt.Tensor", "aten.lt.Tensor", "aten.ge.Tensor", "aten.le.Tensor"),
    ("aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.bitwise_xor.Tensor"),
    ("aten.logical_and.default", "aten.logical_or.default"),
    ("aten._softmax.default", "aten._log_softmax.default"),
    ("aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"),
    ("aten.zeros_like.default", "aten.ones_like.default"),
)  # fmt: skip


def _all(plan: Plan) -> Iterator[tuple[Task, Fragment, int, Op]]:
    for task, body in fragments(plan):
        for place, op in enumerate(body.ops):
            yield task, body, place, op


def _with_op(plan: Plan, task: Task, body: Fragment, place: int, op: Op) -> Plan:
    return with_fragment(plan, task, (*body.ops[:place], op, *body.ops[place + 1 :]))


def _where(task: Task, op: Op) -> str:
    return f"{task.id}: {op.id} ({op.target})"


def _target(plan: Plan, rng: Random) -> Edit | None:
    choices = []
    for task, body, place, op in _all(plan):
        twins = sorted({twin for group in _TWINS if op.target in group for twin in group if twin != op.target})
        # Ops of the same form that stand in this Plan are twins, too.
        if op.target != BOXING:
            choices.append((task, body, place, op, twins))
    forms: dict[object, set[str]] = {}
    for _, _, _, op, _ in choices:
        forms.setdefault(_form(op), set()).add(op.target)
    found = [(t, b, p, op, sorted({*twins, *forms[_form(op)]} - {op.target})) for t, b, p, op, twins in choices]
    found = [entry for entry in found if entry[4]]
    if not found:
        return None
    task, body, place, op, twins = rng.choice(found)
    new = rng.choice(twins)
    edited = _with_op(plan, task, body, place, replace(op, target=new))
    return Edit(kind=EditKind.TARGET, words=f"{_where(task, op)} is {new}", plan=edited)


def _form(op: Op) -> object:
    return tuple(type(arg) for arg in op.args), op.kwargs and tuple(key for key, _ in op.kwargs), len(op.outputs)


def _ref_places(args: Sequence[Arg]) -> list[int]:
    return [place for place, arg in enumerate(args) if isinstance(arg, Ref)]


def _operands_exchanged(plan: Plan, rng: Random) -> Edit | None:
    choices = []
    for task, body, place, op in _all(plan):
        refs = _ref_places(op.args)
        choices += [(task, body, place, op, i, j) for i in refs for j in refs if i < j and op.args[i] != op.args[j]]
    if not choices:
        return None
    task, body, place, op, i, j = rng.choice(choices)
    args = list(op.args)
    args[i], args[j] = args[j], args[i]
    reason = Reason.COMMUTATIVE if op.target in _COMMUTATIVE and not op.kwargs else None
    edited = _with_op(plan, task, body, place, replace(op, args=tuple(args)))
    return Edit(kind=EditKind.OPERANDS_EXCHANGED, words=f"{_where(task, op)} takes operands {j} and {i}", plan=edited, reason=reason)


def _operand_redirected(plan: Plan, rng: Random) -> Edit | None:
    task, body, place, op = rng.choice([entry for entry in _all(plan) if entry[3].inputs])
    old = rng.choice(op.inputs)
    known = [access.name for access in task.reads] + [v for before in body.ops[:place] for v in before.outputs if v]
    # Values of ops of the same target, and what stands near, have the same shape more often than others.
    near = known[-12:] + [a.name for a in task.reads][:12]
    others = sorted({name for name in (near if rng.random() < 0.7 else known) if name != old})
    if not others:
        return None
    new = rng.choice(others)
    edited = _with_op(plan, task, body, place, op.renamed({old: new}))
    return Edit(kind=EditKind.OPERAND_REDIRECTED, words=f"{_where(task, op)} reads {new}, not {old}", plan=edited)


def _update_operands(plan: Plan, rng: Random) -> Edit | None:
    """Two ops of one target in a task exchange what they read at one place, above all gradients of updates."""
    choices = []
    for task, body in fragments(plan):
        by_target: dict[str, list[int]] = {}
        for place, op in enumerate(body.ops):
            if op.target.startswith("regista.") and op.target != BOXING:
                by_target.setdefault(op.target, []).append(place)
        for places in by_target.values():
            choices += [(task, body, i, j) for i in places for j in places if i < j]
    if not choices:
        return None
    task, body, i, j = rng.choice(choices)
    one, other = body.ops[i], body.ops[j]
    refs = [p for p in _ref_places(one.args) if p < len(other.args) and isinstance(other.args[p], Ref) and one.args[p] != other.args[p]]
    if not refs:
        return None
    p = rng.choice(refs)
    ops = list(body.ops)
    ops[i] = replace(one, args=(*one.args[:p], other.args[p], *one.args[p + 1 :]))
    ops[j] = replace(other, args=(*other.args[:p], one.args[p], *other.args[p + 1 :]))
    words = f"{_where(task, one)} and {other.id} exchange operand {p}"
    return Edit(kind=EditKind.UPDATE_OPERANDS_EXCHANGED, words=words, plan=with_fragment(plan, task, ops))


def _literals(op: Op, kinds: tuple[type, ...]) -> list[tuple[str, object]]:
    """Where literals of these kinds stand: ('args', place), ('args', (place, place inside)) or ('kwargs', place)."""
    found: list[tuple[str, object]] = []
    for place, arg in enumerate(op.args):
        if type(arg) in kinds:
            found.append(("args", place))
        elif isinstance(arg, tuple):
            found += [("args", (place, inner)) for inner, item in enumerate(arg) if type(item) in kinds]
    return found + [("kwargs", place) for place, (_, arg) in enumerate(op.kwargs) if type(arg) in kinds]


def _read(op: Op, where: tuple[str, object]) -> Arg:
    side, place = where
    if side == "kwargs":
        return op.kwargs[place][1]  # type: ignore[index, no-any-return, call-overload]
    if isinstance(place, tuple):
        return op.args[place[0]][place[1]]  # type: ignore[index, no-any-return, call-overload]
    return op.args[place]  # type: ignore[call-overload, no-any-return]


def _replaced(op: Op, where: tuple[str, object], new: Arg) -> Op:
    side, place = where
    if side == "kwargs":
        return replace(op, kwargs=tuple((key, new if n == place else arg) for n, (key, arg) in enumerate(op.kwargs)))
    args = list(op.args)
    if isinstance(place, tuple):
        items = list(args[place[0]])  # type: ignore[arg-type]
        items[place[1]] = new
        args[place[0]] = tuple(items)
    else:
        args[place] = new  # type: ignore[call-overload]
    return replace(op, args=tuple(args))


def _literal(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op, w) for t, b, p, op in _all(plan) if op.target != BOXING for w in _literals(op, (int, float))]
    if not choices:
        return None
    task, body, place, op, where = rng.choice(choices)
    old = _read(op, where)
    assert isinstance(old, int | float)
    new: Arg
    if isinstance(old, float):
        new = rng.choice([x for x in (old * 2, old / 2, -old, old + 1.0, 0.0, 1.0) if x != old])
    else:
        new = rng.choice([x for x in (old + 1, old - 1, -old, 2 * old, 0, 1, -1, 2) if x != old])
    edited = _with_op(plan, task, body, place, _replaced(op, where, new))
    return Edit(kind=EditKind.LITERAL, words=f"{_where(task, op)}: {where[0]} {where[1]} is {new!r}, not {old!r}", plan=edited)


def _flag(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op, w) for t, b, p, op in _all(plan) if op.target != BOXING for w in _literals(op, (bool, str))]
    if not choices:
        return None
    task, body, place, op, where = rng.choice(choices)
    old = _read(op, where)
    if isinstance(old, bool):
        new: Arg = not old
    else:
        texts = sorted({str(_read(o, w)) for _, _, _, o in _all(plan) if o.target == op.target for w in _literals(o, (str,))} - {old})
        new = rng.choice([*texts, "tanh" if old == "none" else "none"])
    edited = _with_op(plan, task, body, place, _replaced(op, where, new))
    return Edit(kind=EditKind.FLAG, words=f"{_where(task, op)}: {where[0]} {where[1]} is {new!r}, not {old!r}", plan=edited)


def _dtype(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op, w) for t, b, p, op in _all(plan) for w in _literals(op, (Dt,))]
    if not choices:
        return None
    task, body, place, op, where = rng.choice(choices)
    old = _read(op, where)
    assert isinstance(old, Dt)
    new = Dt(rng.choice([d for d in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT64, DType.INT64) if d is not old.dtype]))
    edited = _with_op(plan, task, body, place, _replaced(op, where, new))
    return Edit(kind=EditKind.DTYPE_ARGUMENT, words=f"{_where(task, op)} is in {new.dtype.value}, not {old.dtype.value}", plan=edited)


def _removed(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op) for t, b, p, op in _all(plan) if op.inputs and op.outputs[0] is not None and len(op.outputs) == 1]
    if not choices:
        return None
    task, body, place, op = rng.choice(choices)
    (out,), source = op.outputs, rng.choice(op.inputs)
    assert out is not None
    ops = [other.renamed({out: source}) for other in (*body.ops[:place], *body.ops[place + 1 :])]
    writes = tuple(replace(access, name=source) if access.name == out else access for access in task.writes)
    edited = with_fragment(plan, replace(task, writes=writes), ops)
    return Edit(kind=EditKind.OP_REMOVED, words=f"{_where(task, op)} is removed, its readers take {source}", plan=edited)


def _results_exchanged(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op) for t, b, p, op in _all(plan) if len(op.outputs) > 1]
    if not choices:
        return None
    task, body, place, op = rng.choice(choices)
    i, j = rng.sample(range(len(op.outputs)), 2)
    outputs = list(op.outputs)
    outputs[i], outputs[j] = outputs[j], outputs[i]
    edited = _with_op(plan, task, body, place, replace(op, outputs=tuple(outputs)))
    return Edit(kind=EditKind.RESULTS_EXCHANGED, words=f"{_where(task, op)}: results {i} and {j} exchange names", plan=edited)


def _reordered(plan: Plan, rng: Random) -> Edit | None:
    choices = []
    for task, body in fragments(plan):
        for place, (one, other) in enumerate(zip(body.ops, body.ops[1:], strict=False)):
            if not set(one.outputs) & set(other.inputs):
                choices.append((task, body, place))
    if not choices:
        return None
    task, body, place = rng.choice(choices)
    ops = (*body.ops[:place], body.ops[place + 1], body.ops[place], *body.ops[place + 2 :])
    words = f"{task.id}: {body.ops[place + 1].id} stands before {body.ops[place].id}"
    return Edit(kind=EditKind.OPS_REORDERED, words=words, plan=with_fragment(plan, task, ops), reason=Reason.ORDER)


def _renamed(plan: Plan, rng: Random) -> Edit | None:
    choices = []
    for task, body, _, op in _all(plan):
        written = {access.name for access in task.writes}
        choices += [(task, body, v) for v in op.outputs if v and v not in written]
    if not choices:
        return None
    task, body, old = rng.choice(choices)
    new = f"{old}_{rng.randrange(100)}"
    ops = []
    for op in body.ops:
        outputs = tuple(new if v == old else v for v in op.outputs)
        kwargs = tuple((key, substitute(arg, {old: new})) for key, arg in op.kwargs)
        ops.append(replace(op, args=tuple(substitute(arg, {old: new}) for arg in op.args), kwargs=kwargs, outputs=outputs))
    return Edit(kind=EditKind.RENAMED, words=f"{task.id}: {old} is called {new}", plan=with_fragment(plan, task, ops), reason=Reason.NAME)


def _draw(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op) for t, b, p, op in _all(plan) if op.draw is not None]
    if not choices:
        return None
    task, body, place, op = rng.choice(choices)
    draws = sorted({o.draw for _, _, _, o in choices if o.draw is not None})
    assert op.draw is not None
    new = rng.choice([draw for draw in (*draws, op.draw + 1, op.draw + 100, 0) if draw != op.draw])
    edited = _with_op(plan, task, body, place, replace(op, draw=new))
    return Edit(kind=EditKind.DRAW, words=f"{_where(task, op)} draws number {new}, not {op.draw}", plan=edited)


def _local_boxing(plan: Plan, rng: Random) -> Edit | None:
    choices = [(t, b, p, op) for t, b, p, op in _all(plan) if op.target == BOXING]
    if not choices:
        return None
    task, body, place, op = rng.choice(choices)
    mesh = plan.placement[task.placement].mesh
    args = list(op.args)
    which = rng.randrange(5)
    if which == 0:
        args[2] = rng.choice([text for text in ("S(0)", "S(1)", "S(2)", "P", "P(max)", "B") if text != args[2]])
    elif which == 1:
        args[1] = rng.choice([text for text in ("S(0)", "S(1)", "B") if text != args[1]])
    elif which == 2:
        args[1], args[2] = args[2], args[2]
    elif which == 3 and len(mesh) > 1:
        args[3] = rng.choice([axis for axis in range(len(mesh)) if axis != args[3]])
    elif len(args) == 5 and isinstance(args[4], int):
        args[4] += rng.choice((-1, 1))
    elif isinstance(args[2], str) and isinstance(NdSbp.parse(args[2]).entries[0], Partial):
        args[2] = "P(max)"
    if tuple(args) == op.args:
        return None
    axis = args[3]
    reason = Reason.ONE_RANK if isinstance(axis, int) and axis < len(mesh) and mesh[axis] == 1 else None
    edited = _with_op(plan, task, body, place, replace(op, args=tuple(args)))
    words = f"{_where(task, op)} is {', '.join(map(str, args[1:]))}, not {', '.join(map(str, op.args[1:]))}"
    return Edit(kind=EditKind.LOCAL_BOXING, words=words, plan=edited, reason=reason)


EDITORS: Mapping[EditKind, Editor] = {
    EditKind.TARGET: _target,
    EditKind.OPERANDS_EXCHANGED: _operands_exchanged,
    EditKind.OPERAND_REDIRECTED: _operand_redirected,
    EditKind.UPDATE_OPERANDS_EXCHANGED: _update_operands,
    EditKind.LITERAL: _literal,
    EditKind.FLAG: _flag,
    EditKind.DTYPE_ARGUMENT: _dtype,
    EditKind.OP_REMOVED: _removed,
    EditKind.RESULTS_EXCHANGED: _results_exchanged,
    EditKind.OPS_REORDERED: _reordered,
    EditKind.RENAMED: _renamed,
    EditKind.DRAW: _draw,
    EditKind.LOCAL_BOXING: _local_boxing,
}
