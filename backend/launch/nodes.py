"""Performing a Plan on several hosts: one launcher per host, which meet at HOST:PORT (backend.launch.meeting).

    host 0:  launcher --> ranks 0 .. k-1      results of all ranks --> Outcome
    host 1:  launcher --> ranks k .. 2k-1     None
                 \\--- store at HOST:PORT, for those who know the secret ---/

Every launcher builds the same inputs for itself; a digest over them is compared before the start.  Without ranks of hosts the launchers agree
on an order; with them host r is as said, and host 0 must be HOST.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, uint8

from backend.acts.act import Batches
from backend.acts.step_inputs import StepNumbers, check_numbers, no_numbers
from backend.checkpoint.folder import make_folder, steps_of
from backend.checkpoint.owner import Owner, check_free, forget, saving_run
from backend.checkpoint.resume import empty_folder
from backend.checkpoint.saver import SaveRequest
from backend.comm.authentic import derived_key
from backend.hosts.address import interface_of, own_address, parse_endpoint
from backend.hosts.hosts import clock_slack_s
from backend.initial.values import Values, as_values, whole_box
from backend.launch.attempts import GRACE_S, SILENCE_S, HostShare, perform_attempt
from backend.launch.meeting import AGAIN, ENDED, Meeting, Place, meet
from backend.launch.processes import WORKER, run_folder
from backend.memory.blocks import check_state
from backend.monitor.progress import Progress
from backend.run_folder.files import Options, prepare
from backend.run_folder.merge import merge
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import verify
from planner.ir.errors import InvalidProgram, Mismatch, RegistaError, Unsupported, WorkerFailed
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from planner.lower.data_actors.saving import with_saving, without_saving

__all__ = ["HostLost", "HostWork", "Nodes", "Performed", "check_folder_of", "run_elastic", "run_on_nodes"]

JOIN_TIMEOUT_S = 300.0
"""How long a launcher waits for the others: machines of a cluster get their images at different times."""


class HostLost(UserWarning):
    """Hosts of an elastic run meet again, without those that were lost or with others that have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The hosts of a run and this launcher's place among them.

    count: hosts.   rendezvous: HOST:PORT.   rank: of this host, 0 to count - 1; None: as the launchers agree.
    run_id: tells runs at one rendezvous apart; the same on all hosts; empty: made of the plan's id.
    secret: the same on all hosts, at least 16 bytes; whoever does not know it cannot join (backend.store.read_secret).
    least: so many hosts suffice, to begin with and after others were lost; None: all.
    """

    count: int
    rendezvous: str
    secret: bytes = field(repr=False)
    rank: int | None = None
    run_id: str = ""
    join_timeout_s: float = JOIN_TIMEOUT_S
    least: int | None = None

    @property
    def fewest(self) -> int:
        return self.count if self.least is None else self.least

    @property
    def run_name(self) -> str:
        """The run among those that save into one folder: there is one at a time at a rendezvous."""
        return f"{self.run_id} at {self.rendezvous}" if self.run_id else f"at {self.rendezvous}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What is performed on some number of hosts; the first values are those of a run that begins.

    kept_as: name of a file beside the checkpoints, in which host 0 leaves the Plan when it begins to perform it; empty: it does not.
    """

    plan: Plan
    state: Mapping[str, Tensor] | Values
    batches: Batches
    numbers: StepNumbers = no_numbers
    kept_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """hosts: that were there at the end.   outcome: on host 0 that of all ranks, since the newest checkpoint; None on the others."""

    hosts: int
    outcome: Outcome | None


def run_on_nodes(
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    steps: int,
    nodes: Nodes,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    workdir: str | Path | None = None,
    numbers: StepNumbers = no_numbers,
    checkpoint: SaveRequest | None = None,
    resume: bool = False,
    max_restarts: int = 0,
    allow_nan: bool = False,
) -> Outcome | None:
    """Perform this host's share of ``steps`` steps; arguments as of ``backend.run``.

    Args:
        checkpoint: where all hosts save; a folder that they share.   resume: go on where its newest checkpoint ends, up to ``steps``.

    Returns:
        On host 0 the outcome of all ranks; its trace says ``clock_slack_s`` and ``hosts``.  On the others None.

    Raises:
        WorkerFailed: a worker of this host died, raised or hung, another host was lost, or did not come.
        Mismatch: the ranks do not divide by the hosts; a host has another plan, other values, other data or another checkpoint folder.
        Unsupported: a rendezvous that cannot be reached.   InvalidPlan, InvalidProgram: refused before anything starts.
    """
    work = HostWork(plan=plan, state=state, batches=batches, numbers=numbers)
    return run_elastic(
        {nodes.count: work},
        steps,
        nodes,
        gradients=gradients,
        timeout_s=timeout_s,
        on_progress=on_progress,
        workdir=workdir,
        checkpoint=checkpoint,
        resume=resume,
        max_restarts=max_restarts,
        allow_nan=allow_nan,
    ).outcome


