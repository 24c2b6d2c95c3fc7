"""In-place safety.  A task that replaces state may update it in place, so what shares memory with the old state is gone from then on.

    v = t(p)            a view: v lies in the memory of p
    q = adamw(p, g)     p is read here for the last time, so q may be written into its memory
    w = mm(v, x)        refused: v is q by now                                                   [also: v is handed on to another task]

Performers look at the last use of each name (p above); that no other name outlives it is proven here.
"""

from __future__ import annotations

from collections.abc import Collection

from planner.ir.graph import ACCUMULATE, Op
from planner.ir.plan import Fragment, Plan, RegstKind, Task
from planner.opset import is_view, known_targets
from planner.opset.optimizer import UPDATES
from planner.validate.refusal import at, refusal
from planner.validate.values.steps import BOXING_OP

__all__ = ["check_in_place"]

_LAW = "state is updated in place"


def check_in_place(plan: Plan, task: Task, body: Fragment) -> None:
    """Raises PlanDoesNotComputeProgram: the fragment reads or hands on memory of a state that it has overwritten."""
    replaced = {port.regst for port in task.produces if plan.regst[port.regst].kind is RegstKind.STATE}
    own = {access.name for access in task.reads if access.regst in replaced}
    if not own:
        return
    known, shares = known_targets(), {name: frozenset({name}) for name in own}
    overwritten: set[str] = set()
    for op in body.ops:
        for value in op.inputs:
            gone = shares.get(value, frozenset()) & overwritten
            if gone and value not in own:
                where = f"{at(plan, task)}, {op.where()}"
                raise refusal(where, f"it reads {value}, which lies in the memory of {min(gone)} after its update", _LAW)
        if op.target in UPDATES:
            overwritten.update(own.intersection(op.inputs))
        if _may_share(op, known):
            held = frozenset(name for value in op.inputs for name in shares.get(value, ()))
            shares.update((value, held) for value in op.outputs if value is not None and held)
    for write in task.writes:
        if gone := shares.get(write.name, frozenset()) & overwritten:
            raise refusal(at(plan, task), f"it writes {write.name}, which lies in the memory of {min(gone)} after its update", _LAW)


def _may_share(op: Op, known: Collection[str]) -> bool:
    """Whether what the op returns may lie in the memory of what it reads; of an op without a rule nobody says that it does not."""
    return op.target in (BOXING_OP, ACCUMULATE) or op.target not in known or is_view(op)
