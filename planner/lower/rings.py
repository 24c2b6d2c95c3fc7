"""Attention that goes around a ring, as steps: each sees the keys and values that have come from the neighbour, while the next ones are on their way.

    step 0   block(q, k, v)                  -> O, l        k, v  --shift-->  k+1, v+1
    step t   block(q, k+t, v+t, O, l)        -> O, l        k+t, v+t  --shift-->  k+t+1, v+t+1
    backward likewise, of keys that go around once more, and sums     dK+0 --shift--> + dK+1 --shift--> ... + dK+(R-1) --shift--> dK

Each step is a fragment (Drafts.units), so that actors overlap it with the shifts.  The last step has the op's id and results, so the rest of the
graph does not change.
"""

from __future__ import annotations

from dataclasses import replace

from planner.ir.collective import Collective
from planner.ir.graph import Arg, Op, Ref
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp, Split
from planner.ir.tensor import DType, TensorType
from planner.opset.layers import BLOCK, BLOCK_BACKWARD, BLOCK_KEYS, BLOCK_SUMS
from planner.search import Assignment
from planner.search.context import ring_axis
from planner.search.routes import Move, Reader
from planner.search.strategies import LocalOp, StrategySets, relabel
from planner.stages import Staged

__all__ = ["is_step", "unfold_rings"]


def is_step(op: Op) -> bool:
    """Whether the op is a part of a ring, which has a fragment of its own."""
    return op.target in (BLOCK, BLOCK_BACKWARD, BLOCK_KEYS, BLOCK_SUMS)


def unfold_rings(staged: Staged, assignment: Assignment, mesh: tuple[int, ...]) -> tuple[Staged, Assignment]:
    """The same program and decisions with every ring as its steps."""
    axis_of = {op.id: ring_axis(op, assignment.ops[op.id].inputs) for op in staged.graph.ops}
    if all(axis is None for axis in axis_of.values()):
        return staged, assignment
    unfolded = _Unfolded(staged, assignment, mesh)
    for op in staged.graph.ops:
        axis = axis_of[op.id]
        if axis is None:
            unfolded.ops.append(op)
        elif op.target == "regista.attention":
            unfolded.forward(op, axis)
        else:
            unfolded.backward(op, axis)
    return unfolded.done()


