"""Two hand-written training Plans of one small model, and what plain torch makes of it.

    y = x w1;  h = relu(y);  z = h w2;  loss = sum(z z) / N        N: samples of a micro-batch;  plain SGD

``data_parallel``: x split over p ranks, gradients accumulated over m micro-batches, all-reduced, one update per step.
``pipeline``: w1 on stage 0, w2 on stage 1; activations and their gradients cross by TRANSFER.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective
from planner.ir.graph import InputKind, Op, Ref, Role
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
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType

SAMPLES, WIDTH, HIDDEN, OUT, LR = 6, 5, 7, 3, 0.015625


def _op(number: int, target: str, args: tuple[object, ...], out: str, role: Role = Role.FORWARD) -> Op:
    return Op(id=f"op{number}.{out}", target=target, args=args, outputs=(out,), role=role)  # type: ignore[arg-type]


def _forward_1() -> list[Op]:
    return [
        _op(0, "aten.mm.default", (Ref("x"), Ref("w1")), "y"),
        _op(1, "aten.relu.default", (Ref("y"),), "h"),
    ]


def _forward_2(samples: int) -> list[Op]:
    return [
        _op(2, "aten.mm.default", (Ref("h"), Ref("w2")), "z"),
        _op(3, "aten.mul.Tensor", (Ref("z"), Ref("z")), "zz"),
        _op(4, "aten.sum.default", (Ref("zz"),), "total"),
        _op(5, "aten.div.Tensor", (Ref("total"), float(samples)), "loss"),
    ]


def _backward_2(samples: int) -> list[Op]:
    return [
        _op(6, "aten.mul.Tensor", (Ref("z"), 2.0 / samples), "dz", Role.BACKWARD),
        _op(7, "aten.t.default", (Ref("h"),), "ht", Role.BACKWARD),
        _op(8, "aten.mm.default", (Ref("ht"), Ref("dz")), "dw2", Role.BACKWARD),
        _op(9, "aten.t.default", (Ref("w2"),), "w2t", Role.BACKWARD),
        _op(10, "aten.mm.default", (Ref("dz"), Ref("w2t")), "dh", Role.BACKWARD),
    ]


def _backward_1() -> list[Op]:
    return [
        _op(11, "aten.gt.Scalar", (Ref("y"), 0), "mask", Role.BACKWARD),
        _op(12, "aten.mul.Tensor", (Ref("dh"), Ref("mask")), "dy", Role.BACKWARD),
        _op(13, "aten.t.default", (Ref("x"),), "xt", Role.BACKWARD),
        _op(14, "aten.mm.default", (Ref("xt"), Ref("dy")), "dw1", Role.BACKWARD),
    ]


def _update(name: str, gradient: str) -> list[Op]:
    return [
        _op(20, "aten.mul.Tensor", (Ref(gradient), LR), f"{name}_step", Role.UPDATE),
        _op(21, "aten.sub.Tensor", (Ref(name), Ref(f"{name}_step")), f"{name}_new", Role.UPDATE),
    ]


def _body(ops: list[Op]) -> Fragment:
    return Fragment(ops=tuple(ops), flop=1, traffic_bytes=1, workspace_bytes=0)


def _access(name: str, regst: str, index: int) -> Access:
    return Access(name=name, regst=regst, index=index)


def _tensor(name: str, shape: tuple[int, ...], sbp: str) -> PlacedTensor:
    return PlacedTensor(name=name, shape=shape, dtype=DType.FLOAT32, sbp=NdSbp.parse(sbp))


def _cluster(num_devices: int) -> Cluster:
    device = DeviceSpec(kind="cpu", memory_bytes=10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    return Cluster(
        name="handmade",
        source="tests",
        num_nodes=1,
        devices_per_node=num_devices,
        device=device,
        node=LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
    )


class _Builder:
    def __init__(self, micro_batches: int, ranks: int) -> None:
        self.m, self.ranks = micro_batches, ranks
        self.regsts: list[Regst] = []
        self.tasks: list[Task] = []

    def regst(
        self,
        id_: str,
        placement: str,
        producer: str | None,
        *tensors: PlacedTensor,
        quota: int = 1,
        kind: RegstKind = RegstKind.DATA,
    ) -> None:
        self.regsts.append(Regst(id=id_, kind=kind, placement=placement, producer=producer, quota=quota, tensors=tensors))

    def task(
        self,
        id_: str,
        kind: TaskKind,
        placement: str,
        stream: str,
        acts: int,
        consumes: dict[str, int],
        produces: dict[str, int],
        reads: list[tuple[str, str, int]],
        writes: list[tuple[str, str, int]],
        body: Fragment | Boxing | None = None,
    ) -> None:
        self.tasks.append(
            Task(
                id=id_,
                kind=kind,
                placement=placement,
                stream=stream,
                acts=acts,
                priority=len(self.tasks),
                consumes=tuple(Port(regst=r, acts_per_block=n) for r, n in consumes.items()),
                produces=tuple(Port(regst=r, acts_per_block=n) for r, n in produces.items()),
                reads=tuple(_access(*a) for a in reads),
                writes=tuple(_access(*a) for a in writes),
                body=body,
            )
        )

    def plan(self, placements: list[Placement], streams: list[Stream], loss: Access, gradients: dict[str, Access]) -> Plan:
        return Plan(
            model="handmade",
            options={},
            micro_batches=self.m,
            batch_size=SAMPLES * self.m,
            cluster=_cluster(self.ranks),
            placements=tuple(placements),
            streams=tuple(streams),
            regsts=tuple(self.regsts),
            tasks=tuple(self.tasks),
            states=tuple(State(name=n, kind=InputKind.PARAMETER, regst=f"{n}.state", index=0) for n in ("w1", "w2")),
            batch_inputs=(BatchInput(name="input.0", value="x", batch_dim=0),),
            loss=loss,
            gradients=gradients,
            search=Search(method="hand", cost_model="none", objective_s=1.0, lower_bound_s=1.0),
        )


def data_parallel(ranks: int = 2, micro_batches: int = 2) -> Plan:
    """SAMPLES per micro-batch over ``ranks`` ranks (uneven when they do not divide)."""
    b, m = _Builder(micro_batches, ranks), micro_batches
    b.regst("x", "all", "load", _tensor("x", (SAMPLES, WIDTH), "S(0)"), quota=2)
    for name, shape in (("w1", (WIDTH, HIDDEN)), ("w2", (HIDDEN, OUT))):
        b.regst(f"{name}.state", "all", f"update.{name}", _tensor(name, shape, "B"), kind=RegstKind.STATE)
    y, h, z = (_tensor(name, (SAMPLES, width), "S(0)") for name, width in (("y", HIDDEN), ("h", HIDDEN), ("z", OUT)))
    b.regst("saved", "all", "forward", y, h, z)
    b.regst("loss.part", "all", "forward", _tensor("loss", (), "P"))
    b.regst("loss.mean", "all", "reduce.loss", _tensor("loss", (), "B"))
    b.regst("grads.part", "all", "backward", _tensor("dw1", (WIDTH, HIDDEN), "P"), _tensor("dw2", (HIDDEN, OUT), "P"))
    b.regst("grads", "all", "reduce.grads", _tensor("dw1", (WIDTH, HIDDEN), "B"), _tensor("dw2", (HIDDEN, OUT), "B"))
    b.task("load", TaskKind.SOURCE, "all", "host", m, {}, {"x": 1}, [], [("x", "x", 0)])
    b.task(
        "forward",
        TaskKind.FORWARD,
        "all",
        "compute",
        m,
        {"x": 1, "w1.state": m, "w2.state": m},
        {"saved": 1, "loss.part": m},
        [("x", "x", 0), ("w1", "w1.state", 0), ("w2", "w2.state", 0)],
        [("y", "saved", 0), ("h", "saved", 1), ("z", "saved", 2), ("loss", "loss.part", 0)],
        _body([*_forward_1(), *_forward_2(SAMPLES)]),
    )
    b.task(
        "backward",
        TaskKind.BACKWARD,
        "all",
        "compute",
        m,
        {"x": 1, "saved": 1, "w2.state": m},
        {"grads.part": m},
        [("x", "x", 0), ("y", "saved", 0), ("h", "saved", 1), ("z", "saved", 2), ("w2", "w2.state", 0)],
        [("dw1", "grads.part", 0), ("dw2", "grads.part", 1)],
        _body([*_backward_2(SAMPLES), *_backward_1()]),
    )
    step = Boxing(src=NdSbp.parse("P"), dst=NdSbp.parse("B"), axis=0, collective=Collective.ALL_REDUCE)
    part, mean = [("l", "loss.part", 0)], [("l", "loss.mean", 0)]
    b.task("reduce.loss", TaskKind.BOXING, "all", "collective", 1, {"loss.part": 1}, {"loss.mean": 1}, part, mean, step)
    pairs = [("dw1", 0), ("dw2", 1)]
    b.task(
        "reduce.grads",
        TaskKind.BOXING,
        "all",
        "collective",
        1,
        {"grads.part": 1},
        {"grads": 1},
        [(n, "grads.part", i) for n, i in pairs],
        [(n, "grads", i) for n, i in pairs],
        step,
    )
    b.task("fetch", TaskKind.FETCH, "all", "host", 1, {"loss.mean": 1}, {}, [("l", "loss.mean", 0)], [])
    for index, name in enumerate(("w1", "w2")):
        b.task(
            f"update.{name}",
            TaskKind.UPDATE,
            "all",
            "compute",
            1,
            {"grads": 1},
            {f"{name}.state": 1},
            [("g", "grads", index), (name, f"{name}.state", 0)],
            [(f"{name}_new", f"{name}.state", 0)],
            _body(_update(name, "g")),
        )
    streams = [
        Stream(id="host", kind=StreamKind.HOST, placement="all"),
        Stream(id="compute", kind=StreamKind.COMPUTE, placement="all"),
        Stream(id="collective", kind=StreamKind.COLLECTIVE, placement="all", order=("reduce.loss", "reduce.grads")),
    ]
    everywhere = Placement(id="all", ranks=tuple(range(ranks)), mesh=(ranks,))
    gradients = {"w1": _access("dw1", "grads", 0), "w2": _access("dw2", "grads", 1)}
    return b.plan([everywhere], streams, _access("loss", "loss.mean", 0), gradients)


def pipeline(micro_batches: int = 3, quota: int = 2, width: int = 1) -> Plan:
    """Two stages of ``width`` ranks each; with width 2 stage 0 splits the batch and stage 1 the hidden dim's copies stay whole (B)."""
    b, m = _Builder(micro_batches, 2 * width), micro_batches
    first = "S(0)" if width > 1 else "B"
    h = (SAMPLES, HIDDEN)
    b.regst("x", "s0", "load", _tensor("x", (SAMPLES, WIDTH), first), quota=quota + 1)
    b.regst("w1.state", "s0", "update.w1", _tensor("w1", (WIDTH, HIDDEN), "B"), kind=RegstKind.STATE)
    b.regst("w2.state", "s1", "update.w2", _tensor("w2", (HIDDEN, OUT), "B"), kind=RegstKind.STATE)
    b.regst("y", "s0", "forward.0", _tensor("y", h, first), quota=quota)
    b.regst("h", "s0", "forward.0", _tensor("h", h, first), quota=1)
    b.regst("h@s1", "s1", "send.h", _tensor("h", h, "B"), quota=1)
    b.regst("hz", "s1", "forward.1", _tensor("h", h, "B"), _tensor("z", (SAMPLES, OUT), "B"), quota=1)
    b.regst("loss", "s1", "forward.1", _tensor("loss", (), "B"))
    b.regst("dh", "s1", "backward.1", _tensor("dh", h, "B"), quota=1)
    b.regst("dh@s0", "s0", "send.dh", _tensor("dh", h, first), quota=1)
    b.regst("dw1", "s0", "backward.0", _tensor("dw1", (WIDTH, HIDDEN), "P" if width > 1 else "B"))
    b.regst("dw2", "s1", "backward.1", _tensor("dw2", (HIDDEN, OUT), "B"))
    b.task("load", TaskKind.SOURCE, "s0", "host", m, {}, {"x": 1}, [], [("x", "x", 0)])
    b.task(
        "forward.0",
        TaskKind.FORWARD,
        "s0",
        "compute.0",
        m,
        {"x": 1, "w1.state": m},
        {"y": 1, "h": 1},
        [("x", "x", 0), ("w1", "w1.state", 0)],
        [("y", "y", 0), ("h", "h", 0)],
        _body(_forward_1()),
    )
    b.task("send.h", TaskKind.TRANSFER, "s0", "link.h", m, {"h": 1}, {"h@s1": 1}, [("h", "h", 0)], [("h", "h@s1", 0)])
    b.task(
        "forward.1",
        TaskKind.FORWARD,
        "s1",
        "compute.1",
        m,
        {"h@s1": 1, "w2.state": m},
        {"hz": 1, "loss": m},
        [("h", "h@s1", 0), ("w2", "w2.state", 0)],
        [("h", "hz", 0), ("z", "hz", 1), ("loss", "loss", 0)],
        _body(_forward_2(SAMPLES)),
    )
    b.task(
        "backward.1",
        TaskKind.BACKWARD,
        "s1",
        "compute.1",
        m,
        {"hz": 1, "w2.state": m},
        {"dh": 1, "dw2": m},
        [("h", "hz", 0), ("z", "hz", 1), ("w2", "w2.state", 0)],
        [("dh", "dh", 0), ("dw2", "dw2", 0)],
        _body(_backward_2(SAMPLES)),
    )
    b.task("send.dh", TaskKind.TRANSFER, "s1", "link.dh", m, {"dh": 1}, {"dh@s0": 1}, [("dh", "dh", 0)], [("dh", "dh@s0", 0)])
    b.task(
        "backward.0",
        TaskKind.BACKWARD,
        "s0",
        "compute.0",
        m,
        {"dh@s0": 1, "y": 1, "x": 1},
        {"dw1": m},
        [("dh", "dh@s0", 0), ("y", "y", 0), ("x", "x", 0)],
        [("dw1", "dw1", 0)],
        _body(_backward_1()),
    )
    b.task("fetch", TaskKind.FETCH, "s1", "host.1", 1, {"loss": 1}, {}, [("l", "loss", 0)], [])
    streams = [
        Stream(id="host", kind=StreamKind.HOST, placement="s0"),
        Stream(id="host.1", kind=StreamKind.HOST, placement="s1"),
        Stream(id="compute.0", kind=StreamKind.COMPUTE, placement="s0"),
        Stream(id="compute.1", kind=StreamKind.COMPUTE, placement="s1"),
        Stream(id="link.h", kind=StreamKind.LINK, placement="s0"),
        Stream(id="link.dh", kind=StreamKind.LINK, placement="s1"),
    ]
    reduced = "dw1"
    if width > 1:
        reduced = "dw1@B"
        b.regst(reduced, "s0", "reduce.dw1", _tensor("dw1", (WIDTH, HIDDEN), "B"))
        step = Boxing(src=NdSbp.parse("P"), dst=NdSbp.parse("B"), axis=0, collective=Collective.ALL_REDUCE)
        b.task("reduce.dw1", TaskKind.BOXING, "s0", "collective", 1, {"dw1": 1}, {reduced: 1}, [("g", "dw1", 0)], [("g", reduced, 0)], step)
        streams.append(Stream(id="collective", kind=StreamKind.COLLECTIVE, placement="s0", order=("reduce.dw1",)))
    for name, stage, regst in (("w1", 0, reduced), ("w2", 1, "dw2")):
        b.task(
            f"update.{name}",
            TaskKind.UPDATE,
            f"s{stage}",
            f"compute.{stage}",
            1,
            {regst: 1},
            {f"{name}.state": 1},
            [("g", regst, 0), (name, f"{name}.state", 0)],
            [(f"{name}_new", f"{name}.state", 0)],
            _body(_update(name, "g")),
        )
    stages = [Placement(id=f"s{i}", ranks=tuple(range(i * width, (i + 1) * width)), mesh=(width,)) for i in range(2)]
    return b.plan(stages, streams, _access("loss", "loss", 0), {"w1": _access("dw1", reduced, 0), "w2": _access("dw2", "dw2", 0)})


