"""A Plan's step, simulated anew with each constant of its cluster at both ends of its spread, the others as they are.

    constant      low end <------ value ------> high end
    step             |-------------+---|                       swing = longest - shortest of the two, over the step as it is

The largest swing first: a tornado.  A Plan keeps its decisions here; what another search would decide is regista.analysis.sensitivity.choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.cost import AnalyticCost
from planner.ir.cluster import Cluster
from planner.ir.errors import Mismatch, RegistaError
from planner.ir.plan import Plan
from regista.trust.constants import Constant, with_constants
from simulator.analysis.forecast import forecast

__all__ = ["Choice", "Effect", "Sensitivity", "sensitivity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a new search takes at one end.   same: the Plan's own decisions.   gained: share of the old decisions' price that the new ones
    save there; None: the old ones are not allowed there.   why_not: why there is no other plan; empty: there is.
    """

    same: bool = False
    gained: float | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Seconds of the step (kind ``sim``) with the constant at its low and its high end; fits: whether the devices hold it there."""

    constant: Constant
    low_s: float
    high_s: float
    low_fits: bool
    high_fits: bool
    low_choice: Choice | None = None
    high_choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """step_s: with all constants as they are.   effects: the largest swing first."""

    plan: Plan
    step_s: float
    effects: tuple[Effect, ...]

    def swing(self, effect: Effect) -> float:
        """Between the longest and the shortest of the steps as they are, low and high, over the step as it is."""
        times = (self.step_s, effect.low_s, effect.high_s)
        return (max(times) - min(times)) / self.step_s if self.step_s > 0 else 0.0


def sensitivity(
    plan: Plan,
    constants: Sequence[Constant],
    *,
    cluster: Cluster | None = None,
    steps: int = 4,
    choose: Callable[[Plan, Constant, float], Choice] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Sensitivity:
    """Simulate the Plan at both ends of every constant.

    Args:
        constants: of ``cluster`` (None: the Plan's own).   choose: also says what a search takes with a constant at a value.

    Raises:
        Mismatch: another number of devices.   DeadLock, Unsupported: see simulator.analysis.forecast.
    """
    home = plan.cluster if cluster is None else cluster
    if home.num_devices != plan.cluster.num_devices:
        raise Mismatch(
            f"plan {plan.plan_id} is for {plan.cluster.num_devices} devices, cluster {home.name} has {home.num_devices}; give one of as many "
            f"(NAME:NODES), or plan for it"
        )
    on_progress("simulating the plan as it is ...")
    placed = replace(plan, cluster=home)
    base_s, _ = _step(placed, home, steps)
    effects = []
    for number, constant in enumerate(constants, start=1):
        on_progress(f"{number} of {len(constants)}: {constant.key} ...")
        low, high = constant.ends
        (low_s, low_fits), (high_s, high_fits) = (_step(plan, with_constants(home, {constant.key: value}), steps) for value in (low, high))
        choices = (None, None) if choose is None else (choose(placed, constant, low), choose(placed, constant, high))
        effects.append(
            Effect(
                constant=constant,
                low_s=low_s,
                high_s=high_s,
                low_fits=low_fits,
                high_fits=high_fits,
                low_choice=choices[0],
                high_choice=choices[1],
            )
        )
    study = Sensitivity(plan=placed, step_s=base_s, effects=tuple(effects))
    return replace(study, effects=tuple(sorted(effects, key=lambda effect: -study.swing(effect))))


def _step(plan: Plan, cluster: Cluster, steps: int) -> tuple[float, bool]:
    """(seconds of a step, whether the fullest device holds it)."""
    played = forecast(replace(plan, cluster=cluster), AnalyticCost(cluster), steps=steps)
    fullest = max((group.peak_bytes for group in played.rank_groups), default=0)
    return played.step_s, fullest <= cluster.device.memory_bytes


def searched(plan: Plan, choose: Callable[[], tuple[Plan, float | None]]) -> Choice:
    """A Choice from a search that returns its Plan and the old decisions' price; a refusal becomes ``why_not``."""
    try:
        new, old_s = choose()
    except RegistaError as error:
        return Choice(why_not=f"{type(error).__name__}: {error}")
    same = (new.tasks, new.regsts) == (plan.tasks, plan.regsts)
    if old_s is None or old_s == float("inf"):
        return Choice(same=same)
    return Choice(same=same, gained=max(0.0, 1 - new.search.objective_s / old_s) if old_s > 0 else 0.0)
