"""Every collective of boxing on real gloo ranks against its single-process meaning: ``python gloo_exchange.py`` under torchrun's variables.

Exits 0 when all agree.  Run by tests/backend/comm/test_collectives.py.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import handmade
import torch
import torch.distributed as dist
from torch import Tensor

from backend.comm.collectives import GroupExchange, exchange, scratch_bytes
from backend.comm.scratch import Scratch
from backend.comm.wires import GroupWire
from backend.layout.sharding import slice_part
from planner.ir.collective import collective_for
from planner.ir.plan import Access, Boxing, PlacedTensor, Plan, Regst, RegstKind, Task
from planner.ir.sbp import B, NdSbp, P, Partial, ReduceOp, S, Sbp, Split
from planner.ir.tensor import DType

SHAPES = ((5, 7), (4, 6, 3), (8, 3))
STEPS: tuple[tuple[Sbp, Sbp], ...] = (
    (P, B),
    (Partial(ReduceOp.MAX), B),
    (Partial(ReduceOp.MIN), B),
    (P, S(0)),
    (P, S(1)),
    (Partial(ReduceOp.MAX), S(1)),
    (S(0), B),
    (S(1), B),
    (S(0), S(1)),
    (S(1), S(0)),
    (B, S(1)),
    (S(0), P),
)
EVEN = ((6, 7), (12, 6, 3), (6, 3))
SHIFTS = ((S(0), Split(0, 1)), (Split(0, 1), S(0)))


def boxing_plan(ranks: int, src: Sbp, dst: Sbp, dtypes: tuple[DType, ...], shapes: tuple[tuple[int, ...], ...]) -> tuple[Plan, Task]:
    """A plan that has one boxing task of several tensors."""
    plan = handmade.data_parallel(ranks)
    step = Boxing(src=NdSbp((src,)), dst=NdSbp((dst,)), axis=0, collective=collective_for(src, dst))
    placed = [PlacedTensor(name=f"t{i}", shape=s, dtype=d, sbp=step.src) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    after = tuple(replace(t, sbp=step.dst) for t in placed)
    regsts = (
        Regst(id="before", kind=RegstKind.DATA, placement="all", producer="load", quota=1, tensors=tuple(placed)),
        Regst(id="after", kind=RegstKind.DATA, placement="all", producer="reduce.loss", quota=1, tensors=after),
    )
    reads = tuple(Access(name=t.name, regst="before", index=i) for i, t in enumerate(placed))
    task = replace(plan.task["reduce.loss"], reads=reads, writes=tuple(replace(a, regst="after") for a in reads), body=step)
    return replace(plan, regsts=(*plan.regsts, *regsts)), task


def alone(plan: Plan, task: Task) -> Plan:
    """The Plan with this task and no other."""
    return replace(plan, tasks=(task,))


def nowhere(values: list[Tensor]) -> list[Tensor]:
    """Slots for results of the shapes of ``values``: none."""
    return []


def apart(values: list[Tensor]) -> list[Tensor]:
    """Each in memory of its own."""
    return [torch.empty_like(value) for value in values]


def one_behind_the_other(values: list[Tensor]) -> list[Tensor]:
    """In one piece of memory per dtype."""
    memory = {dtype: torch.empty(sum(v.numel() for v in values if v.dtype is dtype), dtype=dtype) for dtype in {v.dtype for v in values}}
    slots = []
    for value in values:
        slots.append(memory[value.dtype][: value.numel()].view(value.shape))
        memory[value.dtype] = memory[value.dtype][value.numel() :]
    return slots


def main() -> int:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    for src, dst, shapes in (*((src, dst, SHAPES) for src, dst in STEPS), *((src, dst, EVEN) for src, dst in SHIFTS)):
        for dtypes in ((DType.FLOAT32,) * 3, (DType.FLOAT32, DType.BFLOAT16, DType.INT64)):
            plan, task = boxing_plan(ranks, src, dst, dtypes, shapes)
            rng = torch.Generator().manual_seed(7)
            held = []
            for shape, dtype in zip(shapes, dtypes, strict=True):
                values = [torch.randint(-8, 9, shape, generator=rng).to(getattr(torch, dtype.value)) for _ in range(ranks)]
                # Whole numbers, so that sums are exact in every order.
                cut = [slice_part(values[0], NdSbp((src,)), (ranks,), (r,)) for r in range(ranks)]
                held.append(values if isinstance(src, Partial) else cut)
            group = GroupWire(dist.new_group(list(range(ranks)), backend="gloo"))
            scratch = Scratch()
            mover = GroupExchange(plan, task, rank, group, scratch)
            for place in (nowhere, nowhere, apart, apart, one_behind_the_other, one_behind_the_other):
                held = [[-part for part in parts] for parts in held]
                got = mover.run([parts[rank] for parts in held], place([exchange(src, dst, parts)[rank] for parts in held]))
                for mine, parts in zip(got, held, strict=True):
                    want = exchange(src, dst, parts)[rank]
                    if (src, dst) == (S(0), P):  # a split padded with zeros is another set of partial values of the same tensor
                        mine = mine.clone()
                        dist.all_reduce(mine)
                        want = torch.cat(list(parts))
                    if mine.shape != want.shape or not torch.equal(mine, want):
                        print(f"rank {rank}: {src} -> {dst} gives {mine}, want {want}", file=sys.stderr)
                        return 1
                    if not mine.is_contiguous():
                        print(f"rank {rank}: {src} -> {dst} is not contiguous", file=sys.stderr)
                        return 1
            if scratch.held_bytes != scratch_bytes(alone(plan, task), rank):
                print(f"rank {rank}: {src} -> {dst} took {scratch.held_bytes} B of scratch, foretold {mover.needs}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
