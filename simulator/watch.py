"""Long simulations: progress while they run, the whole steps that are done when they are interrupted, and a watchdog.

    acts  |=========== step 0 ===========|=========== step 1 ===========|==== step 2 ...   Ctrl-C
                                                                        ^ the trace ends here

The watchdog needs no clock: a Plan says how many acts each task performs, and every event of the engine belongs to one of them, so a
simulation that goes on after its last act, or performs an act twice, has gone wrong and is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.ir.actors.actor import ActorId
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act, Source, Trace
from simulator.engine import simulate
from simulator.rules.prices import Factor

__all__ = ["Watchdog", "simulate_watched"]


class Watchdog:
    """Told of every act as it ends (simulate's ``on_act``); keeps the acts and counts them against the Plan."""

    def __init__(self, plan: Plan, steps: int, on_progress: Callable[[int, int], None] | None = None, every_acts: int = 10_000) -> None:
        """
        Args:
            on_progress: told (acts done, acts in all) after every ``every_acts`` acts and after the last.
        """
        self.plan, self.steps = plan, steps
        self.acts: list[Act] = []
        self.done: dict[ActorId, int] = {(task.id, rank): 0 for task in plan.tasks for rank in plan.ranks_of(task)}
        self.total = steps * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
        self.on_progress, self.every_acts = on_progress, every_acts

    def __call__(self, act: Act) -> None:
        """Note one act.

        Raises:
            InvalidPlan: the act is not the next one of its task and rank, or one more than the Plan says.
        """
        key = act.task, act.rank
        expected = self.done.get(key)
        if expected is None or act.number != expected or expected >= self.steps * self.plan.task[act.task].acts:
            raise InvalidPlan(
                f"the simulation performed act {act.number} of {act.task} on rank {act.rank}, where the plan says act {expected} of "
                f"{self.steps} steps comes next; the plan was not verified, run planner.ir.actors.verify.verify"
            )
        self.done[key] = expected + 1
        self.acts.append(act)
        if self.on_progress is not None and (len(self.acts) % self.every_acts == 0 or len(self.acts) == self.total):
            self.on_progress(len(self.acts), self.total)

    @property
    def whole_steps(self) -> int:
        """Steps of which every act has ended."""
        return min(count // self.plan.task[task].acts for (task, _), count in self.done.items())

    def trace(self, cost_model: str) -> Trace | None:
        """The whole steps so far, None if there is none.  Peaks of memory are not in it: they belong to a run that ended."""
        steps = self.whole_steps
        if steps == 0:
            return None
        place = {key: number for number, key in enumerate(self.done)}
        acts = [act for act in self.acts if act.number < steps * self.plan.task[act.task].acts]
        acts.sort(key=lambda act: (act.start_s, act.end_s, place[act.task, act.rank], act.number))
        return Trace(
            source=Source.SIM,
            performer="simulator",
            plan_id=self.plan.plan_id,
            steps=steps,
            acts=tuple(acts),
            about={"cost_model": cost_model, "interrupted": f"after {len(self.acts)} of {self.total} acts; asked for {self.steps} steps"},
        )


def simulate_watched(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    factor: Factor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    every_acts: int = 10_000,
) -> Trace:
    """As simulate, in SimPy, with progress; an interruption gives the trace of the steps that are done.

    Args:
        on_progress: told (acts done, acts in all) after every ``every_acts`` acts; a KeyboardInterrupt that it raises ends the simulation too.

    Returns:
        A SIM trace; ``about["interrupted"]`` says how far it got if it did not get to its end.

    Raises:
        KeyboardInterrupt: before the first step was done.   Else as simulate.
    """
    dog = Watchdog(plan, steps, on_progress, every_acts)
    try:
        return simulate(plan, cost, steps=steps, factor=factor, on_act=dog)
    except KeyboardInterrupt:
        partial = dog.trace(cost.id)
        if partial is None:
            raise
        return partial
