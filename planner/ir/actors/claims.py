"""What a Plan claims of its price (devices, flop, bytes moved, workspaces, bounds) and of how it was asked for.  None of it enters what it computes."""

from __future__ import annotations

import math
import re
from math import prod

from planner.ir.errors import InvalidPlan
from planner.ir.graph import ExpertWork
from planner.ir.plan import Fragment, Plan, Task

__all__ = ["verify_claims"]


_WHOLE = r"\d{1,18}", "a whole number"
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", "a number"
_OPTION_FORMS = {
    "stages": (r"\d{0,18}", "a whole number"),
    **dict.fromkeys(("micro_batches", "bucket_bytes", "zero", "interleave", "hold", "samples", "top_k"), _WHOLE),
    **dict.fromkeys(("balance", "clip_norm", "clip_value", "ema", "routing_quantile", "capacity_factor"), _NUMBER),
    "batch_norm": (r"local, parts: \d{1,18}", "'local, parts: N'"),
}
"""Options that readers take numbers from, as the planner writes them."""


def verify_claims(plan: Plan) -> None:
    """Raises InvalidPlan: a claim is infinite or negative, parts of it are more than the whole, the cluster has fewer devices, or an option of
    its search is no number where one is needed."""
    for name, (form, what) in _OPTION_FORMS.items():
        if (text := plan.options.get(name)) is not None and not re.fullmatch(form, text):
            raise InvalidPlan(f"plan {plan.plan_id}: its option {name} is {text[:60]!r}, not {what}; plan the model again")
    if not math.isfinite(plan.search.objective_s) or not math.isfinite(plan.search.lower_bound_s):
        raise InvalidPlan(f"the search claims {plan.search.objective_s} s per step, at best {plan.search.lower_bound_s} s; both are finite")
    if plan.num_ranks > plan.cluster.num_devices:
        raise InvalidPlan(f"the plan uses {plan.num_ranks} devices, cluster {plan.cluster.name} has {plan.cluster.num_devices}")
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            _verify_fragment(task, task.body)
    if plan.experts and not {"routing", "top_k", "routing_quantile"} <= set(plan.options):
        raise InvalidPlan(
            f"plan {plan.plan_id} lists work of experts, but its options do not say how tokens are routed; plan the model again"
        )
    for work in plan.experts:
        _verify_experts(plan, work)


def _verify_experts(plan: Plan, work: ExpertWork) -> None:
    if work.task not in plan.task:
        raise InvalidPlan(f"plan {plan.plan_id}: work of experts of task {work.task[:60]!r}, which it does not have; plan the model again")
    task = plan.task[work.task]
    mesh = plan.placement[task.placement].mesh
    axes = (*work.axes, *work.row_axes)
    parts = prod(mesh[axis] for axis in work.axes if 0 <= axis < len(mesh))
    if len(set(axes)) < len(axes) or any(not 0 <= axis < len(mesh) for axis in axes) or not 1 <= parts <= work.experts:
        raise InvalidPlan(
            f"task {task.id}: {work.experts} experts cut along axes {work.axes}, their places along {work.row_axes}, of a mesh {mesh}; axes are of "
            f"the mesh, none twice, and every part has an expert"
        )
    if work.rows < 1 or min(work.flop, work.traffic_bytes) < 0:
        raise InvalidPlan(
            f"task {task.id}: {work.rows} places per expert, {work.flop} flop, {work.traffic_bytes} B; at least 1 place, and nothing is negative"
        )


def _verify_fragment(task: Task, body: Fragment) -> None:
    if min(body.flop, body.traffic_bytes, body.workspace_bytes) < 0:
        raise InvalidPlan(
            f"task {task.id}: {body.flop} flop, {body.traffic_bytes} B of traffic, {body.workspace_bytes} B of workspace; none is negative"
        )
    parts = [part.flop for part in body.flop_by_dtype]
    if sum(parts) > body.flop or min(parts, default=0) < 0 or len({part.dtype for part in body.flop_by_dtype}) < len(parts):
        shown = ", ".join(f"{part.flop} in {part.dtype.value}" for part in body.flop_by_dtype)
        raise InvalidPlan(
            f"task {task.id}: {body.flop} flop, of them {shown}; parts are >= 0, stand once per dtype and are no more than the whole"
        )
