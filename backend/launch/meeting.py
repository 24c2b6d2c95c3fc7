"""The launchers of several hosts meet at one of them, which serves the store of the run; whoever does not know the secret stays outside.

    host 0   serves the store at HOST:PORT <------ host 1, host 2, ...: join, and say once a second that they are there
    workers of all hosts ----------------------->

Without ranks of hosts the one that can open HOST:PORT is host 0, and the others are numbered as they come.  A launcher that is lost, or stands
still, ends the meeting for all; the others may meet again (``meet``).  Where fewer hosts than ``count`` suffice, host 0 closes the list of members
once all are there, or enough and nobody new for a while; whoever comes later waits for the next meeting.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, DistNetworkError

from backend.comm.authentic import NotAuthentic
from backend.launch.attempts import GRACE_S
from backend.store import RunStore, StoreAddress, StoreServer
from planner.ir.errors import Mismatch, WorkerFailed

__all__ = ["AGAIN", "ENDED", "Meeting", "Place", "meet"]

ENDED = "the run has ended on all hosts: "
AGAIN = "the hosts meet again: "
"""How a reason begins that a launcher has announced; any other one says that a launcher was lost."""

SETTLE_S = 30.0
AGAIN_SETTLE_S = 6.0
"""So long nobody new has come, at the first meeting and at later ones, when host 0 goes on with fewer hosts than there could be."""

_PING_S = 1.0
_AGAIN_S = 0.2
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the launchers meet, and this one's place among them.

    count: hosts.   least: so many suffice.   host, port: where host 0 is.   own: this host's address on the way there.
    rank: of this host; None: as they agree (always, where fewer suffice).   limit_s: for how long another launcher may be silent.
    generation: how many meetings this launcher has been at before.
    """

    count: int
    least: int
    host: str
    port: int
    own: str
    rank: int | None
    join_timeout_s: float
    limit_s: float
    generation: int = 0

    @property
    def text(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_elastic(self) -> bool:
        return self.least < self.count


class _Over(Exception):
    """The meeting that was found is over, or goes on without this launcher until it is over.   waited: it did, so its patience begins anew."""

    def __init__(self, why: str, *, waited: bool = False) -> None:
        super().__init__(why)
        self.waited = waited


def meet(place: Place, key: bytes) -> Meeting:
    """A meeting with the others, once they are there.

    Raises:
        WorkerFailed: they did not come in time, or the run has ended.   Mismatch: another secret or run id; two launchers of one rank; too many.
    """
    until_s = time.monotonic() + place.join_timeout_s
    while True:
        try:
            return Meeting(place, key, until_s)
        except _Over as over:
            if str(over).startswith(ENDED):
                raise WorkerFailed(f"{str(over).removesuffix('.')}; this host was not part of it") from over
            if over.waited:
                until_s = time.monotonic() + place.join_timeout_s
            elif time.monotonic() > until_s:
                raise alone(place, str(over)) from over
            time.sleep(_AGAIN_S)


class Meeting:
    """This launcher among those of the other hosts; it is made once all are there (by ``meet``).

    rank: of this host.   count: hosts that are there.   generation: meetings before this one.   address: of the store, for this host's workers.
    """

    def __init__(self, place: Place, key: bytes, until_s: float) -> None:
        self._place, self._key, self._until_s = place, key, until_s
        self._server: StoreServer | None = None
        self._lost = ""
        self._well = False
        self._stop = threading.Event()
        self._joined = threading.Event()
        self._thread: threading.Thread | None = None
        self.rank, self.count, self.generation = 0, place.count, place.generation
        try:
            self.address = self._find()
            store = RunStore(self.address)
            try:
                if place.is_elastic:
                    self._take_part(store)
                else:
                    self.rank = self._take_rank(store)
                    self._begin_to_stay(self.rank)
                    self._await_all(store)
            except DistNetworkError as error:
                if place.is_elastic or place.generation:
                    raise _Over(str(error)) from error
                raise alone(place, str(error)) from error
            except DistError as error:
                raise alone(place, str(error)) from error
            finally:
                store.close()
        except BaseException:
            self.end(well=False)
            raise

    def lost(self) -> str:
        """Why the meeting is over for all hosts; empty: it is not."""
        if self._server is not None:
            for name in self._server.silent_members(self._place.limit_s):
                self._server.fail(f"{name} did not answer for {self._place.limit_s:g} s")
            return self._server.lost
        return self._lost

    def lost_within(self, limit_s: float) -> str:
        """The same, after waiting for it for so long."""
        until_s = time.monotonic() + limit_s
        while not (why := self.lost()) and time.monotonic() < until_s:
            time.sleep(_AGAIN_S)
        return why

    def announce(self, why: str) -> None:
        """End the meeting for all hosts, who are told why; what was said before stays."""
        if self._server is not None:
            self._server.fail(why)
            return
        store = RunStore(self.address)
        with suppress(DistError):  # whoever serves it is gone, and the others notice
            store.end_run(why)
        store.close()

    def end(self, *, well: bool) -> None:
        """Leave, and on host 0 close the store; first the others end well, too, or have a moment to find out for themselves why they end."""
        self._well = well
        if not well and self._thread is not None and not self.lost():
            self._stop.wait(GRACE_S)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)
        if self._server is not None:
            if self._thread is not None and (well or self._server.lost):
                self._server.await_leaving(GRACE_S if self._server.lost else _LEAVE_S)
            if well and self._place.is_elastic and not self._server.lost:
                self._server.fail(f"{ENDED}its steps are done")
                time.sleep(_PING_S + _AGAIN_S)  # for those who wait for the next meeting
            self._server.close()

    def _find(self) -> StoreAddress:
        """The store: here, or on the host that has it."""
        place = self._place
        target = socket.gethostbyname(place.host)
        last: OSError | None = None
        while True:
            if place.rank == 0 or (place.rank is None and _is_own(target)):
                try:
                    self._server = StoreServer.for_hosts(place.own, place.port, self._key)
                    return StoreAddress(key=self._key, host=place.own, port=place.port)
                except OSError as error:
                    last = error
            if place.rank != 0:
                address = StoreAddress(key=self._key, host=target, port=place.port)
                try:
                    address.connect().connection.close()
                    return address
                except NotAuthentic as error:
                    if not place.generation:  # later on, it is a store that is just closing
                        raise Mismatch(
                            f"{place.text} is served, but with another secret or run id ({error}); give all hosts the same --secret and --run-id"
                        ) from error
                    last = error
                except OSError as error:
                    last = error
            if time.monotonic() > self._until_s:
                raise alone(place, str(last)) from last
            time.sleep(_AGAIN_S)

    # All hosts of a fixed number.

    def _take_rank(self, store: RunStore) -> int:
        place, name = self._place, f"{self.generation}/"
        mine = secrets.token_hex(8).encode()
        rank = 0 if self._server is not None else place.rank if place.rank is not None else store.add(f"{name}hosts", 1)
        is_mine = rank < place.count and store.compare_set(f"{name}host/{rank}", "", mine) == mine
        if rank >= place.count:
            raise Mismatch(
                f"more than {place.count} launchers came to {place.text}; start one on each host, or give other runs another --run-id"
            )
        if not is_mine:
            raise Mismatch(f"two launchers are host {rank} at {place.text}; give each host its own --node-rank, or none")
        return rank

    def _await_all(self, store: RunStore) -> None:
        keys = [f"{self.generation}/here/{rank}" for rank in range(self._place.count)]
        store.set(keys[self.rank], "1")
        store.wait(keys, timedelta(seconds=max(0.0, self._until_s - time.monotonic())))

    # As many hosts as come, between least and count.

    def _take_part(self, store: RunStore) -> None:
        number = 0 if self._server is not None else store.add("hosts", 1)
        if number >= self._place.count or store.check(["members"]):
            self._wait_for_the_next(store)
        self._begin_to_stay(number)
        store.set(f"here/{number}", str(self.generation))
        if self._server is not None:
            self._close_list(store)
        store.wait(["members"], timedelta(seconds=max(0.0, self._until_s - time.monotonic())))
        members = json.loads(store.get("members"))
        if number not in members["numbers"]:
            self._leave_early()
            self._wait_for_the_next(store)
        self.rank, self.count, self.generation = members["numbers"].index(number), len(members["numbers"]), members["generation"]

    def _close_list(self, store: RunStore) -> None:
        """On host 0: say who takes part, once all are there, or enough and nobody new for a while."""
        place = self._place
        settle_s = AGAIN_SETTLE_S if place.generation else min(SETTLE_S, place.join_timeout_s / 2)
        numbers: list[int] = []
        changed_s = time.monotonic()
        while True:
            here = [number for number in range(place.count) if store.check([f"here/{number}"])]
            if here != numbers:
                numbers, changed_s = here, time.monotonic()
            if len(numbers) == place.count or (len(numbers) >= place.least and time.monotonic() > changed_s + settle_s):
                break
            if time.monotonic() > self._until_s:
                raise alone(place, f"{len(numbers)} came")
            time.sleep(_AGAIN_S / 2)
        generation = max(int(store.get(f"here/{number}")) for number in numbers)
        store.set("members", json.dumps({"numbers": numbers, "generation": generation}))

    def _wait_for_the_next(self, store: RunStore) -> None:
        """Until this meeting is over.  Raises _Over."""
        try:
            while True:
                store.check(["hosts"])
                time.sleep(_PING_S)
        except DistNetworkError as error:
            raise _Over(str(error), waited=True) from error

    def _leave_early(self) -> None:
        assert self._thread is not None
        self._well = True
        self._stop.set()
        self._thread.join(_LEAVE_S)
        self._thread = None

    def _begin_to_stay(self, number: int) -> None:
        self._thread = threading.Thread(target=self._stay, args=(number,), daemon=True, name="meeting: stay")
        self._thread.start()
        self._joined.wait(_LEAVE_S)

    def _stay(self, number: int) -> None:
        """Be a member until this launcher leaves.  A connection of this thread alone: when it breaks, the store knows."""
        store = RunStore(self.address, patience_s=self._place.limit_s)
        try:
            store.join(f"the launcher of host {number}")
            self._joined.set()
            while not self._stop.wait(_PING_S):
                store.check(["hosts"])
            if self._well:
                store.leave()
        except DistError as error:
            self._lost = str(error)
        finally:
            self._joined.set()
            store.close()


def alone(place: Place, why: str) -> WorkerFailed:
    hosts = f"{place.least} of {place.count} hosts" if place.is_elastic else f"the {place.count} hosts"
    return WorkerFailed(
        f"{hosts} did not meet at {place.text} within {place.join_timeout_s:g} s, or it was lost ({why}); start the same "
        "command on every host; can the first one be reached, and is its port free?"
    )


def _is_own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
