"""The shapes of a plan: the number of pipeline stages, the mesh of a stage, the number of micro-batches, and what is recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from planner.cost import meshes
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph
from planner.stages.blocks import num_blocks
from planner.stages.recompute.asked import BLOCKS

__all__ = ["MOST_AXES", "MOST_PER_STAGE", "Shape", "most_stages", "shapes", "stage_devices", "with_next"]

MOST_AXES = 2
"""Of a searched mesh."""
MOST_PER_STAGE = 64
"""Searched micro-batches, per stage."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """stages p, micro-batches m, mesh of a stage, and what is recomputed: "", or as planner.stages.recompute.asked names it."""

    stages: int
    micro_batches: int
    mesh: tuple[int, ...]
    recompute: str = ""

    def __str__(self) -> str:
        again = "" if not self.recompute else ", recompute" if self.recompute == BLOCKS else f", recompute {self.recompute}"
        return f"{self.stages} stages of {'x'.join(map(str, self.mesh))}, {self.micro_batches} micro-batches{again}"


def shapes(
    batch_size: int,
    cluster: Cluster,
    *,
    stages: int | None = None,
    mesh: tuple[int, ...] | None = None,
    micro_batches: int | None = None,
    most_stages: int = 1,
    recompute: str = "",
) -> tuple[Shape, ...]:
    """The shapes to search over; a part of the shape that is given is the same in all of them.

    Args:
        most_stages: the largest number of stages into which the model can be cut.   recompute: of all shapes.

    Raises:
        Unsupported: a batch without samples, or no number of stages gives each the devices of a given mesh.
    """
    if batch_size < 1:
        raise Unsupported(f"a batch of {batch_size} samples cannot be cut into micro-batches; give at least 1 sample")
    devices = cluster.num_devices
    counts = [stages] if stages is not None else [p for p in range(1, min(most_stages, devices) + 1) if devices % p == 0]
    if stages is None and mesh is not None:
        counts = [p for p in counts if p * prod(mesh) == devices]
        if not counts:
            raise Unsupported(
                f"mesh {'x'.join(map(str, mesh))} has {prod(mesh)} places, of which {devices} devices make {devices / prod(mesh):g} stages, "
                f"and the model has {most_stages} numbered blocks to cut; give a larger mesh, or leave it open"
            )
    open_shapes = []
    for p in counts:
        if devices % p or any(part.num_devices % (devices // p) for part in cluster.parts):
            continue
        inner = [mesh] if mesh is not None else meshes(devices // p, cluster.devices_per_node, MOST_AXES)
        if micro_batches is not None:
            slices = [micro_batches]
        else:
            slices = [m for m in range(p, min(batch_size, MOST_PER_STAGE * p) + 1) if batch_size % m == 0]
            slices = [m for m in slices if m % p == 0 and (m // p).bit_count() == 1] or slices[:1] or [1]
        open_shapes += [Shape(p, m, one, recompute) for one in inner for m in slices]
    return tuple(sorted(open_shapes))


def with_next(shape: Shape, recompute: Sequence[str]) -> Shape | None:
    """The same shape with the next of what is recomputed, which does more work and holds less; None: that was the last."""
    later = recompute if not shape.recompute else recompute[recompute.index(shape.recompute) + 1 :] if shape.recompute in recompute else ()
    return replace(shape, recompute=later[0]) if later else None


def stage_devices(cluster: Cluster, stages: int) -> tuple[Cluster, ...]:
    """The kind of node of each stage, as a cluster of its own, where stages have equally many devices.

    Raises:
        Unsupported: a stage would have devices of two kinds.
    """
    size = cluster.num_devices // stages
    if any(part.num_devices % size for part in cluster.parts):
        held = ", ".join(f"{part.num_devices} of {part.name}" for part in cluster.parts)
        sizes = [p for p in range(1, cluster.num_devices + 1) if cluster.num_devices % p == 0]
        fitting = [p for p in sizes if all(part.num_devices % (cluster.num_devices // p) == 0 for part in cluster.parts)]
        raise Unsupported(
            f"{stages} stages of {size} devices on {cluster.name}, which has {held}: a stage has devices of one kind; "
            f"ask for a number of stages among {', '.join(map(str, fitting[:8]))}"
        )
    return tuple(cluster.part_of(stage * size)[0] for stage in range(stages))


def most_stages(graph: LogicalGraph) -> int:
    """As many stages as the forward pass has numbered blocks (h.0, h.1, ...), at least 1."""
    return max(1, num_blocks(graph))
