"""From a logical graph and a cluster to a verified Plan: stages, layouts, lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, prod

from planner.ir.cluster import Cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.ir.units import MB
from planner.ir.verify import verify
from planner.lower import Recipe, Schedule, lower
from planner.search import Method, assign, parse_pins
from planner.solve import Watch
from planner.stages import assign_stages, prepare

__all__ = ["PlanOptions", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the user fixes; the rest is chosen.

    stages: pipeline stages, each on its own devices.  mesh: device mesh inside a stage (default: one axis of all its devices).
    cuts: module paths that begin the next stage.  pins: 'PATTERN=SBP'.  quotas: Regst id pattern -> blocks.
    bucket_bytes: gradients are reduced in buckets of about so many bytes.
    method, seconds: how to search, and when to stop with the best plan so far (that is not part of the record: it is no wish).
    """

    stages: int = 1
    mesh: tuple[int, ...] | None = None
    micro_batches: int = 1
    cuts: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    schedule: Schedule = Schedule.ONE_F_ONE_B
    bucket_bytes: int = 25 * MB
    quotas: Mapping[str, int] = field(default_factory=dict)
    method: Method = Method.EXACT
    seconds: float = inf

    def as_text(self) -> dict[str, str]:
        """For the Plan's record of how it was made."""
        return {
            "stages": str(self.stages),
            "cuts": ",".join(self.cuts),
            "pins": ";".join(self.pins),
            "schedule": self.schedule.value,
            "bucket_bytes": str(self.bucket_bytes),
            "quotas": ";".join(f"{p}={q}" for p, q in self.quotas.items()),
        }


def make_plan(
    graph: LogicalGraph, *, model: str, batch_size: int, cluster: Cluster, options: PlanOptions, watch: Watch | None = None
) -> Plan:
    """Search and lower.

    Args:
        graph: one step at micro-batch size, traced for ``options.micro_batches``.
        batch_size: samples per step.

    Raises:
        Unsupported, UnknownOp, DeadLock, OutOfMemory: with the way out.
    """
    if options.stages < 1 or options.micro_batches < 1:
        raise Unsupported(f"stages = {options.stages}, micro-batches = {options.micro_batches}; both are at least 1")
    for pattern, wished in options.quotas.items():
        if wished < 1:
            raise Unsupported(f"quota {pattern}={wished}: an actor needs at least 1 block to write to, ask for 1 or more")
    if options.bucket_bytes < 1:
        raise Unsupported(f"buckets of {options.bucket_bytes} bytes hold no gradient; give at least 1 byte")
    if cluster.num_devices % options.stages:
        raise Unsupported(f"{options.stages} stages do not divide the {cluster.num_devices} devices of {cluster.name}")
    per_stage = cluster.num_devices // options.stages
    mesh = options.mesh if options.mesh is not None else (per_stage,)
    if any(extent < 1 for extent in mesh) or prod(mesh) != per_stage:
        raise Unsupported(
            f"mesh {'x'.join(map(str, mesh))} has {prod(mesh)} places, but each of {options.stages} stages has {per_stage} devices of {cluster.name}"
        )
    with collector_paused():
        return _make(graph, model, batch_size, cluster, options, mesh, watch)


def _make(
    graph: LogicalGraph, model: str, batch_size: int, cluster: Cluster, options: PlanOptions, mesh: tuple[int, ...], watch: Watch | None
) -> Plan:
    staged = prepare(graph, assign_stages(graph, options.stages, options.cuts), options.stages)
    assignment = assign(
        staged, mesh, cluster, parse_pins(options.pins), options.micro_batches, method=options.method, seconds=options.seconds, watch=watch
    )
    recipe = Recipe(
        model=model,
        batch_size=batch_size,
        micro_batches=options.micro_batches,
        mesh=mesh,
        bucket_bytes=options.bucket_bytes,
        schedule=options.schedule,
        quotas=options.quotas,
        options=options.as_text() | {"graph": content_id(graph)},
    )
    plan = lower(staged, assignment, cluster, recipe)
    verify(plan)
    return plan
