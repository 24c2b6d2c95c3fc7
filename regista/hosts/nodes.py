"""This host's share of a run on several hosts (``regista run --nnodes``, ``--elastic``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.acts.act import Batches
from backend.checkpoint import SaveRequest
from backend.launch import HostWork, Nodes, check_folder_of, run_elastic
from backend.run_folder import Outcome
from backend.store import read_secret
from planner.frontend import Program
from planner.ir.errors import Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from regista.data import loader
from regista.deploy import node_layout
from regista.hosts.elastic import elastic_plans, hosts_of
from regista.performers import refuse_training
from regista.programs import check_program, planned_program
from regista.starting import beginning, typed_state
from regista.update_options import own_rates

__all__ = ["Saves", "nodes_of", "run_share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Checkpoints of a run on several hosts: a folder that all share, how often, how many stay, and whether the newest is gone on from."""

    folder: str
    every: int = 0
    keep: int = 0
    resume: bool = False


def nodes_of(
    count: int | None, rendezvous: str | None, rank: int | None, run_id: str | None, secret: str | None, elastic: str | None = None
) -> Nodes | None:
    """What --nnodes or --elastic, --rdzv, --node-rank, --run-id and --secret (or REGISTA_SECRET) say; None: one host, as without them.

    Raises:
        Unsupported: some of them without the others.   InvalidFile: the secret's file cannot be read, or others can read it.
    """
    if elastic is not None:
        if count is not None or rank is not None:
            given = "--nnodes" if count is not None else "--node-rank"
            raise Unsupported(f"--elastic {elastic} says how many hosts there may be, numbered as they come; leave {given} out")
        hosts = hosts_of(elastic)
        count, least = hosts[-1], hosts[0]
    elif count is None or count == 1:
        given_too = {"--rdzv": rendezvous, "--node-rank": rank, "--run-id": run_id, "--secret": secret}
        for option, value in given_too.items():
            if value is not None:
                raise Unsupported(f"{option} is for several hosts; add --nnodes N with N > 1, or leave it out")
        return None
    else:
        least = count
    if rendezvous is None:
        asked = f"--nnodes {count}" if elastic is None else f"--elastic {elastic}"
        raise Unsupported(f"{asked} needs --rdzv HOST:PORT, the same on all hosts: where the {count} launchers meet")
    return Nodes(count=count, rendezvous=rendezvous, rank=rank, run_id=run_id or "", secret=read_secret(secret), least=least)


def run_share(
    plan: Plan,
    nodes: Nodes,
    *,
    steps: int,
    timeout_s: float,
    on_progress: Callable[[int, float], None] | None = None,
    data: str | None = None,
    lr_schedule: str | None = None,
    init: str = "module",
    ema: bool = False,
    saves: Saves | None = None,
    max_restarts: int = 0,
    allow_nan: bool = False,
) -> tuple[Plan, Outcome | None]:
    """Perform this host's ranks of the Plan, or, where hosts may come and go, of a Plan made anew for those that are there.

    A Plan made anew lies beside the checkpoints as plan-N-hosts.json from when it is performed.

    Returns:
        The Plan that was performed at the end; its outcome on host 0, None on the others.

    Raises:
        Mismatch: the Plan was made for other hosts, or the program is not the one that was planned.
        Unsupported: the model cannot be trained on some number of hosts of the range.
        InvalidFile: another run saves into the folder.   And as backend.launch.nodes.run_elastic.
    """
    if plan.outputs:
        raise Unsupported("outputs of a plan come from one host so far; plan it without outputs, or leave out --nnodes")
    if plan.mode is Mode.EVAL:
        refuse_training(checkpoint=saves is not None, gradients=False)
    if saves is not None:
        check_folder_of(nodes, saves.folder, resume=saves.resume)
    planned = planned_program(plan)
    source = own_rates(plan, planned, lr_schedule, performs=True)
    plans: Mapping[int, Plan] = {nodes.count: plan}
    if nodes.fewest < nodes.count:
        if saves is None:
            raise Unsupported(
                "hosts that go on after others were lost need a checkpoint to go on from; add --checkpoint DIR, which all hosts share"
            )
        plans = elastic_plans(plan, planned, range(nodes.fewest, nodes.count + 1))
    else:
        node_layout(plan, nodes.count)
    start = beginning(plan, source, init=init, ema=ema).values
    check_program(plan, source, typed_state(plan, start))
    works = {
        hosts: HostWork(
            plan=each,
            state=start,
            batches=_batches(each, source, data, steps),
            numbers=source.step_numbers,
            kept_as="" if each is plan else f"plan-{hosts}-hosts.json",
        )
        for hosts, each in plans.items()
    }
    performed = run_elastic(
        works,
        steps,
        nodes,
        timeout_s=timeout_s,
        on_progress=on_progress,
        checkpoint=None if saves is None else SaveRequest(folder=saves.folder, every=saves.every, keep=saves.keep),
        resume=saves is not None and saves.resume,
        max_restarts=max_restarts,
        allow_nan=allow_nan,
    )
    return plans[performed.hosts], performed.outcome


def _batches(plan: Plan, source: Program, data: str | None, steps: int) -> Batches:
    if data is None:
        return source.batches(plan.micro_batches)
    served = loader(plan, data)
    served.check_steps(steps)
    return served
