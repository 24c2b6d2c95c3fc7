"""Fragments for tests: a task of a few ops by hand, and values for the tasks of a whole Plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from backend.layout.sharding import torch_dtype
from planner.ir.graph import Op, Role
from planner.ir.plan import Access, Fragment, Plan, Task, TaskKind


def op_of(target: str, args: tuple[object, ...], *outputs: str | None, **kwargs: object) -> Op:
    return Op(id=str(outputs[-1]), target=target, args=args, kwargs=tuple(kwargs.items()), outputs=outputs, role=Role.FORWARD)  # type: ignore[arg-type]


def task_of(ops: Sequence[Op], reads: Sequence[str], writes: Sequence[str]) -> Task:
    """One act of a fragment that reads and writes tensors of these names."""
    return Task(
        id="t",
        kind=TaskKind.FORWARD,
        placement="p",
        stream="s",
        acts=1,
        priority=0,
        consumes=(),
        produces=(),
        reads=tuple(Access(name=name, regst="r", index=n) for n, name in enumerate(reads)),
        writes=tuple(Access(name=name, regst="w", index=n) for n, name in enumerate(writes)),
        body=Fragment(ops=tuple(ops), flop=0, traffic_bytes=0, workspace_bytes=0),
    )


def compute_tasks(plan: Plan) -> Iterator[tuple[Task, int]]:
    """Every task with a fragment, on every rank that performs it."""
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            yield from ((task, rank) for rank in plan.ranks_of(task))


def random_of(plan: Plan, access: Access, rank: int, rng: torch.Generator) -> Tensor:
    """A value for the part of a tensor that lies on ``rank``; positive, as second moments and variances are."""
    regst = plan.regst[access.regst]
    wanted = regst.tensors[access.index].local_type(plan.placement[regst.placement], rank)
    dtype = torch_dtype(wanted.dtype)
    if dtype.is_floating_point:
        return torch.rand(wanted.shape, generator=rng).to(dtype)
    return torch.randint(0, 2, wanted.shape, generator=rng).to(dtype)
