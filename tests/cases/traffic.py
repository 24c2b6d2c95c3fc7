"""What a Plan sends and where it stores, and clusters of alike devices to plan for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.plan import Boxing, Plan
from planner.ir.sbp import Split

SCALAR = 4
"""Bytes of a sum over the batch, such as the number of labels; an all-reduce of it sends less than twice that."""


def cluster(
    devices: int,
    *,
    nodes: int = 1,
    rate: float = 1e12,
    memory: float = 1e12,
    bandwidth: float = 1e10,
    latency: float = 1e-5,
    nic: float | None = None,
) -> Cluster:
    """Alike devices: flop/s, memory bytes/s, link bytes/s and seconds, and the bytes/s of a node's port."""
    return Cluster(
        name="test",
        source="",
        num_nodes=nodes,
        devices_per_node=devices // nodes,
        device=DeviceSpec(kind="test", memory_bytes=10**12, rate_flop_per_s=rate, memory_bandwidth_bytes_per_s=memory),
        node=LinkSpec(latency_s=latency, bandwidth_bytes_per_s=bandwidth),
        nic=LinkSpec(latency_s=latency, bandwidth_bytes_per_s=nic) if nic else None,
    )


@dataclass(frozen=True)
class Move:
    """One tensor in one collective.  part: fwd, bwd, grad, param or loss.  sent: bytes per device and step."""

    collective: Collective
    axis: int
    part: str
    name: str
    shape: tuple[int, ...]
    sent: float


def moves(plan: Plan) -> Iterator[Move]:
    """Everything that crosses devices."""
    for task in plan.tasks:
        if not isinstance(task.body, Boxing):
            continue
        placement = plan.placement[task.placement]
        part = next(p for p in ("fwd", "bwd", "grad", "param", "loss") if p in task.id.split("."))
        for read, write in zip(task.reads, task.writes, strict=True):
            before, after = (plan.regst[a.regst].tensors[a.index] for a in (read, write))
            axis, parts = task.body.axis, placement.mesh[task.body.axis]
            together = before.local_bytes(placement) * (parts if isinstance(task.body.src[axis], Split) else 1)
            bytes_sent = task.acts * sent_bytes(task.body.collective, together, parts)
            yield Move(task.body.collective, axis, part, after.name.partition("@")[0], after.shape, bytes_sent)


def layouts(plan: Plan) -> dict[str, str]:
    """State -> the layout in which it is stored."""
    return {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states}
