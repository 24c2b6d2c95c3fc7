"""Measurements in, price lists out: a cluster file from microbenchmarks, a cost table from the profile of a Plan's acts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from backend.data import Source
from backend.launch.host import check_host
from backend.measure.microbench import fit, microbench
from backend.measure.profile import Profile, profile
from planner.cost import ActPrice, Beside, MeasuredCost, act_key
from planner.frontend import Program
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from regista.data import loader
from regista.programs import check_program, program_for

__all__ = ["beside_of", "calibrate_machine", "calibrate_plan", "cost_of"]


def calibrate_machine(cluster: Cluster, *, rounds: int = 15) -> Cluster:
    """Replace a local cluster's rates by measured ones: matrix products, memory, collectives and messages, on all ranks at once.

    The node link is fitted on the all-reduce, the collective that training waits for most: alpha + sent bytes / beta.

    Raises:
        Unsupported: a cluster of other machines; only this one can be measured here.   WorkerFailed: a process died.
    """
    if cluster.device.kind != "cpu" or cluster.num_nodes != 1:
        raise Unsupported(f"cluster {cluster.name} is not one node of CPU devices; calibrate measures this machine, use local:N")
    ranks = cluster.num_devices
    measured = microbench(ranks, rounds=rounds)
    node = cluster.node
    if ranks > 1:
        points = measured["collectives"]["all_reduce"]["points"]
        sizes = [sent_bytes(Collective.ALL_REDUCE, size, ranks) for size in points]
        alpha_s, beta = fit(sizes, list(points.values()))
        node = LinkSpec(latency_s=alpha_s, bandwidth_bytes_per_s=beta)
    device = replace(
        cluster.device,
        rate_flop_per_s=measured["flop_per_s"],
        memory_bandwidth_bytes_per_s=measured["memory_bytes_per_s"],
        act_overhead_s=cluster.device.act_overhead_s if not measured["message_s"] else measured["message_s"],
    )
    about = measured["about"]
    source = f"regista calibrate: {about.get('cpu', 'cpu')}, {about.get('cores', '?')} cores, torch {about.get('torch', '?')}"
    return replace(cluster, source=source, device=device, node=node)


def calibrate_plan(plan: Plan, program: Program | None = None, *, rounds: int = 15, data: Source | str | None = None) -> MeasuredCost:
    """Profile every act of a Plan on its own processes while the peers run.

    Args:
        program: where values and data come from; None: the program that the Plan names.
        rounds: interleaved repeats of each act.
        data: where training data lies (regista.data.loader); None: the program's own batches.

    Raises:
        Mismatch: the program is not the one that was planned.   WorkerFailed: a process died, hung or raised.
    """
    check_host(plan)
    source = program_for(plan, program)
    state = source.initial_state(plan.micro_batches)
    check_program(plan, source, state)
    return cost_of(
        plan, profile(plan, state, source.batch if data is None else loader(plan, data), rounds=rounds, numbers=source.step_numbers)
    )


def cost_of(plan: Plan, profile: Profile) -> MeasuredCost:
    """A cost table from a profile.

    Tasks that do the same (layers of one shape) share an entry.  Ranks that meet in a collective wait for the slowest of them, so an act
    counts as long as the slowest rank's.  Its price is their mean, long ones included, as a step lasts as long as the sum of its acts: with
    medians 14 steps were predicted 4.6 % too short in the median, with means 0.5 % [2 cores, 2026-11-21]; see ``_settled``.  Collectives are
    slower between the computing of a real step than by themselves (by 30 %, says vTrain for NCCL), so theirs is the time that they take there;
    what they cost the computing beside them is one number for the whole table, ``compute_slowdown``.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for task in plan.tasks:
        groups[act_key(plan, task)].append(task.id)
    acts = {}
    for key, names in groups.items():
        ranks = [spread for name in names for spread in profile.tasks[name].values()]
        acts[key] = ActPrice(
            task=names[0],
            price_s=_settled(
                [fmean(acts) for acts in zip(*(profile.in_training.get(n) or profile.rounds[n] for n in names), strict=False)]
            ),
            min_s=min(s.min_s for s in ranks),
            p10_s=median(s.p10_s for s in ranks),
            median_s=median(s.median_s for s in ranks),
            samples=sum(s.n for s in ranks),
        )
    remote = profile.overheads.get("message_remote")
    gap = profile.overheads.get("act_gap") or profile.overheads.get("dispatch")
    return MeasuredCost(
        plan_id=plan.plan_id,
        acts=acts,
        message_latency_s=remote.median_s if remote is not None else 0.0,
        act_overhead_s=gap.median_s if gap is not None else 0.0,
        about=dict(profile.about),
        compute_slowdown=profile.compute_slowdown,
        beside={
            str(rank): beside_of(memory, profile.trace.steps)
            for rank, memory in profile.memory.items()
            if memory.get("isolated_peak_bytes")
        },
    )


def beside_of(memory: Mapping[str, int], steps: int) -> Beside:
    """What a rank's process takes beside what follows from the Plan, from the peak of its isolated acts.

    Args:
        memory: of the rank, as Profile.memory.   steps: that it had trained before.
    """
    planned = memory["base_bytes"] + memory["device_bytes"] + memory["mapped_bytes"] + memory["scratch_bytes"]
    return Beside(
        kept_bytes=memory["isolated_peak_bytes"] - planned - memory["batches_bytes"],
        batch_bytes=memory["batches_bytes"] // steps,
    )


def _settled(rounds_s: Sequence[float]) -> float:
    """Mean of the rounds, where one counts ten times the median at most: the machine may have stood still for a moment."""
    limit_s = 10 * median(rounds_s)
    return fmean(min(round_s, limit_s) for round_s in rounds_s)
