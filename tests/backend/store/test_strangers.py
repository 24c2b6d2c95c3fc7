"""Whoever does not know the key of a run can neither join it, nor change what it holds, nor hold it up."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from python_path import PYTHON_PATH
from torch.distributed import DistError, DistNetworkError, DistStoreError, HashStore

from backend.comm.authentic import MAGIC, MOST_BYTES, NotAuthentic, Sealed, answer, call, derived_key, new_key
from backend.comm.channel import Channel, accept, listen
from backend.comm.channel import connect as connect_session
from backend.comm.transport import Mesh
from backend.store import RunStore, StoreAddress, StoreServer
from backend.store.server import MOST_STRANGERS

KEY = bytes(range(32))
SHORT = timedelta(seconds=0.05)


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest) -> Iterator[StoreAddress]:
    """A store that is served, on one host or for several."""
    if request.param == "unix":
        name = f"regista-test-{os.getpid()}-{time.monotonic_ns()}"
        server = StoreServer.on_this_host(name, KEY)
        made = StoreAddress(key=KEY, name=name)
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = StoreServer.for_hosts("127.0.0.1", port, KEY)
        made = StoreAddress(key=KEY, host="127.0.0.1", port=port)
    yield made
    server.close()


def raw(address: StoreAddress) -> socket.socket:
    connection = socket.socket(socket.AF_INET if address.host else socket.AF_UNIX)
    connection.settimeout(10.0)
    connection.connect((address.host, address.port) if address.host else f"\0{address.name}")
    return connection


def is_hung_up(connection: socket.socket) -> bool:
    """Whether the other end closes, whatever it says before."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


# The store does what torch's does.


def test_the_store_answers_as_torchs_own_does(address: StoreAddress) -> None:
    for store in (HashStore(), RunStore(address)):
        store.set("a", "1")
        assert store.get("a") == b"1" and store.check(["a"]) and not store.check(["a", "b"])
        assert [store.add("n", 2), store.add("n", 3), store.add("n", 0)] == [2, 5, 5]
        assert store.compare_set("c", "", "first") == b"first"
        assert store.compare_set("c", "other", "second") == b"first"
        assert store.compare_set("c", "first", "second") == b"second" == store.get("c")
        assert store.delete_key("a") and not store.delete_key("a")
        with pytest.raises(DistStoreError):
            store.wait(["a"], SHORT)
        store.wait(["c", "n"], SHORT)


def test_a_value_that_another_process_sets_ends_the_waiting(address: StoreAddress) -> None:
    store, values = RunStore(address), []
    waiting = threading.Thread(target=lambda: values.append(store.get("late")))
    waiting.start()
    # The same value from another thread: it has a connection of its own, or it would wait behind the first.
    store.set("late", b"\x00\xff")
    waiting.join(10)
    assert values == [b"\x00\xff"]


# Strangers.


def test_a_caller_with_another_secret_is_sent_away_before_it_has_said_anything(address: StoreAddress) -> None:
    stranger = StoreAddress(key=new_key(), name=address.name, host=address.host, port=address.port)
    with pytest.raises(DistNetworkError, match="the other end closed the connection"):
        RunStore(stranger).set("plan/0", "poison")
    assert not RunStore(address).check(["plan/0"])


def test_keys_of_other_runs_and_secrets_differ() -> None:
    keys = {derived_key(secret, "run", run) for secret in (b"a" * 16, b"b" * 16) for run in ("x", "y")}
    assert len(keys) == 4
    assert derived_key(b"a" * 16, "xy", "z") != derived_key(b"a" * 16, "x", "yz")


def test_a_proof_that_was_overheard_is_of_no_use(address: StoreAddress) -> None:
    """Replay: a stranger between caller and store keeps what the caller said, and says it again."""
    heard = bytearray()
    ours, theirs = socket.socketpair()
    with raw(address) as store:
        caller = threading.Thread(target=lambda: call(ours, KEY))
        caller.start()
        theirs.sendall(store.recv(len(MAGIC) + 32))
        heard += theirs.recv(64, socket.MSG_WAITALL)
        store.sendall(heard)
        theirs.sendall(store.recv(32, socket.MSG_WAITALL))
        caller.join(10)
    with raw(address) as again:
        assert again.recv(len(MAGIC) + 32, socket.MSG_WAITALL).startswith(MAGIC)
        again.sendall(heard)
        assert is_hung_up(again)


@pytest.mark.parametrize("change", ["said twice", "altered", "left out", "sent back"])
def test_a_message_that_was_changed_on_its_way_is_refused(change: str) -> None:
    ours, theirs = socket.socketpair()
    sessions: list[bytes] = []
    listener = threading.Thread(target=lambda: sessions.append(answer(theirs, KEY)))
    listener.start()
    caller = Sealed(ours, call(ours, KEY), caller=True)
    listener.join(10)
    taker = Sealed(theirs, sessions[0], caller=False)
    caller.send(b"first")
    caller.send(b"second")
    size = 4 + 32 + 5
    first, second = theirs.recv(size, socket.MSG_WAITALL), theirs.recv(size + 1, socket.MSG_WAITALL)
    delivered = {
        "said twice": [first, first],
        "altered": [first[:-1] + b"T"],
        "left out": [second],
        "sent back": [],
    }[change]
    if change == "sent back":
        # The caller's own words, turned round.
        theirs.sendall(first)
        with pytest.raises(NotAuthentic, match="altered on its way"):
            caller.receive()
        return
    for part in delivered:
        ours.sendall(part)
    if change == "said twice":
        assert taker.receive() == b"first"
    with pytest.raises(NotAuthentic, match="altered on its way"):
        taker.receive()


