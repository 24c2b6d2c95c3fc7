"""The verb 'calibrate': measure this machine, one device's kernels, or the acts of a plan; or take kernels from a recorded profile."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from planner.cost import save_cost
from planner.ir.cluster import save_cluster
from planner.ir.errors import Unsupported
from planner.ir.files import load_plan
from regista.clusters import resolve_cluster
from regista.targets import check_targets
from regista.verbs.arguments import CLUSTER_HELP, DATA_HELP, count
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", metavar="PLAN", help="a plan: profile its acts while the peers run; without it: the machine")
    parser.add_argument("--cluster", metavar="C", help="what to measure without a plan (default local:2): " + CLUSTER_HELP)
    parser.add_argument(
        "--from-trace",
        metavar="FILE",
        help="a profile of torch.profiler (record_shapes=True) or a .et of Chakra: measure nothing, write the kernel table of its operators",
    )
    parser.add_argument("--rounds", type=count, default=15, help="interleaved repeats of every measurement (default 15)")
    parser.add_argument("--data", metavar="DATA", help="with PLAN: " + DATA_HELP)
    parser.add_argument(
        "--device",
        metavar="D",
        help="cpu, cuda or cuda:N: time its kernels one by one; writes a cluster (--out) and a kernel table (--kernels)",
    )
    parser.add_argument("--kernels", metavar="FILE", help="with --device: the kernel table, for --cost (default OUT with .kernels.json)")
    parser.add_argument(
        "--budget", type=count, metavar="S", help="with --device: seconds for kernels (default 120); what is left out is said"
    )
    parser.add_argument("--small", action="store_true", help="with --device: small shapes, to try it in seconds")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="cluster TOML, or cost table JSON with PLAN")


def perform(args: argparse.Namespace) -> Json:
    check_targets([args.out, args.kernels], [args.plan, args.cluster, args.from_trace])
    if args.from_trace is not None:
        return _from_trace(args)
    _check_device(args)
    if args.plan is not None and args.cluster is not None:
        raise Unsupported(f"--cluster {args.cluster} has no meaning beside a plan, which has its own; leave one of them out")
    if args.plan is None and args.data is not None:
        raise Unsupported(f"--data {args.data} has no meaning without a plan; a machine is measured without data")
    with status(args, "measuring ...") as line:
        if args.device is not None:
            result = _device(args, status_text(line))
        else:
            result = _machine(args) if args.plan is None else _acts(args)
    show(args, f"wrote {args.out}{' and ' + str(result['kernels']) if args.device is not None else ''}")
    return result


def _from_trace(args: argparse.Namespace) -> Json:
    """Raises Unsupported: an option beside --from-trace that says what to measure."""
    given = {"PLAN": args.plan, "--cluster": args.cluster, "--data": args.data, "--device": args.device}
    given |= {"--kernels": args.kernels, "--budget": args.budget, "--small": args.small or None}
    beside = [name for name, value in given.items() if value is not None]
    if beside:
        raise Unsupported(f"{', '.join(beside)} beside --from-trace, which measures nothing; leave one of them out")
    from planner.cost.kernels.table import save_kernels
    from regista.profiles import kernel_table, read_profile

    found = kernel_table(read_profile(args.from_trace), args.from_trace)
    save_kernels(found.table, args.out)
    names = list(found.left_out.items())
    shown = ", ".join(f"{name} {count}" for name, count in names[:8]) + (f" and {len(names) - 8} more names" if len(names) > 8 else "")
    show(
        args,
        f"wrote {args.out}: {len(found.table.times)} kernels of {found.table.device} from {found.matched} operators of {args.from_trace}; "
        f"{found.views} views cost nothing",
        *([f"not matched: {sum(found.left_out.values())} operators: {shown}"] if names else []),
        f"prices of a plan by it: regista simulate PLAN --cost {args.out}",
    )
    return {
        "out": args.out,
        "kernels_id": found.table.id,
        "kernels": len(found.table.times),
        "matched": found.matched,
        "views": found.views,
        "left_out": dict(found.left_out),
    }


def _check_device(args: argparse.Namespace) -> None:
    """Raises Unsupported: an option of --device without it, or one beside it that has no meaning there."""
    if args.device is None:
        given = [name for name, value in (("--kernels", args.kernels), ("--budget", args.budget), ("--small", args.small)) if value]
        if given:
            raise Unsupported(f"{', '.join(given)} belong to --device, which is not given; add --device cuda or leave them out")
        return
    for name, value in (("PLAN", args.plan), ("--cluster", args.cluster), ("--data", args.data)):
        if value is not None:
            raise Unsupported(f"{name} {value} has no meaning beside --device, whose kernels are timed; leave one of them out")


def _device(args: argparse.Namespace, say: Callable[[str], None]) -> Json:
    from backend.devices.device import parse_devices
    from planner.cost.kernels.table import save_kernels
    from regista.device_times import Size, calibrate_device, cluster_of, host_of

    (name,) = parse_devices(args.device, 1).values()
    table = calibrate_device(name, Size.SMALL if args.small else Size.FULL, budget_s=args.budget or 120, on_progress=say)
    devices, memory_bytes = host_of(name)
    cluster = cluster_of(table, devices=devices, memory_bytes=memory_bytes)
    out = args.kernels or f"{args.out.removesuffix('.toml')}.kernels.json"
    save_kernels(table, out)
    save_cluster(cluster, args.out)
    return {
        "out": args.out,
        "kernels": out,
        "kernels_id": table.id,
        "timed": len(table.times),
        "cluster": cluster.name,
        "rate_flop_per_s": cluster.device.rate_flop_per_s,
        "memory_bandwidth_bytes_per_s": cluster.device.memory_bandwidth_bytes_per_s,
        "launch_s": table.launch_s,
    }


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