def run_elastic(
    works: Mapping[int, HostWork],
    steps: int,
    nodes: Nodes,
    *,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    workdir: str | Path | None = None,
    checkpoint: SaveRequest | None = None,
    resume: bool = False,
    max_restarts: int = 0,
    allow_nan: bool = False,
) -> Performed:
    """Perform this host's share of ``steps`` steps on as many hosts as are there: when some are lost, the others go on from the newest checkpoint.

    Args:
        works: hosts -> what is performed on so many, of all numbers from nodes.fewest to nodes.count.
        max_restarts: how often a fault of a worker, whose host is still there, may be followed by another attempt.

    Raises:
        As ``run_on_nodes``.   Unsupported: hosts may be lost, and nothing is saved.
    """
    if steps < 1:
        raise InvalidProgram(f"steps = {steps}; at least 1 step is needed")
    if nodes.fewest < nodes.count and checkpoint is None:
        raise Unsupported("hosts that go on after others were lost need a checkpoint to go on from; give the folder of one")
    if nodes.fewest < nodes.count and nodes.rank is not None:
        raise Unsupported("hosts that may come and go have no ranks of their own; leave the host's rank out")
    if nodes.rank is not None and not 0 <= nodes.rank < nodes.count:
        raise Mismatch(f"host rank {nodes.rank} is not among {nodes.count} hosts; ranks of hosts are 0 to {nodes.count - 1}")
    for hosts in range(nodes.fewest, nodes.count + 1):
        _check(hosts, works[hosts], steps)
    if checkpoint is not None:
        check_folder_of(nodes, checkpoint.folder, resume=resume)
    host, port = parse_endpoint(nodes.rendezvous)
    own = own_address(host)
    run_id = nodes.run_id or f"plan-{works[nodes.count].plan.plan_id[:12]}"
    options = Options(
        run_id=run_id,
        steps=steps,
        gradients=gradients,
        timeout_s=timeout_s,
        one_host=False,
        address=own,
        allow_nan=allow_nan,
        checkpoint="" if checkpoint is None else os.path.abspath(checkpoint.folder),
        owner=Owner.here(nodes.run_name),
        save_every=0 if checkpoint is None else checkpoint.every,
        keep=0 if checkpoint is None else checkpoint.keep,
        resumes=resume,
        begins_once=True,  # each meeting has a folder of its own
    )
    place = Place(
        count=nodes.count,
        least=nodes.fewest,
        host=host,
        port=port,
        own=own,
        rank=nodes.rank,
        join_timeout_s=nodes.join_timeout_s,
        limit_s=max(timeout_s, SILENCE_S),
    )
    key = derived_key(nodes.secret, "run", run_id)
    restarts = 0
    while True:
        meeting = meet(place, key)
        again = ""
        well = False
        try:
            outcome = _perform_share(works[meeting.count], options, meeting, on_progress, workdir)
            well = True
            return Performed(hosts=meeting.count, outcome=outcome)
        except RegistaError as error:
            again = _why_again(meeting, place, error, left=max_restarts - restarts)
            if not again:
                raise
            well = True
        finally:
            meeting.end(well=well)
        restarts += again.startswith(AGAIN)
        place = replace(place, generation=meeting.generation + 1)
        warnings.warn(
            f"{again.removeprefix(AGAIN)}; {place.least} to {place.count} hosts meet again at {place.text}", HostLost, stacklevel=2
        )


def check_folder_of(nodes: Nodes, folder: str | Path, *, resume: bool) -> None:
    """Before this host waits for others: no other run saves into the folder of checkpoints.

    Where hosts may come and go, this run itself may be under way already, and have saved.

    Raises:
        InvalidFile: another run saves there; or one has saved there, and hosts neither come and go nor resume.
    """
    joins = nodes.fewest < nodes.count
    if joins and saving_run(Path(folder)) == nodes.run_name:
        return
    check_free(Path(folder), run=nodes.run_name if joins else "")
    if not joins and not resume:
        empty_folder(folder)


def _check(hosts: int, work: HostWork, steps: int) -> None:
    plan = work.plan
    verify(plan)
    if hosts < 1 or plan.num_ranks % hosts:
        raise Mismatch(f"{plan.num_ranks} ranks of plan {plan.plan_id} do not divide by {hosts} hosts")
    check_state(plan, work.state)
    check_numbers(plan, work.numbers, range(steps))


