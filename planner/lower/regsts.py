"""The Regsts of a Plan: the tensors that share one, its quota, and the acts per block of its ports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from planner.ir.errors import Unsupported
from planner.ir.graph import Role
from planner.ir.plan import Access, PlacedTensor, Regst, RegstKind, Task
from planner.lower.drafts import Draft, Drafts
from planner.lower.instances import Instance
from planner.lower.names import name_in_layout, placement_id
from planner.lower.orders.pass_order import PassOrder
from planner.lower.quotas import quota
from planner.schedule import Schedule

__all__ = ["DraftRegst", "Rates", "apply_asked_quotas", "group_regsts", "size_regst"]


@dataclass(frozen=True, slots=True)
class DraftRegst:
    """A Regst without its final quota, and the instances of its tensors, in order."""

    regst: Regst
    members: tuple[Instance, ...]

    @property
    def stage(self) -> int:
        return self.members[0].stage

    @property
    def value(self) -> str:
        """The value of the first tensor; all tensors have the same maker and the same readers."""
        return self.members[0].value


def group_regsts(drafts: Drafts) -> tuple[dict[str, DraftRegst], dict[Instance, Access]]:
    """Group tensors with the same maker and the same readers into one Regst, so that one message serves all of them.

    Returns:
        Regsts by id (their quota is 1 as yet), and the Regst and index of each instance.
    """
    readers: dict[Instance, list[str]] = defaultdict(list)
    for draft in drafts.tasks.values():
        for instance in draft.reads:
            readers[instance].append(draft.id)
    regsts: dict[str, DraftRegst] = {}
    access: dict[Instance, Access] = {}
    counts: dict[str, int] = defaultdict(int)
    for group, members in _groups(drafts, readers).items():
        place = placement_id(group.stage)
        base = f"{group.made_by}.out" if group.kind is RegstKind.DATA else f"{place}.{'state' if group.made_by else 'constant'}"
        regst_id = f"{base}.{counts[base]}"
        counts[base] += 1
        tensors = tuple(_placed(drafts, instance) for instance in members)
        regst = Regst(id=regst_id, kind=group.kind, placement=place, producer=group.made_by, quota=1, tensors=tensors)
        regsts[regst_id] = DraftRegst(regst, tuple(members))
        for index, (instance, tensor) in enumerate(zip(members, tensors, strict=True)):
            access[instance] = Access(name=tensor.name, regst=regst_id, index=index)
    for instance, state in drafts.stored.items():
        access[instance] = replace(access[drafts.native(state)], name=instance.name)
    return regsts, access


class _Group(NamedTuple):
    """The properties that all tensors of a Regst share."""

    kind: RegstKind
    made_by: str | None
    stage: int
    readers: tuple[str, ...] = ()
    accumulated: bool = False


def _groups(drafts: Drafts, readers: Mapping[Instance, Sequence[str]]) -> Mapping[_Group, Sequence[Instance]]:
    groups: dict[_Group, list[Instance]] = defaultdict(list)
    maker_of_state = {state: drafts.owner[instance] for instance, state in drafts.stored.items()}
    for value in drafts.assignment.states:
        instance = drafts.native(value)
        groups[_Group(RegstKind.STATE, maker_of_state[value], instance.stage, tuple(readers.get(instance, ())))].append(instance)
    gradients = {drafts.native(value) for value in drafts.staged.graph.gradients.values()}
    for instance in dict.fromkeys([*drafts.instances.values(), *readers]):
        if instance in drafts.stored or (instance.parent is None and instance.value in drafts.assignment.states):
            continue
        made_by = drafts.owner.get(instance)
        if made_by is None:  # constants and frozen parameters
            if readers.get(instance):
                groups[_Group(RegstKind.STATE, None, instance.stage)].append(instance)
            continue
        outside = tuple(reader for reader in readers.get(instance, ()) if reader != made_by)
        # A gradient has a Regst even if only its maker reads it, so that a user can read it.
        if outside or instance in gradients:
            accumulated = instance.parent is None and drafts.is_accumulated(instance.value)
            groups[_Group(RegstKind.DATA, made_by, instance.stage, outside, accumulated)].append(instance)
    return groups


def _placed(drafts: Drafts, instance: Instance) -> PlacedTensor:
    logical = drafts.staged.graph.values[instance.value]
    name = name_in_layout(instance.value, instance.sbp) if drafts.is_fed(instance.value) else instance.name
    return PlacedTensor(name=name, shape=logical.shape, dtype=logical.dtype, sbp=instance.sbp)


class Rates:
    """Acts per block of ports (SEMANTICS 3.6)."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts

    def fill(self, draft: Draft, made: DraftRegst) -> int:
        """Acts that fill one block: all acts of a step if the value is accumulated."""
        accumulated = made.regst.kind is RegstKind.DATA and draft.kind.is_compute and self._drafts.is_accumulated(made.value)
        return self._drafts.micro_batches if accumulated else 1

    def blocks_per_step(self, made: DraftRegst) -> int:
        if made.regst.producer is None:
            return self._drafts.micro_batches
        producer = self._drafts.tasks[made.regst.producer]
        return producer.acts // self.fill(producer, made)

    def per_micro_batch(self, made: DraftRegst) -> bool:
        """Whether each of several micro-batches fills a block."""
        return self._drafts.micro_batches > 1 and self.blocks_per_step(made) == self._drafts.micro_batches

    def hold(self, draft: Draft, read: DraftRegst) -> int:
        """Acts for which a consumer keeps one block."""
        return 1 if read.regst.producer is None else draft.acts // self.blocks_per_step(read)


