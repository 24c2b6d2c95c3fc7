"""An advice on one screen of at most 40 lines, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from planner.ir.units import show_bytes, show_s
from regista.jobs.advice.advice import Advice
from regista.jobs.formats import Form, flags_text, spelled_flags, write_flags
from regista.jobs.formats.values import Flags
from regista.jobs.job import Job
from regista.jobs.predict import Prediction

__all__ = ["LINES", "advice_json", "changed_flags", "show_advice"]

LINES = 40
_CHANGES, _OWNERS, _USES, _NAMES, _CHARACTERS, _TEXT_LINES = 3, 5, 3, 6, 200, 12


def show_advice(advice: Advice, *, full: bool = False) -> RenderableType:
    """First what is wrong, then the numbers, single changes, the better configuration and its settings.

    Args:
        full: the settings with the model's, and every name; else cut with a count.
    """
    return Group(Text(_first_line(advice)), _facts(advice, full), *_changes(advice), *_better(advice, full))


def _first_line(advice: Advice) -> str:
    return f"{advice.job.name}: {advice.verdict}"


def _facts(advice: Advice, full: bool) -> Table:
    job, done, machine = advice.job, advice.prediction, advice.machine
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", overflow="fold")
    stage = max(range(len(done.stages)), key=lambda i: done.stages[i].device_bytes[1])
    low, high = done.stages[stage].device_bytes
    owners = sorted(done.stages[stage].owners.items(), key=lambda entry: -entry[1])[:_OWNERS]
    where = f"the fullest stage ({stage})" if job.layout.pp > 1 else "each device"
    rows = {
        "job": f"{advice.form.value}, {split_text(job)} on {job.devices:,} x {machine.name}",
        "step": f"{show_s(done.step_s)} (sim), 90 % interval {show_s(done.step_low_s)} to {show_s(done.step_high_s)}; "
        f"{done.tokens_per_s_per_gpu:,.0f} tokens/s per device, MFU {done.mfu:.1%}",
        "memory": f"{fits_text(done, machine.memory_bytes)}; {where}: {show_bytes(low)} to {show_bytes(high)} of {show_bytes(machine.memory_bytes)}; "
        + ", ".join(f"{owner} {show_bytes(size)}" for owner, size in owners),
        "limiter": ", ".join(f"{what} {seconds / done.step_s:.0%}" for what, seconds in _uses(done)) + f"; bubble {advice.bubble:.0%}",
        "also": "; ".join(finding.text for finding in advice.findings[1:]),
        "assumed": "; ".join(advice.reading.assumed),
        "not mapped": _named(advice.reading.unmapped, full),
        "no effect": _named(advice.reading.without_effect, full),
        "not expressed": "; ".join(advice.written.lost),
    }
    for quantity, text in rows.items():
        if text:
            table.add_row(quantity, escape(text if full else _cut(text)))
    return table


def split_text(job: Job) -> str:
    """The layout in the words of the field."""
    at, run = job.layout, job.running
    parts = [f"pipeline {at.pp}" + (f" in {at.vp} chunks" if at.vp > 1 else "")] if at.pp > 1 else []
    parts += [f"{word} {size}" for word, size in (("data", at.dp), ("tensor", at.tp), ("context", at.cp)) if size > 1]
    if at.ep > 1:
        parts.append(f"experts by {at.ep}")
    zero = f"ZeRO-3 over {at.fsdp}" if at.fsdp > 1 else "ZeRO-1" if run.distributed_optimizer else ""
    parts = [" x ".join(parts) or "one device", f"{at.micro_batches} micro-batches of {at.micro_batch}", run.precision.value]
    return ", ".join([*parts, *([zero] if zero else []), f"recompute {run.recompute.value}"])


def fits_text(done: Prediction, memory_bytes: int) -> str:
    """Whether the least and the most that a device may be asked for are there."""
    if not done.fits:
        return "does not fit"
    most = max(stage.device_bytes[1] for stage in done.stages)
    return "fits" if most <= memory_bytes else "fits, if fragmentation is small"


def _uses(done: Prediction) -> Sequence[tuple[str, float]]:
    named = [(what, seconds) for what, seconds in done.seconds.items() if what != "bubble"]
    return sorted(named, key=lambda entry: -entry[1])[:_USES]


def _named(names: Sequence[str], full: bool) -> str:
    if full or len(names) <= _NAMES:
        return ", ".join(names)
    return ", ".join(names[:_NAMES]) + f" and {len(names) - _NAMES} more (--full)"


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 11].rstrip() + " ... (--full)"


def _changes(advice: Advice) -> Sequence[RenderableType]:
    if not advice.changes:
        return [Text("no single change helps")]
    table = Table(title="one change at a time", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("set", overflow="fold", max_width=90)
    for column in ("step", "fullest device"):
        table.add_column(column, no_wrap=True, justify="right")
    for change in advice.changes[:_CHANGES]:
        flags = write_flags(change.job, advice.form, advice.cluster).flags
        most = max(stage.device_bytes[1] for stage in change.prediction.stages)
        less = f" ({change.prediction.step_s / advice.prediction.step_s - 1:+.0%})" if advice.prediction.fits else ""
        words = escape(_cut("; ".join(changed_flags(advice.written.flags, flags, advice.form))))
        table.add_row(words, show_s(change.prediction.step_s) + less, show_bytes(most))
    return [table]


def _better(advice: Advice, full: bool) -> Sequence[RenderableType]:
    found, better = advice.found, advice.better
    tried = f"{found.predicted} predicted of {found.considered:,} candidates, {found.too_large:,} do not fit; no certificate" + (
        ", the time was up" if found.ran_out else ""
    )
    if better is None:
        return [Text(f"nothing better was found ({tried}); leave the settings as they are")]
    done = better.prediction
    low, high = show_s(done.step_low_s), show_s(done.step_high_s)
    gain = f"{better.gain:.0%} less" if better.gain is not None else "it fits"
    lines = [
        f"better: {split_text(better.job)}",
        f"  step {show_s(done.step_s)} (sim; {gain}), 90 % interval {low} to {high}, MFU {done.mfu:.1%}, "
        f"{show_bytes(max(stage.device_bytes[1] for stage in done.stages))} at most; {tried}",
    ]
    lines += [f"  not said by {advice.form.value}: {what}" for what in better.written.lost]
    text = flags_text(better.written, better.job, advice.form, model=full)
    pasted = text.rstrip().splitlines()
    if not full and len(pasted) > _TEXT_LINES:
        changed = changed_flags(advice.written.flags, better.written.flags, advice.form)
        pasted = [*changed[:_TEXT_LINES], *([f"and {len(changed) - _TEXT_LINES} more (--full)"] if len(changed) > _TEXT_LINES else [])]
        lines.append("change:")
    else:
        lines.append("settings to paste:")
    return [Text("\n".join([*lines, *pasted]))]


def changed_flags(old: Flags, new: Flags, form: Form) -> tuple[str, ...]:
    """What to set and what to remove, in the framework's spelling."""
    dashes = "--" if form in (Form.MEGATRON, Form.MEGATRON_YAML) else ""

    def said(name: str, value: object) -> str:
        if form is Form.MEGATRON:
            return f"{dashes}{name}" + ("" if value is True else f" {value}")
        shown = str(value).lower() if isinstance(value, bool) else value
        return f"{dashes}{name}: {shown}" if form in (Form.MEGATRON_YAML, Form.BRIDGE, Form.NEMO) else f"{name} = {shown}"

    old, new = spelled_flags(old, form), spelled_flags(new, form)
    put = [said(name, value) for name, value in new.items() if old.get(name) != value]
    return (*put, *(f"no {dashes}{name}" for name in old if name not in new))


