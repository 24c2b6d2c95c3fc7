"""Small hand-written Plans, without torch: chains, DAGs, pipelines, state, collectives; and a cost table for them.

Every actor of a story stands on a stream of its own unless the story says otherwise, so only messages and quotas order the acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective
from planner.ir.plan import (
    Access,
    Boxing,
    Fragment,
    PlacedTensor,
    Placement,
    Plan,
    Port,
    Regst,
    RegstKind,
    Search,
    Stream,
    StreamKind,
    Task,
    TaskKind,
)
from planner.ir.sbp import B, NdSbp, P
from planner.ir.tensor import DType
from planner.ir.traces.trace import Trace

BLOCK_BYTES = 1024


@dataclass(frozen=True)
class TableCost:
    """Seconds per act by task id (or (task id, rank)), one latency for all messages between ranks."""

    act_times_s: Mapping[str | tuple[str, int], float] = field(default_factory=dict)
    latency_s: float = 0.0
    default_s: float = 1.0

    @property
    def id(self) -> str:
        return "story"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return self.act_times_s.get((task.id, rank), self.act_times_s.get(task.id, self.default_s))

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return self.latency_s


def story_cluster(num_devices: int = 1, memory_bytes: int = 10**9) -> Cluster:
    """``num_devices`` devices of one node with round numbers."""
    device = DeviceSpec(kind="cpu", memory_bytes=memory_bytes, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    return Cluster(name="story", source="tests", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


def tensor(name: str, num_axes: int = 1, sbp: NdSbp | None = None) -> PlacedTensor:
    """A dummy tensor of BLOCK_BYTES."""
    return PlacedTensor(name=name, shape=(BLOCK_BYTES // 4,), dtype=DType.FLOAT32, sbp=sbp or NdSbp.broadcast(num_axes))


@dataclass
class Story:
    """A mutable builder; ``freeze`` ends it.  Ids of regsts are the caller's; regst ``r`` holds one tensor named ``r``."""

    placements: list[Placement] = field(default_factory=lambda: [Placement(id="dev", ranks=(0,), mesh=(1,))])
    streams: dict[str, Stream] = field(default_factory=dict)
    regsts: list[Regst] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def regst(self, name: str, producer: str | None, quota: int = 1, kind: RegstKind = RegstKind.DATA, placement: str = "dev") -> None:
        mesh = next(p.mesh for p in self.placements if p.id == placement)
        tensors = () if kind is RegstKind.CONTROL else (tensor(name, len(mesh)),)
        self.regsts.append(Regst(id=name, kind=kind, placement=placement, producer=producer, quota=quota, tensors=tensors))

    def task(
        self,
        name: str,
        consumes: Mapping[str, int] | Sequence[str] = (),
        produces: Mapping[str, int] | Sequence[str] = (),
        *,
        acts: int = 1,
        kind: TaskKind = TaskKind.FORWARD,
        stream: str = "",
        priority: int = 0,
        placement: str = "dev",
        collective: Collective | None = None,
        workspace_bytes: int = 0,
    ) -> None:
        """``consumes``/``produces``: regst names, or name -> acts per block."""
        ports = [ports if isinstance(ports, Mapping) else dict.fromkeys(ports, 1) for ports in (consumes, produces)]
        body: Fragment | Boxing | None = None
        if collective is not None:
            kind = TaskKind.BOXING
            body = Boxing(src=NdSbp((P,)), dst=NdSbp((B,)), axis=0, collective=collective)
        elif kind.is_compute:
            body = Fragment(ops=(), flop=0, traffic_bytes=0, workspace_bytes=workspace_bytes)
        reads, writes = (tuple(Access(name=r, regst=r, index=0) for r in names) for names in ports)
        self.streams.setdefault(stream or name, Stream(id=stream or name, kind=StreamKind.COMPUTE, placement=placement))
        self.tasks.append(
            Task(
                id=name,
                kind=kind,
                placement=placement,
                stream=stream or name,
                acts=acts,
                priority=priority,
                consumes=tuple(Port(regst=r, acts_per_block=n) for r, n in ports[0].items()),
                produces=tuple(Port(regst=r, acts_per_block=n) for r, n in ports[1].items()),
                reads=reads if kind in (TaskKind.TRANSFER, TaskKind.BOXING) else (),
                writes=writes if kind in (TaskKind.TRANSFER, TaskKind.BOXING) else (),
                body=body,
            )
        )

    def order(self, stream: str, *tasks: str) -> None:
        self.streams[stream] = Stream(id=stream, kind=StreamKind.COMPUTE, placement=self.streams[stream].placement, order=tasks)

    def freeze(self, *, micro_batches: int = 1, model: str = "story", memory_bytes: int = 10**9) -> Plan:
        some = next(r.id for r in self.regsts if r.tensors)
        ranks = {rank for placement in self.placements for rank in placement.ranks}
        return Plan(
            model=model,
            options={},
            micro_batches=micro_batches,
            batch_size=8 * micro_batches,
            cluster=story_cluster(len(ranks), memory_bytes),
            placements=tuple(self.placements),
            streams=tuple(self.streams.values()),
            regsts=tuple(self.regsts),
            tasks=tuple(self.tasks),
            states=(),
            batch_inputs=(),
            loss=Access(name="loss", regst=some, index=0),
            gradients={},
            search=Search(method="hand", cost_model="story", objective_s=0.0, lower_bound_s=0.0),
        )


