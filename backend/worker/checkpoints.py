"""What a worker does about checkpoints: where it begins, what it saves on the way, and the last save.

A worker that was started again after a fault, or resumes, begins where the newest checkpoint ends; rank 0 looks for it and tells the others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torch._C._distributed_c10d import Store

from backend.acts.step_inputs import StepNumbers, no_numbers, numbers_by_value
from backend.checkpoint.handover import take_over
from backend.checkpoint.resume import resume_point
from backend.checkpoint.saved import Saved
from backend.checkpoint.saver import Saver, SaveRequest
from backend.checkpoint.stopping import Stop
from backend.initial.values import Values
from backend.run_folder.files import Options, attempt
from backend.worker.rank import RankBody
from planner.ir.plan import Plan

__all__ = ["begin", "saver_of"]


def begin(folder: Path, options: Options, store: Store, rank: int) -> tuple[Options, Values]:
    """The options (first step, steps to do) and the values of this attempt.

    Raises:
        InvalidFile: the newest checkpoint is damaged.
    """
    values = take_over(folder)
    if not options.checkpoint:
        return options, values
    if rank == 0:
        point = resume_point(options.checkpoint) if options.resumes or attempt() != "a0" else None
        store.set("resume", json.dumps(None if point is None else [point.steps, str(point.values.folder)]))
    newest = json.loads(store.get("resume"))
    if newest is None:
        return options, values
    steps, path = newest
    return replace(options, first_step=steps, steps=options.first_step + options.steps - steps), Saved(path)


def saver_of(
    folder: Path, plan: Plan, rank: int, options: Options, store: Store, body: RankBody, numbers: StepNumbers = no_numbers
) -> Saver | None:
    """Wire saving into the rank's acts; None when the run saves nothing."""
    body.first_step = options.first_step
    if not options.checkpoint:
        return None
    request = SaveRequest(folder=options.checkpoint, every=options.save_every, keep=options.keep)
    saver = Saver(
        plan,
        rank,
        request,
        store,
        run_id=f"{options.run_id}-{attempt()}",
        first_step=options.first_step,
        timeout_s=options.timeout_s,
        numbers=lambda step: numbers_by_value(numbers(step)),
        stop=Stop(folder, store) if options.saves_when_interrupted else None,
        owner=options.owner,
    )
    body.on_save = saver.act
    return saver
