"""Plans and traces as files: canonical JSON with a kind and a schema version, written whole or not at all, verified when read."""

from __future__ import annotations

from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import Plan
from planner.ir.text import canonical, decode, encode, load_json, save_text
from planner.ir.traces.trace import Trace, check_trace

__all__ = ["PLAN_VERSION", "load_plan", "load_trace", "save_plan", "save_trace"]

PLAN_VERSION = 2
TRACE_VERSION = 3
"""3: traces of simulations say how long their messages travel (Trace.message_s); 2 is read as if they took no time."""


def save_plan(plan: Plan, path: str) -> None:
    """Write the Plan with its id.

    Raises:
        InvalidFile: the folder does not exist or cannot be written.
    """
    body = {"kind": "plan", "version": PLAN_VERSION, "plan_id": plan.plan_id, "plan": encode(plan)}
    save_text(path, canonical(body) + "\n")


def load_plan(path: str) -> Plan:
    """Read and verify a Plan.

    Raises:
        InvalidFile: missing, truncated, another version, or a field that breaks the schema.
        InvalidPlan, DeadLock, OutOfMemory: see planner.ir.actors.verify.
    """
    plan = decode(Plan, load_json(path, "plan", PLAN_VERSION).get("plan"), "plan")
    assert isinstance(plan, Plan)
    verify(plan)
    return plan


def save_trace(plan: Plan, trace: Trace, path: str) -> None:
    """Write a trace together with the Plan it is of, so that the file can be read, compared and drawn by itself.

    Raises:
        Mismatch: the trace is of another plan.
    """
    if trace.plan_id != plan.plan_id:
        raise Mismatch(f"a trace of plan {trace.plan_id} cannot be saved with plan {plan.plan_id}")
    save_text(path, canonical({"kind": "trace", "version": TRACE_VERSION, "plan": encode(plan), "trace": encode(trace)}) + "\n")


def load_trace(path: str) -> tuple[Plan, Trace]:
    """Read a trace and its Plan, and verify both.

    Raises:
        InvalidFile: missing, truncated, of another schema, or trace and Plan do not belong together.
        InvalidPlan, InvalidTrace: see planner.ir.actors.verify and check_trace.
    """
    data = load_json(path, "trace", TRACE_VERSION, older=(2,))
    body = data.get("trace")
    if data["version"] == 2 and isinstance(body, dict):
        body = {"message_s": {}, **body}
    plan, trace = decode(Plan, data.get("plan"), "plan"), decode(Trace, body, "trace")
    assert isinstance(plan, Plan)
    assert isinstance(trace, Trace)
    if trace.plan_id != plan.plan_id:
        raise InvalidFile(f"{path}: holds a trace of plan {trace.plan_id} beside plan {plan.plan_id}; the file was edited, write it anew")
    verify(plan)
    check_trace(plan, trace)
    return plan, trace
