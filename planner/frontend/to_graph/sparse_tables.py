"""Tables with sparse gradients: the update takes the gradients of the rows that were looked up and their indices, not a gradient of the table.

    grad, index --embedding_rows--> dW --accumulate--> gradient:W --adam--> updated:W

    becomes      grad --accumulate--> row_gradient:W.0 ---.
                 index --clone--accumulate--> rows:W.0 ----+--> rows_adam --> updated:W

A gradient is sparse where torch's is: a sum of ``embedding_rows`` alone (F.embedding with sparse=True).  A sum with anything else is dense, as in
torch, and the rows become an ``embedding_backward``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from planner.frontend.optim.rules import SGD, Adagrad, LazyAdam, Optimizer
from planner.frontend.to_graph.finish import Body, RowGradient, Rows
from planner.frontend.to_graph.update import Update
from planner.frontend.tracing.lookup import EMBEDDING_ROWS
from planner.ir.errors import Unsupported
from planner.ir.graph import Op, Ref

__all__ = ["with_row_gradients"]

_ADD, _DENSE = "aten.add.Tensor", "regista.embedding_backward"


def with_row_gradients(body: Body, update: Update) -> Body:
    """The same micro-batch, in which sparse gradients are those of rows, and all other look-ups have dense ones.

    Raises:
        Unsupported: a rule that torch has no sparse form of, or an option of the step that needs the table's gradient.
    """
    makers = {made: op for op in body.ops for made in op.outputs if made is not None}
    if not any(op.target == EMBEDDING_ROWS for op in body.ops):
        _refuse_dense(body, update, ())
        return body
    group_of = update.group_of
    looked_up = {
        name: terms
        for name, value in body.gradients.items()
        if name in group_of and (terms := list(_terms(value, makers))) and all(op.target == EMBEDDING_ROWS for op in terms)
    }
    _refuse_dense(body, update, looked_up)
    for name in looked_up:
        _refuse(name, update.groups[group_of[name]].rule, update, body.micro_batches)
    taken = {op.id for terms in looked_up.values() for op in terms}
    ops: list[Op] = []
    types = dict(body.types)
    for op in body.ops:
        if op.target != EMBEDDING_ROWS:
            ops.append(op)
        elif op.id in taken:
            (made,) = op.outputs
            assert made is not None
            ops.append(replace(op, target="aten.clone.default", args=(op.args[1],)))
            types[made] = body.types[op.inputs[1]]
        else:
            ops.append(replace(op, target=_DENSE))
    rows = {name: _rows(terms, makers) for name, terms in looked_up.items()}
    gradients = {name: value for name, value in body.gradients.items() if name not in rows}
    return replace(body, ops=tuple(ops), types=types, gradients=gradients, rows=rows)


def _terms(value: str, makers: Mapping[str, Op]) -> Iterator[Op]:
    """The ops whose results add up to a value."""
    op = makers.get(value)
    if op is None:
        return
    if op.target == _ADD and len(op.inputs) == len(op.args) == 2:
        for term in op.inputs:
            yield from _terms(term, makers)
    else:
        yield op


def _rows(terms: list[Op], makers: Mapping[str, Op]) -> RowGradient:
    """What embedding_rows(grad, index, slots, extent, padding_idx, step) of all terms say."""
    slots = terms[0].args[2]
    extent = terms[0].args[3]
    assert isinstance(slots, Ref) and isinstance(extent, int)
    lookups = []
    for op in terms:
        (made,), gradient, padding = op.outputs, op.args[0], op.args[4]
        assert made is not None and isinstance(gradient, Ref) and isinstance(padding, int)
        lookups.append(Rows(gradient=gradient.value, index=made, padding=padding))
    return RowGradient(lookups=tuple(lookups), slots=makers[slots.value], extent=extent)


def _refuse_dense(body: Body, update: Update, sparse: Container[str]) -> None:
    """torch.optim.SparseAdam takes sparse gradients alone.   sparse: parameters that have one."""
    for group in update.groups:
        for name in group.parameters:
            if isinstance(group.rule, LazyAdam) and not group.rule.dense and name in body.gradients and name not in sparse:
                raise Unsupported(
                    f"torch.optim.SparseAdam trains {name}, whose gradient is dense; give it tables of nn.Embedding(sparse=True) alone and "
                    "the other parameters to a second optimizer: optimizer=[SparseAdam(tables), Adam(others)]"
                )


def _refuse(name: str, rule: Optimizer, update: Update, micro_batches: int) -> None:
    why = ""
    if not isinstance(rule, SGD | Adagrad | LazyAdam):
        why = f"{type(rule).__name__} takes no sparse gradients, as in torch; train it by SparseAdam, Adagrad or SGD"
    elif isinstance(rule, SGD) and rule.momentum:
        why = "SGD with momentum moves rows that the batch does not name; leave momentum off for this table"
    elif isinstance(rule, SGD | Adagrad) and rule.weight_decay:
        why = "weight decay moves rows that the batch does not name, and torch refuses it, too; leave it off for this table"
    elif update.clip_norm is not None or update.clip_value is not None:
        why = "clipping needs gradients of tensors' shapes; leave it out"
    elif update.loss_scaling is not None:
        why = "a scaled loss is not carried beside it; use bf16-mixed"
    elif update.grad_dtype is not None:
        why = "grad_dtype is the format of gradients that are added up over devices, and rows are not; leave it out"
    elif micro_batches > 1:
        why = f"its rows are not added up over {micro_batches} micro-batches; use one micro-batch"
    if why:
        raise Unsupported(f"the gradient of {name} is sparse (nn.Embedding(sparse=True)): {why}, or build it with sparse=False")
