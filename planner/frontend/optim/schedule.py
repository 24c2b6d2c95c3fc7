"""Learning rates by step: from schedulers of torch, or from a function of the step.

A schedule is no part of the graph: the rate of each group is an input of the step (InputKind.STEP_INPUT), a number that whoever performs a
Plan gives to every step.  So another schedule is the same graph, and the same Plan.  Schedulers that cycle momentum with it (OneCycleLR and
CyclicLR unless they are told not to) make it a second input of each group.
"""

from __future__ import annotations

import copy
import gc
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["LrSchedule", "Schedule", "schedule_of"]

LrSchedule = LRScheduler | Sequence[LRScheduler] | Callable[[int], float | Sequence[float]]
"""A scheduler of torch that is stepped once per step, several of them in that order, or step -> the rate of all groups, or one per group."""

Rates = Callable[[int], tuple[float, ...]]
"""Step -> the learning rate of each group."""

Momenta = Callable[[int], tuple[float, ...]]
"""Step -> the momentum of each group: the first of its betas where it has such."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What changes from step to step.   momenta: None: they do not."""

    rates: Rates
    momenta: Momenta | None = None

    def numbers(self, step: int) -> dict[str, float]:
        """By the name of the graph's input: ``lr.0`` is the learning rate of group 0, ``momentum.0`` its momentum.

        Raises:
            InvalidProgram: no legal number for this step.
        """
        numbers = {f"lr.{group}": rate for group, rate in enumerate(self.rates(step))}
        if self.momenta is not None:
            numbers |= {f"momentum.{group}": momentum for group, momentum in enumerate(self.momenta(step))}
        return numbers


def schedule_of(given: LrSchedule | None, optimizer: object, num_groups: int) -> Schedule | None:
    """A schedule whose rates are checked at every step; None: there is none, and rates are constants of the graph.

    Args:
        optimizer: what the Program was given; schedulers must be of this very optimizer.  They are copied as they stand, and step 0 has the rate
            that the optimizer's next step would have.

    Raises:
        Unsupported: a scheduler is attached to the optimizer and not given; one that needs the loss; one that changes more than rates and momenta.
        InvalidProgram: something else than a schedule, a scheduler of another optimizer, or step 0 has no legal rate.
    """
    if given is None:
        of, attached = next(
            ((o, found) for o in (optimizer if isinstance(optimizer, list | tuple) else (optimizer,)) if (found := _attached(o))),
            (None, None),
        )
        if attached is not None:
            raise Unsupported(
                f"{attached} of torch is attached to this torch.optim.{type(of).__name__}; give it to the Program, "
                "lr_schedule=scheduler, or it would be left out (lr_schedule=lambda step: RATE keeps a constant)"
            )
        return None
    rates: Rates
    momenta: Momenta | None = None
    schedulers = (given,) if isinstance(given, LRScheduler) else tuple(given) if isinstance(given, Sequence) else ()
    if schedulers and isinstance(optimizer, list | tuple):
        raise Unsupported(
            f"schedulers of torch are carried for one optimizer, and there are {len(optimizer)}; "
            "give a function of the step with the rates of all groups: lr_schedule=lambda step: (RATE, RATE)"
        )
    if schedulers:
        rates = copies = _SteppedCopies(schedulers, optimizer)
        momenta = copies.momenta if copies.cycles_momentum else None
    elif callable(given):
        rates = _checked_function(given, num_groups)
    else:
        raise InvalidProgram(
            f"lr_schedule is a {type(given).__name__}; give a scheduler of torch.optim.lr_scheduler, or a function of the step: "
            "lambda step: 1e-3 * min(1, (step + 1) / 100)"
        )

    def checked(step: int) -> tuple[float, ...]:
        step_rates = rates(step)
        for group, rate in enumerate(step_rates):
            if not (math.isfinite(rate) and rate >= 0):
                raise InvalidProgram(
                    f"the learning rate of step {step} is {rate} in group {group}; mend the schedule: a rate is a finite number of at least 0"
                )
        return step_rates

    checked(0)
    return Schedule(checked, momenta)


