"""How each task is timed alone."""

from __future__ import annotations

import handmade

from backend.worker.isolated import step_order
from planner.ir.plan import TaskKind


def test_a_rank_repeats_the_computing_of_its_last_step_in_the_order_in_which_it_did_it() -> None:
    plan = handmade.pipeline(3)
    places = {task.id: place for place, task in enumerate(plan.tasks)}
    sending = next(task.id for task in plan.tasks if task.kind is TaskKind.TRANSFER)
    here = [task for task in plan.tasks if 0 in plan.ranks_of(task) and not task.kind.is_communication]
    forward, backward, update = (
        next(t.id for t in here if t.kind is kind) for kind in (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE)
    )
    first = [forward, forward, forward, backward, backward, backward, update]
    second = [forward, forward, backward, sending, forward, backward, backward, update]
    rows, acts = [], dict.fromkeys(places, 0)
    for time_ns, task in enumerate([*first, *second]):
        rows.append((places[task], acts[task], time_ns, time_ns, time_ns + 1))
        acts[task] += 1
    assert [task.id for task in step_order(plan, rows[::-1])] == [task for task in second if task != sending]
