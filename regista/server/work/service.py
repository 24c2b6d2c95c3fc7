"""The requests of a server: taken, queued, performed by child processes, watched, ended, kept.  Its methods belong to one event loop."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from planner.ir.errors import InvalidFile, Mismatch, Unsupported
from regista.server.limits import Limits
from regista.server.store import FileStore, RequestStore, Upload
from regista.server.store.requests import is_id
from regista.server.work.checking import check_apart
from regista.server.work.child import Child, fork_context
from regista.server.work.collect import collected
from regista.server.work.entry import Event, Open, Status
from regista.server.work.perform import lay_files, sweep_programs
from regista.server.work.queue import Lane, Queue, lane_of, program_key
from regista.wire import Outcome, Request, State
from regista.wire.result import ENDED

__all__ = ["Service"]

_WATCH_S = 0.2
_GRACE_S = 3.0
_CHILD_REQUESTS = 500
_SWEEP_EVERY = 200
_ALIVE_S = 15.0
_UNUSED_S = 3600.0
_CHECKS = 2


class Service:
    """Args: folder: the server's own, mode 0700.   limits: see Limits.

    ``async with Service(folder, limits) as service``: requests that a server before this one has not ended go on.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.files, self.requests = FileStore(folder / "files"), RequestStore(folder / "requests")
        self._programs = folder / "cache" / "models"
        self._context = fork_context()
        self._open: dict[str, Open] = {}
        self._queue = Queue()
        self._free: dict[Lane, list[Child]] = {lane: [] for lane in Lane}
        self._busy: dict[Child, str] = {}
        self._most = {Lane.SEARCH: limits.searches, Lane.QUICK: 1, Lane.RUN: 1}
        self._ended = 0
        self._unkept: dict[str, Status] = {}
        self._rows: dict[str, dict[str, str]] = {}
        self._checking = asyncio.Semaphore(_CHECKS)
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Service:
        for request_id, request in self.requests.open_ones():
            self._open[request_id] = Open(request)
            self._queue.add(request_id, request)
        self._sweep()
        for lane, most in self._most.items():
            for _ in range(most):
                self._start_child(lane)
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector then looks at what requests leave, and looks often enough that memory stays flat
        self._watching = asyncio.create_task(self._watch())
        self._dispatch()
        return self

    async def __aexit__(self, *_: object) -> None:
        """What runs stays open on disk and goes on with the next server."""
        if self._watching is not None:
            self._watching.cancel()
        for child in self._children():
            self._end_child(child)
        for entry in self._open.values():
            entry.changed.set()

    # --- what the edge asks ---------------------------------------------------------------------------------------------

    async def keep(self, upload: Upload) -> None:
        """Keep a file that has come whole, once it is checked.   Raises InvalidFile, Untrusted: see Upload.finish."""
        async with self._checking:
            await asyncio.to_thread(upload.finish, partial(check_apart, self._context))

    def submit(self, request: Request, request_id: str | None = None) -> str:
        """Take a request; the same id with the same request is the same request.   Returns its id.

        Raises:
            Mismatch: the id is another request's.   InvalidFile: no id, or a file has not been sent.   Unsupported: too many wait.
        """
        name = uuid.uuid4().hex if request_id is None else request_id
        if not is_id(name):
            raise InvalidFile(
                f"{name[:40]!r} is no id of a request: 32 hexadecimal digits are needed; leave it out and the server gives one"
            )
        if (known := self.requests.request(name)) is not None:
            if known != request:
                raise Mismatch(f"request {name} is another one already ('{known.verb}'); send this one with an id of its own")
            return name
        if missing := [path for path, digest in request.files.items() if not self.files.has(digest)]:
            raise InvalidFile(
                f"{missing[0]!r} ({request.files[missing[0]][:16]}) is not on the server; send its content first, then the request"
            )
        if len(self._queue) >= self.limits.queued:
            raise Unsupported(f"{len(self._queue)} requests wait, as many as this server lets wait; try again later")
        self.requests.add(name, request, self.files)
        self._open[name] = Open(request)
        self._queue.add(name, request)
        self._open[name].tell("state", {"state": State.QUEUED.value})
        self._dispatch()
        return name

    def status(self, request_id: str) -> Status:
        """Raises InvalidFile: there is no such request."""
        if (entry := self._open.get(request_id)) is not None:
            return Status(id=request_id, request=entry.request, state=entry.state)
        if request_id in self._unkept:
            return self._unkept[request_id]
        request, outcome = self.requests.request(request_id), self.requests.outcome(request_id)
        if request is None or outcome is None:
            raise InvalidFile(
                f"there is no request {request_id[:40]!r} here; a server keeps the {self.limits.kept} that ended last, GET /v1/requests lists them"
            )
        return Status(id=request_id, request=request, state=outcome.state, outcome=outcome)

    def newest(self, most: int) -> list[dict[str, str]]:
        """id, state and verb of those that can be read: one that cannot (its files were edited, say) hides no other.

        What has ended is read once, so that looking often does not keep the server from its work.
        """
        found = []
        for name in self.requests.newest()[:most]:
            if name not in self._rows:
                with suppress(ValueError):
                    status = self.status(name)
                    row = {"id": name, "state": status.state.value, "verb": status.request.verb}
                    if status.state in ENDED:
                        self._rows[name] = row
                    found.append(row)
            else:
                found.append(self._rows[name])
        return found

    def cancel(self, request_id: str, *, keep_best: bool = False) -> None:
        """End a request: at once and without a result, or, with ``keep_best``, with the best that its search has.

        Raises:
            InvalidFile: there is no such request.   Mismatch: it has ended, or is ended already.
        """
        status = self.status(request_id)
        entry = self._open.get(request_id)
        if entry is None or entry.discard:
            how = status.state.value if entry is None else "about to end, since it was cancelled before"
            raise Mismatch(f"request {request_id} is {how}: there is nothing to end; GET it to see what it has left")
        if entry.child is None:
            if keep_best:
                raise Mismatch(f"request {request_id} waits and has found nothing yet; cancel it without keeping the best, or let it begin")
            self._queue.remove(request_id)
            self._end(request_id, Outcome(state=State.CANCELLED, code=130, error="Cancelled", message="cancelled before it began"))
            return
        entry.discard = not keep_best
        self._send(entry.child, {"end": request_id})
        if not keep_best:
            entry.reason = Outcome(state=State.CANCELLED, code=130, error="Cancelled", message=f"request {request_id} was cancelled")
            entry.deadline_s = min(entry.deadline_s, time.monotonic() + _GRACE_S)

    async def events(self, request_id: str, after: int = -1) -> AsyncIterator[Event]:
        """What happens to a request, until it has ended; a client that comes back says what it had (``after``).   Raises as status.

        Where nothing happens, an event ``alive`` comes from time to time, so that either end notices when the other is gone.
        """
        status = self.status(request_id)
        while (entry := self._open.get(request_id)) is not None:
            changed = entry.changed
            for event in [event for event in entry.events if event.number > after]:
                after = event.number
                yield event
            if not changed.is_set():
                try:
                    async with asyncio.timeout(_ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    yield Event(number=after, name="alive", data={})
            if self._watching is not None and self._watching.done():
                return
        status = self.status(request_id)
        yield Event(number=after + 1, name="state", data={"state": status.state.value})

    def counts(self) -> dict[str, int]:
        """For a look at the server: requests by state, and its processes."""
        return {"queued": len(self._queue), "running": len(self._busy), "ended": self._ended, "processes": len(self._children())}

    def pids(self) -> list[int]:
        """The processes that perform requests."""
        return [child.pid for child in self._children()]

    # --- children -------------------------------------------------------------------------------------------------------

    def _children(self) -> list[Child]:
        return [*self._busy, *(child for free in self._free.values() for child in free)]

    def _start_child(self, lane: Lane) -> None:
        child = Child(self._context, self.folder, confined=lane is not Lane.RUN)
        self._free[lane].append(child)
        asyncio.get_running_loop().add_reader(child.fileno(), self._read, child)

    def _end_child(self, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(child.fileno())
        for free in self._free.values():
            if child in free:
                free.remove(child)
        self._busy.pop(child, None)
        child.kill()

    def _dispatch(self) -> None:
        """Give requests that wait to processes that are free."""
        for lane, free in self._free.items():
            for child in list(free):
                others = [other.warm for other in free if other is not child]
                request_id = self._queue.next_of(lane, child.warm, others)
                if request_id is not None:
                    free.remove(child)
                    self._begin(request_id, child)

    def _begin(self, request_id: str, child: Child) -> None:
        self._queue.remove(request_id)
        entry, work = self._open[request_id], self.requests.work(request_id)
        self._busy[child] = request_id
        entry.child, entry.state, entry.attempts = child, State.RUNNING, entry.attempts + 1
        entry.deadline_s = time.monotonic() + self.limits.request_seconds
        entry.reason = Outcome(
            state=State.FAILED,
            code=2,
            error="Unsupported",
            message=f"'{entry.request.verb}' ran for more than the {self.limits.request_seconds:.0f} s that this server gives a request; "
            "ask for less, for example with --seconds",
        )
        entry.tell("state", {"state": State.RUNNING.value, "attempt": entry.attempts})
        try:
            stored = {digest: self.files.path(digest) for digest in entry.request.files.values()}
            models = lay_files(entry.request, work, self._programs, stored)
        except (OSError, ValueError) as error:
            self._busy.pop(child)
            self._free[lane_of(entry.request)].append(child)
            self._end(
                request_id, Outcome(state=State.FAILED, code=2, error="InvalidFile", message=f"its files cannot be laid out: {error}")
            )
            return
        child.warm.add(program_key(entry.request))
        self._send(child, {"perform": request_id, "request": entry.request.data(), "work": str(work), "models": models})

    def _send(self, child: Child, message: dict[str, object]) -> None:
        try:
            child.send(message)
        except OSError:
            self._lost(child)

    def _read(self, child: Child) -> None:
        if not child.read(lambda message: self._take(child, message)):
            self._lost(child)

    def _take(self, child: Child, message: dict[str, object]) -> None:
        name = str(message.get("progress") or message.get("ended"))
        entry = self._open.get(name)
        if entry is None or entry.child is not child:
            return
        if "progress" in message:
            entry.tell("progress", {key: value for key, value in message.items() if key != "progress"})
            return
        outcome = collected(entry.request, self.requests.work(name), self.files)
        if entry.discard:
            outcome = replace(
                outcome, state=State.CANCELLED, code=130, files={}, result=None, error="Cancelled", message=f"request {name} was cancelled"
            )
        del self._busy[child]
        self._renew_or_free(child, lane_of(entry.request))
        self._end(name, replace(outcome, attempts=entry.attempts))

    def _renew_or_free(self, child: Child, lane: Lane) -> None:
        """A process that has grown, or has done much, is replaced by a new one."""
        child.performed += 1
        if child.performed >= _CHILD_REQUESTS or child.resident_bytes() > self.limits.memory_bytes / 2:
            self._end_child(child)
            self._start_child(lane)
        else:
            self._free[lane].append(child)

    def _lost(self, child: Child) -> None:
        """A process has ended that should not have: its request is begun again."""
        request_id = self._busy.get(child)
        lane = next((lane for lane, free in self._free.items() if child in free), Lane.SEARCH)
        if child not in self._children():
            return
        self._end_child(child)
        if request_id is None:
            self._start_child(lane)
            return
        entry = self._open[request_id]
        self._start_child(lane_of(entry.request))
        if entry.discard and entry.reason is not None:
            self._end(request_id, replace(entry.reason, attempts=entry.attempts))
            return
        if entry.attempts >= self.limits.attempts:
            message = (
                f"the process that performed '{entry.request.verb}' was ended from outside {entry.attempts} times, perhaps by the kernel for memory; "
                "ask for something smaller, or look at the host's log"
            )
            self._end(request_id, Outcome(state=State.FAILED, code=2, error="WorkerFailed", message=message, attempts=entry.attempts))
            return
        entry.child, entry.state = None, State.QUEUED
        self._queue.add_first(request_id, entry.request)
        entry.tell("state", {"state": State.QUEUED.value, "because": "its process was killed"})
        self._dispatch()

    async def _watch(self) -> None:
        """Memory and time of what runs."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for child, request_id in list(self._busy.items()):
                entry, resident = self._open[request_id], child.resident_bytes()
                if resident > self.limits.memory_bytes:
                    message = (
                        f"'{entry.request.verb}' held {resident / 2**30:.1f} GiB, more than the {self.limits.memory_bytes / 2**30:.1f} GiB that this "
                        "server gives a request; ask for something smaller"
                    )
                    self._stop(child, Outcome(state=State.FAILED, code=2, error="OutOfMemory", message=message))
                elif now > entry.deadline_s and entry.reason is not None:
                    self._stop(child, entry.reason)

    def _stop(self, child: Child, outcome: Outcome) -> None:
        request_id = self._busy[child]
        entry = self._open[request_id]
        self._end_child(child)
        self._start_child(lane_of(entry.request))
        self._end(request_id, replace(outcome, attempts=entry.attempts))

    # --- the end of a request -------------------------------------------------------------------------------------------

    def _end(self, request_id: str, outcome: Outcome) -> None:
        assert outcome.state in ENDED
        entry = self._open.pop(request_id)
        try:
            self.requests.end(request_id, outcome, self.files)
        except (OSError, ValueError) as error:
            message = (
                f"what '{entry.request.verb}' has left could not be kept by the server ({error}); make room on its disk, and ask again"
            )
            lost = Outcome(state=State.FAILED, code=2, error="InvalidFile", message=message, attempts=entry.attempts)
            self._unkept[request_id] = Status(id=request_id, request=entry.request, state=State.FAILED, outcome=lost)
        entry.changed.set()
        self._ended += 1
        if self._ended % _SWEEP_EVERY == 0:
            self._sweep()
        self._dispatch()

    def _sweep(self) -> None:
        """Forget the requests that ended longest ago, and files that nobody has asked for since an hour; collect what is left in cycles."""
        gc.collect()
        names = self.requests.newest()
        for name in names[self.limits.kept + len(self._open) :]:
            if name not in self._open:
                self.requests.remove(name)
                self._rows.pop(name, None)
        before = time.time() - _UNUSED_S
        self.files.sweep(older_than_s=before)
        used = {digest for entry in self._open.values() for digest in entry.request.files.values()}
        sweep_programs(self._programs, used, older_than_s=before)
