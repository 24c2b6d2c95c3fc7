"""One training iteration of Megatron's largest model as a Plan of abstract tasks, to measure simulators with.

1T parameters: 128 layers, hidden 25,600, 160 heads, sequence 2,048; tensor parallel 8, 64 pipeline stages of 2 layers, 512 micro-batches of
one sequence per pipeline, full activation recomputation, 1F1B; with 6 data-parallel copies it runs on 3,072 GPUs.
Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", table 1, last row.

    per layer and micro-batch   F: 12 tasks   ...   R: the same 12 again, then B: 12 tasks in reverse     2 of each 12 are all-reduces
    per stage and step          all-reduce of the gradients over the data-parallel axis, update of the weights

The tasks have prices but no ops: this is a graph to simulate, not one to perform.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.common.table_prices import TablePrices
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective
from planner.ir.collector import collector_paused
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

__all__ = ["Megatron", "megatron_1t"]

OPS = ("ln1", "qkv", "scores", "softmax", "context", "proj", "reduce1", "ln2", "fc1", "gelu", "fc2", "reduce2")
WEIGHTS = ("qkv", "proj", "fc1", "fc2")
COPIES = "dp"

FLOP_PER_S = 312e12 * 0.6
"""A100 peak in bfloat16 (data sheet, 2020) times an assumed efficiency [assumed]."""
MEMORY_BYTES_PER_S = 2.0e12
"""A100-80GB, rounded data sheet figure."""
NVLINK_BYTES_PER_S, NETWORK_BYTES_PER_S = 300e9, 25e9
"""Per direction: NVLink 3 in a DGX A100; one 200 Gbit/s HDR card per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron:
    """The configuration; the default is the 1T row with one copy (512 GPUs)."""

    layers: int = 128
    hidden: int = 25_600
    sequence: int = 2_048
    tensor_parallel: int = 8
    stages: int = 64
    micro_batches: int = 512
    copies: int = 1

    @property
    def ranks_per_stage(self) -> int:
        return self.copies * self.tensor_parallel


class _Builder:
    def __init__(self, size: Megatron) -> None:
        self.size = size
        self.tasks: list[Task] = []
        self.regsts: list[Regst] = []
        self.streams: list[Stream] = []
        self.times_s: dict[str, float] = {}
        self.op_s = _op_times_s(size)

    def regst(self, name: str, stage: int, producer: str, quota: int = 1, kind: RegstKind = RegstKind.DATA) -> str:
        tensor = PlacedTensor(
            name=name,
            shape=(self.size.sequence, self.size.hidden),
            dtype=DType.BFLOAT16,
            sbp=NdSbp((B, B) if self.size.copies > 1 else (B,)),
        )
        self.regsts.append(Regst(id=name, kind=kind, placement=f"stage{stage}", producer=producer, quota=quota, tensors=(tensor,)))
        return name

    def task(
        self,
        name: str,
        stage: int,
        kind: TaskKind,
        stream: str,
        price_s: float,
        consumes: Mapping[str, int],
        produces: Mapping[str, int],
        *,
        acts: int | None = None,
        axis: int = -1,
    ) -> None:
        body: Fragment | Boxing | None = None
        reads: tuple[Access, ...] = ()
        writes: tuple[Access, ...] = ()
        if kind.is_communication:
            reads, writes = (tuple(Access(name=r, regst=r, index=0) for r in list(regsts)[:1]) for regsts in (consumes, produces))
        if kind is TaskKind.BOXING:
            sbp = [NdSbp((B,) * axis + (part,) + (B,) * (len(self.mesh) - axis - 1)) for part in (P, B)]
            body = Boxing(src=sbp[0], dst=sbp[1], axis=axis, collective=Collective.ALL_REDUCE)
        elif kind.is_compute:
            body = Fragment(ops=(), flop=0, traffic_bytes=0, workspace_bytes=0)
        self.times_s[name] = price_s
        self.tasks.append(
            Task(
                id=name,
                kind=kind,
                placement=f"stage{stage}",
                stream=f"{stream}{stage}",
                acts=self.size.micro_batches if acts is None else acts,
                priority=0 if kind is TaskKind.BACKWARD else 1,
                consumes=tuple(Port(regst=r, acts_per_block=n) for r, n in consumes.items()),
                produces=tuple(Port(regst=r, acts_per_block=n) for r, n in produces.items()),
                reads=reads,
                writes=writes,
                body=body,
            )
        )

    @property
    def mesh(self) -> tuple[int, ...]:
        size = self.size
        return (size.copies, size.tensor_parallel) if size.copies > 1 else (size.tensor_parallel,)

    def pass_of(
        self, what: str, layer: int, stage: int, source: str, target: str, quota: int, extra: Mapping[str, Mapping[str, int]]
    ) -> None:
        """The 12 tasks of one pass through a layer, from regst ``source`` to regst ``target``.  B goes in reverse and reads what R kept."""
        size, back = self.size, what == "B"
        ops = OPS[::-1] if back else OPS
        flowing = source
        for number, op in enumerate(ops):
            name = f"{what}{layer}.{op}"
            made = target if number == len(ops) - 1 else f"{name}.out"
            consumes = {flowing: 1}
            if back:
                consumes[f"R{layer}.{op}.out"] = 1
            if op in WEIGHTS:
                consumes[f"w{layer}.{op}"] = size.micro_batches
            produces = {made: 1}
            if back and op in WEIGHTS:
                produces[self.regst(f"grad{layer}.{op}", stage, name)] = size.micro_batches
            produces |= extra.get(op, {})
            if made:
                self.regst(made, stage, name, quota if number == len(ops) - 1 else 1)
            else:
                del produces[made]
            kind = TaskKind.BOXING if op.startswith("reduce") else TaskKind.BACKWARD if back else TaskKind.FORWARD
            price_s = self.op_s[op] * (2 if back and kind is TaskKind.BACKWARD else 1)
            stream = "tp" if kind is TaskKind.BOXING else "compute"
            self.task(name, stage, kind, stream, price_s, consumes, produces, axis=len(self.mesh) - 1)
            flowing = made


