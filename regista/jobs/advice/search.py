"""A better configuration of a job under what its framework can express: candidates in the order of an estimate, the first ones predicted.

No certificate is claimed: what was not predicted may be better.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.ir.errors import RegistaError
from regista.jobs.advice.estimate import Estimator, most_bytes
from regista.jobs.advice.space import Space, candidates
from regista.jobs.checks import checked
from regista.jobs.formats.canonical import differences
from regista.jobs.job import Job
from regista.jobs.machines import Machine
from regista.jobs.predict import Prediction, predict

__all__ = ["Found", "Limits", "find_better"]

_NEAR = 1.01
"""Of configurations within 1 % of the quickest, the one that changes the fewest knobs is proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """seconds: after which no further candidate is begun.   predictions: so many candidates are predicted at most."""

    seconds: float = 20.0
    predictions: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """considered: candidates in the space.   too_large: those met in the order that do not fit.   predicted: how many of them.

    best: None where none fits.   in_time: whether the limit of seconds ended the search.
    """

    best: tuple[Job, Prediction] | None
    considered: int
    too_large: int
    predicted: int
    ran_out: bool


def find_better(
    job: Job,
    machine: Machine,
    space: Space,
    limits: Limits,
    is_expressed: Callable[[Job], bool] = lambda _: True,
    say: Callable[[str], None] = lambda _: None,
) -> Found:
    """The quickest of the candidates that were predicted and that surely fit (by the most that a device may be asked for).

    Args:
        is_expressed: whether the framework can say what a candidate changes.   say: takes a line of progress.
    """
    began_s = time.monotonic()
    estimator = Estimator(machine)
    ranked: list[tuple[float, int, Job]] = []
    for number, one in enumerate(candidates(job, machine, space)):
        try:
            checked(one, machine)
            ranked.append((estimator.step_s(one), number, one))
        except RegistaError:
            continue
        if time.monotonic() - began_s > limits.seconds / 2:
            break
    ranked.sort(key=lambda entry: entry[:2])
    too_large, predicted, ran_out = 0, list[tuple[Job, Prediction]](), False
    for _, _, one in ranked:
        if len(predicted) >= limits.predictions:
            break
        if time.monotonic() - began_s > limits.seconds:
            ran_out = True
            break
        if not is_expressed(one):
            continue
        if most_bytes(one, machine) > machine.memory_bytes:
            too_large += 1
            continue
        try:
            done = predict(one)
        except RegistaError:
            continue
        if max(stage.device_bytes[1] for stage in done.stages) <= machine.memory_bytes:
            predicted.append((one, done))
            say(f"predicted {len(predicted)} of {limits.predictions} candidates ...")
        else:
            too_large += 1
    best = None
    if predicted:
        quickest_s = min(done.step_s for _, done in predicted)
        near = [entry for entry in predicted if entry[1].step_s <= _NEAR * quickest_s]
        best = min(near, key=lambda entry: (len(differences(job, entry[0])), entry[1].step_s))
    return Found(best=best, considered=len(ranked), too_large=too_large, predicted=len(predicted), ran_out=ran_out)
