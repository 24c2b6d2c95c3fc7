"""GPT-3 175B on 1,024 A100, stages, mesh, micro-batches, recomputation and layouts all searched: wall seconds and memory on one core and on two.

    python -m experiments.search_cores [--rounds N] [--csv FILE]    e.g. --rounds 3 --csv experiments/results/search_cores.csv
    python -m experiments.search_cores --model "zoo:llama3?size=405B&batch=2048&seq=8192&dtype=bf16" --cluster dgx-h100:2048     of another model

Every search is a process of its own, from the module to the proven Plan, one core and two in turns; importing torch is not counted.  A core that
others use gives other seconds: ``cpu_s`` and ``second_cpu_s`` say what the two processes used of it.  Memory is the largest of each process; a
fork shares most of its parent's, so that their sum is more than what both take.  ``load``: processes that wanted a core in the minute before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import regista
from experiments.search_cores.rows import CLUSTER, MODEL, Row, write_rows
from planner.parallelism.shape import Shape


def searched(model: str, cluster: str, cores: int) -> Row:
    """One search in this process, on so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    load = os.getloadavg()[0]
    search = regista.plan  # imports torch
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    plan = search(model, cluster, stages=None, micro_batches=None)
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    mine, second = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "kind": "run",
        "cores": cores,
        "load": round(load, 1),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "second_cpu_s": round(second.ru_utime + second.ru_stime, 1),
        "resident_MB": round(mine.ru_maxrss * 1024 / 1e6),
        "second_resident_MB": round(second.ru_maxrss * 1024 / 1e6),
        "plan": plan.plan_id,
        "shape": str(Shape(len(plan.placements), plan.micro_batches, plan.placements[0].mesh)),
        "objective_s": round(plan.search.objective_s, 6),
        "lower_bound_s": round(plan.search.lower_bound_s, 6),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.search_cores", description="A search on one core and on two.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--one", type=int, metavar="CORES", help="one search in this process; prints its row")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--cluster", default=CLUSTER)
    args = parser.parse_args(arguments)
    asked = ["--model", args.model, "--cluster", args.cluster]
    if args.one is not None:
        print(json.dumps(searched(args.model, args.cluster, args.one)))
        return 0
    rows: list[Row] = []
    for number in range(args.rounds):
        for cores in (1, 2):
            command = [sys.executable, "-m", "experiments.search_cores", *asked, "--one", str(cores)]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"point": f"round {number + 1} on {cores}", **row})
            print(rows[-1], flush=True)
    write_rows(args.csv, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