def start(seed: int = 0) -> dict[str, Tensor]:
    """Initial weights."""
    rng = torch.Generator().manual_seed(seed)
    return {"w1": torch.randn(WIDTH, HIDDEN, generator=rng), "w2": torch.randn(HIDDEN, OUT, generator=rng)}


def batches(micro_batches: int, seed: int = 1) -> Callable[[int], tuple[Tensor, ...]]:
    """A different batch for every step."""

    def batch(step: int) -> tuple[Tensor, ...]:
        return (torch.randn(SAMPLES * micro_batches, WIDTH, generator=torch.Generator().manual_seed(seed + step)),)

    return batch


def plain(
    state: dict[str, Tensor], batch: Callable[[int], tuple[Tensor, ...]], micro_batches: int, steps: int
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """(losses, final weights, last mean gradients) of gradient accumulation on one device, by autograd."""
    weights = {name: value.clone().requires_grad_() for name, value in state.items()}
    losses: list[float] = []
    for step in range(steps):
        for value in weights.values():
            value.grad = None
        total = 0.0
        for x in batch(step)[0].chunk(micro_batches):
            loss = ((x @ weights["w1"]).relu() @ weights["w2"]).square().sum() / SAMPLES / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        with torch.no_grad():
            for value in weights.values():
                assert value.grad is not None
                value -= LR * value.grad
    gradients = {name: value.grad.clone() for name, value in weights.items() if value.grad is not None}
    return losses, {name: value.detach().clone() for name, value in weights.items()}, gradients
