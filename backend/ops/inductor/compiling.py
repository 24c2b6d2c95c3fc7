"""Fragments -> compiled functions, each distinct one compiled once: known in a process by its content, from run to run by inductor's
cache on disk.

    content_id(fragment)  -- known in this process -->                                  function
                          -- new --> trace --> inductor, under a lock of that id -----> function      on disk: inductor finds its code there

What one process is compiling the others wait for, since it is theirs a moment later.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

from backend.layout.boxing import BOXING
from backend.ops.inductor.options import cache_folder
from backend.ops.inductor.tracing import FragmentTypes, returned_places, trace
from backend.ops.kernels import arguments_at
from backend.ops.writable import WritableBlocks
from planner.ir.graph import Arg, Op, Ref
from planner.ir.plan import Fragment, Placement, Task

__all__ = ["Compiled", "Origin", "by_inductor", "compiled", "content_id"]


class Origin(Enum):
    """Where a compiled fragment came from: it was compiled, this process had it, or its code lay on disk."""

    COMPILED = "compiled"
    PROCESS = "process"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """function: takes what ``trace`` says.   why_not: instead of it, why there is none."""

    function: Callable[..., Sequence[Tensor]] | None
    origin: Origin
    why_not: str = ""


_COMPILED: dict[str, Compiled] = {}
_COMPILING = threading.Lock()


def content_id(task: Task, placement: Placement, rank: int, writable: WritableBlocks, types: FragmentTypes) -> str:
    """What two fragments share if one function performs both: ops, types and places, whatever task, rank and values are called."""
    assert isinstance(task.body, Fragment)
    coordinate = placement.coordinate(rank)
    numbers: dict[str, int] = {}

    def number(value: str | None) -> int:
        return -1 if value is None else numbers.setdefault(value, len(numbers))

    def renamed(arg: Arg) -> object:
        if isinstance(arg, Ref):
            return Ref(str(number(arg.value)))
        return tuple(renamed(item) for item in arg) if isinstance(arg, tuple) else arg

    def described(op: Op) -> object:
        where = (placement.mesh, coordinate) if op.target == BOXING else ()
        arguments = op.args if op.target == BOXING else arguments_at(op, placement.mesh, coordinate)
        named = [(key, renamed(arg)) for key, arg in op.kwargs]
        return op.target, [renamed(arg) for arg in arguments], named, where, [number(out) for out in op.outputs]

    reads = [number(access.name) for access in task.reads]
    ops = [described(op) for op in task.body.ops]
    writes = [number(access.name) for access in task.writes]
    places = returned_places(task, writable), writable.slots
    return hashlib.sha256(repr((types, reads, ops, writes, places)).encode()).hexdigest()[:32]


def compiled(
    task: Task,
    placement: Placement,
    rank: int,
    writable: WritableBlocks,
    types: FragmentTypes,
) -> Compiled:
    """The fragment as a compiled function, made now or found."""
    name = content_id(task, placement, rank, writable, types)
    with _COMPILING:
        if name in _COMPILED:
            known = _COMPILED[name]
            return Compiled(function=known.function, origin=Origin.PROCESS, why_not=known.why_not)
        try:
            graph, operands = trace(task, placement, rank, writable, types)
            with _alone(name):
                function, was_there = by_inductor(graph, operands)
            made = Compiled(function=function, origin=Origin.DISK if was_there else Origin.COMPILED)
        except Exception as error:  # whatever a tracer or a compiler says: the fragment is performed op by op, and it is told why
            made = Compiled(function=None, origin=Origin.COMPILED, why_not=reason_of(error))
        _COMPILED[name] = made
        return made


def reason_of(error: Exception) -> str:
    """One line of an error that may have a hundred."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def by_inductor(graph: GraphModule, operands: Sequence[Tensor]) -> tuple[Callable[..., Sequence[Tensor]], bool]:
    """A graph as a function that torch's inductor made for just these shapes and strides, and whether its code lay on disk.

    On one thread: a rank has one core, and a pool of compilers would outlive a killed worker.
    """
    import torch._inductor as inductor  # late: it takes a second to load
    from torch._dynamo.utils import counters

    with _cached_in(cache_folder()), inductor.config.patch({"compile_threads": 1, "cpp.threads": 1}):
        before = counters["inductor"]["fxgraph_cache_hit"]
        with torch.no_grad():
            artifact = inductor.standalone_compile(graph, list(operands))
        return artifact, counters["inductor"]["fxgraph_cache_hit"] > before


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """Inside, inductor keeps its code there."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Inside, no other process compiles the same; the kernel lets go of the lock if this one ends."""
    folder = cache_folder() / "locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
