"""The Plan of decisions.  Where a search with the same memory has lowered the same ones, at other prices, only orders are worked out anew."""

from __future__ import annotations

from dataclasses import replace

from planner.ir.plan import Plan
from planner.lower.build import Recipe, lower, lower_again
from planner.lower.drafts import Before
from planner.parallelism.one_shape.job import Job
from planner.search import Assignment
from planner.stages import Staged

__all__ = ["lowered"]


def lowered(job: Job, staged: Staged, assignment: Assignment, recipe: Recipe) -> Plan:
    """planner.lower.build.lower, which says what is raised."""
    plain = replace(recipe, options={})
    known = [Before(k.plan, k.taken.assignment) for k in job.memory.decided_for(staged) if replace(k.recipe, options={}) == plain]
    again = (lower_again(before, assignment, job.cluster, recipe) for before in known)
    plan = next((plan for plan in again if plan is not None), None)
    return plan if plan is not None else lower(staged, assignment, job.cluster, recipe, *known[:1])
