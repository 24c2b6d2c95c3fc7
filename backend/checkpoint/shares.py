"""Who writes what: each element of the state once, the bytes spread over the ranks that hold it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from backend.checkpoint.manifest import Group, SavedPiece, SavedState
from backend.initial.values import Box, numel_of
from planner.ir.errors import InvalidPlan
from planner.ir.graph import Ref
from planner.ir.plan import Fragment, Plan, State, TaskKind
from planner.lower.data_actors.saving import saved_entries
from planner.lower.names import value_of
from planner.opset.optimizer import UPDATES

__all__ = ["Share", "file_name", "optimizer_groups", "saved_states", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """``rank`` writes the whole of its part of ``state``, which is ``box`` of the logical tensor."""

    rank: int
    state: State
    box: Box


def file_name(rank: int) -> str:
    return f"rank{rank:04d}.pt"


def shares(plan: Plan, *, spread: bool = True) -> tuple[Share, ...]:
    """What each rank writes in a save.  Every rank works out the same list, so that none has to ask.

    Args:
        spread: of the copies of a part (B axes) the rank with the least to write so far takes it, largest parts first; False: the lowest rank.

    Raises:
        InvalidPlan: a state is partial.
    """
    parts: list[tuple[int, State, Box, list[int]]] = []
    for entry in saved_entries(plan).values():
        regst = plan.regst[entry.regst]
        placement, tensor = plan.placement[regst.placement], regst.tensors[entry.index]
        if tensor.sbp.has_partial:
            raise InvalidPlan(f"state {entry.name} lies as {tensor.sbp}; partial values are no state, reduce them first")
        holders: dict[Box, list[int]] = defaultdict(list)
        for rank in placement.ranks:
            holders[tensor.sbp.region(tensor.shape, placement.mesh, placement.coordinate(rank))].append(rank)
        parts += [(numel_of(box) * tensor.dtype.size_bytes, entry, box, ranks) for box, ranks in holders.items()]
    load_bytes: dict[int, int] = defaultdict(int)
    chosen: dict[int, Share] = {}
    for place in sorted(range(len(parts)), key=lambda n: -parts[n][0]):
        size_bytes, entry, box, ranks = parts[place]
        rank = min(ranks, key=lambda r: (load_bytes[r] if spread else 0, r))
        load_bytes[rank] += size_bytes
        chosen[place] = Share(rank=rank, state=entry, box=box)
    return tuple(chosen[place] for place in range(len(parts)))


def saved_states(plan: Plan, work: tuple[Share, ...]) -> tuple[SavedState, ...]:
    """The states and their pieces, as the manifest lists them."""
    pieces: dict[str, list[SavedPiece]] = defaultdict(list)
    for share in work:
        pieces[share.state.name].append(SavedPiece(file=file_name(share.rank), box=share.box))
    states = []
    for name, entry in saved_entries(plan).items():
        tensor = plan.regst[entry.regst].tensors[entry.index]
        states.append(SavedState(name=name, kind=entry.kind, shape=tensor.shape, dtype=tensor.dtype, pieces=tuple(pieces[name])))
    return tuple(states)


def optimizer_groups(plan: Plan, given: Mapping[str, float]) -> tuple[Group, ...]:
    """Parameters by the optimizer op that updates them, in the order of plan.states.

    Args:
        given: numbers of ops that are inputs of the step, by value: those of the last step.
    """
    # A value keeps its id in every layout: ``value@sbp`` is a boxed copy of it.
    names = {value_of(plan.regst[entry.regst].tensors[entry.index].name): entry.name for entry in plan.states}
    optimizers: dict[str, tuple[str, tuple[float, ...]]] = {}
    for task in plan.tasks:
        if task.kind is not TaskKind.UPDATE or not isinstance(task.body, Fragment):
            continue
        for op in task.body.ops:
            if op.target in UPDATES and isinstance(op.args[0], Ref):
                parameter = names.get(value_of(op.args[0].value))
                if parameter is not None:
                    numbers = (given.get(value_of(a.value)) if isinstance(a, Ref) else a for a in op.args)
                    optimizers[parameter] = op.target, tuple(float(n) for n in numbers if isinstance(n, bool | int | float))
    groups: dict[tuple[str, tuple[float, ...]], list[str]] = defaultdict(list)
    for name in saved_entries(plan):
        if name in optimizers:
            groups[optimizers[name]].append(name)
    return tuple(Group(target=t, numbers=n, parameters=tuple(members)) for (t, n), members in groups.items())
