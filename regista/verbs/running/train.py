"""The verb 'train': a whole training with evaluations, checkpoints, a table of metrics and a picture of the loss."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regista.verbs.arguments import CLUSTER_HELP, add_kernels, count, positive, rank_number
from regista.verbs.screen import Json, show, status

if TYPE_CHECKING:
    from planner.ir.plan import Plan
    from regista.training.job import TrainJob
    from regista.training.loop import Screen, Trained

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job", metavar="JOB", help="SCRIPT.py:FUNCTION (without arguments, returns a regista.TrainJob), or a TOML with a section [train]"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="plan, checkpoints, metrics.csv and curve.png go there (default out/train/NAME, by the job's name)"
    )
    parser.add_argument("--resume", action="store_true", help="go on where the newest checkpoint of DIR ends, bit for bit")
    parser.add_argument("--cluster", metavar="C", help="instead of the job's: " + CLUSTER_HELP)
    parser.add_argument("--steps", type=count, metavar="N", help="instead of the job's steps or epochs")
    parser.add_argument("--epochs", type=count, metavar="N", help="instead of the job's steps or epochs")
    parser.add_argument("--eval-every", type=rank_number, metavar="N", help="instead of the job's; 0: at the end only")
    parser.add_argument("--save-every", type=rank_number, metavar="N", help="instead of the job's; 0: where evaluations need it only")
    parser.add_argument("--keep", type=rank_number, metavar="K", help="the K newest checkpoints stay, instead of the job's; 0: all")
    parser.add_argument(
        "--max-restarts",
        type=rank_number,
        default=0,
        metavar="R",
        help="after a fault start again from the newest checkpoint, R times at most in each run between evaluations",
    )
    parser.add_argument(
        "--timeout", type=positive, default=30.0, metavar="S", help="give up when nothing happens for so long (default 30 s)"
    )
    add_kernels(parser)


def perform(args: argparse.Namespace) -> Json:
    """Train args.job into args.out; returns the figures for --json.

    Raises:
        RegistaError: see regista.training.loop.train.   KeyboardInterrupt: Ctrl-C, with how to go on.
    """
    from regista.training.folder import TrainFolder
    from regista.training.load import load_job
    from regista.training.loop import train
    from regista.views.pictures.training import draw_training

    folder = Path(args.out or f"out/train/{_name(args.job)}")
    if not args.resume:
        TrainFolder(folder).check_new()
    with status(args, "reading the job ..."):
        job = _overridden(load_job(args.job), args)

    @contextmanager
    def watching(plan: Plan, steps: int) -> Iterator[Screen]:
        from regista.views.tables.live import watched

        with watched(plan, steps, quiet=args.json) as watch:
            watch.evaluated = lambda step, values: show(args, f"step {step}: {_figures(values)}")
            yield watch

    try:
        trained = train(
            job,
            folder,
            resume=args.resume,
            timeout_s=args.timeout,
            max_restarts=args.max_restarts,
            watching=watching,
            kernels=args.kernels or "eager",
        )
    except KeyboardInterrupt:
        saved = TrainFolder(folder).saved_steps
        way = f"regista train {args.job} --out {folder} --resume"
        raise KeyboardInterrupt(
            f"interrupted; nothing is saved yet, begin again: {way}"
            if saved is None
            else f"interrupted; {saved} steps are saved, go on: {way}"
        ) from None
    draw_training({job.program.name: trained.history}, TrainFolder(folder).curve, title=args.job)
    show(args, *_end(trained))
    return _facts(args, trained)


def _name(job: str) -> str:
    """out/train/NAME of a job: the function's or the file's."""
    path, colon, name = job.rpartition(":")
    return f"{Path(path).stem}-{name}" if colon and name.isidentifier() else Path(job).stem


def _overridden(job: TrainJob, args: argparse.Namespace) -> TrainJob:
    from dataclasses import replace

    from planner.ir.errors import Unsupported

    if args.steps is not None and args.epochs is not None:
        raise Unsupported(f"--steps {args.steps} and --epochs {args.epochs} both say how long; give one of them")
    given: dict[str, Any] = {
        name: getattr(args, name) for name in ("cluster", "eval_every", "save_every", "keep") if getattr(args, name) is not None
    }
    if args.steps is not None or args.epochs is not None:
        given |= {"steps": args.steps, "epochs": args.epochs}
    return replace(job, **given) if given else job


def _figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _end(trained: Trained) -> Iterator[str]:
    losses = list(trained.history.losses().values())
    if losses and not math.isfinite(losses[-1]):
        yield f"the loss is {losses[-1]}"
    if losses:
        yield f"loss: {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps" + (
            f", the first {trained.first_step} done before" if trained.first_step else ""
        )
    evaluation = trained.last_evaluation
    if evaluation is not None:
        yield f"evaluated: {_figures(evaluation)}"
    yield f"wrote {trained.folder}/: plan.json, checkpoints, metrics.csv, curve.png"


def _facts(args: argparse.Namespace, trained: Trained) -> Json:
    losses = trained.history.losses()
    return {
        "job": args.job,
        "out": str(trained.folder),
        "plan_id": trained.plan.plan_id,
        "steps": len(losses),
        "first_step": trained.first_step,
        "losses": list(losses.values()),
        "evaluations": {str(step): values for step, values in trained.history.evaluations().items()},
    }
