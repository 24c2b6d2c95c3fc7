"""connect(url): a server's verbs on values, as ``regista.plan`` and its kin; and requests by their ids, for clients that come back.

server = regista.connect("unix:/home/me/.local/state/regista/server/socket")
plan = server.plan("zoo:gpt", "local:2", stages=2, micro_batches=8)
sim = server.simulate(plan)
better = server.whatif(plan, ["cluster.links.node.bandwidth_GBps=50"])["plan"]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.ir.errors import RegistaError, Unsupported
from planner.ir.files import load_plan, load_trace, save_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace
from regista.remote.asked import Asked, asked_of
from regista.remote.transport import ServerGone, Transport
from regista.wire import Outcome, Request, State, parse_request
from regista.wire.result import ENDED, error_of, outcome_of

__all__ = ["Connection", "connect"]

_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)

Progress = Callable[[Mapping[str, Any]], None]


def connect(url: str, *, token: str | Path | None = None) -> Connection:
    """A connection to a server.

    Args:
        url: ``unix:PATH`` or ``http://host:port``, as ``regista serve`` prints it.   token: the file of the token, for TCP.

    Raises:
        Unsupported: no such kind of address, or a server of another version.   ServerGone: nobody answers.
    """
    from regista.server.place import read_token

    connection = Connection(Transport(url, None if token is None else read_token(Path(token))))
    connection.about()
    return connection


class Connection:
    """The verbs of a server.  Every method that plans or asks raises what the verb raises there, and ServerGone."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # --- requests -------------------------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """What the server says of itself.   Raises Unsupported: it is of another version."""
        said = self._transport.json("GET", "/v1/server")
        if not isinstance(said, dict) or said.get("regista") != 1:
            raise Unsupported(
                f"the server at {self._transport.url} is of another version ({said!r:.60}); use the same regista on both sides"
            )
        return said

    def submit(self, asked: Asked, request_id: str | None = None) -> str:
        """Send what the server has not, then the request; returns its id."""
        for digest, source in asked.sent.items():
            self._transport.send(f"/v1/files/{digest}", source)
        body = asked.request.data() | ({} if request_id is None else {"id": request_id})
        return str(self._transport.json("POST", "/v1/requests", body)["id"])

    def wait(self, request_id: str, on_progress: Progress | None = None) -> Outcome:
        """Follow a request to its end, also over a restart of the server."""
        failures = 0
        while True:
            try:
                for name, data in self._transport.events(f"/v1/requests/{request_id}/events"):
                    failures = 0
                    if name == "progress" and on_progress is not None:
                        on_progress(data)
                    if name == "state" and State(data["state"]) in ENDED:
                        return self.outcome(request_id)
                found = self._transport.json("GET", f"/v1/requests/{request_id}")
                if State(found["state"]) in ENDED:
                    return outcome_of(found["outcome"])
            except ServerGone:
                if failures == len(_RETRY_S):
                    raise
            time.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    def outcome(self, request_id: str) -> Outcome:
        """What an ended request has left.   Raises Unsupported: it has not ended."""
        found = self._transport.json("GET", f"/v1/requests/{request_id}")
        if State(found["state"]) not in ENDED:
            raise Unsupported(f"request {request_id} is {found['state']}, so it has left nothing yet; wait for it")
        return outcome_of(found["outcome"])

    def request(self, request_id: str) -> Request:
        """What was asked."""
        return parse_request(self._transport.json("GET", f"/v1/requests/{request_id}")["request"])

    def cancel(self, request_id: str, *, keep_best: bool = False) -> None:
        """End a request; with ``keep_best`` a search leaves the best plan so far.   Raises Mismatch: it has ended already."""
        self._transport.json("POST", f"/v1/requests/{request_id}/cancel", {"keep_best": keep_best})

    def requests(self) -> list[dict[str, str]]:
        """The newest: id, state, verb."""
        return list(self._transport.json("GET", "/v1/requests")["requests"])

    def files(self, outcome: Outcome) -> Iterator[tuple[str, bytes]]:
        """What a request has left: names on the server and contents."""
        for name, digest in outcome.files.items():
            yield name, self._transport.fetch(f"/v1/files/{digest}")

    # --- verbs on values ------------------------------------------------------------------------------------------------

    def plan(self, model: str, cluster: str, *, on_progress: Progress | None = None, **options: Any) -> Plan:
        """``regista plan MODEL --cluster CLUSTER``; options by the names of the command line: ``stages=2, pin=["input.0=S(0)"]``."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "plan.json")
            self._ask("plan", [*_options(options | {"cluster": cluster, "out": str(out)}), "--", model], on_progress)
            return load_plan(str(out))

    def simulate(self, plan: Plan, **options: Any) -> Trace:
        """``regista simulate``: steps, engine."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "sim.json")
            self._ask("simulate", [*_options(options | {"out": str(out)}), "--", _saved(plan, folder)])
            return load_trace(str(out))[1]

    def whatif(self, plan: Plan, sets: Sequence[str]) -> dict[str, Any]:
        """``regista whatif``: what --json prints, and the new ``plan``."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "new.json")
            found = self._ask("whatif", [*_options({"set": sets, "out": str(out)}), "--", _saved(plan, folder)])
            return {**found, "plan": load_plan(str(out))}

    def explain(self, plan: Plan, **options: Any) -> dict[str, Any]:
        """``regista explain --json``."""
        with tempfile.TemporaryDirectory() as folder:
            return self._ask("explain", [*_options(options), "--", _saved(plan, folder)])

    def predict(self, *jobs: str | Path) -> dict[str, Any]:
        """``regista predict --json`` of files of jobs."""
        return self._ask("predict", ["--", *map(str, jobs)])

    def advise(self, job: str | Path, **options: Any) -> dict[str, Any]:
        """``regista advise --json`` of a job: a file, or its arguments as one text."""
        return self._ask("advise", [*_options(options), "--", str(job)])

    def compare(self, plan: Plan, sim: Trace, run: Trace, **options: Any) -> dict[str, Any]:
        """``regista compare --json`` of two traces of a Plan."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [str(Path(folder, name)) for name in ("sim.json", "run.json")]
            for trace, path in zip((sim, run), paths, strict=True):
                save_trace(plan, trace, path)
            return self._ask("compare", [*_options(options), "--", *paths])

    def _ask(self, verb: str, argv: Sequence[str], on_progress: Progress | None = None) -> dict[str, Any]:
        asked = asked_of(verb, ["--json", *argv])
        outcome = self.wait(self.submit(asked), on_progress)
        if outcome.error:
            raise error_of(outcome.error, asked.local_text(outcome.message))
        for name, content in self.files(outcome):
            Path(asked.local_name(name)).write_bytes(content)
        if not isinstance(outcome.result, dict):
            raise RegistaError(f"'{verb}' of the server has left no result; use the same regista on both sides")
        return outcome.result


def _saved(plan: Plan, folder: str) -> str:
    path = str(Path(folder, "given.json"))
    save_plan(plan, path)
    return path


def _options(options: Mapping[str, Any]) -> list[str]:
    """--name=value; None: auto; True: a flag; several: one after the other."""
    argv: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(flag)
        elif isinstance(value, Iterable) and not isinstance(value, str):
            argv += [f"{flag}={one}" for one in value]
        elif value is not False:
            argv.append(f"{flag}={'auto' if value is None else value}")
    return argv