def chain(names: Sequence[str], quotas: int | Sequence[int], acts: int) -> Plan:
    """names[0] -> names[1] -> ... on one rank, each on its own stream; each, the last too, writes the Regst ``Regst_<name>``.

    Args:
        quotas: blocks of every Regst, or one per actor.
        acts: acts per step of every actor.
    """
    story = Story()
    per_actor = [quotas] * len(names) if isinstance(quotas, int) else list(quotas)
    for number, name in enumerate(names):
        kind = TaskKind.SOURCE if number == 0 else TaskKind.FORWARD
        consumes = [f"Regst_{names[number - 1]}"] if number else []
        story.regst(f"Regst_{name}", name, per_actor[number])
        story.task(name, consumes, [f"Regst_{name}"], acts=acts, kind=kind)
    return story.freeze(micro_batches=acts)


def pipeline(num_stages: int, micro_batches: int, *, update: bool = True) -> Plan:
    """1F1B by quotas alone (SEMANTICS 3.8): stage i of p keeps p - i activations; each stage on its own rank, transfers between.

    Backward goes before forward by priority.  Gradients are accumulated over the micro-batches, the parameter is updated in place.
    """
    p, m = num_stages, micro_batches
    story = Story(placements=[Placement(id=f"stage{i}", ranks=(i,), mesh=(1,)) for i in range(p)])
    story.regst("batch", "load", 2, placement="stage0")
    story.task("load", produces=["batch"], acts=m, kind=TaskKind.SOURCE, placement="stage0")
    for i in range(p):
        at = f"stage{i}"
        story.regst(f"w{i}", f"upd{i}" if update else None, kind=RegstKind.STATE, placement=at)
        story.regst(f"keep{i}", f"F{i}", p - i, placement=at)
        story.regst(f"grad{i}", f"B{i}", 1, placement=at)
        inputs = {f"w{i}": m, ("batch" if i == 0 else f"act{i}"): 1}
        outputs = [f"keep{i}"]
        if i < p - 1:
            story.regst(f"out{i}", f"F{i}", 2, placement=at)
            story.regst(f"act{i + 1}", f"send{i}", 2, placement=f"stage{i + 1}")
            outputs.append(f"out{i}")
        story.task(f"F{i}", inputs, outputs, acts=m, stream=f"compute{i}", priority=1, placement=at)
        if i < p - 1:
            story.task(f"send{i}", [f"out{i}"], [f"act{i + 1}"], acts=m, kind=TaskKind.TRANSFER, placement=at)
        inputs = {f"w{i}": m, f"keep{i}": 1} | ({f"dact{i}": 1} if i < p - 1 else {})
        outputs_back = {f"grad{i}": m} | ({f"dout{i}": 1} if i else {})
        if i:
            story.regst(f"dout{i}", f"B{i}", 2, placement=at)
            story.regst(f"dact{i - 1}", f"back{i}", 2, placement=f"stage{i - 1}")
        story.task(f"B{i}", inputs, outputs_back, acts=m, kind=TaskKind.BACKWARD, stream=f"compute{i}", priority=0, placement=at)
        if i:
            story.task(f"back{i}", [f"dout{i}"], [f"dact{i - 1}"], acts=m, kind=TaskKind.TRANSFER, placement=at)
        produced = [f"w{i}"] if update else []
        story.task(f"upd{i}", [f"grad{i}"], produced, kind=TaskKind.UPDATE, stream=f"compute{i}", placement=at)
    return story.freeze(micro_batches=m, model=f"pipeline-{p}x{m}")


def data_parallel(num_ranks: int = 2) -> Plan:
    """One placement of ``num_ranks``: forward, backward, all-reduce of the gradient on a collective stream, update in place."""
    story = Story(placements=[Placement(id="dev", ranks=tuple(range(num_ranks)), mesh=(num_ranks,))])
    story.regst("batch", "load", 2)
    story.task("load", produces=["batch"], kind=TaskKind.SOURCE)
    story.regst("w", "update", kind=RegstKind.STATE)
    story.regst("kept", "forward")
    story.task("forward", ["batch", "w"], ["kept"], stream="compute")
    story.regst("grad", "backward")
    story.task("backward", ["kept", "w"], ["grad"], kind=TaskKind.BACKWARD, stream="compute")
    story.regst("sum", "all_reduce")
    story.task("all_reduce", ["grad"], ["sum"], collective=Collective.ALL_REDUCE, stream="collective")
    story.streams["collective"] = Stream(id="collective", kind=StreamKind.COLLECTIVE, placement="dev", order=("all_reduce",))
    story.task("update", ["sum"], ["w"], kind=TaskKind.UPDATE, stream="compute")
    return story.freeze(model=f"data-parallel-{num_ranks}")


def picture(plan: Plan, trace: Trace, until: int) -> str:
    """Rows = tasks, columns = unit times: the act's number while it runs, '.' while it does not.  Act numbers are shown mod 10."""
    rows = []
    width = max(len(task.id) for task in plan.tasks)
    for task in plan.tasks:
        cells = ["."] * until
        for act in trace.acts:
            if act.task == task.id:
                for column in range(round(act.start_s), min(round(act.end_s), until)):
                    cells[column] = str(act.number % 10)
        rows.append(f"{task.id:<{width}} {''.join(cells)}")
    return "\n".join(rows)
