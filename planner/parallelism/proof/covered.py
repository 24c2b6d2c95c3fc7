"""What the lower bound of a Plan's search ranges over, as a Plan records it: which parts of the shape were open, and in which values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.cost.routing import ExpertLoad
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan
from planner.parallelism.options import SHARES, PlanOptions
from planner.parallelism.shape import MOST_AXES, MOST_PER_STAGE
from planner.schedule import Schedule
from planner.stages.recompute.asked import KEPT_OPTION, SELECTIVE

__all__ = ["SEARCH_RESULTS", "covered_text", "with_open_parts"]

_KEY = "open"
_LEFT_OUT = "given_up"
SEARCH_RESULTS = frozenset({_KEY, _LEFT_OUT, KEPT_OPTION})
"""The options of a Plan that record how its search went, not what was asked of it."""
_NAMED = 2
"""Of the shapes that are left out; of more, the number is told."""
_RANGES = {
    "stages": "stages of equal size, at most one per numbered block",
    "mesh": f"meshes of at most {MOST_AXES} axes",
    "micro_batches": f"micro-batches that divide the batch, a power of two of them up to {MOST_PER_STAGE} per stage",
    "recompute": "recomputation of all numbered blocks or of none",
    "selective": "recomputation of no op or, where memory binds, of the first in turn that fits of those chosen beforehand to keep "
    f"{', '.join(SHARES)} of the bytes and all numbered blocks",
}


def with_open_parts(plan: Plan, options: PlanOptions, left_out: Sequence[str] = ()) -> Plan:
    """The Plan of a search over shapes, with the record of what these options left open, and of the shapes that were given up unproven."""
    given = {"stages": options.stages, "mesh": options.mesh, "micro_batches": options.micro_batches, "recompute": options.recompute}
    parts = [name for name, value in given.items() if value is None and not (name == "stages" and options.cuts)]
    parts += [SELECTIVE] if options.recompute == SELECTIVE else []
    unfit = {_LEFT_OUT: "; ".join(left_out)} if left_out else {}
    return replace(plan, options={**plan.options, _KEY: ",".join(parts), **unfit})


def covered_text(plan: Plan) -> str:
    """Among which plans, at which prices and in which order of passes the plan's lower bound holds, as the end of a sentence.

    Raises:
        InvalidPlan: the record names a part that no shape has.
    """
    options: Mapping[str, str] = plan.options
    parts = [name for name in options.get(_KEY, "").split(",") if name]
    if unknown := set(parts) - set(_RANGES):
        raise InvalidPlan(
            f"plan {plan.plan_id}: its option {_KEY} names {sorted(unknown)[:4]}, not {', '.join(_RANGES)}; plan the model again"
        )
    shapes = "; ".join([*(_RANGES[name] for name in parts), "the rest of the shape as here"]) if parts else "this plan's shape"
    if KEPT_OPTION in options:
        shapes += "; with the ops that are computed again as they were chosen before layouts and collectives were known"
    allowed = " that the pins and the ZeRO level allow" if options.get("pins") or "zero" in options else ""
    stages = int(options.get("stages", "1") or "1")
    if stages > 1 or "stages" in parts:
        by_kind = "for the fastest pipeline of each stage's own devices, which are of one kind and have contiguous ranks"
        cut = (
            "at the places given"
            if options.get("cuts")
            else "by least crossing bytes"
            if options.get("balance")
            else by_kind
            if plan.cluster.parts
            else "by even flop"
        )
        order = Schedule.ONE_F_ONE_B.value
        shapes += f"; cut {cut}, every pipeline priced as {order}"
    if left_out := [text for text in options.get(_LEFT_OUT, "").split("; ") if text]:
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        shapes += f"; without {' and '.join(left_out[:_NAMED])}{more}, of which no plan that was tried fits a device"
    load = ExpertLoad.recorded(options)
    experts = "" if load is None else f", those of experts at quantile {load.quantile:g} of the busiest rank's load under {load}"
    return f"all layouts{allowed} of {shapes}; acts added up at the prices they have alone{experts}"
