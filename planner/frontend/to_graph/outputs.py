"""Outputs of a forward-only step: an op OUTPUT behind whatever computes each of them.

    h -> mm -> logits -> regista.output -> output:logits        its rule lets no partial sum through, and it makes memory of its own

So an output is never a view of a parameter, and no boxing stands between it and the task that hands it over.  The values of several
micro-batches are put together along the dim that the cut into micro-batches has cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.ir.errors import InvalidProgram
from planner.ir.graph import OUTPUT, GraphOutput, LogicalGraph, Op, Ref, Role

__all__ = ["put_together", "with_output_ops"]


def with_output_ops(ops: Sequence[Op], outputs: Mapping[str, str]) -> tuple[list[Op], dict[str, str]]:
    """Ops with one more behind the producer of each output, and the value of each op -> the value that it copies.

    Args:
        outputs: name -> value.
    """
    made = {value: op for op in ops for value in op.outputs if value is not None}
    behind: dict[str, list[Op]] = {}
    copies: dict[str, str] = {}
    for name, value in outputs.items():
        producer = made.get(value)
        op = Op(
            id=f"output:{name}",
            target=OUTPUT,
            args=(Ref(value),),
            outputs=(f"output:{name}",),
            role=Role.FORWARD,
            module=producer.module if producer is not None else "",
        )
        behind.setdefault(producer.id if producer is not None else "", []).append(op)
        copies[op.id] = value
    placed = behind.get("", [])
    for op in ops:
        placed += [op, *behind.get(op.id, ())]
    return placed, copies


def put_together(part: LogicalGraph, whole: LogicalGraph, micro_batches: int) -> LogicalGraph:
    """The graph of a micro-batch whose outputs know their batch dims.

    Args:
        whole: the same step, traced with the whole batch.

    Raises:
        InvalidProgram: an output whose micro-batches do not make up that of the whole batch.
    """
    outputs: list[GraphOutput] = []
    for output, of_whole in zip(part.outputs, whole.outputs, strict=True):
        shape, wanted = part.values[output.value].shape, whole.values[of_whole.value].shape
        dims = [dim for dim, (here, there) in enumerate(zip(shape, wanted, strict=False)) if here != there]
        if len(shape) != len(wanted) or len(dims) != 1 or shape[dims[0]] * micro_batches != wanted[dims[0]]:
            raise InvalidProgram(
                f"output {output.name} has shape {list(shape)} in each of {micro_batches} micro-batches and {list(wanted)} in the whole batch, "
                f"so the micro-batches' do not make up the batch's; plan with one micro-batch, or ask for other outputs by name"
            )
        outputs.append(replace(output, batch_dim=dims[0]))
    return replace(part, outputs=tuple(outputs))
