"""This host's share of a run on several hosts (``regista run --nnodes``)."""

from __future__ import annotations

from collections.abc import Callable

from backend.acts.act import Batches
from backend.launch import Nodes, run_on_nodes
from backend.run_folder import Outcome
from backend.store import read_secret
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from regista.data import loader
from regista.deploy import node_layout
from regista.programs import check_program, planned_program
from regista.update_options import own_rates

__all__ = ["nodes_of", "run_share"]


def nodes_of(count: int | None, rendezvous: str | None, rank: int | None, run_id: str | None, secret: str | None) -> Nodes | None:
    """What --nnodes, --rdzv, --node-rank, --run-id and --secret (or REGISTA_SECRET) say; None: one host, as without them.

    Raises:
        Unsupported: some of them without the others.   InvalidFile: the secret's file cannot be read, or others can read it.
    """
    if count is None or count == 1:
        given = {"--rdzv": rendezvous, "--node-rank": rank, "--run-id": run_id, "--secret": secret}
        for option, value in given.items():
            if value is not None:
                raise Unsupported(f"{option} is for several hosts; add --nnodes N with N > 1, or leave it out")
        return None
    if rendezvous is None:
        raise Unsupported(f"--nnodes {count} needs --rdzv HOST:PORT, the same on all hosts: where the {count} launchers meet")
    return Nodes(count=count, rendezvous=rendezvous, rank=rank, run_id=run_id or "", secret=read_secret(secret))


def run_share(
    plan: Plan,
    nodes: Nodes,
    *,
    steps: int,
    timeout_s: float,
    on_progress: Callable[[int, float], None] | None = None,
    data: str | None = None,
    lr_schedule: str | None = None,
) -> Outcome | None:
    """Perform this host's ranks of the Plan; the outcome on host 0, None on the others.

    Raises:
        Mismatch: the Plan was made for other hosts, or the program is not the one that was planned.   And as backend.launch.nodes.run_on_nodes.
    """
    if plan.outputs:
        raise Unsupported("outputs of a plan come from one host so far; plan it without outputs, or leave out --nnodes")
    node_layout(plan, nodes.count)
    source = own_rates(plan, planned_program(plan), lr_schedule, performs=True)
    state = source.initial_state(plan.micro_batches)
    check_program(plan, source, state)
    batches: Batches = source.batches(plan.micro_batches)
    if data is not None:
        batches = served = loader(plan, data)
        served.check_steps(steps)
    return run_on_nodes(plan, state, batches, steps, nodes, timeout_s=timeout_s, on_progress=on_progress, numbers=source.step_numbers)
