"""The launchers of several hosts meet at one of them, which serves the store of the run; whoever does not know the secret stays outside.

    host 0   serves the store at HOST:PORT <------ host 1, host 2, ...: join, and say once a second that they are there
    workers of all hosts ----------------------->

Without ranks of hosts the one that can open HOST:PORT is host 0, and the others are numbered as they come.
A launcher that is lost, or stands still, ends the run on all hosts.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError

from backend.comm.authentic import NotAuthentic
from backend.launch.attempts import GRACE_S
from backend.store import RunStore, StoreAddress, StoreServer
from planner.ir.errors import Mismatch, WorkerFailed

__all__ = ["Meeting", "Place"]

_PING_S = 1.0
_AGAIN_S = 0.2
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the launchers meet, and this one's place among them.

    count: hosts.   host, port: where host 0 is.   own: this host's address on the way there.   rank: of this host; None: as they agree.
    limit_s: for how long another launcher may be silent.
    """

    count: int
    host: str
    port: int
    own: str
    rank: int | None
    join_timeout_s: float
    limit_s: float

    @property
    def text(self) -> str:
        return f"{self.host}:{self.port}"


class Meeting:
    """This launcher among those of the other hosts; it is made once all are there.

    rank: of this host.   address: of the store, for this host's workers.

    Raises:
        WorkerFailed: they did not come in time.   Mismatch: another secret or run id; two launchers of one rank; too many.
    """

    def __init__(self, place: Place, key: bytes) -> None:
        self._place, self._key = place, key
        self._server: StoreServer | None = None
        self._lost = ""
        self._well = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._until_s = time.monotonic() + place.join_timeout_s
        try:
            self.address = self._find()
            store = RunStore(self.address)
            self.rank = self._take_rank(store)
            self._thread = threading.Thread(target=self._stay, daemon=True, name="meeting: stay")
            self._thread.start()
            self._await_all(store)
        except BaseException:
            self.end(well=False)
            raise

    def lost(self) -> str:
        """Why the run is over for all hosts; empty: it is not."""
        if self._server is not None:
            for name in self._server.silent_members(self._place.limit_s):
                self._server.fail(f"{name} did not answer for {self._place.limit_s:g} s")
            return self._server.lost
        return self._lost

    def end(self, *, well: bool) -> None:
        """Leave, and on host 0 close the store; first the others end well, too, or have a moment to find out for themselves why they end."""
        self._well = well
        if not well and self._thread is not None and not self.lost():
            self._stop.wait(GRACE_S)
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)
        if self._server is not None:
            if well:
                self._server.await_leaving(_LEAVE_S)
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
                    raise Mismatch(
                        f"{place.text} is served, but with another secret or run id ({error}); give all hosts the same --secret and --run-id"
                    ) from error
                except OSError as error:
                    last = error
            if time.monotonic() > self._until_s:
                raise self._alone(str(last)) from last
            time.sleep(_AGAIN_S)

    def _take_rank(self, store: RunStore) -> int:
        place = self._place
        try:
            rank = 0 if self._server is not None else place.rank if place.rank is not None else store.add("hosts", 1)
            mine = secrets.token_hex(8).encode()
            is_mine = rank < place.count and store.compare_set(f"host/{rank}", "", mine) == mine
        except DistError as error:
            raise self._alone(str(error)) from error
        if rank >= place.count:
            raise Mismatch(
                f"more than {place.count} launchers came to {place.text}; start one on each host, or give other runs another --run-id"
            )
        if not is_mine:
            raise Mismatch(f"two launchers are host {rank} at {place.text}; give each host its own --node-rank, or none")
        return rank

    def _await_all(self, store: RunStore) -> None:
        keys = [f"here/{rank}" for rank in range(self._place.count)]
        try:
            store.set(keys[self.rank], "1")
            store.wait(keys, timedelta(seconds=max(0.0, self._until_s - time.monotonic())))
        except DistError as error:
            raise self._alone(str(error)) from error

    def _alone(self, why: str) -> WorkerFailed:
        place = self._place
        return WorkerFailed(
            f"the {place.count} hosts did not meet at {place.text} within {place.join_timeout_s:g} s, or it was lost ({why}); start the same "
            "command on every host; can the first one be reached, and is its port free?"
        )

    def _stay(self) -> None:
        """Be a member until this launcher leaves.  A connection of this thread alone: when it breaks, the store knows."""
        store = RunStore(self.address, patience_s=self._place.limit_s)
        try:
            store.join(f"the launcher of host {self.rank}")
            while not self._stop.wait(_PING_S):
                store.check(["hosts"])
            if self._well:
                store.leave()
        except DistError as error:
            self._lost = str(error)
        finally:
            store.close()


def _is_own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True
