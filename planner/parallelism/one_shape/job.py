"""What all shapes of a search have in common, and how the Plan of one is lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.protocols import DryRun
from planner.lower.build import Recipe
from planner.parallelism.memory import SearchMemory
from planner.parallelism.options import PlanOptions, given_order
from planner.schedule import in_flight
from planner.search.model import SearchModel, Standing
from planner.solve.problem import Watch
from planner.stages.recompute.asked import KEPT_OPTION

__all__ = ["Job", "in_flight_of", "is_known", "recipe_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all shapes of a search have in common.

    watch: called with the progress.   dry_run: plays a Plan and returns the bytes that it holds; None: the planner plays it itself.
    memory: what other searches have worked out.   prove: raises unless a Plan computes its program; None: that is done elsewhere.
    standing: a choice problem -> an earlier choice of its strategies, which is taken where it costs no more than what the search finds; None:
        it has none.
    """

    model: str
    batch_size: int
    cluster: Cluster
    watch: Watch | None
    dry_run: DryRun | None
    memory: SearchMemory = field(default_factory=SearchMemory)
    prove: Callable[[Plan], None] | None = None
    standing: Callable[[SearchModel], Standing | None] | None = None


def recipe_of(job: Job, graph: LogicalGraph, options: PlanOptions) -> Recipe:
    """How the Plan of a shape is lowered.   options: with stages, mesh and micro-batches."""
    assert options.micro_batches is not None and options.mesh is not None
    kept = job.memory.again(graph, options.again, job.cluster).told
    return Recipe(
        model=job.model,
        batch_size=job.batch_size,
        micro_batches=options.micro_batches,
        mesh=options.mesh,
        bucket_bytes=options.bucket_bytes,
        schedule=options.schedule,
        quotas=options.quotas,
        options=options.as_text() | {"graph": job.memory.graph_id(graph)} | ({KEPT_OPTION: kept} if kept else {}),
        interleave=options.interleave,
        hold=options.hold,
        order=given_order(options),
        routed=options.load is not None,
    )


def is_known(job: Job, graph: LogicalGraph, options: PlanOptions) -> bool:
    """Whether a search with the same memory has taken a choice for the shape lately.   options: with stages, mesh and micro-batches."""
    recipes = [known.recipe for known in job.memory.latest]
    return bool(recipes) and recipe_of(job, graph, options) in recipes


def in_flight_of(recipe: Recipe, num_stages: int) -> list[int]:
    """Per stage, the micro-batches whose activations it holds."""
    return [
        in_flight(recipe.schedule, s, num_stages, recipe.micro_batches, interleave=recipe.interleave, hold=recipe.hold, order=recipe.order)
        for s in range(num_stages)
    ]
