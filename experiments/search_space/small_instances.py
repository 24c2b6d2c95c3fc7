"""Random programs of one to three small layers on two to four devices, whose whole space is small enough to be enumerated.

What is drawn follows from the seed: the kind of model (a perceptron, with or without ReLU; blocks with something inside that can be recomputed; an
embedding; an embedding tied to the last layer), its widths (odd ones split nowhere), the batch, what is frozen, train or eval, the optimizer, the
cluster (one kind of device on one or two nodes, or two kinds; rates and latencies), the options that are given instead of searched, and the memory of a
device.  Where the space is too large, pins are added in random order; if all of them do not do, the seed gives no instance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import torch
from torch import Tensor, nn

from planner.frontend.program import Program
from planner.ir.cluster import Cluster
from planner.ir.cluster.cluster import Between
from planner.ir.cluster.mixed import mixed_cluster
from planner.ir.graph import Mode
from planner.parallelism.make import PlanOptions
from regista.clusters import resolve_cluster

__all__ = ["Instance", "Net", "drawn", "with_memory", "with_pins"]

_WIDTHS = (1, 2, 3, 4, 5, 63, 64, 255, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """model: its kind and widths, as text.   pinnable: pins that may make the space smaller, in the order in which they are tried.

    memory_share: of the bytes that the plan without a limit needs; infinite: no limit.
    """

    seed: int
    model: str
    program: Program
    batch: int
    blocks: int
    cluster: Cluster
    options: PlanOptions
    pinnable: tuple[str, ...]
    memory_share: float = inf


class Net(nn.Module):
    """Numbered blocks in a row."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.h = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x


class _Inside(nn.Module):
    """A block that keeps a value of its own for the backward part: x, wx, f(wx)."""

    def __init__(self, width: int, made: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, made, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.relu(self.up(x)) * 0.5)


def drawn(seed: int) -> Instance:
    """The instance of a seed, without its pins and its memory."""
    rng = random.Random(seed)
    kind = rng.choice(("linear", "linear", "relu", "inside", "inside", "embedding", "tied"))
    depth = rng.choice((1, 1, 2, 2, 3)) if kind != "tied" else 2
    widths = [rng.choice(_WIDTHS) for _ in range(depth + 1)]
    blocks: list[nn.Module] = []
    for place, (a, b) in enumerate(pairwise(widths)):
        if kind in ("embedding", "tied") and place == 0:
            blocks.append(nn.Embedding(a, b))
        elif kind == "inside":
            blocks.append(_Inside(a, b))
        elif kind == "tied":
            last = nn.Linear(widths[1], widths[0], bias=False)
            last.weight = blocks[0].weight  # type: ignore[assignment]
            blocks.append(last)
        else:
            linear = nn.Linear(a, b, bias=False)
            blocks.append(nn.Sequential(linear, nn.ReLU()) if kind == "relu" else linear)
    net = Net(*blocks)
    frozen = rng.random() < 0.3 and depth > 1 and kind != "tied"
    if frozen:
        next(iter(net.parameters())).requires_grad_(False)
    batch = rng.choice((1, 2, 2, 3, 4, 4, 6, 8))
    is_index = kind in ("embedding", "tied")
    example = torch.zeros(batch, dtype=torch.long) if is_index else torch.zeros(batch, widths[0])
    mode = Mode.EVAL if rng.random() < 0.15 else Mode.TRAIN
    optimizer = "adamw" if rng.random() < 0.1 else "sgd"
    reduce: Callable[[Tensor], Tensor] = torch.sum if rng.random() < 0.7 else torch.mean
    if mode is Mode.EVAL:
        program = Program(net, (example,), lambda y: reduce(y)).evaluating()
    else:
        program = Program(net, (example,), lambda y: reduce(y), optimizer)
    cluster, open_mesh = _cluster(rng)
    options = _options(rng, batch, cluster, depth, mode)
    names = [f"h.{place}" for place in range(depth)]
    pinnable = [f"out:{name}={rng.choice(('S(0)', 'S(1)', 'B'))}" for name in names]
    pinnable += [f"{name}.*={rng.choice(('S(0)', 'S(1)', 'B'))}" for name in names if kind != "tied"]
    pinnable += [f"input.0={rng.choice(('S(0)', 'B'))}"]
    rng.shuffle(pinnable)
    share = inf
    if not cluster.parts and rng.random() < 0.4:
        share = rng.choice((0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99))
    elif cluster.parts and rng.random() < 0.25:
        share = rng.choice((0.7, 0.9, 0.97))
    text = f"{kind} {'x'.join(map(str, widths))}{' frozen' * frozen}{' eval' * (mode is Mode.EVAL)}{' adamw' * (optimizer == 'adamw')}"
    return Instance(
        seed=seed,
        model=text,
        program=program,
        batch=batch,
        blocks=depth,
        cluster=cluster,
        options=options,
        pinnable=tuple(pinnable) if open_mesh else (),
        memory_share=share,
    )