def _op_times_s(size: Megatron) -> dict[str, float]:
    """Seconds per act and GPU of one micro-batch: flop or bytes over the rates above, bytes of a ring for the all-reduces."""
    s, h, t = size.sequence, size.hidden, size.tensor_parallel
    activation_bytes = 2 * s * h
    flop = {
        "qkv": 6 * s * h * h,
        "scores": 2 * s * s * h,
        "context": 2 * s * s * h,
        "proj": 2 * s * h * h,
        "fc1": 8 * s * h * h,
        "fc2": 8 * s * h * h,
    }
    moved = {"ln1": 2 * activation_bytes, "ln2": 2 * activation_bytes, "gelu": 8 * activation_bytes / t, "softmax": 4 * s * s * 160 / t}
    times_s = {op: work / t / FLOP_PER_S for op, work in flop.items()} | {
        op: size_bytes / MEMORY_BYTES_PER_S for op, size_bytes in moved.items()
    }
    ring_s = 2 * (t - 1) / t * activation_bytes / NVLINK_BYTES_PER_S
    return times_s | {"reduce1": ring_s, "reduce2": ring_s}


def _one_f_one_b(stages: int, stage: int, micro_batches: int) -> str:
    """The forwards and backwards of a stage: as many forwards ahead as there are stages to come."""
    ahead = min(stages - stage, micro_batches)
    return "F" * ahead + "BF" * (micro_batches - ahead) + "B" * ahead