class _Unfolded:
    """A staged graph and its decisions while rings are unfolded."""

    def __init__(self, staged: Staged, assignment: Assignment, mesh: tuple[int, ...]) -> None:
        self._staged, self._assignment, self._mesh, self._sets = staged, assignment, mesh, StrategySets(mesh)
        self.ops: list[Op] = []
        self._values: dict[str, TensorType] = dict(staged.graph.values)
        self._stage, self._interleaved = dict(staged.stage), dict(staged.interleaved)
        self._local: dict[str, LocalOp] = dict(assignment.ops)
        self._routes: dict[Reader, tuple[Move, ...]] = dict(assignment.routes)

    def done(self) -> tuple[Staged, Assignment]:
        graph = replace(self._staged.graph, ops=tuple(self.ops), values=self._values)
        graph.verify()
        return (
            replace(self._staged, graph=graph, stage=self._stage, interleaved=self._interleaved),
            replace(self._assignment, ops=self._local, routes=self._routes),
        )

    def forward(self, op: Op, axis: int) -> None:
        q, k, v = op.inputs
        lies, parts = self._assignment.ops[op.id].inputs, self._mesh[axis]
        shape = (*self._values[q].shape[:3], self._values[v].shape[3])
        wide = _wide(self._values[q].dtype)
        before: tuple[str, ...] = ()
        for turn in range(parts):
            last = turn == parts - 1
            made = op.outputs if last else tuple(f"{op.id}.{what}.{turn}" for what in ("seen", "rows"))
            if not last:
                seen, rows = (name for name in made if name is not None)
                self._values |= {seen: TensorType(shape, wide), rows: TensorType(shape[:3], wide)}
            given: tuple[Arg, ...] = tuple(map(Ref, before)) or (None, None)
            literals = (*op.args[4:6], turn, parts, shape[2] // parts, shape, ())
            step = replace(op, id=_id(op, turn, parts), target=BLOCK, args=(Ref(q), Ref(k), Ref(v), *given, *literals), outputs=made)
            self._add(op, step, (lies[0], *(_turned(lay, axis, turn) for lay in lies[1:]), *(lies[0] for _ in before)))
            self._shift(op, (k, v), lies[1:], axis, turn)
            before = tuple(name for name in made if name is not None)

    def backward(self, op: Op, axis: int) -> None:
        gradient, q, k, v, out, logsumexp = op.inputs
        lies, parts, type_ = self._assignment.ops[op.id].inputs, self._mesh[axis], self._values[q]
        keys = (f"{op.id}.k", f"{op.id}.v")
        self._values |= {name: self._values[value] for name, value in zip(keys, (k, v), strict=True)}
        again = replace(op, id=f"{op.id}.keys", target=BLOCK_KEYS, args=(Ref(k), Ref(v), Ref(gradient)), outputs=keys)
        self._add(op, again, (*lies[2:4], lies[0]))
        made_dq, *made = op.outputs
        dq: str | None = None
        sums: tuple[str | None, ...] = ()
        for turn in range(parts):
            last = turn == parts - 1
            after, shares = made_dq if last else f"{op.id}.dq.{turn}", (f"{op.id}.dk.{turn}", f"{op.id}.dv.{turn}")
            if after is not None and not last:
                self._values[after] = TensorType(type_.shape, _wide(type_.dtype))
            self._values |= {share: self._values[value] for share, value in zip(shares, (k, v), strict=True)}
            given: Arg = None if dq is None else Ref(dq)
            literals = (*op.args[7:9], turn, parts, type_.shape[2] // parts, type_.shape, ())
            args = (*map(Ref, (gradient, q, *keys, out, logsumexp)), given, *literals)
            step = replace(op, id=_id(op, turn, parts), target=BLOCK_BACKWARD, args=args, outputs=(after, *shares))
            moved = tuple(_turned(lay, axis, turn) for lay in lies[2:4])
            self._add(op, step, (*lies[:2], *moved, *lies[4:], *(() if dq is None else (lies[1],))))
            self._shift(op, keys, lies[2:4], axis, turn)
            sums = self._added(op, sums, shares, tuple(made), lies[2:4], axis, turn) if turn else shares
            dq = after
        home = {value: _steps(_turned(lay, axis, parts - 1), lay, axis) for value, lay in zip(made, lies[2:4], strict=True)}
        for (value, stage, wanted), route in list(self._routes.items()):
            if value in home:
                self._routes[value, stage, wanted] = (*home[value], *route)

    def _added(
        self,
        op: Op,
        sums: tuple[str | None, ...],
        shares: tuple[str, str],
        made: tuple[str | None, ...],
        layouts: tuple[NdSbp, ...],
        axis: int,
        turn: int,
    ) -> tuple[str | None, ...]:
        """Add the gradients of a step to those before, which come from the neighbour."""
        parts, stage = self._mesh[axis], self._staged.stage[op.id]
        after = made if turn == parts - 1 else (f"{op.id}.dk.sum.{turn}", f"{op.id}.dv.sum.{turn}")
        operands: list[str] = []
        here = tuple(_turned(lay, axis, turn) for lay in layouts)
        for summed, share, result, lay, there in zip(sums, shares, after, layouts, here, strict=True):
            assert summed is not None and result is not None, "a ring's gradients are all read"
            operands += [summed, share]
            self._values[result] = self._values[share]
            self._routes[summed, stage, there] = _steps(_turned(lay, axis, turn - 1), there, axis)
        step = replace(op, id=f"{op.id}.sums.{turn}", target=BLOCK_SUMS, args=(*map(Ref, operands), turn, parts), outputs=after)
        self._add(op, step, tuple(there for there in here for _ in range(2)))
        return after

    def _add(self, op: Op, step: Op, inputs: tuple[NdSbp, ...]) -> None:
        """Add a step, whose operands lie so; they are where they are needed, unless a route says otherwise."""
        menu = self._sets.of(step, self._values).strategies
        (strategy,) = (s for s in menu if s.inputs == inputs and not any(o.has_partial for o in s.outputs))
        self.ops.append(step)
        self._local[step.id] = relabel(strategy.local, step)
        self._stage[step.id] = self._staged.stage[op.id]
        if op.id in self._staged.interleaved:
            self._interleaved[step.id] = self._staged.interleaved[op.id]
        for value, lay in zip(step.inputs, inputs, strict=True):
            self._routes.setdefault((value, self._staged.stage[op.id], lay), ())

    def _shift(self, op: Op, values: tuple[str, str], layouts: tuple[NdSbp, ...], axis: int, turn: int) -> None:
        """The routes of keys and values to the step: one shift more than to the one before."""
        stage = self._staged.stage[op.id]
        for value, lay in zip(values, layouts, strict=True):
            shifts = tuple(step for t in range(turn) for step in _steps(_turned(lay, axis, t), _turned(lay, axis, t + 1), axis))
            self._routes[value, stage, _turned(lay, axis, turn)] = (*self._routes.get((value, stage, lay), ()), *shifts)


def _id(op: Op, turn: int, parts: int) -> str:
    return op.id if turn == parts - 1 else f"{op.id}.step.{turn}"


def _turned(lies: NdSbp, axis: int, turn: int) -> NdSbp:
    entry = lies[axis]
    assert isinstance(entry, Split)
    return lies.replace(axis, Split(entry.dim, turn))


def _steps(src: NdSbp, dst: NdSbp, axis: int) -> tuple[Boxing, ...]:
    return (Boxing(src=src, dst=dst, axis=axis, collective=Collective.SHIFT),)


def _wide(dtype: DType) -> DType:
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
