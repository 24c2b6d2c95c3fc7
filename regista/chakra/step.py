"""A step of a Plan as nodes of Chakra: the acts of its token game, what each waits for, and the times of a simulation.

act                               node on the rank                                   who waits for its result
compute, loading, local boxing    COMPUTE                                            the acts that read what it fills
collective of several ranks       COLLECTIVE of a process group                      the same
shift along an axis               SEND to one neighbour, RECEIVE from the other      for the RECEIVE
transfer                          SEND per receiver; RECEIVE on the receiver         the receiver's acts, for the RECEIVE
                                  COMPUTE where the receiver is the sender, or nobody

data dependency      the act that filled the block which is read                            (planner.ir.actors.waits, READY)
control dependency   the act before it on its stream, in the order of the simulation
                     the act that gave back the block which is filled                       (ACK); from another rank: of the RECEIVE there

A send goes out when the block on the receiver is free, which Chakra has no word for on the sender: a receive waits for it instead, as where sender
and receiver meet.  ``comm_size`` is what one rank puts in, as ASTRA-sim's collectives take it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.ir.actors.actor import Actor, ActorId, MessageKind, build_actors
from planner.ir.actors.waits import Wait, waits
from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from planner.ir.plan import Access, Boxing, Fragment, Plan, Task, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.sbp import Split
from planner.ir.tensor import TensorType
from planner.ir.traces.trace import Act
from regista.chakra.node import ChakraTrace, Node, NodeKind, Value
from simulator import simulate
from simulator.network.link_shares import point_to_point

__all__ = ["COLLECTIVES", "MOST_ACTS", "chakra_trace"]

COLLECTIVES: Mapping[Collective, int] = {
    Collective.ALL_REDUCE: 0,
    Collective.ALL_GATHER: 2,
    Collective.ALL_TO_ALL: 6,
    Collective.REDUCE_SCATTER: 7,
}
"""CollectiveCommType of the schema; a shift is a send and a receive."""

MOST_ACTS = 1_000_000
"""Of all ranks: half a gigabyte of files, half a minute of SimPy."""

_Key = tuple[str, int, int]
"""(task, rank, number of the act)"""


def chakra_trace(plan: Plan, cost: CostModel) -> ChakraTrace:
    """One step of the Plan on the clock of a cost model.

    Raises:
        Unsupported: more than MOST_ACTS acts.   Others: as simulate.
    """
    total = sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    if total > MOST_ACTS:
        raise Unsupported(
            f"a step of this plan is {total} acts on {plan.num_ranks} ranks, and each is a node; at most {MOST_ACTS} are written: "
            "plan with fewer micro-batches or fewer devices"
        )
    ended: list[Act] = []
    simulate(plan, cost, steps=1, on_act=ended.append)
    nodes = _Nodes(plan, cost)
    for act in ended:
        nodes.add(act)
    about: dict[str, Value] = {"plan_id": plan.plan_id, "model": plan.model, "cost_model": cost.id, "world_size": plan.num_ranks}
    groups = {name: ranks for ranks, name in nodes.groups.items()}
    return ChakraTrace(about=about, nodes={rank: tuple(nodes.of_rank[rank]) for rank in range(plan.num_ranks)}, groups=groups)


class _Nodes:
    """Nodes while they are made, from acts in the order in which they end: what an act waits for is there before it.  Mutable, used once."""

    def __init__(self, plan: Plan, cost: CostModel) -> None:
        self.plan, self.cost = plan, cost
        self.of_rank: dict[int, list[Node]] = defaultdict(list)
        self.groups: dict[tuple[int, ...], str] = {}
        self._actors: Mapping[ActorId, Actor] = build_actors(plan, 1)[0]
        self._filled: dict[tuple[_Key, int], tuple[int, ...]] = {}
        """(act, rank that reads) -> the nodes there whose results it reads."""
        self._ended: dict[_Key, tuple[int, ...]] = {}
        """An act -> the nodes of its own rank that have ended when it has."""
        self._before: dict[tuple[str, int], tuple[int, ...]] = {}
        """(stream, rank) -> the nodes of the last act on it."""
        self._tags: dict[str, int] = {}
        tag = 0
        for task in plan.tasks:
            self._tags[task.id] = tag
            tag += task.acts

    def add(self, act: Act) -> None:
        plan, task = self.plan, self.plan.task[act.task]
        waited = tuple(waits(plan, self._actors[task.id, act.rank], act.number))
        stream = task.stream, act.rank
        control = (*self._before.get(stream, ()), *self._freed(waited, act.rank))
        data = _once(node for w in waited if w.kind is MessageKind.READY for node in self._filled[(*w.sender, w.number), act.rank])
        key = task.id, act.rank, act.number
        made = (
            self._transfer(act, task, data, control, waited)
            if task.kind is TaskKind.TRANSFER
            else self._shift(act, task, task.body, data, control)
            if isinstance(task.body, Boxing) and self._shifts(task, act.rank)
            else self._alone(act, task, data, control)
        )
        self._ended[key] = self._before[stream] = made

    def _freed(self, waited: Sequence[Wait], rank: int) -> Iterator[int]:
        """Nodes of this rank that have given a block back."""
        for wait in waited:
            if wait.kind is MessageKind.ACK and wait.sender[1] == rank:
                yield from self._ended[(*wait.sender, wait.number)]

    def _alone(self, act: Act, task: Task, data: tuple[int, ...], control: Iterable[int]) -> tuple[int, ...]:
        """A node of compute, or this rank's part of a collective."""
        group = self.plan.peers(task, act.rank)
        kind, about = NodeKind.COMPUTE, self._work(task)
        if isinstance(task.body, Boxing) and len(group) > 1:
            name = self.groups.setdefault(group, str(len(self.groups) + 1))
            kind = NodeKind.COLLECTIVE
            about = {
                "is_cpu_op": False,
                "comm_type": COLLECTIVES[task.body.collective],
                "comm_size": _bytes(self._types(task.reads, act.rank)),
                "pg_name": name,
            }
        node = self._node(act, task, kind, about, data, control)
        self._filled[(task.id, act.rank, act.number), act.rank] = (node,)
        return (node,)

    def _work(self, task: Task) -> dict[str, Value]:
        about: dict[str, Value] = {"is_cpu_op": self.plan.stream[task.stream].kind.is_host}
        if isinstance(task.body, Fragment) and task.body.flop and task.body.traffic_bytes:
            about |= {"num_ops": task.body.flop, "tensor_size": task.body.traffic_bytes}
        return about

    def _shifts(self, task: Task, rank: int) -> bool:
        return isinstance(task.body, Boxing) and task.body.collective is Collective.SHIFT and len(self.plan.peers(task, rank)) > 1

    def _shift(self, act: Act, task: Task, body: Boxing, data: tuple[int, ...], control: Iterable[int]) -> tuple[int, ...]:
        """All that this rank holds goes as many places further as the parts turn."""
        src, dst = body.src[body.axis], body.dst[body.axis]
        assert isinstance(src, Split) and isinstance(dst, Split)
        group = self.plan.peers(task, act.rank)
        place, by, control = group.index(act.rank), dst.turn - src.turn, tuple(control)
        to, source = group[(place + by) % len(group)], group[(place - by) % len(group)]
        sent = self._message(task, act.number, act.rank, to, _bytes(self._types(task.reads, act.rank)))
        coming = self._message(task, act.number, source, act.rank, _bytes(self._types(task.writes, act.rank)))
        made = (
            self._node(act, task, NodeKind.SEND, sent, data, control),
            self._node(act, task, NodeKind.RECEIVE, coming, (), control),
        )
        self._filled[(task.id, act.rank, act.number), act.rank] = made[1:]
        return made

    def _transfer(self, act: Act, task: Task, data: tuple[int, ...], control: Iterable[int], waited: Sequence[Wait]) -> tuple[int, ...]:
        sizes: dict[int, int] = defaultdict(int)
        for _, to, size_bytes in point_to_point(self.plan, task, (act.rank,)):
            sizes[to] += round(size_bytes)
        made, control, key = [], tuple(control), (task.id, act.rank, act.number)
        for to, size_bytes in sorted(sizes.items()):
            if to == act.rank:
                continue
            message = self._message(task, act.number, act.rank, to, size_bytes)
            made.append(self._node(act, task, NodeKind.SEND, message, data, control))
            arrives = Act(task.id, to, act.number, act.ready_s, act.end_s, act.end_s + self.cost.message_s(act.rank, to))
            self._filled[key, to] = (self._node(arrives, task, NodeKind.RECEIVE, message, (), self._freed(waited, to)),)
        if act.rank in sizes or not made:
            made.append(self._node(act, task, NodeKind.COMPUTE, {"is_cpu_op": False}, data, control))
            self._filled[key, act.rank] = (made[-1],)
        return tuple(made)

    def _message(self, task: Task, number: int, src: int, dst: int, size_bytes: int) -> dict[str, Value]:
        tag = self._tags[task.id] + number
        return {"is_cpu_op": False, "comm_src": src, "comm_dst": dst, "comm_tag": tag, "comm_size": size_bytes}

    def _node(self, act: Act, task: Task, kind: NodeKind, about: Mapping[str, Value], data: tuple[int, ...], control: Iterable[int]) -> int:
        here = self.of_rank[act.rank]
        node = Node(
            id=len(here),
            name=f"{task.id}.{act.number}",
            kind=kind,
            start_s=act.start_s,
            duration_s=act.duration_s,
            data_deps=data,
            ctrl_deps=tuple(number for number in _once(control) if number not in data),
            reads=() if kind is NodeKind.RECEIVE else self._types(task.reads, act.rank),
            writes=() if kind is NodeKind.SEND else self._types(task.writes, act.rank),
            attributes={**about, "task": task.id, "task_kind": task.kind.value, "act": act.number},
        )
        here.append(node)
        return node.id

    def _types(self, accesses: Sequence[Access], rank: int) -> tuple[TensorType, ...]:
        """Local types of the tensors that lie on this rank."""
        regst, placement = self.plan.regst, self.plan.placement
        placed = [(regst[a.regst].tensors[a.index], placement[regst[a.regst].placement]) for a in accesses]
        return tuple(tensor.local_type(where, rank) for tensor, where in placed if rank in where.ranks)


def _bytes(types: Sequence[TensorType]) -> int:
    return sum(kind.size_bytes for kind in types)


def _once(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