def _cluster(rng: random.Random) -> tuple[Cluster, bool]:
    """A cluster, and whether all its meshes have one axis."""
    base = resolve_cluster("p3.16xlarge:1")
    slower = rng.choice((1.0, 1e2, 1e4))
    device = replace(
        base.device,
        rate_flop_per_s=base.device.rate_flop_per_s / slower,
        memory_bandwidth_bytes_per_s=base.device.memory_bandwidth_bytes_per_s / slower,
    )
    node = replace(base.node, latency_s=base.node.latency_s * rng.choice((1e-3, 0.01, 1.0)))
    base = replace(base, device=device, node=node)
    form = rng.choice(("2", "2", "2", "2", "4", "2x2", "1+1", "1+1", "2+2"))
    if form == "2":
        return replace(base, devices_per_node=2), True
    if form == "4":
        return replace(base, devices_per_node=4), False
    if form == "2x2":
        nic = replace(node, bandwidth_bytes_per_s=node.bandwidth_bytes_per_s / 10)
        return replace(base, devices_per_node=2, num_nodes=2, nic=nic), False
    times = rng.choice((2.0, 4.0, 10.0))
    quick = replace(base, name="quick", devices_per_node=int(form[0]))
    rates = {
        "rate_flop_per_s": device.rate_flop_per_s / times,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s / times,
    }
    slow = replace(quick, name="slow", device=replace(device, **rates))
    kinds = (quick, slow) if rng.random() < 0.5 else (slow, quick)
    return mixed_cluster("two kinds", "", kinds, (Between(kinds=("quick", "slow"), link=node),)), form == "1+1"


def _options(rng: random.Random, batch: int, cluster: Cluster, depth: int, mode: Mode) -> PlanOptions:
    """Mostly everything open; sometimes a part of the shape is given."""
    stages, micro_batches, mesh, recompute = None, None, None, None
    given = rng.random()
    if given < 0.1:
        micro_batches = rng.choice([m for m in range(1, batch + 1) if batch % m == 0])
    elif given < 0.2 and depth > 1:
        stages = 2
    elif given < 0.25:
        mesh = (2,)
    if rng.random() < 0.1:
        recompute = False
    return PlanOptions(stages=stages, micro_batches=micro_batches, mesh=mesh, recompute=recompute, mode=mode)


def with_pins(one: Instance, count: int) -> Instance:
    """With so many of its pins."""
    return replace(one, options=replace(one.options, pins=one.pinnable[:count]))


def with_memory(one: Instance, memory_bytes: int) -> Instance:
    """On devices of so many bytes."""
    cluster = one.cluster

    def limited(single: Cluster) -> Cluster:
        return replace(single, device=replace(single.device, memory_bytes=memory_bytes))

    if cluster.parts:
        return replace(one, cluster=mixed_cluster(cluster.name, "", tuple(map(limited, cluster.parts)), cluster.between))
    return replace(one, cluster=limited(cluster))
