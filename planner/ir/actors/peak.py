"""Peak of live bytes: what a step needs if acts take as long as they are said to.

    reserved   all blocks of all Regsts at once (verify.device_bytes): enough whatever the order of acts is
    live       a block counts from the begin of the first act that writes it until its last reader has given it back

A runtime that takes blocks when it needs them, as ours does, stays near the second.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.actors.ledger import Ledger
from planner.ir.actors.liveness import play
from planner.ir.plan import Plan, Task

__all__ = ["live_bytes"]


def live_bytes(plan: Plan, duration_s: Callable[[Task], float] = lambda task: 1.0, steps: int = 2) -> dict[int, int]:
    """Peak of live bytes per rank, workspace of running fragments included; all ranks of a placement hold alike, so one of them is counted.

    Args:
        duration_s: how long an act takes.   steps: two, so that one step's update meets the next step's forward pass.
    """
    ledger = Ledger()
    play(plan, steps, duration_s, ledger)
    total = dict.fromkeys(range(plan.num_ranks), 0)
    for placement in plan.placements:
        for rank in placement.ranks:
            total[rank] = max(total[rank], ledger.peak_bytes[placement.id])
    return total
