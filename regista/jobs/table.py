"""Predictions as rows: for the screen, for a CSV and for --json.  Every number is of kind ``sim``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from planner.ir.errors import RegistaError
from planner.ir.units import show_bytes
from regista.jobs.predict import Prediction, predict
from regista.jobs.readers import Entry

__all__ = ["Outcome", "csv_text", "outcome_of", "outcomes_table", "routing_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An entry and what became of it."""

    entry: Entry
    result: Prediction | RegistaError

    def data(self) -> dict[str, object]:
        """Plain data in SI units; what a refused row lacks is None."""
        done = self.result if isinstance(self.result, Prediction) else None
        return {
            "file": self.entry.file,
            "row": self.entry.row,
            "job": self.entry.name,
            "kind": "sim",
            "step_s": done and done.step_s,
            "step_low_s": done and done.step_low_s,
            "step_high_s": done and done.step_high_s,
            "tokens_per_s_per_gpu": done and done.tokens_per_s_per_gpu,
            "mfu": done and done.mfu,
            "peak_bytes": done and [stage.peak_bytes for stage in done.stages],
            "peak_bytes_max": done and max(stage.peak_bytes for stage in done.stages),
            "peak_bytes_last": done and done.stages[-1].peak_bytes,
            "device_bytes_low": done and max(stage.device_bytes[0] for stage in done.stages),
            "device_bytes_high": done and max(stage.device_bytes[1] for stage in done.stages),
            "owners": done and [dict(stage.owners) for stage in done.stages],
            "fits": done and done.fits,
            "limiter": done and done.limiter,
            "refused": None if done else str(self.result),
            "plan_covers": done and done.plan.options["covers"],
            "plan_id": done and done.plan.plan_id,
        }

    def details(self) -> dict[str, object]:
        """Where the seconds of the last stage go, and what tokens make of experts where a routing is given."""
        done = self.result
        if not isinstance(done, Prediction):
            return {}
        told: dict[str, object] = {"seconds": dict(done.seconds)}
        return told if done.busiest_rank is None else told | {"busiest_rank": done.busiest_rank, "dropped_share": done.dropped_share}


def outcome_of(entry: Entry) -> Outcome:
    """Predict an entry; a refusal is its outcome and stops no other entry."""
    if isinstance(entry.job, RegistaError):
        return Outcome(entry=entry, result=entry.job)
    try:
        return Outcome(entry=entry, result=predict(entry.job))
    except RegistaError as error:
        return Outcome(entry=entry, result=error)


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """One row per outcome; peak_bytes and owners are JSON lists, one number and one object (owner: bytes) per stage."""
    text = io.StringIO()
    rows = [outcome.data() for outcome in outcomes]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6g}"
        case list():
            return json.dumps(value)
    return value


def routing_lines(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """A line for each job whose routing is given: what it was priced at, and what is dropped."""
    lines = []
    for outcome in outcomes:
        done, job = outcome.result, outcome.entry.job
        if not isinstance(done, Prediction) or done.busiest_rank is None or isinstance(job, RegistaError) or job.running.load is None:
            continue
        load = job.running.load
        room = "dropless" if load.capacity_factor is None else f"capacity factor {load.capacity_factor:g}, {done.dropped_share:.1%} dropped"
        lines.append(
            f"{outcome.entry.name}: experts at quantile {load.quantile:g} of routing {load.routing}: the busiest rank has {done.busiest_rank:.3g} "
            f"times the even load; {room}"
        )
    return tuple(lines)


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """A screen's worth: seconds with their interval, speed, the fullest stage, and what was refused."""
    table = Table(
        title="predicted steps (sim), with 90 % intervals; tokens/s of a device, memory of the fullest stage", title_justify="left"
    )
    for column in ("row", "job", "s per step", "tokens/s", "MFU", "memory", "fits", "limited by"):
        table.add_column(column)
    for outcome in outcomes:
        done, number, name = outcome.result, str(outcome.entry.row), escape(outcome.entry.name)
        if not isinstance(done, Prediction):
            table.add_row(number, name, "refused", "", "", "", "", escape(str(done)))
            continue
        table.add_row(
            number,
            name,
            f"{done.step_s:.4g} ({done.step_low_s:.4g} to {done.step_high_s:.4g})",
            f"{done.tokens_per_s_per_gpu:.4g}",
            f"{done.mfu:.1%}",
            show_bytes(max(stage.peak_bytes for stage in done.stages)),
            "yes" if done.fits else "no",
            done.limiter,
        )
    return table