@collector_paused()
def megatron_1t(size: Megatron | None = None, *, ordered: bool = True) -> tuple[Plan, TablePrices]:
    """The Plan of one iteration and its prices.

    Args:
        ordered: every stream has the order of 1F1B; False: the quotas alone make 1F1B, and streams choose by priority.
    """
    size = size or Megatron()
    b, m, p = _Builder(size), size.micro_batches, size.stages
    per_stage = size.layers // p
    b.regst("in0", 0, "load", p + 1)
    b.task("load", 0, TaskKind.SOURCE, "host", 0.0, {}, {"in0": 1})
    hop_s = 2 * size.sequence * size.hidden / size.tensor_parallel / NETWORK_BYTES_PER_S
    for stage in range(p):
        layers = range(stage * per_stage, (stage + 1) * per_stage)
        micro_batches_held = p - stage + 1
        if stage:
            b.task(
                f"send{stage}",
                stage - 1,
                TaskKind.TRANSFER,
                "link",
                hop_s,
                {f"out{stage - 1}": 1},
                {b.regst(f"in{layers[0]}", stage, f"send{stage}", micro_batches_held): 1},
            )
        for layer in layers:
            last = layer == layers[-1]
            target = (f"out{stage}" if stage < p - 1 else "loss") if last else f"in{layer + 1}"
            b.pass_of("F", layer, stage, f"in{layer}", target, micro_batches_held if not last else 2, {})
        if stage < p - 1:
            b.regst(f"dout{layers[-1]}", stage, f"back{stage}", 2)
            b.task(f"back{stage}", stage + 1, TaskKind.TRANSFER, "back", hop_s, {f"din{stage + 1}": 1}, {f"dout{layers[-1]}": 1})
        for layer in reversed(layers):
            b.pass_of("R", layer, stage, f"in{layer}", f"R{layer}.reduce2.out", 1, {})
            source = f"dout{layer}" if stage < p - 1 or layer != layers[-1] else "loss"
            target = f"dout{layer - 1}" if layer != layers[0] else f"din{stage}" if stage else ""
            b.pass_of("B", layer, stage, source, target, 2, {})
        grads = {f"grad{layer}.{op}": 1 for layer in layers for op in WEIGHTS}
        weights = [f"w{layer}.{op}" for layer in layers for op in WEIGHTS]
        if size.copies > 1:
            b.regst(f"sum{stage}", stage, f"reduce{stage}")
            price_s = 2 * (size.copies - 1) / size.copies * 24 * size.hidden**2 * per_stage / size.tensor_parallel / NETWORK_BYTES_PER_S
            b.task(f"reduce{stage}", stage, TaskKind.BOXING, COPIES, price_s, grads, {f"sum{stage}": 1}, acts=1, axis=0)
            grads = {f"sum{stage}": 1}
        for name in weights:
            b.regst(name, stage, f"update{stage}", kind=RegstKind.STATE)
        b.task(f"update{stage}", stage, TaskKind.UPDATE, "compute", 0.01, grads, dict.fromkeys(weights, 1), acts=1)
        turns = _one_f_one_b(p, stage, m)
        for stream, inside in (("compute", False), ("tp", True)):
            b.streams.append(
                Stream(
                    id=f"{stream}{stage}",
                    kind=StreamKind.COLLECTIVE if inside else StreamKind.COMPUTE,
                    placement=f"stage{stage}",
                    order=_order(turns, layers, inside) + (() if inside else (f"update{stage}",)) if ordered or inside else (),
                )
            )
    return _frozen(b), TablePrices(b.times_s, "megatron-1t-abstract")


def _order(turns: str, layers: Iterable[int], collectives: bool) -> tuple[str, ...]:
    ops = [op for op in OPS if op.startswith("reduce") == collectives]
    layers = list(layers)
    unit = {
        "F": [f"F{layer}.{op}" for layer in layers for op in ops],
        "B": [
            name for layer in reversed(layers) for name in (*(f"R{layer}.{op}" for op in ops), *(f"B{layer}.{op}" for op in reversed(ops)))
        ],
    }
    return tuple(name for turn in turns for name in unit[turn])


def _frozen(b: _Builder) -> Plan:
    size = b.size
    width = size.ranks_per_stage
    named = {stream.id for stream in b.streams}
    for task in b.tasks:
        if task.stream not in named:
            named.add(task.stream)
            kind = (
                StreamKind.COLLECTIVE
                if task.kind is TaskKind.BOXING
                else StreamKind.HOST
                if task.kind is TaskKind.SOURCE
                else StreamKind.LINK
            )
            order = (task.id,) if task.kind is TaskKind.BOXING else ()
            b.streams.append(Stream(id=task.stream, kind=kind, placement=task.placement, order=order))
    device = DeviceSpec(kind="A100-80GB", memory_bytes=10**15, rate_flop_per_s=FLOP_PER_S, memory_bandwidth_bytes_per_s=MEMORY_BYTES_PER_S)
    cluster = Cluster(
        name="selene",
        source="Narayanan et al. 2021; memory without limit, as the tasks are abstract",
        num_nodes=max(1, size.stages * width // 8),
        devices_per_node=8,
        device=device,
        node=LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=NVLINK_BYTES_PER_S),
        nic=LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=NETWORK_BYTES_PER_S),
    )
    return Plan(
        model="megatron-1t",
        options={},
        micro_batches=size.micro_batches,
        batch_size=size.micro_batches * size.copies,
        cluster=cluster,
        placements=tuple(
            Placement(id=f"stage{i}", ranks=tuple(range(i * width, (i + 1) * width)), mesh=b.mesh) for i in range(size.stages)
        ),
        streams=tuple(b.streams),
        regsts=tuple(b.regsts),
        tasks=tuple(b.tasks),
        states=(),
        batch_inputs=(),
        loss=Access(name="loss", regst="loss", index=0),
        gradients={},
        search=Search(method="hand", cost_model="megatron-1t-abstract", objective_s=1.0, lower_bound_s=1.0),
    )