def _attached(optimizer: object) -> str | None:
    """What changes the rates of a torch optimizer.  Schedulers wrap its ``step``; ReduceLROnPlateau does not, but it holds the optimizer.

    Python says who holds an object: an object with attributes of its own, or their dictionary.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return None
    if getattr(optimizer.step, "_wrapped_by_lr_sched", False):
        return "a learning-rate scheduler"
    for holder in gc.get_referrers(optimizer):
        if issubclass(type(holder), ReduceLROnPlateau) or (type(holder) is dict and "num_bad_epochs" in holder):
            return "ReduceLROnPlateau"
    return None


def _checked_function(function: Callable[[int], float | Sequence[float]], num_groups: int) -> Rates:
    def rates(step: int) -> tuple[float, ...]:
        try:
            value = function(step)
            step_rates = tuple(float(v) for v in value) if isinstance(value, Sequence) else (float(value),) * num_groups
        except Exception as error:
            raise InvalidProgram(
                f"lr_schedule({step}) raised {type(error).__name__}: {error}; it must give a rate at every step"
            ) from error
        if len(step_rates) != num_groups:
            raise InvalidProgram(
                f"lr_schedule({step}) gives {len(step_rates)} rates and the optimizer has {num_groups} groups; give one each"
            )
        return step_rates

    return rates


class _SteppedCopies:
    """Copies of schedulers and of their optimizer's groups, stepped as far as they were asked for; called: the rates of a step.

    cycles_momentum: a scheduler says that it does; of the others, nothing but rates may change.
    """

    def __init__(self, schedulers: Sequence[object], optimizer: object) -> None:
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise Unsupported(
                    "ReduceLROnPlateau follows a metric, so its rates are not known before the run; train in a session and give each step its "
                    "own rate, session.step(batch, lr=...), with lr_schedule=lambda step: RATE"
                )
            if not isinstance(scheduler, LRScheduler):
                raise InvalidProgram(
                    f"lr_schedule holds a {type(scheduler).__name__}; all of it must be schedulers of torch.optim.lr_scheduler"
                )
            if scheduler.optimizer is not optimizer:
                raise InvalidProgram(
                    f"this {type(scheduler).__name__} is of another optimizer than the Program's; build it on the same one"
                )
        assert isinstance(optimizer, torch.optim.Optimizer)
        # Neither parameters nor optimizer state are copied.
        memo: dict[int, object] = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        memo[id(optimizer.state)] = defaultdict(dict)
        self._schedulers: tuple[LRScheduler, ...] = copy.deepcopy(tuple(schedulers), memo)  # type: ignore[arg-type]
        self._groups: list[dict[str, Any]] = self._schedulers[0].optimizer.param_groups
        self.cycles_momentum = any(getattr(scheduler, "cycle_momentum", False) for scheduler in _all(self._schedulers))
        self._others = [self._unchanged(group) for group in self._groups]
        self._rates, self._momenta = [self._now()], [self._momenta_now()]
        self(1)  # a scheduler that changes more than rates is refused here

    def _now(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self._groups)

    def _momenta_now(self) -> tuple[float, ...]:
        return tuple(_momentum(group) for group in self._groups) if self.cycles_momentum else ()

    def __call__(self, step: int) -> tuple[float, ...]:
        while len(self._rates) <= step:
            at = len(self._rates)
            for scheduler in self._schedulers:
                self._step(scheduler, at)
            self._rates.append(self._now())
            self._momenta.append(self._momenta_now())
        return self._rates[step]

    def momenta(self, step: int) -> tuple[float, ...]:
        """The momentum of each group at a step."""
        self(step)
        return self._momenta[step]

    def _unchanged(self, group: Mapping[str, object]) -> dict[str, object]:
        """What no scheduler may change in a group."""
        numbers = _other_numbers(group)
        if self.cycles_momentum:
            numbers.pop("momentum", None)
            if isinstance(betas := numbers.get("betas"), tuple):
                numbers["betas"] = betas[1:]
        return numbers

    def _step(self, scheduler: LRScheduler, at: int) -> None:
        shown = type(scheduler).__name__
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is stepped before the optimizer
                scheduler.step()
        except Exception as error:
            raise InvalidProgram(
                f"{shown} has no learning rate for step {at}: {type(error).__name__}: {error}; ask for fewer steps"
            ) from error
        for number, (group, before) in enumerate(zip(self._groups, self._others, strict=True)):
            changed = [name for name, value in self._unchanged(group).items() if value != before.get(name)]
            if changed:
                raise Unsupported(
                    f"{shown} changes {', '.join(changed)} of group {number} at step {at}; only learning rates, and momenta of schedulers with "
                    "cycle_momentum, are inputs of a step: leave the others as they are"
                )


_NUMBERS = ("momentum", "betas", "weight_decay", "eps", "alpha", "lr_decay", "beta2_decay", "d", "dampening")


def _other_numbers(group: Mapping[str, object]) -> dict[str, object]:
    """What a rule takes from a group beside its rate."""
    return {name: group[name] for name in _NUMBERS if name in group}


def _momentum(group: Mapping[str, Any]) -> float:
    return float(group["betas"][0] if "betas" in group else group["momentum"])


def _all(schedulers: Sequence[object]) -> list[object]:
    """With those that a SequentialLR or a ChainedScheduler has."""
    within = [inner for scheduler in schedulers for inner in _all(getattr(scheduler, "_schedulers", ()))]
    return [*schedulers, *within]
