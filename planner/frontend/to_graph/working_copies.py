"""Working copies: low-precision copies of parameters, which forward and backward read, and which are made anew at the end of a step.

    parameter:w --cast--> k --> mm                  working_copy:w --> mm          and, behind the update,  updated:w --cast--> working_copy:w
    x --cast--> a,  x --cast--> b        becomes    x --cast--> a

So a parameter is cast once per step, not once per use and micro-batch, and the copy is a state of its own: the search may store it whole and the
parameter in parts, which is the all-gather of 2 bytes per element of ZeRO-1 and -2, or store both in parts and gather it per block (ZeRO-3).

Gradients are accumulated in one format (-> with_gradients_in).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from planner.frontend.to_graph.finish import Body
from planner.ir.graph import Dt, GraphInput, InputKind, Op, Ref, Role
from planner.ir.tensor import DType, TensorType

__all__ = ["with_gradients_in", "with_working_copies"]

_CAST, _ADD = "aten._to_copy.default", "aten.add.Tensor"


def with_working_copies(body: Body, working: DType, trained: Container[str] | None) -> Body:
    """The same micro-batch, reading a working copy wherever a parameter that has one was cast to that format; each other value is cast once.

    Args:
        trained: names of the parameters that have one, as far as there is a gradient: torch.autocast keeps no copy of others either.  None: all
            have one, in an evaluation, which then holds no master.
    """
    parameters = {
        i.value: i.name
        for i in body.inputs
        if i.kind is InputKind.PARAMETER and (trained is None or (i.name in body.gradients and i.name in trained))
    }
    copies: dict[str, GraphInput] = {}
    same: dict[str, str] = {}
    cast_of: dict[str, str] = {}
    types, ops = dict(body.types), []
    for traced in body.ops:
        op = traced.renamed(same)
        (made, *_) = op.outputs
        if made is None or op.role is not Role.FORWARD or not _casts(op, working, types):
            ops.append(op)
            continue
        (value,) = op.inputs
        if value in parameters and value not in copies:
            name = f"{parameters[value]}:{working.value}"
            copy = GraphInput(value=f"{InputKind.WORKING_COPY.value}:{name}", kind=InputKind.WORKING_COPY, name=name, copy_of=value)
            copies[value], types[copy.value] = copy, types[made]
            cast_of[value] = copy.value
        elif value not in cast_of:
            cast_of[value] = made
            ops.append(op)
            continue
        same[made] = cast_of[value]
    return replace(
        body,
        inputs=(*body.inputs, *copies.values()),
        types=types,
        ops=tuple(ops),
        loss=same.get(body.loss, body.loss),
        gradients={name: same.get(value, value) for name, value in body.gradients.items()},
        outputs={name: same.get(value, value) for name, value in body.outputs.items()},
        updates={name: same.get(value, value) for name, value in body.updates.items()},
    )


def with_gradients_in(body: Body, dtype: DType) -> Body:
    """The same micro-batch with all gradients in one format."""
    work = _InOneFormat(body, dtype)
    gradients = {name: work.value(gradient) for name, gradient in body.gradients.items()}
    return replace(
        body,
        ops=tuple(made for op in body.ops for made in (op, *work.behind.pop(op.id, ()))),
        types=work.types,
        gradients=gradients,
        places=work.places,
        forward_of=work.forward_of,
    )


class _InOneFormat:
    """Casts of gradients.  A gradient that was widened is taken as it was before; the terms of a sum are cast, so that it can still be taken apart."""

    def __init__(self, body: Body, dtype: DType) -> None:
        self._dtype = dtype
        self._makers = {value: op for op in body.ops for value in op.outputs if value is not None}
        self.behind: dict[
            str, list[Op]
        ] = {}  # op -> casts of its results, beside which they stand so that a gradient is ready when it is made
        self.types: dict[str, TensorType] = dict(body.types)
        self.places, self.forward_of = dict(body.places), dict(body.forward_of)
        self._made: dict[str, str] = {}

    def value(self, value: str) -> str:
        """The value in the wanted format."""
        if self.types[value].dtype is self._dtype or value not in self._makers:
            return value
        if value not in self._made:
            self._made[value] = self._cast(value)
        return self._made[value]

    def _cast(self, value: str) -> str:
        maker = self._makers[value]
        if maker.target == _CAST and self.types[maker.inputs[0]].dtype is self._dtype:
            return maker.inputs[0]
        made = f"{value}.{self._dtype.value}"
        self.types[made] = TensorType(self.types[value].shape, self._dtype)
        if maker.target == _ADD and len(maker.args) == len(maker.inputs) == 2 and not maker.kwargs:
            target, args = _ADD, tuple(Ref(self.value(term)) for term in maker.inputs)
        else:
            target, args = _CAST, (Ref(value),)
        kwargs = (("dtype", Dt(self._dtype)),) if target == _CAST else ()
        op = Op(id=made, target=target, args=args, kwargs=kwargs, outputs=(made,), role=Role.BACKWARD, module=maker.module)
        self.places[made] = self.places[maker.id]
        if maker.id in self.forward_of:
            self.forward_of[made] = self.forward_of[maker.id]
        self.behind.setdefault(maker.id, []).append(op)
        return made


def _casts(op: Op, dtype: DType, types: dict[str, TensorType]) -> bool:
    """Whether the op does nothing but cast a floating value to that format."""
    if op.target != _CAST or len(op.args) != 1 or op.kwargs != (("dtype", Dt(dtype)),):
        return False
    return types[op.inputs[0]].dtype.is_floating
