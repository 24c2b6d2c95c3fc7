"""One attempt of a run on this host: its workers are forked, watched, and ended; and attempts anew after a fault.

run_workers --> [store at a unix address] --> perform_attempt --> fork server --> workers     once more after a fault, max_restarts times at most
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoint.folder import steps_of
from backend.checkpoint.stopping import ask_to_stop, stopped_at
from backend.comm.authentic import new_key
from backend.launch.diagnose import diagnose
from backend.launch.workers import WorkerGroup, fork_server_client
from backend.monitor.interrupts import Interrupts, noticing_interrupts
from backend.monitor.progress import Progress
from backend.run_folder.files import Options, read_failures, store_file
from backend.store import StoreAddress, StoreServer
from planner.ir.errors import WorkerFailed

__all__ = ["GRACE_S", "HostShare", "nobody_lost", "perform_attempt", "run_workers"]

TICK_S = 0.02
GRACE_S = 2.0
"""How long the others may take to report why they end, once one worker has failed."""
SILENCE_S = 10.0
"""The least time after which a process of a run that stands still counts as hung: launcher, fork server or worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """The workers of one host.

    ranks: of all hosts.   local: of this host.   host: its place; its first rank is host * local.   interface: for gloo; empty: it looks by itself.
    """

    ranks: int
    local: int
    host: int = 0
    interface: str = "lo"

    def environment(self, place: int, attempt: int) -> dict[str, str]:
        """The variables by which torchrun would tell a worker its place."""
        interface = {"GLOO_SOCKET_IFNAME": self.interface} if self.interface else {}
        return interface | {
            "RANK": str(self.host * self.local + place),
            "LOCAL_RANK": str(place),
            "GROUP_RANK": str(self.host),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.local),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
        }


def nobody_lost() -> str:
    """On one host there is no other launcher."""
    return ""


def run_workers(
    folder: Path,
    module: str,
    ranks: int,
    options: Options,
    on_progress: Callable[[int, float], None] | None = None,
    on_start: Callable[[WorkerGroup], None] | None = None,
    *,
    key: bytes | None = None,
    max_restarts: int = 0,
) -> None:
    """Run ``module.main(folder)`` in ``ranks`` workers of this host, and wait for their end.

    Args:
        on_start: called with the workers once they are started, so that another thread may end them.
        key: of the run; None: a new one.   max_restarts: how often all workers may be started anew after a fault.

    Raises:
        WorkerFailed: see ``run``.   KeyboardInterrupt, and whatever the caller's functions raise: after the workers were ended.
    """
    progress = Progress(folder, on_progress)
    for attempt in range(max_restarts + 1):
        address = StoreAddress(key=key or new_key(), name=f"regista-{options.run_id}-store-{attempt}")
        store = StoreServer.on_this_host(address.name, address.key)
        try:
            perform_attempt(folder, module, HostShare(ranks=ranks, local=ranks), options, address, progress, attempt, on_start)
            return
        except WorkerFailed:
            if attempt == max_restarts:
                raise
        finally:
            store.close()


def perform_attempt(
    folder: Path,
    module: str,
    share: HostShare,
    options: Options,
    address: StoreAddress,
    progress: Progress,
    attempt: int = 0,
    on_start: Callable[[WorkerGroup], None] | None = None,
    lost: Callable[[], str] = nobody_lost,
) -> None:
    """Run this host's workers once.

    Args:
        address: of the run's store.   lost: says why the run is over for all hosts; empty: it is not.

    Raises:
        As ``run_workers``.
    """
    address.save(store_file(folder, f"a{attempt}"))
    environments = [share.environment(place, attempt) for place in range(share.local)]
    limit_s = max(options.timeout_s, SILENCE_S)
    client = fork_server_client()
    name = f"{options.run_id}-a{attempt}"
    group = client.start(name, module, folder, environments, limit_s)
    watch = _Watch(folder, group, progress, attempt, lost)
    try:
        if on_start is not None:
            on_start(group)
        with noticing_interrupts() as interrupts:
            try:
                watch.until_the_end(interrupts)
            except KeyboardInterrupt:
                interrupts.handled()
                if options.saves_when_interrupted:
                    _await_save(folder, group, progress, Path(options.checkpoint), interrupts)
                raise
    finally:
        group.kill()
        _await_end(group)
        client.forget(name)
    if group.silent_s is not None:
        raise WorkerFailed(
            f"this process did not run for {group.silent_s:.0f} s (was it stopped?), so its workers were ended; the limit is {limit_s:g} s"
        )
    first = share.host * share.local
    failed = {first + place: code for place, code in group.exit_codes.items() if code != 0}
    if not failed:
        return
    if not read_failures(folder, f"a{attempt}"):
        if watch.standing_still:
            ranks = [first + place for place in watch.standing_still]
            raise WorkerFailed(f"ranks {ranks} did not run for {limit_s:g} s (were they stopped?), so all were ended")
        if watch.lost_text:
            raise WorkerFailed(watch.lost_text)
    raise WorkerFailed(diagnose(folder, failed, {first + place for place in group.killed}, attempt))


class _Watch:
    """Waits for the workers' end, and sees to it that it comes."""

    def __init__(self, folder: Path, group: WorkerGroup, progress: Progress, attempt: int, lost: Callable[[], str]) -> None:
        self.standing_still: list[int] = []
        self.lost_text = ""
        self._folder, self._group, self._progress, self._lost = folder, group, progress, lost
        self._errors = f"rank*.a{attempt}.error.json"

    def until_the_end(self, interrupts: Interrupts) -> None:
        """Forward progress until all workers have ended; once one has failed, kill those that do not end by themselves."""
        failed_at_s: float | None = None
        while not self._group.wait(TICK_S):
            interrupts.check()
            self._progress.forward()
            if failed_at_s is None and self._failed():
                failed_at_s = time.monotonic()
            if failed_at_s is not None and time.monotonic() > failed_at_s + GRACE_S:
                self._group.kill()
        self._progress.forward()

    def _failed(self) -> bool:
        if any(self._group.exit_codes.values()) or any(self._folder.glob(self._errors)):
            return True
        self.standing_still = self._group.standing_still()
        self.lost_text = self._lost()
        return bool(self.standing_still or self.lost_text)


def _await_save(folder: Path, group: WorkerGroup, progress: Progress, checkpoints: Path, interrupts: Interrupts) -> None:
    """Wait until the workers have saved, have ended, or one has failed.  Raises KeyboardInterrupt: the user has waited enough."""
    ask_to_stop(folder)
    while not group.wait(TICK_S) and not any(group.exit_codes.values()) and not group.standing_still():
        interrupts.check()
        progress.forward()
        at = stopped_at(folder)
        if at is not None and at <= max(steps_of(checkpoints), default=-1):
            return


def _await_end(group: WorkerGroup) -> None:
    """Wait for killed workers, which end as soon as the kernel gets to it."""
    until_s = time.monotonic() + GRACE_S
    try:
        while not group.wait(TICK_S) and time.monotonic() < until_s:
            pass
    except WorkerFailed:
        pass  # the fork server is gone and its workers with it, or they were never started