def size_regst(
    drafts: Drafts,
    rates: Rates,
    draft: DraftRegst,
    tasks: Mapping[str, Task],
    consumers: Mapping[str, Sequence[Task]],
    schedule: Schedule,
    order: PassOrder | None = None,
) -> Regst:
    """The Regst with its quota, by the rule of planner.lower.quotas, or by the order of passes if there is one.

    A Regst of parameters that are unsharded for one scope has one block (planner.lower.orders.prefetch).
    """
    regst = draft.regst
    if regst.producer is not None and any(instance.scope for instance in drafts.tasks[regst.producer].makes):
        return regst
    if order is not None and regst.producer is not None and regst.kind is RegstKind.DATA and rates.per_micro_batch(draft):
        producer = tasks[regst.producer]
        siblings = [task for port in producer.produces for task in consumers[port.regst]]
        return replace(regst, quota=order.blocks(producer, consumers[regst.id], siblings))
    made_by = drafts.producers.get(draft.value)
    blocks = quota(
        kind=regst.kind,
        producer=tasks[regst.producer] if regst.producer is not None else None,
        consumers=consumers[regst.id],
        blocks_per_step=rates.blocks_per_step(draft),
        stage=draft.stage,
        num_stages=drafts.staged.num_stages,
        micro_batches=drafts.micro_batches,
        backward_value=made_by is not None and made_by.role is Role.BACKWARD,
        schedule=schedule,
    )
    return regst if blocks == regst.quota else replace(regst, quota=blocks)


def apply_asked_quotas(regsts: Mapping[str, Regst], asked: Mapping[str, int]) -> dict[str, Regst]:
    """Give the Regsts whose ids match the user's patterns the quotas asked for.

    Raises:
        Unsupported: a pattern matches no data Regst.
    """
    sized = dict(regsts)
    for pattern, asked_for in asked.items():
        data = [r for r in sized if sized[r].kind is RegstKind.DATA]
        named = [r for r in data if fnmatchcase(r, pattern)]
        if not named:
            raise Unsupported(f"quota {pattern}={asked_for}: no regst has such an id; ids are {', '.join(sorted(data)[:10])} ...")
        for regst_id in named:
            sized[regst_id] = replace(sized[regst_id], quota=asked_for)
    return sized
