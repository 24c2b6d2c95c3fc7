"""What a Plan claims of its price (devices, flop, bytes moved, workspaces, bounds) and of how it was asked for.  None of it enters what it computes."""

from __future__ import annotations

import math
import re

from planner.ir.errors import InvalidPlan
from planner.ir.plan import Fragment, Plan, Task

__all__ = ["verify_claims"]


_WHOLE = r"\d{1,18}", "a whole number"
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", "a number"
_OPTION_FORMS = {
    "stages": (r"\d{0,18}", "a whole number"),
    **dict.fromkeys(("micro_batches", "bucket_bytes", "zero", "interleave", "hold", "samples"), _WHOLE),
    **dict.fromkeys(("balance", "clip_norm", "clip_value", "ema"), _NUMBER),
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
