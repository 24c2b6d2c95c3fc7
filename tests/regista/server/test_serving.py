"""A server as its clients meet it: verbs as without it, requests by id, what survives a kill, who is turned away."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from planner.ir.errors import Mismatch, OutOfMemory, RegistaError, Unsupported, Untrusted
from planner.ir.files import save_plan
from regista.api import plan
from regista.cli import main
from regista.remote import Connection, connect
from regista.remote.asked import asked_of
from tests.regista.server.serving import Serving, gone, serving, wait_until

pytestmark = pytest.mark.processes

SMALL = ("zoo:mlp", "local:2")
LONG = ["zoo:gpt?layers=2", "--cluster", "dgx-a100:1", "--stages", "auto", "--micro-batches", "auto"]
"""A search of some seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "s", "--tcp", "127.0.0.1:0", "--upload-mb", "1") as started:
        yield started


def saved(folder: Path) -> bytes:
    """What the same plan is without a server."""
    save_plan(plan(*SMALL), str(folder / "local.json"))
    return (folder / "local.json").read_bytes()


def test_a_verb_leaves_the_same_file_and_prints_the_same_as_without_a_server(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    argv = ["plan", SMALL[0], "--cluster", SMALL[1], "-o", "p.json"]
    assert main(["--server", server.url, *argv]) == 0
    far = (Path("p.json").read_bytes(), capsys.readouterr().out)
    assert main(argv) == 0
    assert far == (Path("p.json").read_bytes(), capsys.readouterr().out)
    assert main(["--server", server.url, "whatif", "p.json", "--set", "cluster.nothing=1"]) == 2
    said = capsys.readouterr().err
    assert main(["whatif", "p.json", "--set", "cluster.nothing=1"]) == 2
    assert capsys.readouterr().err == said
    assert main(["--server", server.url, "train", "p.json"]) == 2
    assert "does not perform 'train'" in capsys.readouterr().err


@pytest.mark.thorough
def test_values_from_a_connection_are_those_of_the_python_api(server: Serving, tmp_path: Path):
    far = server.connect()
    told: list[object] = []
    found = far.plan(*SMALL, on_progress=told.append)
    assert found == plan(*SMALL)
    trace = far.simulate(found, steps=2)
    changed = far.whatif(found, ["cluster.links.node.bandwidth_GBps=9.0"])
    assert trace.plan_id == found.plan_id and changed["plan"].model == SMALL[0]
    assert far.explain(found)["plan_id"] == found.plan_id
    (tmp_path / "job.toml").write_text(
        '[model]\nfamily="llama3-8b"\n[cluster]\nname="dgx-h100:2"\n[layout]\ntp=2\npp=4\nglobal_batch=128\n'
    )
    assert far.predict(tmp_path / "job.toml")["predicted"] == 1
    (tmp_path / "job.toml").write_text('[model]\nfamily="llama3-8b"\n[cluster]\nname="/etc/ssl/x.toml"\n[layout]\ntp=2\nglobal_batch=128\n')
    with pytest.raises(RegistaError, match="may not read this file of its host"):
        far.predict(tmp_path / "job.toml")


@pytest.mark.thorough
def test_a_request_is_cancelled_once_and_the_second_client_is_told(server: Serving, tmp_path: Path):
    far = server.connect()
    first = far.submit(asked_of("plan", [*LONG, "-o", str(tmp_path / "p.json")]))
    far.cancel(first)
    with pytest.raises(Mismatch, match=f"request {first} is .*nothing to end"):
        server.connect().cancel(first)
    outcome = far.wait(first)
    assert outcome.state.value == "cancelled" and not outcome.files
    with pytest.raises(Mismatch, match="is cancelled: there is nothing to end"):
        far.cancel(first)


@pytest.mark.thorough
def test_the_same_id_with_the_same_request_is_one_request_and_with_another_is_refused(server: Serving, tmp_path: Path):
    far, asked = server.connect(), asked_of("clusters", [])
    assert far.submit(asked, "ab" * 16) == far.submit(asked, "ab" * 16) == "ab" * 16
    with pytest.raises(Mismatch, match="is another one already"):
        far.submit(asked_of("ops", []), "ab" * 16)
    far.wait("ab" * 16)
    assert [one["id"] for one in far.requests()].count("ab" * 16) == 1


@pytest.mark.thorough
def test_a_plan_is_the_same_after_kills_of_the_client_the_search_and_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *LONG, "-o", "alone.json", "--json"]) == 0
    alone = Path("alone.json").read_bytes()
    command = [sys.executable, "-m", "regista.cli"]
    with serving(tmp_path / "s", "--searches", "1") as first:
        client = subprocess.Popen([*command, "--server", first.url, "plan", *LONG, "-o", "p.json"], stdout=subprocess.DEVNULL, text=True)
        far = first.connect()
        wait_until("the search began", lambda: far.requests() and far.requests()[0]["state"] == "running")
        (one,) = far.requests()
        client.send_signal(signal.SIGKILL)
        client.wait()
        killed = busiest(first.children())
        os.kill(killed, signal.SIGKILL)
        wait_until("the search began again", lambda: gone([killed]) and far.requests()[0]["state"] == "running")
        time.sleep(0.5)
        workers = first.children()
        first.kill()
        wait_until("no process outlives the server", lambda: gone(workers), 10)
    with serving(tmp_path / "s") as second:
        ended = subprocess.run([*command, "--server", second.url, "attach", one["id"]], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        assert Path("p.json").read_bytes() == alone


@pytest.mark.thorough
def test_ctrl_c_leaves_a_search_running_whose_progress_is_told_and_whose_best_is_taken(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    far, argv = server.connect(), ["-m", "regista.cli", "--server", server.url, "plan", *LONG, "--full", "-o", "p.json"]
    before = {one["id"] for one in far.requests()}
    client = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until("the search began", lambda: [one for one in far.requests() if one["id"] not in before and one["state"] == "running"])
    client.send_signal(signal.SIGINT)
    said = client.communicate(timeout=60)[1]
    (request_id,) = {one["id"] for one in far.requests()} - before
    assert client.returncode == 130 and f"attach {request_id}' comes back to it" in said
    told: list[Mapping[str, Any]] = []

    def on_progress(data: Mapping[str, Any]) -> None:
        told.append(data)
        if data["best_s"] is not None and not ended:
            ended.append(request_id)
            with contextlib.suppress(Mismatch):  # it has ended by itself
                far.cancel(request_id, keep_best=True)

    ended: list[str] = []
    outcome = far.wait(request_id, on_progress)
    assert outcome.code == 0 and outcome.state.value == "done"
    best = [data for data in told if data["best_s"] is not None]
    assert best and all(data["bound_s"] <= data["best_s"] and 0 <= data["gap"] <= 1 for data in best)
    bounds = [data["bound_s"] for data in told if data["bound_s"] is not None]
    assert bounds == sorted(bounds)
    assert main(["--server", server.url, "attach", request_id]) == 0 and Path("p.json").is_file()
    capsys.readouterr()
    with pytest.raises(RegistaError, match="there is no request"):
        far.wait("ab" * 15 + "00")


def test_ctrl_c_before_the_answer_of_the_server_names_the_request(
    server: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sent: list[str] = []
    submit = Connection.submit

    def interrupted(connection: Connection, asked: Any, request_id: str | None = None) -> str:
        sent.append(submit(connection, asked, request_id))
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "submit", interrupted)
    assert main(["--server", server.url, "clusters"]) == 130
    assert f"request {sent[0]} goes on; 'regista --server {server.url} attach {sent[0]}' comes back to it" in capsys.readouterr().err


def busiest(pids: list[int]) -> int:
    """The one that computes now, whatever the others have computed before."""
    before = {pid: ticks(pid) for pid in pids}
    wait_until("one of them computes", lambda: any(ticks(pid) > before[pid] + 20 for pid in pids))
    return max(pids, key=lambda pid: ticks(pid) - before[pid])


def ticks(pid: int) -> int:
    """Processor time, in hundredths of a second."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.mark.thorough
def test_a_process_that_is_killed_again_and_again_ends_its_request_alone(server: Serving, tmp_path: Path):
    far = server.connect()
    first = far.submit(asked_of("plan", [*LONG, "-o", str(tmp_path / "p.json")]))
    for _ in range(3):
        wait_until("it runs", lambda: far.about()["counts"]["running"] == 1)
        os.kill(busiest(server.children()), signal.SIGKILL)
        time.sleep(0.3)
    assert "was ended from outside 3 times" in far.wait(first).message
    assert far.plan(*SMALL).model == SMALL[0]


@pytest.mark.thorough
def test_limits_of_memory_and_time_end_a_request_with_a_message(tmp_path: Path):
    argv = [*LONG, "-o", str(tmp_path / "p.json")]
    with serving(tmp_path / "s", "--request-seconds", "1") as slow:
        far = slow.connect()
        assert "more than the 1 s that this server gives" in far.wait(far.submit(asked_of("plan", argv))).message
    with serving(tmp_path / "s", "--memory-gb", "0.1") as small:
        far = small.connect()
        outcome = far.wait(far.submit(asked_of("plan", argv)))
        assert outcome.error == OutOfMemory.__name__ and "ask for something smaller" in outcome.message


@pytest.mark.thorough
def test_two_servers_do_not_share_a_folder(server: Serving):
    tried = subprocess.run(
        [sys.executable, "-m", "regista.cli", "serve", "--folder", str(server.folder)], capture_output=True, text=True, timeout=60
    )
    assert tried.returncode == 2 and "another server keeps its files" in tried.stderr


# --- strangers --------------------------------------------------------------------------------------------------------


def ask(tcp: Serving, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, dict[str, str]]]:
    connection = http.client.HTTPConnection("127.0.0.1", tcp.port, timeout=30)
    assert tcp.token is not None
    shown = {"authorization": f"Bearer {tcp.token.read_text().strip()}", "content-type": "application/json"}
    connection.request(method, path, body, {**shown, **{name.replace("_", "-"): value for name, value in headers.items()}})
    answer = connection.getresponse()
    data = json.loads(answer.read())
    connection.close()
    return answer.status, data


@pytest.mark.thorough
def test_strangers_are_turned_away_with_one_message(tcp: Serving, tmp_path: Path):
    assert tcp.token is not None
    with pytest.raises(Untrusted, match="no token came"):
        connect(tcp.url)
    (tmp_path / "wrong").write_text("w" * 40)
    (tmp_path / "wrong").chmod(0o600)
    with pytest.raises(Untrusted, match="a wrong token"):
        connect(tcp.url, token=tmp_path / "wrong")
    assert ask(tcp, "GET", "/v1/server")[0] == 200
    for path in ("/v1/requests/../../lock", "/v1/files/..%2f..%2ftoken", "/v1/requests/%2e%2e", "/token", "/page.css/../token"):
        status, data = ask(tcp, "GET", path)
        assert status in (400, 404), path
        assert "error" in data
    assert ask(tcp, "GET", "/v1/server", host="evil.example")[0] == 403
    assert ask(tcp, "GET", "/v1/server", origin="https://evil.example")[0] == 403
    assert ask(tcp, "POST", "/v1/requests", b"{}", content_type="text/plain")[0] == 415
    assert ask(tcp, "POST", "/v1/requests", b"[" * 100_000)[0] == 400
    assert ask(tcp, "POST", "/v1/requests", b" " * (2 << 20))[0] == 413
    status, data = ask(tcp, "PUT", f"/v1/files/{'ab' * 32}", b"x" * (2 << 20))
    assert status == 413 and "this server takes 1048576" in data["error"]["message"]
    status, data = ask(tcp, "PUT", f"/v1/files/{'ab' * 32}", b"half")
    assert status == 400 and "half-written" in data["error"]["message"]
    with socket.create_connection(("127.0.0.1", tcp.port)) as cut:
        head = f"Host: 127.0.0.1:{tcp.port}\r\nAuthorization: Bearer {tcp.token.read_text().strip()}\r\nContent-Length: 9\r\n\r\nhalf"
        cut.sendall(f"PUT /v1/files/{'ab' * 32} HTTP/1.1\r\n{head}".encode())
        wait_until("the upload began", lambda: list((tcp.folder / "files").glob(".upload-*")))
    wait_until("nothing is left of it", lambda: not list((tcp.folder / "files").glob(".upload-*")))
    status, description = ask(tcp, "GET", "/openapi.json")
    assert status == 200 and description["openapi"] == "3.1.0"


@pytest.mark.thorough
def test_slow_clients_are_let_go_and_others_are_answered_meanwhile(tcp: Serving):
    slow = []
    for beginning in (b"", b"GET /v1/server HTTP/1.1\r\nHost: x\r\nX-A: "):
        slow.append(socket.create_connection(("127.0.0.1", tcp.port)))
        slow[-1].sendall(beginning)
    assert tcp.token is not None
    head = f"Authorization: Bearer {tcp.token.read_text().strip()}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    slow.append(socket.create_connection(("127.0.0.1", tcp.port)))
    slow[-1].sendall(f"POST /v1/requests HTTP/1.1\r\nHost: 127.0.0.1:{tcp.port}\r\n{head}".encode())
    began = time.monotonic()
    while time.monotonic() - began < 8:
        for one in slow[1:]:
            one.sendall(b"a")
        assert ask(tcp, "GET", "/v1/server")[0] == 200
        time.sleep(1)
    for number, one in enumerate(slow):
        one.settimeout(8)
        try:
            said = one.recv(1000)
        except ConnectionResetError:
            said = b""
        assert said == b"" or b"408" in said.split(b"\r\n")[0], number
        one.close()


@pytest.mark.thorough
def test_what_answers_is_no_server_or_one_of_another_version(tmp_path: Path):
    with pytest.raises(RegistaError, match="no server answers at unix:"):
        connect(f"unix:{tmp_path}/none")
    with pytest.raises(Unsupported, match="no address of a server"):
        connect("https://example.org/x")

    class Old:
        url = "unix:old"

        def json(self, *_: object) -> object:
            return {"regista": 0}

    with pytest.raises(Unsupported, match="another version"):
        Connection(Old()).about()  # type: ignore[arg-type]


# --- runs on the server's host ----------------------------------------------------------------------------------------


def parameters(path: Path) -> dict[str, list[float]]:
    import torch

    return {name: value.flatten().tolist() for name, value in torch.load(path, weights_only=True).items()}


@pytest.mark.thorough
def test_variables_are_kept_between_runs_and_are_those_of_one_run_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *SMALL[:1], "--cluster", SMALL[1], "-o", "p.json", "--json"]) == 0
    assert main(["run", "p.json", "--steps", "4", "--checkpoint", "alone", "--json"]) == 0
    assert main(["checkpoint", "export", "alone", "-o", "alone.pt"]) == 0
    with serving(tmp_path / "s") as first:
        far = ["--server", first.url]
        assert main([*far, "run", "p.json", "--steps", "2", "--checkpoint", "kept", "--resume", "--json"]) == 0
    with serving(tmp_path / "s") as second:  # the variables outlive the server
        far = ["--server", second.url]
        assert main([*far, "run", "p.json", "--steps", "4", "--checkpoint", "kept", "--resume", "--json"]) == 0
        assert main([*far, "checkpoint", "export", "kept", "-o", "far.pt"]) == 0
        assert main([*far, "run", "p.json", "--checkpoint", "../alone"]) == 2
        children = second.children()
    wait_until("no process of a run outlives the server", lambda: gone(children), 10)
    assert parameters(Path("far.pt")) == parameters(Path("alone.pt"))
