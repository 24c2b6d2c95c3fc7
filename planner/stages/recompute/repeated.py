"""The choice for a model of repeated blocks, solved on one block of each kind and weighed by how often the block occurs.

Blocks are equal if their ops are, up to names: prices, what is read and made, sizes, and what the backward pass reads.  Of n equal blocks every
second one is treated alike, of the rest every second one again, and so on:

    block       0  1  2  3  4  5           group     a  b  a  c  a  b

So the problem has about log2 n copies of a block instead of n, the kept bytes of any share are met to a block, and what is computed again lies
evenly over a pipeline's stages.  A block's result that another block reads is never computed again; one that an op of another block needs to be
computed again is weighed there (-> _arrivals).  Such a result is weighed once per block that reads it, so what is kept is never more than the limit.

What the choice's bound ranges over is the sets that treat the blocks of a group alike.  Source: as choose.py; repetition as planner.search.bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.stages.recompute.choose import choose_recompute
from planner.stages.recompute.problem import ForwardOp, Keeping, RecomputeChoice, SavingProblem

__all__ = ["choose_repeated"]


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal blocks, each as its ops, that are treated alike; the first stands for all."""

    blocks: tuple[tuple[ForwardOp, ...], ...]


def choose_repeated(
    problem: SavingProblem, block_of: Mapping[str, str], limit_bytes: int, *, time_limit_s: float = 60.0
) -> RecomputeChoice:
    """As ``choose_recompute``, the same for equal blocks.

    Args:
        block_of: op id -> its block; ops without one are a block together.   time_limit_s: of the solver.

    Raises:
        Unsupported: as ``choose_recompute``.
    """
    groups = _groups(problem, block_of)
    small = _weighed(problem, groups)
    chosen = choose_recompute(small, limit_bytes, time_limit_s=time_limit_s)
    again = {
        op.id
        for group in groups
        for block in group.blocks
        for first, op in zip(group.blocks[0], block, strict=True)
        if first.id in chosen.again
    }
    repeated, kept, saved_bytes, duration_s = problem.outcome(again)
    assert saved_bytes <= chosen.saved_bytes
    return replace(
        chosen, again=repeated, kept=kept, saved_bytes=saved_bytes, recomputed_s=duration_s, bound_s=min(chosen.bound_s, duration_s)
    )


def _groups(problem: SavingProblem, block_of: Mapping[str, str]) -> tuple[_Group, ...]:
    """Equal blocks, those that are many cut into groups of which each has half of what is left."""
    members: dict[str, list[ForwardOp]] = {}
    for op in problem.ops:
        members.setdefault(block_of.get(op.parts[0] if op.parts else op.id, ""), []).append(op)
    always = problem.outcome(())[1]
    equal: dict[object, list[tuple[ForwardOp, ...]]] = {}
    for ops in members.values():
        equal.setdefault(_content(problem, ops, always), []).append(tuple(ops))
    groups = []
    for rest in equal.values():
        while rest:
            groups.append(_Group(tuple(rest[::2])))
            rest = rest[1::2]
    return tuple(groups)


def _content(problem: SavingProblem, ops: Sequence[ForwardOp], always: frozenset[str]) -> object:
    """A key that two blocks share exactly if they are equal up to names."""
    number: dict[str, int] = {}
    lines: list[object] = []
    for op in ops:
        reads = [number.get(v, tuple(sorted(problem.size_bytes[arrival] for arrival in _arrivals(problem, v, always)))) for v in op.inputs]
        for v in op.outputs:
            number[v] = len(number)
        makes = [(problem.size_bytes[v], v in problem.read, v in always) for v in op.outputs]
        lines.append((op.duration_s, op.keeping, tuple(reads), tuple(makes)))
    return tuple(lines)


def _weighed(problem: SavingProblem, groups: Sequence[_Group]) -> SavingProblem:
    """The first block of each group, with the bytes and seconds of all of them."""
    always = problem.outcome(())[1]
    ops: list[ForwardOp] = []
    size_bytes: dict[str, int] = {}
    for number, group in enumerate(groups):
        times, own = len(group.blocks), {v for op in group.blocks[0] for v in op.outputs}
        for op in group.blocks[0]:
            inputs: list[str] = []
            for value in op.inputs:
                for arrival in () if value in own else _arrivals(problem, value, always):
                    name = f"{arrival} in {number}"
                    if name not in size_bytes:
                        size_bytes[name] = times * problem.size_bytes[arrival]
                        ops.append(ForwardOp(id=name, inputs=(), outputs=(name,), duration_s=0.0, keeping=Keeping.KEPT))
                    inputs.append(name)
                inputs += [value] if value in own else []
            size_bytes |= {v: times * problem.size_bytes[v] for v in op.outputs}
            ops.append(replace(op, inputs=tuple(inputs), duration_s=times * op.duration_s))
    kept = {v for op in problem.ops if op.keeping is Keeping.KEPT for v in op.outputs}  # also what another block reads by a view
    return SavingProblem(ops=tuple(ops), size_bytes=size_bytes, read=frozenset(size_bytes) & (problem.read | (always & kept)))


def _arrivals(problem: SavingProblem, value: str, always: frozenset[str]) -> tuple[str, ...]:
    """What has to be kept so that a value of another block can be read, and is not kept anyway (``always``)."""
    maker = problem.producers.get(value)
    if maker is None:
        return ()
    if maker.keeping is Keeping.AGAIN:
        return tuple(dict.fromkeys(arrival for v in maker.inputs for arrival in _arrivals(problem, v, always)))
    return () if value in always else (value,)