def advice_json(advice: Advice) -> dict[str, object]:
    """The same as plain data, kind ``sim``; units in names, shares 0 to 1."""
    reading, found, better = advice.reading, advice.found, advice.better
    return {
        "kind": "sim",
        "job": advice.job.name,
        "form": advice.form.value,
        "verdict": advice.verdict,
        "faults": [
            {"fault": f.fault.value, "text": f.text, "cost_s": None if f.cost_s == float("inf") else f.cost_s} for f in advice.findings
        ],
        "machine": advice.machine.name,
        "devices": advice.job.devices,
        **_prediction_json(advice.prediction, advice.job),
        "bubble": advice.bubble,
        "assumed": list(reading.assumed),
        "not_mapped": list(reading.unmapped),
        "without_effect": list(reading.without_effect),
        "not_expressed": list(advice.written.lost),
        "flags": dict(spelled_flags(advice.written.flags, advice.form)),
        "changes": [
            {"set": list(changed_flags(advice.written.flags, write_flags(c.job, advice.form, advice.cluster).flags, advice.form))}
            | _prediction_json(c.prediction, c.job)
            for c in advice.changes
        ],
        "search": {"considered": found.considered, "predicted": found.predicted, "too_large": found.too_large, "ran_out": found.ran_out},
        "better": None
        if better is None
        else {
            **_prediction_json(better.prediction, better.job),
            "gain": better.gain,
            "flags": dict(spelled_flags(better.written.flags, advice.form)),
            "changed": list(changed_flags(advice.written.flags, better.written.flags, advice.form)),
            "not_expressed": list(better.written.lost),
            "text": flags_text(better.written, better.job, advice.form),
        },
    }


def _prediction_json(done: Prediction, job: Job) -> dict[str, object]:
    return {
        "split": split_text(job),
        "step_s": done.step_s,
        "step_low_s": done.step_low_s,
        "step_high_s": done.step_high_s,
        "mfu": done.mfu,
        "tokens_per_s_per_gpu": done.tokens_per_s_per_gpu,
        "fits": done.fits,
        "device_bytes_low": max(stage.device_bytes[0] for stage in done.stages),
        "device_bytes_high": max(stage.device_bytes[1] for stage in done.stages),
        "owners": [dict(stage.owners) for stage in done.stages],
        "seconds": dict(done.seconds),
        "limiter": done.limiter,
        "plan_id": done.plan.plan_id,
    }
