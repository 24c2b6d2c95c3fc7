"""One process of a rival: ``python -m experiments.rivals.worker FOLDER``, started by torchrun's agent with the environment of our workers.

FOLDER/job.json       what to train
FOLDER/progress       "step loss" per step, as our workers write it
FOLDER/rank0.json     ends_s: when each step ended (CLOCK_MONOTONIC); losses: of this rank's part
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from backend.worker.process import die_with_parent
from experiments.rivals.job import from_json
from experiments.rivals.ways import own_part, step_of
from regista.api import program_of

__all__ = ["main"]


def main(folder: Path) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    job, rank = from_json((folder / "job.json").read_text()), int(os.environ["RANK"])
    if job.ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    step = step_of(job, rank)
    source = program_of(job.model)
    batches = [own_part(job, source.batch(number), rank) for number in range(job.steps)]
    del source
    reports = os.open(folder / "progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if rank == 0 else -1
    # As our workers do: the collector need not look through torch's modules again.
    gc.collect()
    gc.freeze()
    ends_s, losses = [], []
    for number, batch in enumerate(batches):
        losses.append(step(batch))
        ends_s.append(time.monotonic())
        if rank == 0:
            os.write(reports, f"{number} {losses[-1] if losses[-1] is not None else 0.0}\n".encode())
    (folder / f"rank{rank}.json").write_text(json.dumps({"ends_s": ends_s, "losses": losses}))
    if job.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    gc.unfreeze()
    gc.collect()  # what still holds gloo's threads goes before Python does, or torch may abort at exit
