"""Settings that go out as they came in: Megatron-LM's tests, written as their YAML from the columns of a table, and torchtitan's own Llamas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.ir.errors import RegistaError
from regista.jobs.advice import Limits, advise
from regista.jobs.formats import Asked, Form, Reading, flags_text, read_framework, write_flags
from regista.jobs.formats.canonical import differences
from regista.jobs.formats.megatron import script_of
from regista.jobs.formats.torchtitan.models import known
from regista.jobs.formats.values import Written
from regista.jobs.job import Job
from regista.jobs.readers import Entry, read_jobs

__all__ = ["megatron_rows", "row_of", "torchtitan_rows"]

GOLDEN = Path(__file__).parents[1] / "paper_numbers/megatron_ci_golden_values.csv"
_KINDS = {"t5": "t5", "bert": "bert"}
_NODES = {"llama3_debugmodel": 1, "llama3_8b": 1, "llama3_8b_mxfp8": 1, "llama3_70b": 8, "llama3_405b": 16}
"""Nodes of 8 H100 for which torchtitan's configurations are meant."""
LIMITS = Limits(seconds=30.0, predictions=4)
MOST = 6
"""Advices that are followed at most."""


def megatron_rows(search: bool = True) -> Iterator[dict[str, object]]:
    """One row per row of the table.

    Args:
        search: whether a better job is looked for, too; equal jobs once.
    """
    done: dict[Job, Mapping[str, object]] = {}
    with TemporaryDirectory() as folder:
        for entry in read_jobs(GOLDEN):
            if isinstance(entry.job, RegistaError):
                yield _row(entry.name, entry.cells["env"], Form.MEGATRON_YAML) | {"result": "no job", "why": str(entry.job)}
                continue
            read = _through_yaml(entry, Path(folder))
            key = replace(read.job, name="")
            if key not in done:
                done[key] = row_of(entry.job, read, search)
            yield _row(entry.name, entry.cells["env"], Form.MEGATRON_YAML) | dict(done[key])


def torchtitan_rows(search: bool = True) -> Iterator[dict[str, object]]:
    """One row per configuration of torchtitan's own."""
    for name in known()["configs"]:
        cluster = f"dgx-h100:{_NODES[name]}"
        read = read_framework(f"--module llama3 --config {name}", Asked(cluster=cluster))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "job.toml"
            path.write_text(flags_text(write_flags(read.job, read.form, cluster), read.job, read.form))
            again = read_framework(str(path), Asked(cluster=cluster))
        yield _row(name, cluster, read.form) | row_of(read.job, again, search)


def _row(name: str, environment: str, form: Form) -> dict[str, object]:
    return {
        "kind": "sim",
        "job": name,
        "environment": environment,
        "form": form.value,
        "result": "",
        "why": "",
        "flags": "",
        "followed": "",
        "gain": "",
    }


def _through_yaml(entry: Entry, folder: Path) -> Reading:
    """A row's job, written as a model_config.yaml and read again, on the row's machine."""
    job = entry.job
    assert isinstance(job, Job)
    path = folder / _KINDS.get(entry.cells["kind"], "gpt") / entry.name.replace("/", "_") / "model_config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(flags_text(write_flags(job, Form.MEGATRON_YAML, ""), job, Form.MEGATRON_YAML))
    read = read_framework(str(path), Asked(cluster=f"gh200:{job.devices // 4}"))
    return replace(read, job=replace(read.job, machine=job.machine))


def row_of(job: Job, read: Reading, search: bool) -> dict[str, object]:
    """Whether the job came back, and whether its settings go out unchanged where nothing better is found; advice is followed until then.

    followed: how many times.   gain: of the step, from the first settings to the last.
    """
    first = write_flags(job, read.form, "")
    changed = differences(replace(job, name="", running=replace(job.running, environment="")), read.job)
    if first.lost or changed:
        return {"result": "other job", "why": "; ".join((*first.lost, *changed))}
    if not search:
        return {"result": "same job"}
    own_s, followed = 0.0, 0
    try:
        advice = advise(read, "", LIMITS)
        own_s = advice.prediction.step_s
        while advice.better is not None and followed < MOST:
            followed += 1
            advice = advise(replace(read, job=advice.better.job), "", LIMITS)
    except RegistaError as error:
        return {"result": "same job", "why": f"not predicted: {error}"}
    if advice.better is not None:
        return {"result": "same job", "flags": "better found", "followed": followed}
    again = write_flags(_read_again(advice.written, advice.job, read), read.form, "")
    same = again == advice.written
    gain = f"{1 - advice.prediction.step_s / own_s:.4f}" if followed else ""
    return {"result": "same job", "flags": "same" if same else "other", "followed": followed, "gain": gain}


def _read_again(written: Written, job: Job, read: Reading) -> Job:
    """The job that a framework's text of these settings is."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("job.toml" if read.form is Form.TORCHTITAN else "model_config.yaml")
        if read.form is Form.MEGATRON_YAML:
            path = Path(folder) / _KINDS.get(script_of(job.model), "gpt") / "case" / path.name
            path.parent.mkdir(parents=True)
        path.write_text(flags_text(written, job, read.form))
        back = read_framework(str(path), Asked(cluster=f"gh200:{job.devices // 4}")).job
    return replace(back, machine=job.machine)
