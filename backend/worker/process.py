"""The life of one worker process, which the fork server forks.

read plan, state, batches --> same plan everywhere? --> groups, sockets --> barrier --> acts --> [isolated timing] --> results --> barrier
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
from array import array
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from backend.acts.rows import RowLog
from backend.checkpoint.handover import let_go
from backend.checkpoint.leaving import leave_state, left_file, own_state_memory
from backend.comm.host.groups import HostGroups
from backend.comm.host.inbox import Inbox, connect_inboxes
from backend.comm.transport import Mesh
from backend.devices.cores import LOOKING_NS, bind
from backend.devices.options import numerics
from backend.hosts.hosts import Hosts
from backend.monitor.heartbeat import writing_heartbeats
from backend.monitor.nonfinite import LossWatch
from backend.ops.inductor import Kernels
from backend.placing.graphs import Graphs
from backend.run_folder.files import (
    Failure,
    FailureKind,
    Options,
    attempt,
    load_options,
    read_batches,
    read_numbers,
    read_plan,
    reads_data,
    store_file,
    write_failure,
)
from backend.run_folder.outcome import copied
from backend.store import RunStore, StoreAddress
from backend.worker.checkpoints import begin, saver_of
from backend.worker.device import about_device, launching, open_for, owned_here
from backend.worker.failures import RankFailed
from backend.worker.isolated import time_tasks
from backend.worker.live import LiveWorker, live_batches, live_numbers
from backend.worker.loop import EventLoop
from backend.worker.rank import RankBody, axis_groups
from backend.worker.registers import Registers
from planner.ir.errors import Mismatch, RegistaError
from planner.ir.plan import Plan, TaskKind

__all__ = ["agree", "connect", "die_with_parent", "leave", "main", "make_default_group", "work"]

STARTUP_TIMEOUT_S = 120.0
COMPILING_TIMEOUT_S = 3600.0
"""How long ranks wait for the one that compiles most; who ends meanwhile is noticed by the launcher."""

_PR_SET_PDEATHSIG = 1
"""prctl's number for it [linux/prctl.h]."""


def connect(folder: Path) -> tuple[Store, bytes, int, int]:
    """Join the run: (its store, its key, rank, number of ranks).

    Each attempt has a store of its own; otherwise it would read addresses that a failed attempt had left.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = StoreAddress.load(store_file(folder))
    return RunStore(address), address.key, rank, ranks


def make_default_group(store: Store, rank: int, ranks: int) -> None:
    """torch's default process group over gloo, which listens on a port of its own."""
    timeout = timedelta(seconds=STARTUP_TIMEOUT_S)
    dist.init_process_group("gloo", store=PrefixStore("gloo", store), rank=rank, world_size=ranks, timeout=timeout)


def needs_groups(plan: Plan, options: Options, shared: HostGroups | None) -> bool:
    """Whether ranks meet in torch's process groups: in collectives, to time tasks alone, and to send results from host to host."""
    collects = any(task.kind is TaskKind.BOXING for task in plan.tasks)
    return not options.one_host or options.isolated_rounds > 0 or (collects and (shared is None or not shared.carries_all))


def shared_groups(plan: Plan, store: Store, rank: int, options: Options) -> HostGroups:
    """The communicators of a run on CPUs: in shared memory where its ranks are processes of one host, unless it is not wanted."""
    unwanted = "" if options.memory.shared_memory else "memory option shared_memory=False"
    shared = HostGroups(store, rank, options.timeout_s, why_not=unwanted if options.one_host else "several hosts")
    shared.join_all(plan)
    return shared


def about_collectives(shared: HostGroups | None) -> dict[str, str]:
    """For the trace."""
    return {"collectives": shared.about} if shared is not None else {}


def about_waiting(cores: Sequence[int], inbox: Inbox | None) -> dict[str, str]:
    """For the trace."""
    if not cores:
        return {"waiting": "sleeps"}
    where = "" if inbox is None else " in shared memory"
    return {"waiting": f"looks for messages{where} for {LOOKING_NS // 1000} us, then sleeps; on {len(cores)} cores of its own"}


