"""The verb 'calibrate': measure this machine, or the acts of a plan."""

from __future__ import annotations

import argparse

from planner.cost import save_cost
from planner.ir.cluster import save_cluster
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan
from regista.clusters import resolve_cluster
from regista.targets import check_targets
from regista.verbs.arguments import CLUSTER_HELP, DATA_HELP, count
from regista.verbs.screen import Json, show, status

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a plan: profile its acts while the peers run; without it: the machine")
    parser.add_argument("--cluster", metavar="C", help="what to measure without a plan (default local:2): " + CLUSTER_HELP)
    parser.add_argument("--rounds", type=count, default=15, help="interleaved repeats of every measurement (default 15)")
    parser.add_argument("--data", metavar="DATA", help="with PLAN: " + DATA_HELP)
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="cluster TOML, or cost table JSON with PLAN")


def perform(args: argparse.Namespace) -> Json:
    check_targets([args.out], [args.plan, args.cluster])
    if args.plan is not None and args.cluster is not None:
        raise Unsupported(f"--cluster {args.cluster} has no meaning beside a plan, which has its own; leave one of them out")
    if args.plan is None and args.data is not None:
        raise Unsupported(f"--data {args.data} has no meaning without a plan; a machine is measured without data")
    with status(args, "measuring ..."):
        result = _machine(args) if args.plan is None else _acts(args)
    show(args, f"wrote {args.out}")
    return result


def _machine(args: argparse.Namespace) -> Json:
    from regista.calibrate import calibrate_machine

    cluster = calibrate_machine(resolve_cluster(args.cluster or "local:2"), rounds=args.rounds)
    save_cluster(cluster, args.out)
    return {
        "out": args.out,
        "cluster": cluster.name,
        "rate_flop_per_s": cluster.device.rate_flop_per_s,
        "node_latency_s": cluster.node.latency_s,
        "node_bandwidth_bytes_per_s": cluster.node.bandwidth_bytes_per_s,
    }


def _acts(args: argparse.Namespace) -> Json:
    from regista.calibrate import calibrate_plan

    cost = calibrate_plan(load_plan(args.plan), rounds=args.rounds, data=args.data)
    save_cost(cost, args.out)
    return {"out": args.out, "cost_id": cost.id, "acts": len(cost.acts), "act_overhead_s": cost.act_overhead_s}
