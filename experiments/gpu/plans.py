"""Plans of the measurements that no planner makes: four actors in a row, and optimizer state kept on the host.

four_actors    rank 0 (host)  load --x[q]--> h2d              d2h --> fetch        q: RegstNum of every register
               rank 1                         x'[q]--> compute --y[q]--^

offloaded      rank 0         forward, backward --gradients--> send      parameters <-- send
               rank 1 (host)                                    update --state--^
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.ir.actors.verify import verify
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.errors import InvalidPlan
from planner.ir.graph import Fusion, InputKind, Op, Ref, Role
from planner.ir.plan import (
    Access,
    BatchInput,
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
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

__all__ = ["four_actors", "listing_cluster", "offloaded", "roomy_cluster"]

_ONE = NdSbp.parse("B")


def roomy_cluster(num_devices: int, memory_bytes: int = 64 * 10**9) -> Cluster:
    """Prices that make distributing pay; nothing that is measured here depends on them."""
    device = DeviceSpec(kind="cpu", memory_bytes=memory_bytes, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"gpu-{num_devices}", source="", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


def listing_cluster(num_devices: int) -> Cluster:
    """The same with fragments that list their kernels, op by op, as they are launched; a kernel table prices them."""
    cluster = roomy_cluster(num_devices)
    return replace(cluster, name=f"listing-{num_devices}", device=replace(cluster.device, kernels="h100-sxm", fusion=Fusion.EAGER))


def _access(name: str, regst: str, index: int = 0) -> Access:
    return Access(name=name, regst=regst, index=index)


def _task(
    id_: str,
    kind: TaskKind,
    placement: str,
    *,
    consumes: Sequence[str] = (),
    produces: Sequence[str] = (),
    reads: Sequence[Access] = (),
    writes: Sequence[Access] = (),
    body: Fragment | None = None,
    priority: int = 0,
) -> Task:
    return Task(
        id=id_,
        kind=kind,
        placement=placement,
        stream=f"{id_}.stream",
        acts=1,
        priority=priority,
        consumes=tuple(Port(regst=regst) for regst in consumes),
        produces=tuple(Port(regst=regst) for regst in produces),
        reads=tuple(reads),
        writes=tuple(writes),
        body=body,
    )


def four_actors(quota: int, width: int, products: int) -> Plan:
    """Load, copy to the device, ``products`` matrix products of (width, width), copy back; a step is one batch.

    Args:
        quota: blocks of each register (OneFlow's RegstNum).

    Source: Yuan et al. 2021, section 4.2 and figure 6 (the actors and their registers).
    """
    matrix = (width, width)

    def placed(name: str, shape: tuple[int, ...]) -> PlacedTensor:
        return PlacedTensor(name=name, shape=shape, dtype=DType.FLOAT32, sbp=_ONE)

    def regst(id_: str, placement: str, producer: str | None, *tensors: PlacedTensor, kind: RegstKind = RegstKind.DATA) -> Regst:
        blocks = 1 if kind is RegstKind.STATE else quota
        return Regst(id=id_, kind=kind, placement=placement, producer=producer, quota=blocks, tensors=tensors)

    ops = [
        Op(
            id=f"mm{n}",
            target="aten.mm.default",
            args=(Ref("x" if n == 0 else f"y{n - 1}"), Ref("w")),
            outputs=(f"y{n}" if n + 1 < products else "y",),
            role=Role.FORWARD,
        )
        for n in range(products)
    ]
    ops.append(Op(id="sum", target="aten.sum.default", args=(Ref("y"),), outputs=("loss",), role=Role.FORWARD))
    body = Fragment(ops=tuple(ops), flop=2 * width**3 * products, traffic_bytes=12 * width**2 * products, workspace_bytes=0)
    result = placed("y", matrix), placed("loss", ())
    tasks = (
        _task("load", TaskKind.SOURCE, "host", produces=["x"], writes=[_access("x", "x")]),
        _task(
            "h2d",
            TaskKind.TRANSFER,
            "host",
            consumes=["x"],
            produces=["x@device"],
            reads=[_access("x", "x")],
            writes=[_access("x", "x@device")],
        ),
        _task(
            "compute",
            TaskKind.FORWARD,
            "device",
            consumes=["x@device", "w"],
            produces=["y"],
            reads=[_access("x", "x@device"), _access("w", "w")],
            writes=[_access("y", "y"), _access("loss", "y", 1)],
            body=body,
        ),
        _task(
            "d2h",
            TaskKind.TRANSFER,
            "device",
            consumes=["y"],
            produces=["y@host"],
            reads=[_access("y", "y"), _access("loss", "y", 1)],
            writes=[_access("y", "y@host"), _access("loss", "y@host", 1)],
        ),
        _task("fetch", TaskKind.FETCH, "host", consumes=["y@host"], reads=[_access("loss", "y@host", 1)]),
    )
    kinds = {
        "load": StreamKind.DISK,
        "h2d": StreamKind.COPY,
        "compute": StreamKind.COMPUTE,
        "d2h": StreamKind.COPY,
        "fetch": StreamKind.HOST,
    }
    plan = Plan(
        model="four actors",
        options={"quota": str(quota), "width": str(width), "products": str(products)},
        micro_batches=1,
        batch_size=width,
        cluster=roomy_cluster(2),
        placements=(Placement(id="host", ranks=(0,), mesh=(1,)), Placement(id="device", ranks=(1,), mesh=(1,))),
        streams=tuple(Stream(id=f"{t.id}.stream", kind=kinds[t.id], placement=t.placement) for t in tasks),
        regsts=(
            regst("x", "host", "load", placed("x", matrix)),
            regst("x@device", "device", "h2d", placed("x", matrix)),
            regst("w", "device", None, placed("w", matrix), kind=RegstKind.STATE),
            regst("y", "device", "compute", *result),
            regst("y@host", "host", "d2h", *result),
        ),
        tasks=tasks,
        states=(State(name="w", kind=InputKind.PARAMETER, regst="w", index=0),),
        batch_inputs=(BatchInput(name="input.0", value="x", batch_dim=0),),
        loss=_access("loss", "y@host", 1),
        gradients={},
        search=Search(method="hand", cost_model="none", objective_s=1.0, lower_bound_s=1.0),
    )
    verify(plan)
    return plan


def offloaded(plan: Plan) -> Plan:
    """The same training with parameters' masters and optimizer state on the host (a rank of its own, 1): gradients go there once per step,
    are applied there, and the new parameters come back.

    Args:
        plan: of one rank.

    Raises:
        InvalidPlan: a Plan of several ranks.
    """
    if plan.num_ranks != 1:
        raise InvalidPlan(f"the plan has {plan.num_ranks} ranks; only the state of a plan of one rank is moved to the host")
    host = Placement(id="host", ranks=(1,), mesh=(1,) * len(plan.placements[0].mesh))
    here = plan.placements[0].id
    moved = {regst.id for regst in plan.regsts if regst.kind is RegstKind.STATE and regst.producer is not None}
    updates = {plan.regst[regst].producer for regst in moved}
    tasks: list[Task] = []
    regsts = {regst.id: regst for regst in plan.regsts}
    # What updates read and did not make themselves comes by a transfer; so does what the others read of moved state.
    brought: dict[tuple[str, str], str] = {}

    def transfer(regst: str, src: str, dst: str) -> str:
        """The copy's id on ``dst``."""
        if (regst, dst) not in brought:
            copy = brought[regst, dst] = f"{regst}@{dst}"
            old = regsts[regst]
            label = f"{src}-{dst}.{regst}"
            regsts[copy] = replace(old, id=copy, kind=RegstKind.DATA, placement=dst, producer=label, quota=1)
            accesses = range(len(old.tensors))
            tasks.append(
                _task(
                    label,
                    TaskKind.TRANSFER,
                    src,
                    consumes=[regst],
                    produces=[copy],
                    reads=[_access(old.tensors[n].name, regst, n) for n in accesses],
                    writes=[_access(old.tensors[n].name, copy, n) for n in accesses],
                )
            )
            tasks[-1] = replace(tasks[-1], stream=f"{src}-{dst}")
        return brought[regst, dst]

    def taken(task: Task, names: dict[str, str]) -> Task:
        consumes = tuple(replace(port, regst=names.get(port.regst, port.regst)) for port in task.consumes)
        reads = tuple(replace(access, regst=names.get(access.regst, access.regst)) for access in task.reads)
        return replace(task, consumes=consumes, reads=reads)

    for regst in moved:
        regsts[regst] = replace(regsts[regst], placement="host")
    for task in plan.tasks:
        if task.id in updates:
            names = {port.regst: transfer(port.regst, here, "host") for port in task.consumes if port.regst not in moved}
            tasks.append(replace(taken(task, names), placement="host", stream="host.update"))
        else:
            names = {port.regst: transfer(port.regst, "host", here) for port in task.consumes if port.regst in moved}
            tasks.append(taken(task, names))
    streams = [*plan.streams, Stream(id="host.update", kind=StreamKind.COMPUTE, placement="host")]
    streams += [Stream(id=f"{a}-{b}", kind=StreamKind.COPY, placement=a) for a, b in ((here, "host"), ("host", here))]
    used = {task.stream for task in tasks}
    offloaded = replace(
        plan,
        cluster=roomy_cluster(2, plan.cluster.device.memory_bytes),
        placements=(*plan.placements, host),
        streams=tuple(stream for stream in streams if stream.id in used),
        regsts=tuple(regsts.values()),
        tasks=tuple(tasks),
    )
    verify(offloaded)
    return offloaded