def _meet(store: Store, name: str, rank: int, ranks: int, timeout_s: float = STARTUP_TIMEOUT_S) -> None:
    """A barrier of all ranks.  It goes through the store, so that it works even while gloo is in use."""
    store.set(f"{name}/{rank}", "1")
    store.wait([f"{name}/{r}" for r in range(ranks)], timedelta(seconds=timeout_s))


def agree(store: Store, plan: Plan, rank: int, ranks: int) -> None:
    """Refuse to start unless all ranks hold the same Plan under the same torch: gloo would call a shape mismatch a dead peer.

    Raises:
        Mismatch: naming the rank that differs.
    """
    mine = f"plan {plan.plan_id}, torch {torch.__version__}"
    if ranks != plan.num_ranks:
        raise Mismatch(f"{ranks} workers were started for a plan of {plan.num_ranks} ranks")
    store.set(f"plan/{rank}", mine)
    for other in range(ranks):
        theirs = store.get(f"plan/{other}").decode()
        if theirs != mine:
            raise Mismatch(f"rank {rank} holds {mine}, rank {other} holds {theirs}; all ranks need the same")


def work(folder: Path, options: Options) -> None:
    """Everything between start and exit.

    Raises:
        RankFailed: the run broke.   RegistaError: it could not start.
    """
    plan = read_plan(folder)
    store, key, rank, ranks = connect(folder)
    (folder / f"rank{rank}.{attempt()}.pid").write_text(str(os.getpid()))
    agree(store, plan, rank, ranks)
    hosts = None if options.one_host else Hosts(store, rank, ranks, options.inputs)
    taps = plan.gradients.values() if options.gradients else ()
    device = open_for(options, rank)
    carried, turns = launching(plan, rank, options)
    graphs = Graphs() if options.device_options.graphs else None
    free_bytes = device.free_bytes() if device is not None else 0
    shared = shared_groups(plan, store, rank, options) if carried is None else None
    if needs_groups(plan, options, shared):
        make_default_group(store, rank, ranks)
    groups = axis_groups(plan, rank, options.timeout_s, carried, device, shared)
    owned = owned_here(plan, rank, device, options, before_bytes=free_bytes) if device is not None else {}
    if options.devices:
        _meet(store, "room", rank, ranks)  # nobody takes memory before all have asked whether there is enough
    placed = own_state_memory(plan, rank, options.state_memory)
    registers = Registers(plan, rank, one_host=options.one_host, taps=taps, memory=options.memory, device=device, placed=placed)
    blocks = registers.blocks
    if hosts is not None and options.checkpoint:
        hosts.check_shared(Path(options.checkpoint))
    options, values = begin(folder, options, store, rank)
    registers.fill(values)
    del values
    batches = live_batches(folder) if options.live and not reads_data(folder) else read_batches(folder, plan)
    numbers = live_numbers(folder) if options.live else read_numbers(folder)
    body = RankBody(plan, rank, blocks, batches, groups, folder, options.memory, numbers, device, turns, graphs, options.kernels)
    if options.kernels is Kernels.COMPILED:
        _meet(store, "compiled", rank, ranks, COMPILING_TIMEOUT_S)
    if device is not None:
        device.synchronize()  # blocks were filled beside its lanes
    mesh = Mesh(
        rank, body.peers(), store, options.run_id, key=key, unix=options.one_host, timeout_s=STARTUP_TIMEOUT_S, host=options.address
    )
    body.loss_watch = None if options.allow_nan else LossWatch(plan)
    body.attach(mesh, registers.connect(mesh))
    saver = saver_of(folder, plan, rank, options, store, body, numbers)
    if options.isolated_rounds:
        body.captured = {}
    held_steps = options.held_steps(options.steps)
    log = RowLog(plan, held_steps, folder / f"rank{rank}.rows") if held_steps else None
    cores = bind(options.waiting, rank, ranks) if options.one_host else ()
    inbox = connect_inboxes(mesh, body.peers(), wanted=bool(cores) and options.memory.shared_memory) if options.one_host else None
    loop = EventLoop(plan, rank, options.steps, body, mesh, options.timeout_s, live=options.live, log=log, looks=bool(cores), inbox=inbox)
    loop.start_threads()
    # What exists now stays for good; without this the collector looks through torch's modules in the midst of acts.
    gc.collect()
    gc.freeze()
    if hosts is not None:
        hosts.estimate_clock()
    _meet(store, "start", rank, ranks)
    letting_go = threading.Thread(target=let_go, args=(folder,), daemon=True, name="let go of first values")
    if options.begins_once and os.environ.get("LOCAL_RANK", "0") == "0":
        letting_go.start()  # every rank has its part
    registers.started()
    if options.live:
        LiveWorker(plan, rank, options.run_id, key, folder, loop, blocks).start(body)
    log_relay = nullcontext() if hosts is None else hosts.relaying_logs(folder)
    kernels = numerics(options.device_options) if device is not None else nullcontext()
    with kernels, log_relay, nullcontext() if options.live else writing_heartbeats(plan, rank, loop.rows, folder):
        loop.run()
    if saver is not None:
        saver.end(options.first_step + loop.steps_done, blocks.state_of)
    memory = registers.ended(body.fragments.workspace, body.scratch_bytes)
    memory["mapped_bytes"] += shared.mapped_bytes if shared is not None else 0
    isolated = time_tasks(plan, rank, body, loop, options) if options.isolated_rounds else None
    if isolated is not None:
        memory |= {"isolated_peak_bytes": isolated.peak_bytes, "batches_bytes": isolated.batches_bytes}
    leaves = options.keeps_state and saver is None
    in_memory = leaves and registers.in_placed_memory
    left = leave_state(folder, plan, rank, blocks.state_of, spread=not options.state_memory) if leaves and not in_memory else ()
    acts = torch.tensor(loop.rows if log is None else array("q", log.finish()), dtype=torch.int64).reshape(-1, 5)
    if hosts is not None:
        hosts.estimate_clock()
        acts = hosts.on_one_clock(acts)
    result = {
        "acts": acts,
        "losses": dict(enumerate(body.losses, options.first_step)),
        "first_step": options.first_step,
        "state_files": [asdict(file) for file in left],
        "state_in_memory": in_memory,
        "gradients": copied(blocks.tapped),
        "peak_bytes": blocks.peak_bytes,
        "memory": memory,
        "about": registers.about
        | about_collectives(shared)
        | about_waiting(cores, inbox)
        | about_device(device, carried, options, owned, graphs)
        | body.fragments.about,
        "not_compiled": body.fragments.not_compiled,
        "not_captured": graphs.failed if graphs is not None else 0,
        "timings": isolated.spans if isolated is not None else {},
    }
    torch.save(result, folder / f"rank{rank}.pt")
    if letting_go.ident is not None:
        letting_go.join()
    if hosts is not None:
        hosts.collect_results(folder, lambda other: [f"rank{other}.pt", *filter(None, [left_file(plan, other) if leaves else None])])
    _meet(store, "end", rank, ranks)
    mesh.close()


def die_with_parent() -> None:
    """Let the kernel end this process when its parent ends, for whatever reason (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(path: str) -> int:
    """Run one worker; returns its exit code after leaving a rank*.error.json when it failed."""
    folder = Path(path)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    try:
        work(folder, load_options(folder))
    except RankFailed as failed:
        write_failure(folder, failed.failure)
        return 1
    except BaseException as error:
        name = "" if isinstance(error, RegistaError) else f"{type(error).__name__}: "
        kind = FailureKind.PEER_LOST if isinstance(error, dist.DistError) else FailureKind.RAISED
        write_failure(folder, Failure(rank=rank, kind=kind, message=f"{name}{error}", traceback=traceback.format_exc()))
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End the process without clean-up: after a failure gloo's threads may wait for peers that will never answer."""
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1]))
