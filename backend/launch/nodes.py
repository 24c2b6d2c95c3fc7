"""Performing a Plan on several hosts: one launcher per host, which meet at HOST:PORT (backend.launch.meeting).

    host 0:  launcher --> ranks 0 .. k-1      results of all ranks --> Outcome
    host 1:  launcher --> ranks k .. 2k-1     None
                 \\--- store at HOST:PORT, for those who know the secret ---/

Every launcher builds the same inputs for itself; a digest over them is compared before the start.  Without ranks of hosts the launchers agree
on an order; with them host r is as said, and host 0 must be HOST.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, uint8

from backend.acts.act import Batches
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.comm.authentic import derived_key
from backend.hosts.address import interface_of, own_address, parse_endpoint
from backend.hosts.hosts import clock_slack_s
from backend.launch.attempts import SILENCE_S, HostShare, perform_attempt
from backend.launch.meeting import Meeting, Place
from backend.launch.processes import WORKER, run_folder
from backend.memory.blocks import check_state
from backend.monitor.progress import Progress
from backend.run_folder.files import Options, prepare
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidProgram, Mismatch
from planner.ir.plan import Plan

__all__ = ["Nodes", "run_on_nodes"]

JOIN_TIMEOUT_S = 300.0
"""How long a launcher waits for the others: machines of a cluster get their images at different times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The hosts of a run and this launcher's place among them.

    count: hosts.   rendezvous: HOST:PORT.   rank: of this host, 0 to count - 1; None: as the launchers agree.
    run_id: tells runs at one rendezvous apart; the same on all hosts; empty: made of the plan's id.
    secret: the same on all hosts, at least 16 bytes; whoever does not know it cannot join (backend.store.read_secret).
    """

    count: int
    rendezvous: str
    secret: bytes = field(repr=False)
    rank: int | None = None
    run_id: str = ""
    join_timeout_s: float = JOIN_TIMEOUT_S


def run_on_nodes(
    plan: Plan,
    state: Mapping[str, Tensor],
    batches: Batches,
    steps: int,
    nodes: Nodes,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    workdir: str | Path | None = None,
    numbers: StepNumbers = no_numbers,
) -> Outcome | None:
    """Perform this host's share of ``steps`` steps; arguments as of ``backend.run``.

    Returns:
        On host 0 the outcome of all ranks; its trace says ``clock_slack_s`` and ``hosts``.  On the others None.

    Raises:
        WorkerFailed: a worker of this host died, raised or hung, another host was lost, or did not come.
        Mismatch: the ranks do not divide by the hosts; a host has another plan, other values or other data.
        Unsupported: a rendezvous that cannot be reached.   InvalidPlan, InvalidProgram: refused before anything starts.
    """
    verify(plan)
    if steps < 1:
        raise InvalidProgram(f"steps = {steps}; at least 1 step is needed")
    if nodes.count < 1 or plan.num_ranks % nodes.count:
        raise Mismatch(f"{plan.num_ranks} ranks of plan {plan.plan_id} do not divide by {nodes.count} hosts")
    if nodes.rank is not None and not 0 <= nodes.rank < nodes.count:
        raise Mismatch(f"host rank {nodes.rank} is not among {nodes.count} hosts; ranks of hosts are 0 to {nodes.count - 1}")
    check_state(plan, state)
    check_numbers(plan, numbers, range(steps))
    host, port = parse_endpoint(nodes.rendezvous)
    address = own_address(host)
    run_id = nodes.run_id or f"plan-{plan.plan_id[:12]}"
    options = Options(
        run_id=run_id,
        steps=steps,
        gradients=gradients,
        timeout_s=timeout_s,
        one_host=False,
        address=address,
        inputs=_digest(plan, state, batches, steps, gradients, numbers),
    )
    place = Place(
        count=nodes.count,
        host=host,
        port=port,
        own=address,
        rank=nodes.rank,
        join_timeout_s=nodes.join_timeout_s,
        limit_s=max(timeout_s, SILENCE_S),
    )
    with run_folder(workdir, _as_folder_name(run_id)) as folder:
        prepare(folder, plan, state, batches, options, numbers)
        _perform_share(folder, plan, options, place, derived_key(nodes.secret, "run", run_id), Progress(folder, on_progress))
        if not (folder / "rank0.pt").exists():
            return None
        outcome = merge(plan, folder, options).outcome
        about = dict(outcome.trace.about) | {"hosts": str(nodes.count), "clock_slack_s": repr(clock_slack_s(folder))}
        return replace(outcome, trace=replace(outcome.trace, about=about))


def _perform_share(folder: Path, plan: Plan, options: Options, place: Place, key: bytes, progress: Progress) -> None:
    """Meet the others and run this host's workers."""
    meeting = Meeting(place, key)
    well = False
    try:
        share = HostShare(
            ranks=plan.num_ranks, local=plan.num_ranks // place.count, host=meeting.rank, interface=interface_of(options.address)
        )
        perform_attempt(folder, WORKER, share, options, meeting.address, progress, lost=meeting.lost)
        well = True
    finally:
        meeting.end(well=well)


def _as_folder_name(run_id: str) -> str:
    """The id as a part of a folder's name: letters and digits only."""
    return "".join(c if c.isalnum() else "-" for c in run_id)[:40]


def _digest(plan: Plan, state: Mapping[str, Tensor], batches: Batches, steps: int, gradients: bool, numbers: StepNumbers) -> str:
    """A digest of what must be equal on all hosts: the number of steps, their numbers, the initial values, the first and the last batch."""
    crc32 = zlib.crc32(f"{plan.plan_id} {steps} {gradients}".encode())
    for name in sorted({entry.given_as for entry in plan.states}):
        crc32 = zlib.crc32(_bytes(state[name]), zlib.crc32(name.encode(), crc32))
    crc32 = zlib.crc32(repr([sorted(numbers(step).items()) for step in range(steps)]).encode(), crc32)
    for step in sorted({0, steps - 1}):
        for tensor in batches(step):
            crc32 = zlib.crc32(_bytes(tensor), crc32)
    return f"crc32 {crc32:08x}, {steps} steps"


def _bytes(value: Tensor) -> memoryview:
    return memoryview(value.detach().contiguous().reshape(-1).view(uint8).numpy())  # type: ignore[arg-type]  # an ndarray is a buffer
