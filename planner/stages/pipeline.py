"""The inter-op problem and its answer: which layers form a stage, on how many devices, in which of its variants.

    T = (sum_j (t_j + c_j)) / v + (B v - 1) max_j t_j + v max_j u_j                                                     (1) -> step_s()

t_j  forward + backward of one micro-batch on stage j (a chunk where v > 1 chunks lie on each device, else v = 1)
c_j  transfer to the next stage, there and back        u_j  once per step: gradient reduction and update, which stages do side by side
B    micro-batches

(1) is what planner.stages.micro says of 1F1B and of interleaving; for v = 1 and u = c = 0 it is Alpa's objective (OSDI'22, equation 2).

    memory of a stage:  v (state + n activations) + workspace <= capacity                                               (2) -> held_bytes()

n = min(B, stages after + 1) for 1F1B, B for GPipe, planner.stages.micro.interleaved_in_flight() for v > 1, where each chunk gets 1/v of the
device.  That is safe, since the mean over a device's chunks fits if each does; it may refuse unequal chunks that would fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from planner.ir.errors import Unsupported
from planner.stages.micro import interleaved_in_flight

__all__ = ["Interop", "PlannedStage", "Price", "StagePlan", "StagePrice", "Submesh", "Transfer", "held_bytes", "step_s", "submeshes"]

Price = Callable[[int, int, "Submesh"], Sequence["StagePrice"]]
Transfer = Callable[[int, "Submesh", "Submesh", bool], float]


@dataclass(frozen=True, slots=True, order=True)
class Submesh:
    """nodes x devices of each node; the devices of one stage."""

    nodes: int
    devices: int

    @property
    def size(self) -> int:
        return self.nodes * self.devices


def submeshes(num_nodes: int, devices_per_node: int) -> tuple[Submesh, ...]:
    """(1, 2^p) inside a node, then (n, M) of whole nodes.

    >>> [(s.nodes, s.devices) for s in submeshes(2, 4)]
    [(1, 1), (1, 2), (1, 4), (2, 4)]

    Source: Alpa (OSDI'22), section 5.2.
    """
    inside = [Submesh(1, 2**p) for p in range(devices_per_node.bit_length()) if 2**p < devices_per_node]
    return (*inside, *(Submesh(n, devices_per_node) for n in range(1, num_nodes + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """One variant of a stage (a layout, with or without recomputing): times of one micro-batch, bytes on its fullest device."""

    forward_s: float
    backward_s: float
    per_step_s: float = 0.0
    state_bytes: float = 0.0
    activation_bytes_per_micro_batch: float = 0.0
    workspace_bytes: float = 0.0

    @property
    def micro_batch_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Interop:
    """The problem: K layers in order on num_nodes x devices_per_node devices.

    price(first, last, submesh): variants of a stage that holds these layers; none: it cannot be built.
    transfer_s(last, sender, receiver, leaves_node): seconds per micro-batch over the border after layer ``last``, activation there and
    gradient back.
    kinds: one per layer; ranges of equal kinds are priced once (repeated blocks).  None: every range is priced.
    keep_all: B micro-batches stay in flight (GPipe).
    same_size: every stage has as many devices as the others, as Regista's Plan wants it.
    rank_order: stages take devices in rank order, so a sub-mesh inside a node may not straddle two and one of whole nodes begins at a node.
    False: in any order, as Alpa has it; then ``leaves_node`` is True wherever there are several nodes, since nobody knows.
    virtual: v, chunks per device; more than 1 needs same_size, and micro-batches in multiples of the devices that take turns.
    """

    num_layers: int
    num_nodes: int
    devices_per_node: int
    micro_batches: int
    memory_bytes: float
    price: Price
    transfer_s: Transfer
    kinds: Sequence[Hashable] | None = None
    keep_all: bool = False
    same_size: bool = False
    rank_order: bool = True
    virtual: int = 1
    max_stages: int | None = None

    def __post_init__(self) -> None:
        counts = {
            "layers": self.num_layers,
            "nodes": self.num_nodes,
            "devices per node": self.devices_per_node,
            "micro-batches": self.micro_batches,
            "chunks per device": self.virtual,
            "stages at most": 1 if self.max_stages is None else self.max_stages,
        }
        for name, count in counts.items():
            if count < 1:
                raise Unsupported(f"{count} {name}; at least 1")
        if self.kinds is not None and len(self.kinds) != self.num_layers:
            raise Unsupported(f"{len(self.kinds)} kinds for {self.num_layers} layers; give one for each layer")
        if self.virtual > 1 and (not self.same_size or self.keep_all):
            raise Unsupported(
                f"{self.virtual} chunks per device take turns in 1F1B on stages of one size; ask for same_size, without keep_all"
            )
        if self.same_size and not self.rank_order:
            raise Unsupported("stages of one size fill the cluster in rank order; leave rank_order as it is")

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node

    def in_flight(self, num_stages: int | None) -> tuple[int, ...]:
        """Micro-batches in flight on the last stage, the one before it, and so on.  num_stages: None where it is not yet known (v = 1)."""
        if self.virtual > 1 and num_stages is not None:
            return interleaved_in_flight(num_stages // self.virtual, self.virtual, self.micro_batches)[::-1]
        most = num_stages or min(self.num_layers, self.num_devices, self.max_stages or self.num_layers)
        return tuple(self.micro_batches if self.keep_all else min(self.micro_batches, s) for s in range(1, most + 1))


def held_bytes(price: StagePrice, in_flight: int, virtual: int = 1) -> float:
    """(2), in bytes: what a stage needs of its fullest device, or v times what a chunk may take of it."""
    return virtual * (price.state_bytes + in_flight * price.activation_bytes_per_micro_batch) + price.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Layers first..last on a sub-mesh that begins at ``first_device`` (in rank order).

    variant: place of ``price`` in what Interop.price gave.  transfer_s: to the next stage, 0 for the last.
    """

    first: int
    last: int
    submesh: Submesh
    first_device: int
    variant: int
    price: StagePrice
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The best pipeline.  The search is exact within (1) and (2), so lower_bound_s equals step_s.

    limits: how many pairs of limits (t, u) there are;  tried: for how many of them a shortest path was sought.
    """

    stages: tuple[PlannedStage, ...]
    step_s: float
    lower_bound_s: float
    limits: int
    tried: int


def step_s(stages: Sequence[PlannedStage], micro_batches: int, virtual: int = 1) -> float:
    """(1), in seconds."""
    slowest_s = max(stage.price.micro_batch_s for stage in stages)
    once_s = max(stage.price.per_step_s for stage in stages)
    through_s = sum(stage.price.micro_batch_s + stage.transfer_s for stage in stages)
    return through_s / virtual + (micro_batches * virtual - 1) * slowest_s + virtual * once_s
