"""The verb 'advise': a job as its framework writes it, what is wrong with it, and the settings that would be better.  It needs no torch."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console, RenderableType

from planner.ir.text import save_text
from regista.targets import check_targets
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job",
        metavar="JOB",
        help="Megatron-LM's arguments (a string or a file), its model_config.yaml, a recipe of Megatron-Bridge or NeMo (YAML), torchtitan's TOML, "
        "DeepSpeed's JSON beside a config.json, or a job's TOML",
    )
    parser.add_argument(
        "--cluster", metavar="NAME", help="where it runs: a preset with its nodes (dgx-h100:16) or a TOML; frameworks do not say"
    )
    parser.add_argument(
        "--family", metavar="NAME", help="the model, for files that do not have its numbers: llama3.1-70b, deepseek-v3, ..."
    )
    parser.add_argument("--seq", type=int, metavar="N", help="tokens per sequence, for files that do not say")
    parser.add_argument("--vocab", type=int, metavar="N", help="words of the vocabulary, for files that name a tokenizer only")
    parser.add_argument("--ignore", action="append", default=[], metavar="FLAG", help="a setting that is unknown here: named, not refused")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="no candidate is begun later than this (default 20)")
    parser.add_argument("--tries", type=int, default=24, metavar="N", help="candidates that are predicted at most (default 24)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the answer as a page (.html), or the better settings alone (any other name)")


def perform(args: argparse.Namespace) -> Json:
    """Advise on one job.

    Raises:
        RegistaError: the file is no job, a setting is unknown or contradicts another, or the job is refused.
    """
    from regista.jobs.advice import advice_json, show_advice
    from regista.jobs.advice.asked import advise
    from regista.jobs.formats import flags_text

    check_targets([args.out], [args.job])
    with status(args, "predicting ...") as line:
        advice = advise(
            args.job,
            args.cluster,
            family=args.family,
            seq=args.seq,
            vocab=args.vocab,
            ignore=args.ignore,
            seconds=args.seconds,
            tries=args.tries,
            say=status_text(line),
        )
    if args.out and Path(args.out).suffix == ".html":
        save_text(Path(args.out), _page(show_advice(advice, full=True)))
    elif args.out:
        best = advice.better
        written, job = (best.written, best.job) if best else (advice.written, advice.job)
        save_text(Path(args.out), flags_text(written, job, advice.form))
    show(args, show_advice(advice, full=args.full), *([f"wrote {args.out}"] if args.out else []))
    return advice_json(advice) | {"out": args.out}


def _page(answer: RenderableType) -> str:
    """The screen as an HTML page."""
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(answer)
    return console.export_html()
