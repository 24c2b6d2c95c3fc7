"""Batched products keep their dims: torch folds (b, h, m, k) to (b h, m, k) for bmm, and an even cut of h is no even cut of b h.

    view(a, [b h, m, k]), view(b, [b h, k, n]) -> bmm -> view(., [b, h, m, n])       becomes       matmul(a, b)

So the heads of an attention can be split while the batch stays whole.  A transpose of the last two dims between the fold and the product
moves in front of the fold; views that undo each other go.
"""

from __future__ import annotations

from dataclasses import replace

from planner.frontend.to_graph.finish import Body
from planner.ir.graph import Op, Ref
from planner.ir.tensor import TensorType

__all__ = ["unfolded"]

_VIEW, _TRANSPOSE, _BMM, _MATMUL = "aten.view.default", "aten.transpose.int", "aten.bmm.default", "aten.matmul.default"


def unfolded(body: Body) -> Body:
    """The same micro-batch with n-dimensional products; what nobody reads any more is still there."""
    work = _Unfolding(body)
    for op in body.ops:
        work.take(op.renamed(work.same))
    same = work.same
    return replace(
        body,
        ops=tuple(work.ops),
        types=work.types,
        loss=same.get(body.loss, body.loss),
        gradients={name: same.get(value, value) for name, value in body.gradients.items()},
        outputs={name: same.get(value, value) for name, value in body.outputs.items()},
        updates={name: same.get(value, value) for name, value in body.updates.items()},
        places=work.places,
        forward_of=work.forward_of,
    )


class _Unfolding:
    """same: a view that undoes others -> the value it is.  base: a view -> its operand.  folded: a 3-d value -> (what it folds, turned?)."""

    def __init__(self, body: Body) -> None:
        self.ops: list[Op] = []
        self.types: dict[str, TensorType] = dict(body.types)
        self.places, self.forward_of = dict(body.places), dict(body.forward_of)
        self.same: dict[str, str] = {}
        self.base: dict[str, str] = {}
        self.folded: dict[str, tuple[str, bool]] = {}

    def take(self, op: Op) -> None:
        (made, *_) = op.outputs
        if made is not None and op.target == _VIEW:
            self._view(op, made)
        elif made is not None and op.target == _BMM and self._fits(*op.inputs):
            self._product(op, made)
        else:
            if made is not None and op.target == _TRANSPOSE and op.inputs[0] in self.folded and _turns_last(op):
                origin, turned = self.folded[op.inputs[0]]
                self.folded[made] = (origin, not turned)
            self.ops.append(op)

    def _view(self, op: Op, made: str) -> None:
        origin: str | None = op.inputs[0]
        while origin is not None and self.types[origin] != self.types[made]:
            origin = self.base.get(origin)
        if origin is not None:
            self.same[made] = origin
            return
        self.base[made] = op.inputs[0]
        before, after = self.types[op.inputs[0]].shape, self.types[made].shape
        if len(before) > 3 and len(after) == 3 and before[-2:] == after[-2:]:
            self.folded[made] = (op.inputs[0], False)
        self.ops.append(op)

    def _fits(self, left: str, right: str) -> bool:
        if left not in self.folded or right not in self.folded:
            return False
        a, b = (self.types[self.folded[value][0]].shape for value in (left, right))
        return a[:-2] == b[:-2]

    def _product(self, op: Op, made: str) -> None:
        left, right = (self._wide(op, side, value) for side, value in zip("lr", op.inputs, strict=True))
        wide = f"{made}.wide"
        self.types[wide] = self.types[made].with_shape((*self.types[left].shape[:-1], self.types[right].shape[-1]))
        self.ops.append(replace(op, target=_MATMUL, args=(Ref(left), Ref(right)), outputs=(wide,)))
        self._add(op, "fold", _VIEW, (Ref(wide), self.types[made].shape), made)
        self.folded[made], self.base[made] = (wide, False), wide

    def _wide(self, op: Op, side: str, value: str) -> str:
        """What ``value`` folds, turned if it is."""
        origin, turned = self.folded[value]
        if not turned:
            return origin
        shape, made = self.types[origin].shape, f"{op.id}.{side}"
        self.types[made] = self.types[origin].with_shape((*shape[:-2], shape[-1], shape[-2]))
        self._add(op, side, _TRANSPOSE, (Ref(origin), len(shape) - 2, len(shape) - 1), made)
        return made

    def _add(self, op: Op, label: str, target: str, args: tuple[Ref | int | tuple[int, ...], ...], made: str) -> None:
        """An op beside ``op``, at its place."""
        beside = replace(op, id=f"{op.id}.{label}", target=target, args=args, outputs=(made,))
        self.places[beside.id] = self.places[op.id]
        if op.id in self.forward_of:
            self.forward_of[beside.id] = self.forward_of[op.id]
        self.ops.append(beside)


def _turns_last(op: Op) -> bool:
    return {int(str(dim)) % 3 for dim in op.args[1:]} == {1, 2}
