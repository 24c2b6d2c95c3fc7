"""What of each task is work of experts, for Plans that are made with a routing (planner.stages.experts)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

from planner.cost import compute_dtype
from planner.cost.kernels.launches import op_kernel
from planner.ir.collective import Collective
from planner.ir.graph import ExpertWork, Op
from planner.ir.plan import Boxing
from planner.ir.sbp import Split
from planner.lower.drafts import Draft, Drafts
from planner.opset import flop, traffic_bytes
from planner.search.strategies import LocalOp
from planner.stages.experts import ExpertOps, expert_axes, expert_ops

__all__ = ["expert_works"]


def expert_works(drafts: Drafts) -> tuple[ExpertWork, ...]:
    """Of all drafted tasks: compute tasks with ops of experts, and all-to-alls of tokens on their way."""
    known = expert_ops(drafts.staged.graph)
    found: list[ExpertWork] = []
    for draft in drafts.tasks.values():
        if draft.kind.is_compute:
            found += _of_fragment(drafts, draft, known)
        elif isinstance(draft.body, Boxing) and draft.body.collective is Collective.ALL_TO_ALL:
            found += _of_exchange(drafts, draft, draft.body, known)
    return tuple(found)


def _of_fragment(drafts: Drafts, draft: Draft, known: ExpertOps) -> list[ExpertWork]:
    groups: dict[ExpertWork, list[tuple[Op, LocalOp]]] = defaultdict(list)
    for op in drafts.fragment_ops[draft.id]:
        work = known.ops.get(op.id)
        if work is None:
            continue
        local = drafts.assignment.ops[op.id]
        axes, row_axes = expert_axes(work, local.inputs)
        rows = work.rows // prod(drafts.mesh[axis] for axis in row_axes)
        key = ExpertWork(task=draft.id, layer=work.layer, experts=work.experts, axes=axes, row_axes=row_axes, rows=rows)
        groups[key].append((op, local))
    device = drafts.cluster.device_of(draft.stage * prod(drafts.mesh))
    made = []
    for key, members in groups.items():
        dtypes = [compute_dtype(local.op, local.types) for _, local in members]
        kernels = (
            [op_kernel(local.op, local.types, dtype) for (_, local), dtype in zip(members, dtypes, strict=True)] if device.kernels else []
        )
        made.append(
            replace(
                key,
                flop=sum(flop(local.op, local.types) for _, local in members),
                dtype=dtypes[0],
                traffic_bytes=sum(traffic_bytes(local.op, local.types) for _, local in members),
                kernels=tuple(kernel for kernel in kernels if kernel is not None),
            )
        )
    return made


def _of_exchange(drafts: Drafts, draft: Draft, body: Boxing, known: ExpertOps) -> list[ExpertWork]:
    layers = {work.layer: work for i in draft.reads if (work := known.travelling.get(i.value)) is not None}
    others = tuple(axis for axis, entry in enumerate(body.src.entries) if axis != body.axis and isinstance(entry, Split))
    parts = prod(drafts.mesh[axis] for axis in others)
    return [
        ExpertWork(task=draft.id, layer=layer, experts=work.experts, axes=(body.axis,), row_axes=others, rows=max(1, work.rows // parts))
        for layer, work in layers.items()
    ]