def test_an_oversized_message_is_refused_by_its_length_alone(address: StoreAddress) -> None:
    sealed = address.connect()
    sealed.connection.sendall((MOST_BYTES + 1).to_bytes(4, "big") + bytes(32))
    assert is_hung_up(sealed.connection)
    with raw(address) as stranger:
        stranger.sendall(b"\xff" * 65536)
        assert is_hung_up(stranger)
    with pytest.raises(ValueError, match="the most is"):
        address.connect().send(bytes(MOST_BYTES + 1))


@pytest.mark.parametrize(
    "words",
    [
        pickle.dumps({"a": 1}),
        b"[" * 100_000,
        b'{"is": "Set", "key": "a", "value": "not base64!"}',
        b'{"is": "Set", "key": "", "value": ""}',
        b'{"is": "Eval", "code": "1"}',
        b'{"is": "Wait", "keys": "a", "timeout_s": 1.0}',
    ],
    ids=["a pickle", "deep", "no base64", "an empty key", "an unknown request", "another type"],
)
def test_what_is_no_request_ends_the_connection_and_the_store_serves_on(words: bytes, address: StoreAddress) -> None:
    sealed = address.connect()
    sealed.send(words)
    assert is_hung_up(sealed.connection)
    store = RunStore(address)
    store.set("a", "1")
    assert store.get("a") == b"1"


def test_strangers_who_say_nothing_keep_nobody_out(address: StoreAddress) -> None:
    silent = [raw(address) for _ in range(MOST_STRANGERS + 20)]
    begin = time.monotonic()
    RunStore(address).set("a", "1")
    assert time.monotonic() - begin < 4.0
    assert is_hung_up(silent[0])
    for connection in silent:
        connection.close()


def test_the_store_of_several_hosts_listens_at_one_address_alone(address: StoreAddress) -> None:
    if not address.host:
        pytest.skip("no port at all")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        with pytest.raises(OSError):
            probe.connect(("127.0.0.2", address.port))  # loopback too, but not the address that was named


AS_NOBODY = """
import os, sys
from backend.store import RunStore, StoreAddress  # while it may still read the code
os.setgid(65534), os.setuid(65534)
store = RunStore(StoreAddress(key=bytes(range(32)), name=sys.argv[1]))
try:
    store.set("plan/0", "poison")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.processes
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused_even_with_the_key() -> None:
    name = f"regista-test-{os.getpid()}-user"
    server = StoreServer.on_this_host(name, KEY)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, name],
            env=os.environ | {"PYTHONPATH": PYTHON_PATH},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "DistNetworkError" in ran.stdout, ran.stdout + ran.stderr
        assert not RunStore(StoreAddress(key=KEY, name=name)).check(["plan/0"])
    finally:
        server.close()


def test_the_key_lies_in_a_file_of_this_user_alone_and_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    bait, path = tmp_path / "bait", tmp_path / "store.a0.json"
    bait.write_text("mine")
    path.symlink_to(bait)
    made = StoreAddress(key=KEY, host="127.0.0.1", port=1)
    made.save(path)
    assert bait.read_text() == "mine"
    assert path.stat().st_mode & 0o777 == 0o600
    assert StoreAddress.load(path) == made


# Other sockets of a run.


def test_a_stranger_cannot_take_the_place_of_a_rank(tmp_path: Path) -> None:
    run_id, shared, made = f"test{os.getpid()}-place", HashStore(), {}

    def make(rank: int) -> None:
        made[rank] = Mesh(rank, {1 - rank}, shared, run_id, key=KEY, unix=True, timeout_s=20.0)

    first = threading.Thread(target=make, args=(0,))
    first.start()
    shared.wait(["address/0"])
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(f"\0regista-{run_id}-0")
    stranger.settimeout(10.0)
    stranger.sendall(bytes(64) + b"\x01\0\0\0\0\0\0\0")  # no proof, and the HELLO of rank 1
    assert is_hung_up(stranger)
    other = threading.Thread(target=make, args=(1,))
    other.start()
    for thread in (first, other):
        thread.join(20)
    assert sorted(made) == [0, 1]
    for mesh in made.values():
        mesh.close()


def test_a_stranger_cannot_speak_as_a_worker_of_a_session() -> None:
    run_id = f"test{os.getpid()}-session"
    listener, channels = listen(run_id, 1), []
    accepting = threading.Thread(target=lambda: channels.append(accept(listener, KEY)))
    accepting.start()
    with pytest.raises(NotAuthentic):
        connect_session(run_id, new_key())
    ours: Channel = connect_session(run_id, KEY)
    accepting.join(10)
    ours.send(message="ready")
    assert channels[0].receive(10.0) == [{"message": "ready"}]
    listener.close()


def test_a_lost_launcher_ends_every_waiting(address: StoreAddress) -> None:
    launcher = RunStore(address)
    launcher.join("the launcher of host 1")
    errors: list[DistError] = []

    def wait() -> None:
        try:
            RunStore(address).get("never")
        except DistError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    launcher.close()
    waiting.join(10)
    assert "the launcher of host 1 was lost" in str(errors[0])
