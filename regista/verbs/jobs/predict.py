"""The verb 'predict': jobs as people write them, predicted row by row.  It needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.ir.errors import Unsupported
from planner.ir.text import save_text
from regista.targets import check_targets
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]

_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "jobs",
        nargs="+",
        metavar="JOB",
        help="a TOML with [model], [cluster] and [layout], or a CSV with one job per row (columns of nvidia_dgxc_step_times, "
        "megatron_ci_golden_values, megatron_bridge_performance_summary or sailor_validation)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="a CSV with one row per job")


def perform(args: argparse.Namespace) -> Json:
    """Predict all jobs; a row that is refused stops no other.

    Raises:
        InvalidFile: a file is no list of jobs.   Unsupported: no job could be predicted.
    """
    from regista.jobs import read_jobs
    from regista.jobs.table import Outcome, csv_text, outcome_of, outcomes_table, routing_lines

    check_targets([args.out], args.jobs)
    entries = [entry for path in args.jobs for entry in read_jobs(path)]
    outcomes: list[Outcome] = []
    with status(args, "predicting ...") as line:
        say = status_text(line)
        for number, entry in enumerate(entries, start=1):
            say(f"predicting {number} of {len(entries)}: {entry.name}")
            outcomes.append(outcome_of(entry))
    refused = [outcome for outcome in outcomes if isinstance(outcome.result, ValueError)]
    if len(refused) == len(outcomes):
        said = "\n".join(f"  {o.entry.file} row {o.entry.row} ({o.entry.name}): {o.result}" for o in refused[:_SHOWN])
        more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise Unsupported(f"none of {len(outcomes)} jobs could be predicted:\n{said}{more}")
    if args.out:
        save_text(Path(args.out), csv_text(outcomes))
    told = routing_lines(outcomes)
    show(
        args,
        outcomes_table(outcomes),
        *told[:_SHOWN],
        f"{len(outcomes) - len(refused)} of {len(outcomes)} jobs predicted, {len(refused)} refused",
    )
    if args.out:
        show(args, f"wrote {args.out}")
    return {
        "jobs": [outcome.data() | outcome.details() for outcome in outcomes],
        "predicted": len(outcomes) - len(refused),
        "refused": len(refused),
        "out": args.out,
    }
