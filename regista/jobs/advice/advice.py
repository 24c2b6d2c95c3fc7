"""The answer to "here is my configuration": what it does, what is wrong, what one knob changes, and what would be better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.ir.display import Displayed
from regista.jobs.advice.changes import Change, useful_changes
from regista.jobs.advice.faults import Finding, find_faults
from regista.jobs.advice.search import Found, Limits, find_better
from regista.jobs.advice.space import space_of
from regista.jobs.formats import Form, Reading, write_flags
from regista.jobs.formats.canonical import differences
from regista.jobs.formats.values import Written
from regista.jobs.job import Job
from regista.jobs.machines import Machine, load_machine
from regista.jobs.predict import Prediction, predict

__all__ = ["Advice", "Better", "advise"]

LEAST_GAIN = 0.01
"""Of the step, below which the job is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Better:
    """gain: share of the job's step that is saved; None where the job does not fit, so that there is no step to save from."""

    job: Job
    prediction: Prediction
    written: Written
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Displayed):
    """changes: of one knob each, the best first.   found: what the search met.

    written: the job's own settings, in the words that better's are in.   better: None where nothing better was found.
    """

    reading: Reading
    cluster: str
    machine: Machine
    prediction: Prediction
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...]
    found: Found
    written: Written
    better: Better | None

    @property
    def job(self) -> Job:
        return self.reading.job

    @property
    def form(self) -> Form:
        return self.reading.form

    @property
    def bubble(self) -> float:
        """Share of the step in which the last stage computes nothing."""
        return self.prediction.seconds["bubble"] / self.prediction.step_s if self.job.layout.pp > 1 else 0.0

    @property
    def verdict(self) -> str:
        """The first line: the gravest fault, or that there is none."""
        if self.findings:
            others = len(self.findings) - 1
            return self.findings[0].text + (f"; and {others} more" if others else "")
        if self.better is not None and self.better.gain is not None:
            return f"no fault was found, but {self.better.gain:.0%} of the step can be saved"
        return "no fault and nothing better was found"


def advise(reading: Reading, cluster: str, limits: Limits, say: Callable[[str], None] = lambda _: None) -> Advice:
    """Predict a job, find its faults, try single changes, and search.

    Args:
        cluster: its name, as our TOML writes it.   say: takes a line of progress.

    Raises:
        RegistaError: the job is refused; the message names the knob.
    """
    job = reading.job
    machine = load_machine(job.machine).within(job.running.environment)
    done = predict(job)
    space, written = space_of(reading.form, job), write_flags(job, reading.form, cluster)

    def is_expressed(one: Job) -> bool:
        """Whether the framework can say what changes."""
        other = write_flags(one, reading.form, cluster)
        return set(other.lost) <= set(written.lost) and other.flags != written.flags

    say("trying single changes ...")
    changes = tuple(change for change in useful_changes(job, machine, space, done) if is_expressed(change.job))
    say("searching ...")
    found = find_better(job, machine, space, limits, is_expressed, say)
    return Advice(
        reading=reading,
        cluster=cluster,
        machine=machine,
        prediction=done,
        findings=find_faults(job, machine, done),
        changes=changes,
        found=found,
        written=written,
        better=_better(job, done, found, changes, reading.form, cluster, machine),
    )


def _better(
    job: Job, done: Prediction, found: Found, changes: tuple[Change, ...], form: Form, cluster: str, machine: Machine
) -> Better | None:
    """The best of what the search and the single changes met, if it saves enough."""
    met = [*([found.best] if found.best else []), *((c.job, c.prediction) for c in changes if _surely_fits(c.prediction, machine))]
    if not met:
        return None
    best, other = min(met, key=lambda entry: entry[1].step_s)
    gain = 1 - other.step_s / done.step_s if done.fits else None
    if not differences(job, best) or (gain is not None and gain < LEAST_GAIN):
        return None
    return Better(job=best, prediction=other, written=write_flags(best, form, cluster), gain=gain)


def _surely_fits(done: Prediction, machine: Machine) -> bool:
    return max(stage.device_bytes[1] for stage in done.stages) <= machine.memory_bytes
