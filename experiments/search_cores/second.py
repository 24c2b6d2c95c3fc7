"""A second call of a session on another network, after GPT-3 175B on 1,024 A100 was planned with everything searched: seconds, memory and gap.

    python -m experiments.search_cores.second [--rounds N] [--csv FILE]    e.g. --rounds 2 --csv experiments/results/search_second.csv

Ways: ``plan`` searches everything again, ``shape`` asks for the shape that was found, ``whatif`` for what changes of the plan.  Every call is made by a
fork of the session as it is after its first call, so that each is its second.  Memory is that of the fork, without processes that it forks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import regista
from experiments.search_cores.rows import CLUSTER, MODEL, Row, write_rows
from planner.ir.plan import Plan
from regista.analysis.whatif import changed_cluster
from regista.clusters import resolve_cluster

NETWORKS_GBPS = (25.0, 50.0, 100.0, 150.0, 200.0, 250.0, 400.0, 600.0)
"""Of a node; dgx-a100 has 188."""
WAYS = ("plan", "shape", "whatif")


def asked(session: regista.PlannerSession, first: Plan, way: str, network_GBps: float) -> Plan:
    """The second call."""
    sets = [f"cluster.links.nic.bandwidth_GBps={network_GBps:g}"]
    if way == "whatif":
        return session.whatif(first, sets).plan
    cluster = changed_cluster(resolve_cluster(CLUSTER), sets)
    if way == "shape":
        return session.plan(cluster, stages=len(first.placements), mesh=first.placements[0].mesh, micro_batches=first.micro_batches)
    return session.plan(cluster, stages=None, micro_batches=None)


def in_fork(work: Callable[[], Row]) -> Row:
    """What the work returns in a fork of this process."""
    receiver, sender = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with os.fdopen(sender, "w", encoding="utf-8") as pipe:
                json.dump(work(), pipe)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as pipe:
        row: Row = json.load(pipe)
    os.waitpid(process, 0)
    return row


def called(session: regista.PlannerSession, first: Plan, way: str, network_GBps: float) -> Row:
    """One second call, measured."""
    began_s = time.perf_counter()
    plan = asked(session, first, way, network_GBps)
    wall_s, found = time.perf_counter() - began_s, plan.search
    return {
        "wall_s": round(wall_s, 2),
        "resident_MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6),
        "objective_s": round(found.objective_s, 6),
        "lower_bound_s": round(found.lower_bound_s, 6),
        "gap_percent": round(100 * (1 - found.lower_bound_s / found.objective_s), 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.search_cores.second", description="Second calls of a session.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows there")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    for number in range(args.rounds):
        session = regista.PlannerSession(MODEL)
        first = session.plan(CLUSTER, stages=None, micro_batches=None)
        for way in WAYS:
            for network_GBps in NETWORKS_GBPS:
                row = in_fork(partial(called, session, first, way, network_GBps))
                point = f"round {number + 1}, {way} on {network_GBps:g} GB/s"
                rows.append({"point": point, "kind": "run", "way": way, "network_GBps": network_GBps, **row})
                print(rows[-1], flush=True)
    write_rows(args.csv, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