def _why_again(meeting: Meeting, place: Place, error: RegistaError, *, left: int) -> str:
    """Why the hosts meet again after ``error``; empty: they do not, and ``error`` is how this host ends.

    Raises:
        WorkerFailed: another host has ended the run.
    """
    if not place.is_elastic and not left:
        return ""
    lost = meeting.lost_within(GRACE_S) if isinstance(error, WorkerFailed) else meeting.lost()
    if not lost:
        # All ranks of this host's attempt have failed, or will: a fault of a worker, not of a host.
        mends = isinstance(error, WorkerFailed) and left > 0
        meeting.announce(f"{AGAIN if mends else ENDED}{error}")
        lost = meeting.lost()
        if not mends:
            return ""
        lost = lost or f"{AGAIN}{error}"
    if lost.startswith(ENDED):
        raise WorkerFailed(lost) from error
    if lost.startswith(AGAIN):
        return lost if left else ""
    return lost if place.is_elastic else ""


def _perform_share(
    work: HostWork,
    options: Options,
    meeting: Meeting,
    on_progress: Callable[[int, float], None] | None,
    workdir: str | Path | None,
) -> Outcome | None:
    """Run this host's workers, as often as there were meetings; the outcome on host 0."""
    if options.checkpoint and meeting.rank == 0:
        _check_folder(options, is_first=meeting.generation == 0)
        if work.kept_as:
            _keep(work.plan, Path(options.checkpoint), work.kept_as)
    plan = with_saving(work.plan) if options.checkpoint else work.plan
    options = replace(options, inputs=_digest(plan, work, options.steps, options.gradients))
    with run_folder(workdir, _as_folder_name(options.run_id)) as folder:
        prepare(folder, plan, work.state, work.batches, options, work.numbers)
        local = plan.num_ranks // meeting.count
        share = HostShare(ranks=plan.num_ranks, local=local, host=meeting.rank, interface=interface_of(options.address))
        try:
            perform_attempt(
                folder, WORKER, share, options, meeting.address, Progress(folder, on_progress), meeting.generation, lost=meeting.lost
            )
        finally:
            if options.checkpoint:
                forget(Path(options.checkpoint), options.owner)
        if not (folder / "rank0.pt").exists():
            return None
        outcome = merge(plan, folder, options).outcome
        trace = without_saving(work.plan, outcome.trace)
        about = dict(trace.about) | {"hosts": str(meeting.count), "clock_slack_s": repr(clock_slack_s(folder))}
        return replace(outcome, trace=replace(trace, about=about))


def _check_folder(options: Options, *, is_first: bool) -> None:
    """On host 0, before anything starts: the folder of checkpoints is free, and holds what it may.

    Raises:
        InvalidFile: another run saves there, or has saved.   WorkerFailed: the run was ended without this host.
    """
    folder = Path(options.checkpoint)
    check_free(folder, run=options.owner.run)
    if is_first and not options.resumes:
        empty_folder(folder)
    newest = max(steps_of(folder), default=0)
    if newest >= options.steps:
        raise WorkerFailed(
            f"{folder} is at step {newest} already, {options.steps} were asked for: the run has ended, without this host; ask for more steps to go on"
        )


def _keep(plan: Plan, folder: Path, name: str) -> None:
    make_folder(folder)
    save_plan(plan, str(folder / name))


def _as_folder_name(run_id: str) -> str:
    """The id as a part of a folder's name: letters and digits only."""
    return "".join(c if c.isalnum() else "-" for c in run_id)[:40]


def _digest(plan: Plan, work: HostWork, steps: int, gradients: bool) -> str:
    """A digest of what must be equal on all hosts: the number of steps, their numbers, the initial values, the first and the last batch."""
    crc32 = zlib.crc32(f"{plan.plan_id} {steps} {gradients}".encode())
    values = as_values(work.state)
    for name in sorted({entry.given_as for entry in plan.states}):
        type_ = values.type_of(name)
        assert type_ is not None  # check_state has found it
        crc32 = zlib.crc32(_bytes(values.part(name, whole_box(type_.shape))), zlib.crc32(name.encode(), crc32))
    crc32 = zlib.crc32(repr([sorted(work.numbers(step).items()) for step in range(steps)]).encode(), crc32)
    for step in sorted({0, steps - 1}):
        for tensor in work.batches(step):
            crc32 = zlib.crc32(_bytes(tensor), crc32)
    return f"crc32 {crc32:08x}, {steps} steps"


def _bytes(value: Tensor) -> memoryview:
    return memoryview(value.detach().contiguous().reshape(-1).view(uint8).numpy())  # type: ignore[arg-type]  # an ndarray is a buffer
