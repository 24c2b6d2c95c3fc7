"""One rank of the rival: the same model trained by plain DistributedDataParallel with torch.optim.  Started by torchrun from bench.py.

argv: MODEL STEPS FILE      FILE receives the step times of rank 0 in seconds, as JSON
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from regista.api import program_of

__all__ = ["main"]


def main() -> None:
    model, steps, target = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    program = program_of(model)
    assert program.loss is not None
    wrapped = DistributedDataParallel(program.module)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    times_s = []
    for step in range(steps):
        start = time.monotonic()
        inputs, targets = (part.chunk(ranks)[rank] for part in program.batch(step))
        optimizer.zero_grad(set_to_none=True)
        loss = program.loss(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        times_s.append(time.monotonic() - start)
    if rank == 0:
        target.write_text(json.dumps(times_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
