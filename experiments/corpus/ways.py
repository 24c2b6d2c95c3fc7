"""The ways in which a model is planned, and what they ask of the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.corpus.case import Case
from planner.frontend import Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec

__all__ = ["SIX", "THREE", "Way", "ways_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """data: inputs lie split along their batch.   tensor: weights by the case's pins.   The rest as regista.plan takes it."""

    name: str
    stages: int = 1
    micro_batches: int = 1
    data: bool = False
    tensor: bool = False
    zero: int | None = None
    recompute: bool | None = None

    def pins(self, case: Case, program: Program) -> tuple[str, ...]:
        dims = program.batch_dims.dims
        along = [f"input.{number}=S({dim})" for number, dim in enumerate(dims) if dim is not None] if self.data else []
        return (*along, *(case.tensor if self.tensor else ()))


THREE: Sequence[Way] = (
    Way(name="searched"),
    Way(name="data", data=True),
    Way(name="pipeline", stages=2, micro_batches=2),
)
"""The ways in which every model is planned."""

SIX: Sequence[Way] = (
    *THREE,
    Way(name="tensor", tensor=True),
    Way(name="zero", data=True, zero=3),
    Way(name="recompute", data=True, recompute=True, micro_batches=2),
)
"""The ways of a model whose case says how tensor parallelism splits its weights (``Case.tensor``)."""


def ways_of(case: Case) -> Mapping[str, Way]:
    return {way.name: way for way in (SIX if case.tensor else THREE)}


def small_cluster(devices: int = 2) -> Cluster:
    """So many devices, scaled down with the models (10 flop per byte of link, hardly any latency), so that to distribute them pays."""
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"corpus-{devices}", source="", num_nodes=1, devices_per_node=devices, device=device, node=link)
