"""Decisions -> Plan: fragments, boxing and transfer tasks, sources, fetch, Regsts with quotas, and the order of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from planner.cost.analytic import AnalyticCost
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from planner.ir.graph import GraphInput, InputKind, Op, Ref, Role
from planner.ir.liveness import play
from planner.ir.plan import (
    Access,
    BatchInput,
    Boxing,
    Fragment,
    PlacedTensor,
    Placement,
    Plan,
    Port,
    Regst,
    RegstKind,
    Search,
    State,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.sbp import B, NdSbp
from planner.ir.tensor import TensorType
from planner.lower.instances import Hop, Instance, Move, Mover, Route
from planner.lower.levels import FragmentKey, fragment_keys
from planner.lower.quotas import Schedule, quota
from planner.lower.work import BOXING_OP, fragment_work
from planner.search import Assignment
from planner.stages import Staged

__all__ = ["lower"]

_SHORT = {Role.FORWARD: "fwd", Role.BACKWARD: "bwd", Role.UPDATE: "upd"}
_KIND = {Role.FORWARD: TaskKind.FORWARD, Role.BACKWARD: TaskKind.BACKWARD, Role.UPDATE: TaskKind.UPDATE}
_PRIORITY = {TaskKind.BACKWARD: 0, TaskKind.FORWARD: 1, TaskKind.UPDATE: 2}

Owner = tuple[str, ...]
"""Who makes a native instance: ("fragment", id), ("source", stage), ("constant", stage)."""


@dataclass(slots=True)
class _Draft:
    """A task under construction: what it reads (instance -> name inside) and what it makes."""

    id: str
    kind: TaskKind
    stage: int
    stream: str
    acts: int
    reads: dict[Instance, str]
    makes: dict[Instance, str]
    body: Fragment | Boxing | None = None


def lower(
    *,
    model: str,
    staged: Staged,
    assignment: Assignment,
    cluster: Cluster,
    mesh: tuple[int, ...],
    micro_batches: int,
    batch_size: int,
    bucket_bytes: int,
    schedule: Schedule,
    quotas: Mapping[str, int],
    options: Mapping[str, str],
) -> Plan:
    """Build the Plan.  ``quotas``: Regst id pattern -> quota, over the rule of planner.lower.quotas.

    Raises:
        Unsupported: a quota pattern that names no Regst.
        DeadLock: the quotas asked for leave the Plan without liveness.
    """
    return _Lowering(model, staged, assignment, cluster, mesh, micro_batches, batch_size, bucket_bytes, schedule, quotas, options).plan()


class _Lowering:
    def __init__(
        self,
        model: str,
        staged: Staged,
        assignment: Assignment,
        cluster: Cluster,
        mesh: tuple[int, ...],
        micro_batches: int,
        batch_size: int,
        bucket_bytes: int,
        schedule: Schedule,
        quotas: Mapping[str, int],
        options: Mapping[str, str],
    ) -> None:
        self.model, self.staged, self.assignment, self.cluster, self.mesh = model, staged, assignment, cluster, mesh
        self.m, self.batch_size, self.bucket_bytes, self.schedule = micro_batches, batch_size, bucket_bytes, schedule
        self.wished_quotas, self.options = quotas, options
        self.graph = staged.graph
        self.producers = self.graph.producers()
        self.inputs: Mapping[str, GraphInput] = {i.value: i for i in self.graph.inputs}
        self.mover = Mover(cluster, mesh)
        self.instances: dict[tuple[str, int, NdSbp], Instance] = {}
        self.drafts: dict[str, _Draft] = {}
        self.owner: dict[Instance, str | None] = {}  # instance -> task that makes it (None: constant)
        self.stored: dict[Instance, str] = {}  # instance that replaces a state -> the state's value

    # -- instances -----------------------------------------------------------------------------------------------------------------

    def _native(self, value: str, stage: int, wanted: NdSbp) -> tuple[int, NdSbp]:
        """Where the value is made and how it lies there; what may be delivered freely is made where it is wanted."""
        op = self.producers.get(value)
        if op is not None:
            sbp = self.assignment.ops[op.id].outputs[op.outputs.index(value)]
            return self.staged.stage[op.id], sbp if sbp is not None else NdSbp.broadcast(len(self.mesh))
        if value in self.assignment.states:
            return self.staged.home(value), self.assignment.states[value]
        return stage, self.assignment.pinned.get(value, wanted)

    def _route(self, value: str, stage: int, wanted: NdSbp) -> tuple[Instance, Route]:
        src_stage, src = self._native(value, stage, wanted)
        native = self.instances.setdefault((value, src_stage, src), Instance(value, src_stage, src))
        return native, self.mover.route(self.graph.values[value], src_stage, src, stage, wanted)

    def _num_moves(self, op: Op, value: str) -> int:
        if value not in self.producers:
            return 0  # state, batch and constants are there before the step begins
        wanted = self._wanted(op, value)
        return len(self._route(value, self.staged.stage[op.id], wanted)[1].moves)

    def _wanted(self, op: Op, value: str) -> NdSbp:
        return self.assignment.ops[op.id].inputs[op.inputs.index(value)]

    def _follow(self, native: Instance, route: Route) -> Instance:
        """The last instance of a route, making the ones between."""
        here = native
        for move in route.moves:
            stage, sbp = (move.dst_stage, move.dst) if isinstance(move, Hop) else (here.stage, move.dst)
            here = self.instances.setdefault((native.value, stage, sbp), Instance(native.value, stage, sbp, here, move))
        return here

    def _per_step(self, value: str) -> bool:
        """Made once per step (parameters, accumulated values, updates) rather than once per micro-batch."""
        op = self.producers.get(value)
        if op is not None:
            return op.role in (Role.ACCUMULATE, Role.UPDATE)
        new = self.graph.updates.get(value)
        return new is not None and self._per_step(new)

    # -- fragments -----------------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        self._draft_fragments()
        self._draft_state_writers()
        self._draft_fetch()
        self._draft_moves()
        self._draft_sources()
        return self._assemble()

    def _gradient_bytes(self, op: Op) -> int:
        """Bytes that an accumulate op hands to a reduction."""
        if op.role is not Role.ACCUMULATE or op.outputs[0] not in self._communicated:
            return 0
        return self.assignment.ops[op.id].types[op.outputs[0]].size_bytes

    def _draft_fragments(self) -> None:
        consumers = self.graph.consumers()
        self._communicated = {
            op.outputs[0]
            for op in self.graph.ops
            if op.role is Role.ACCUMULATE and op.outputs[0] and any(self._num_moves(r, op.outputs[0]) for r in consumers[op.outputs[0]])
        }
        keys = fragment_keys(self.graph, self.staged.stage, self._num_moves, self._gradient_bytes, self.bucket_bytes)
        groups: dict[FragmentKey, list[Op]] = defaultdict(list)
        for op in self.graph.ops:
            groups[keys[op.id]].append(op)
        self.fragment_of: dict[str, str] = {}
        counts: dict[tuple[int, Role], int] = defaultdict(int)
        ordered = sorted(groups, key=lambda key: key.order)
        for key in ordered:
            number = counts[key.stage, key.role]
            counts[key.stage, key.role] += 1
            task_id = f"s{key.stage}.{_SHORT[key.role]}.{number}"
            self.drafts[task_id] = _Draft(
                task_id, _KIND[key.role], key.stage, f"s{key.stage}.compute", 1 if key.role is Role.UPDATE else self.m, {}, {}
            )
            for op in groups[key]:
                self.fragment_of[op.id] = task_id
        self.fragment_ops: dict[str, list[Op]] = {}
        for key in ordered:
            self._fill_fragment(self.fragment_of[groups[key][0].id], groups[key])

    def _fill_fragment(self, task_id: str, members: list[Op]) -> None:
        draft = self.drafts[task_id]
        inside = {value for op in members for value in op.outputs if value}
        ops: list[Op] = []
        known: dict[tuple[str, NdSbp], str] = {}
        for op in members:
            names: dict[str, str] = {}
            for value in dict.fromkeys(op.inputs):
                wanted = self._wanted(op, value)
                if (value, wanted) not in known:
                    known[value, wanted] = self._bring(draft, value, wanted, value in inside, ops, known)
                names[value] = known[value, wanted]
            ops.append(self.assignment.ops[op.id].op.renamed(names))
            for made in filter(None, op.outputs):
                stage, sbp = self._native(made, draft.stage, NdSbp(()))
                native = self.instances.setdefault((made, stage, sbp), Instance(made, stage, sbp))
                self.owner[native] = task_id
                known[made, sbp] = made
        self.fragment_ops[task_id] = ops

    def _bring(self, draft: _Draft, value: str, wanted: NdSbp, inside: bool, ops: list[Op], known: dict[tuple[str, NdSbp], str]) -> str:
        """The name under which ``value`` stands in the fragment in the layout wanted; adds reads and local boxing steps."""
        native, route = self._route(value, draft.stage, wanted)
        last = self._follow(native, route)
        # A batch input or constant may be delivered in several layouts at once, so its layout is part of its name.
        delivered = value not in self.producers and value not in self.assignment.states
        name = f"{value}@{last.sbp}" if delivered else last.name
        if not (inside and last is native):
            draft.reads[last] = name
        for step in route.local:
            if (value, step.dst) not in known:
                known[value, step.dst] = f"{value}@{step.dst}"
                ops.append(self._local_step(name, known[value, step.dst], step, self.graph.values[value], draft.kind))
            name = known[value, step.dst]
        return name

    def _local_step(self, source: str, target: str, step: Boxing, logical: TensorType, kind: TaskKind) -> Op:
        src, dst = step.src[step.axis], step.dst[step.axis]
        args: tuple[object, ...] = (Ref(source), str(src), str(dst), step.axis)
        if src != B:  # S(d) -> P pads to the extent that the axis' parts have together
            whole = step.src.replace(step.axis, B).local_shape(logical.shape, self.mesh)
            args = (*args, whole[getattr(src, "dim")])
        role = {v: k for k, v in _KIND.items()}[kind]
        return Op(id=f"box.{target}", target=BOXING_OP, args=args, outputs=(target,), role=role)  # type: ignore[arg-type]

    # -- state, loss, moves --------------------------------------------------------------------------------------------------------

    def _draft_state_writers(self) -> None:
        """What replaces a state must reach the state's home in the state's layout."""
        for old, new in self.graph.updates.items():
            stage, sbp = self.staged.home(old), self.assignment.states[old]
            native, route = self._route(new, stage, sbp)
            last = self._follow(native, route)
            if route.local and route.moves:
                for step in route.local:  # a cut after a collective: a task of its own, since no fragment follows
                    last = self.instances.setdefault((new, stage, step.dst), Instance(new, stage, step.dst, last, step))
            elif route.local:
                task_id = self.owner[native]
                assert task_id is not None
                name = native.name
                for step in route.local:
                    cut = Instance(f"{new}@{step.dst}", stage, step.dst)
                    self.fragment_ops[task_id].append(
                        self._local_step(name, cut.value, step, self.graph.values[new], self.drafts[task_id].kind)
                    )
                    name, last = cut.value, cut
                self.owner[last] = task_id
            self.stored[last] = old

    def _draft_fetch(self) -> None:
        stage = self.staged.stage[self.producers[self.graph.mean_loss].id]
        native, route = self._route(self.graph.mean_loss, stage, NdSbp.broadcast(len(self.mesh)))
        last = self._follow(native, route)
        self.loss_instance = last
        self.drafts["fetch"] = _Draft("fetch", TaskKind.FETCH, stage, f"s{stage}.host", 1, {last: last.name}, {})

    def _draft_moves(self) -> None:
        """Moves with the same producer, the same steps and the same final readers become one task: a bucket."""
        moved = [i for i in self.instances.values() if i.parent is not None]
        readers: dict[Instance, set[str]] = defaultdict(set)
        for draft in self.drafts.values():
            for instance in draft.reads:
                node: Instance | None = instance
                while node is not None:
                    readers[node].add(draft.id)
                    node = node.parent
        for instance, state in self.stored.items():
            node = instance
            while node is not None:
                readers[node].add(f"state of {self._state_home_group(state)}")
                node = node.parent
        groups: dict[tuple[object, ...], list[Instance]] = defaultdict(list)
        for instance in moved:
            root = instance.root
            made_by = self.owner.get(root) or self._root_owner(root)
            key = (made_by, root.stage, instance.moves, self._per_step(root.value), tuple(sorted(readers[instance])), instance in self.stored)
            groups[key].append(instance)
        counts: dict[str, int] = defaultdict(int)
        for members in sorted(groups.values(), key=lambda group: len(group[0].moves)):
            move, parent = members[0].via, members[0].parent
            assert move is not None and parent is not None
            label = self._label(members[0], move)
            task_id = f"{label}.{counts[label]}"
            counts[label] += 1
            if isinstance(move, Hop):
                kind, stream, body = TaskKind.TRANSFER, f"s{move.src_stage}.link.s{move.dst_stage}", None
            elif move.collective is Collective.LOCAL:
                kind, stream, body = TaskKind.BOXING, f"s{parent.stage}.compute", move
            else:
                kind, stream, body = TaskKind.BOXING, f"s{parent.stage}.axis{move.axis}", move
            acts = 1 if self._per_step(members[0].value) else self.m
            reads = {i.parent: i.parent.name for i in members if i.parent is not None}
            self.drafts[task_id] = _Draft(task_id, kind, parent.stage, stream, acts, reads, {i: i.name for i in members}, body)
            for instance in members:
                self.owner[instance] = task_id

    def _state_home_group(self, state: str) -> str:
        return f"s{self.staged.home(state)}"

    def _root_owner(self, root: Instance) -> str:
        graph_input = self.inputs[root.value]
        return f"{graph_input.kind.value} on s{root.stage}"

    def _label(self, instance: Instance, move: Move) -> str:
        op = self.producers.get(instance.value)
        if op is None:
            what = "param" if self._per_step(instance.value) else "input"
        else:
            what = {Role.FORWARD: "fwd", Role.BACKWARD: "bwd", Role.ACCUMULATE: "grad", Role.UPDATE: "param"}[op.role]
            if instance.value == self.graph.mean_loss:
                what = "loss"
        if isinstance(move, Hop):
            return f"s{move.src_stage}-s{move.dst_stage}.{what}"
        suffix = f".axis{move.axis}" if len(self.mesh) > 1 else ""
        return f"s{instance.stage}.{move.collective.value}{suffix}.{what}"

    def _draft_sources(self) -> None:
        """One SOURCE per stage makes every batch instance that the stage reads."""
        wanted: dict[int, dict[Instance, str]] = defaultdict(dict)
        for draft in self.drafts.values():
            for instance in draft.reads:
                if instance.parent is None and instance.value in self.inputs and self.inputs[instance.value].kind is InputKind.BATCH:
                    # The same batch argument in two layouts is two tensors, so the layout is part of the name.
                    wanted[instance.stage][instance] = f"{instance.value}@{instance.sbp}"
        sources = {}
        for stage, makes in sorted(wanted.items()):
            task_id = f"s{stage}.source"
            sources[task_id] = _Draft(task_id, TaskKind.SOURCE, stage, f"s{stage}.host", self.m, {}, makes)
            for instance in makes:
                self.owner[instance] = task_id
        self.drafts = sources | self.drafts

    # -- assembly ------------------------------------------------------------------------------------------------------------------

    def _assemble(self) -> Plan:
        size = 1
        for extent in self.mesh:
            size *= extent
        placements = tuple(
            Placement(id=f"s{s}", ranks=tuple(range(s * size, (s + 1) * size)), mesh=self.mesh) for s in range(self.staged.num_stages)
        )
        self._order_drafts()
        readers: dict[Instance, list[str]] = defaultdict(list)
        for draft in self.drafts.values():
            for instance in draft.reads:
                readers[instance].append(draft.id)
        regsts, self.access = self._regsts(readers)
        tasks = tuple(self._task(draft, regsts) for draft in self.drafts.values())
        by_id = {task.id: task for task in tasks}
        regsts = {r: replace(regst, quota=self._quota(regst, by_id)) for r, regst in regsts.items()}
        self._apply_wishes(regsts)
        plan = Plan(
            model=self.model,
            options=dict(self.options),
            micro_batches=self.m,
            batch_size=self.batch_size,
            cluster=self.cluster,
            placements=placements,
            streams=self._streams(),
            regsts=tuple(regsts.values()),
            tasks=tasks,
            states=tuple(self._states()),
            batch_inputs=tuple(
                BatchInput(name=i.name, value=i.value, batch_dim=i.batch_dim) for i in self.graph.inputs if i.kind is InputKind.BATCH
            ),
            loss=self.access[self.loss_instance],
            gradients={name: self.access[self._gradient_instance(value)] for name, value in self.graph.gradients.items()},
            search=Search(
                method=self.assignment.method,
                cost_model=AnalyticCost(self.cluster).id,
                objective_s=self.assignment.objective_s,
                lower_bound_s=self.assignment.lower_bound_s,
            ),
        )
        return self._with_orders(plan)

    def _order_drafts(self) -> None:
        """Topological order: sources, then each task after the makers of what it reads (states aside)."""
        placed: dict[str, _Draft] = {}
        visiting: set[str] = set()

        def place(draft: _Draft) -> None:
            if draft.id in placed or draft.id in visiting:
                return
            visiting.add(draft.id)
            for instance in draft.reads:
                made_by = self.owner.get(instance)
                if made_by is not None and instance not in self.stored:
                    place(self.drafts[made_by])
            placed[draft.id] = draft

        for draft in self.drafts.values():
            place(draft)
        self.drafts = placed

    def _gradient_instance(self, value: str) -> Instance:
        stage, sbp = self._native(value, 0, NdSbp(()))
        return self.instances[value, stage, sbp]

    def _state_instance(self, value: str) -> Instance:
        key = (value, self.staged.home(value), self.assignment.states[value])
        return self.instances.setdefault(key, Instance(*key))

    def _placed(self, instance: Instance) -> PlacedTensor:
        logical = self.graph.values[instance.value.partition("@")[0]]
        name = instance.name if instance not in self.owner or not (self.owner[instance] or "").endswith(".source") else ""
        return PlacedTensor(name=name or f"{instance.value}@{instance.sbp}", shape=logical.shape, dtype=logical.dtype, sbp=instance.sbp)

    def _regsts(self, readers: Mapping[Instance, list[str]]) -> tuple[dict[str, Regst], dict[Instance, Access]]:
        """Tensors with one maker and the same readers share a Regst, so that one message speaks for all of them."""
        groups: dict[tuple[RegstKind, str | None, int, tuple[str, ...], bool], list[Instance]] = defaultdict(list)
        forced = {self._gradient_instance(value) for value in self.graph.gradients.values()}
        maker_of_state = {state: self.owner[instance] for instance, state in self.stored.items()}
        for value in self.assignment.states:
            instance = self._state_instance(value)
            groups[RegstKind.STATE, maker_of_state[value], instance.stage, tuple(readers.get(instance, ())), False].append(instance)
        for instance in dict.fromkeys([*self.instances.values(), *readers]):
            if instance.value in self.assignment.states and instance.parent is None:
                continue
            if instance.value in self.inputs and instance not in self.owner and instance.parent is None:
                if readers.get(instance):  # constants and frozen parameters
                    groups[RegstKind.STATE, None, instance.stage, (), False].append(instance)
                continue
            made_by = self.owner.get(instance)
            outside = [r for r in readers.get(instance, ()) if r != made_by]
            if made_by is None or not (outside or instance in forced) or instance in self.stored:
                continue
            accumulated = instance.parent is None and self._is_accumulated(instance.value)
            groups[RegstKind.DATA, made_by, instance.stage, tuple(outside), accumulated].append(instance)
        counts: dict[str, int] = defaultdict(int)
        regsts: dict[str, Regst] = {}
        access: dict[Instance, Access] = {}
        for (kind, made_by, stage, _, _), members in groups.items():
            base = f"{made_by}.out" if kind is RegstKind.DATA else f"s{stage}.{'state' if made_by else 'constant'}"
            regst_id = f"{base}.{counts[base]}"
            counts[base] += 1
            regsts[regst_id] = Regst(
                id=regst_id,
                kind=kind,
                placement=f"s{stage}",
                producer=made_by,
                quota=1,
                tensors=tuple(self._placed(i) for i in members),
            )
            for index, instance in enumerate(members):
                access[instance] = Access(name=self._placed(instance).name, regst=regst_id, index=index)
        for instance, state in self.stored.items():
            kept = access[self._state_instance(state)]
            access[instance] = Access(name=instance.name, regst=kept.regst, index=kept.index)
        return regsts, access

    def _is_accumulated(self, value: str) -> bool:
        op = self.producers.get(value)
        return op is not None and op.role is Role.ACCUMULATE and self.m > 1

    def _task(self, draft: _Draft, regsts: Mapping[str, Regst]) -> Task:
        reads = [replace(self.access[i], name=name) for i, name in draft.reads.items()]
        if draft.kind.is_communication:
            writes = [replace(self.access[i], name=name) for i, name in draft.makes.items()]
        else:
            writes = [
                replace(found, name=self._name_inside(draft, instance))
                for instance, found in self.access.items()
                if self.owner.get(instance) == draft.id
            ]
        produced = [r for r in regsts.values() if r.producer == draft.id]
        own = {r.id for r in produced}
        consumed = [r for r in dict.fromkeys(a.regst for a in reads) if r not in own]
        body = draft.body
        if draft.kind.is_compute:
            body = self._fragment(draft, frozenset(w.name for w in writes))
        return Task(
            id=draft.id,
            kind=draft.kind,
            placement=f"s{draft.stage}",
            stream=draft.stream,
            acts=draft.acts,
            priority=_PRIORITY.get(draft.kind, 0),
            consumes=tuple(Port(regst=r, acts_per_block=self._hold(draft, regsts[r])) for r in consumed),
            produces=tuple(Port(regst=r.id, acts_per_block=self._fill(draft, r)) for r in produced),
            reads=tuple(reads),
            writes=tuple(writes),
            body=body,
        )

    def _name_inside(self, draft: _Draft, instance: Instance) -> str:
        return draft.makes.get(instance, instance.value if instance.parent is None else instance.name)

    def _fragment(self, draft: _Draft, written: frozenset[str]) -> Fragment:
        ops = self.fragment_ops[draft.id]
        types = {op.id: self._named_types(op) for op in ops if op.target != BOXING_OP}
        flop, traffic_bytes, workspace_bytes = fragment_work(ops, types, written)
        return Fragment(ops=tuple(ops), flop=flop, traffic_bytes=traffic_bytes, workspace_bytes=workspace_bytes)

    def _named_types(self, op: Op) -> dict[str, TensorType]:
        """Local types under the names that the op uses inside its fragment."""
        local = self.assignment.ops[op.id]
        named = {name: local.types[value] for name, value in zip(op.inputs, local.op.inputs, strict=True)}
        return named | {value: local.types[value] for value in op.outputs if value}

    def _blocks_per_step(self, regst: Regst) -> int:
        if regst.producer is None:
            return self.m
        producer = self.drafts[regst.producer]
        return producer.acts // self._fill(producer, regst)

    def _fill(self, draft: _Draft, regst: Regst) -> int:
        """Acts that make one block: all of a step's for what is accumulated."""
        first = regst.tensors[0].name
        return self.m if regst.kind is RegstKind.DATA and draft.kind.is_compute and self._is_accumulated(first) else 1

    def _hold(self, draft: _Draft, regst: Regst) -> int:
        """Acts for which a consumer keeps one block."""
        return 1 if regst.producer is None else draft.acts // self._blocks_per_step(regst)

    def _quota(self, regst: Regst, tasks: Mapping[str, Task]) -> int:
        producer = tasks[regst.producer] if regst.producer is not None else None
        first = self.producers.get(regst.tensors[0].name.partition("@")[0])
        return quota(
            kind=regst.kind,
            producer=producer,
            consumers=[t for t in tasks.values() if any(p.regst == regst.id for p in t.consumes)],
            blocks_per_step=self._blocks_per_step(regst),
            stage=int(regst.placement[1:]),
            num_stages=self.staged.num_stages,
            micro_batches=self.m,
            backward_value=first is not None and first.role is Role.BACKWARD,
            schedule=self.schedule,
        )

    def _apply_wishes(self, regsts: dict[str, Regst]) -> None:
        for pattern, wished in self.wished_quotas.items():
            named = [r for r in regsts if fnmatchcase(r, pattern) and regsts[r].kind is RegstKind.DATA]
            if not named:
                known = ", ".join(sorted(r for r in regsts if regsts[r].kind is RegstKind.DATA)[:10])
                raise Unsupported(f"quota {pattern}={wished}: no regst has such an id; ids are {known} ...")
            for regst_id in named:
                regsts[regst_id] = replace(regsts[regst_id], quota=wished)

    def _streams(self) -> tuple[Stream, ...]:
        kinds = {"compute": StreamKind.COMPUTE, "host": StreamKind.HOST, "link": StreamKind.LINK}
        found: dict[str, Stream] = {}
        for draft in self.drafts.values():
            label = draft.stream.split(".")[1]
            kind = kinds.get(label, StreamKind.COLLECTIVE)
            found[draft.stream] = Stream(id=draft.stream, kind=kind, placement=f"s{draft.stage}")
        return tuple(found[s] for s in sorted(found))

    def _states(self) -> list[State]:
        states = []
        for graph_input in self.graph.inputs:
            if graph_input.kind is InputKind.BATCH:
                continue
            homes = [i for i in self.access if i.value == graph_input.value and i.parent is None]
            states += [
                State(name=graph_input.name, kind=graph_input.kind, regst=self.access[i].regst, index=self.access[i].index) for i in homes
            ]
        return states

    def _with_orders(self, plan: Plan) -> Plan:
        """Fix the order of each communicator's collectives: the one in which the token game, priced by the cluster, starts them."""
        cost = AnalyticCost(self.cluster)
        firings = play(plan, 1, lambda task: cost.act_s(plan, task, plan.ranks_of(task)[0]))
        streams = []
        for stream in plan.streams:
            members = {t.id for t in plan.tasks if t.stream == stream.id}
            order = tuple(f.task for f in firings if f.task in members) if stream.kind is StreamKind.COLLECTIVE else ()
            streams.append(replace(stream, order=order))
        return replace(plan, streams=tuple(streams))
