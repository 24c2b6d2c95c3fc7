"""The sockets between workers: every byte arrives in its place, and whose connection broke is said unless the run is closing."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore, Store

from backend.comm.transport import HEADER, Frame, Mesh, acknowledged, receive_into, send_buffers, tensor_bytes
from planner.ir.errors import WorkerFailed

WAIT_S = 20.0
KEY = bytes(range(32))
RANKS = 3


def store() -> Store:
    made = HashStore()
    made.set_timeout(timedelta(seconds=WAIT_S))
    return made


def connect(peers: dict[int, set[int]], *, unix: bool = True) -> dict[int, Mesh]:
    """The meshes of several ranks of this process, each made by a thread of its own because they wait for each other."""
    shared, run_id = store(), f"test{os.getpid()}-{next(_numbers)}"

    def make(rank: int) -> Mesh:
        return Mesh(rank, peers[rank], shared, run_id, key=KEY, unix=unix, timeout_s=WAIT_S, host="" if unix else "127.0.0.1")

    with ThreadPoolExecutor(len(peers)) as threads:
        return dict(zip(peers, threads.map(make, peers), strict=True))


_numbers = iter(range(10**6))


@pytest.fixture(params=[True, False], ids=["unix", "tcp"])
def meshes(request: pytest.FixtureRequest) -> Iterator[dict[int, Mesh]]:
    made = connect({rank: set(range(RANKS)) for rank in range(RANKS)}, unix=request.param)
    yield made
    for mesh in made.values():
        mesh.close()


class Inbox:
    """What a mesh's readers hand over."""

    def __init__(self, mesh: Mesh, target: torch.Tensor | None = None) -> None:
        self.target = target
        self.control = queue.SimpleQueue[tuple[int, int]]()
        self.data = queue.SimpleQueue[tuple[int, Frame, int, int]]()
        self.lost = queue.SimpleQueue[tuple[int, Exception]]()
        self.prepared = queue.SimpleQueue[str]()
        mesh.start_readers(self.on_control, self.on_data, self.on_lost, self.prepare)

    def on_control(self, peer: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.control.put((peer, number))

    def on_data(self, peer: int, connection: socket.socket, frame: Frame, task: int, act: int) -> None:
        if frame is Frame.PAYLOAD:
            assert self.target is not None
            receive_into(connection, tensor_bytes(self.target))
        self.data.put((peer, frame, task, act))

    def on_lost(self, peer: int, error: Exception) -> None:
        self.lost.put((peer, error))

    def prepare(self) -> None:
        self.prepared.put(threading.current_thread().name)


def test_the_bytes_of_a_tensor_are_its_memory() -> None:
    value = torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)
    view = tensor_bytes(value)
    assert bytes(view) == bytes([1, 0, 2, 0, 3, 0, 4, 0])
    view[2:4] = b"\x09\x00"
    assert value[0, 1] == 9


def test_receiving_fills_the_target_however_the_bytes_arrive() -> None:
    here, there = socket.socketpair()
    target = bytearray(10)
    with here, there, ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(receive_into, here, memoryview(target))
        for byte in range(10):
            there.sendall(bytes([byte]))
        receiving.result(WAIT_S)
    assert target == bytes(range(10))


def test_a_peer_that_closes_before_the_last_byte_is_an_error() -> None:
    here, there = socket.socketpair()
    with here:
        there.sendall(b"123")
        there.close()
        with pytest.raises(ConnectionError, match="the peer closed the connection"):
            receive_into(here, memoryview(bytearray(4)))


@pytest.mark.parametrize("sizes", [[1], [0, 5], [3, 0, 0, 2], [7] * 200, [2_000_000, 1, 3_000_000]], ids=str)
def test_sent_buffers_arrive_one_after_the_other(sizes: list[int]) -> None:
    """More buffers than one call takes, and more bytes than the socket holds, so that the kernel takes a buffer in parts."""
    buffers = [os.urandom(size) for size in sizes]
    target = bytearray(sum(sizes))
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(receive_into, there, memoryview(target))
        send_buffers(here, buffers)
        receiving.result(WAIT_S)
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.recv(1)
    assert target == b"".join(buffers)


def test_a_rank_without_peers_asks_no_store_and_opens_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    mesh = Mesh(2, {2}, None, "alone", key=KEY, unix=True, timeout_s=WAIT_S)  # type: ignore[arg-type]
    assert len(os.listdir("/proc/self/fd")) == before
    mesh.close()


def test_acknowledgements_arrive_in_order_with_their_sender(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[1])
    for number in range(5):
        meshes[0].send_control(1, number)
    meshes[2].send_control(1, 5, 6, 7)
    got = [inbox.control.get(timeout=WAIT_S) for _ in range(8)]
    assert [number for peer, number in got if peer == 0] == [0, 1, 2, 3, 4]
    assert [number for peer, number in got if peer == 2] == [5, 6, 7]


def test_a_peer_that_reads_no_acknowledgements_holds_up_nobody_and_gets_all_in_order_later() -> None:
    """They were sent with sendall under the lock of the event loop, so one peer that did not read stopped all of this rank."""
    meshes = connect({0: {1}, 1: {0}})
    count = 5_000
    sending = threading.Thread(target=lambda: [meshes[0].send_control(1, number) for number in range(count)], daemon=True)
    sending.start()
    sending.join(WAIT_S / 2)
    stands = sending.is_alive()
    inbox = Inbox(meshes[1])
    got = [inbox.control.get(timeout=WAIT_S) for _ in range(count)]
    for mesh in meshes.values():
        mesh.close()
    assert not stands
    assert got == [(0, number) for number in range(count)]


def test_a_payload_arrives_in_the_target_and_done_follows_it(meshes: dict[int, Mesh]) -> None:
    sent = torch.randn(1 << 20)
    inbox = Inbox(meshes[2], torch.zeros(1 << 20))
    meshes[0].send_payload(2, 7, 3, [tensor_bytes(sent[: 1 << 19]), tensor_bytes(sent[1 << 19 :])])
    meshes[0].send_done(2, 7, 3)
    assert [inbox.data.get(timeout=WAIT_S) for _ in range(2)] == [(0, Frame.PAYLOAD, 7, 3), (0, Frame.DONE, 7, 3)]
    assert inbox.target is not None and torch.equal(inbox.target, sent)
    assert inbox.control.empty()


def test_payloads_of_several_threads_do_not_mix(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[1], torch.zeros(1 << 16, dtype=torch.int32))
    payloads = {task: torch.full((1 << 16,), task, dtype=torch.int32) for task in range(8)}
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda task: meshes[0].send_payload(1, task, 2 * task, [tensor_bytes(payloads[task])]), payloads))
    got = [inbox.data.get(timeout=WAIT_S) for _ in payloads]
    assert sorted(got) == [(0, Frame.PAYLOAD, task, 2 * task) for task in payloads]
    assert inbox.target is not None and torch.equal(inbox.target, payloads[got[-1][2]])


def test_every_reader_prepares_its_thread_which_names_peer_and_channel(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[1])
    assert {inbox.prepared.get(timeout=WAIT_S) for _ in range(4)} == {"reader 0.0", "reader 0.1", "reader 2.0", "reader 2.1"}


def test_a_peer_that_goes_is_reported_on_both_channels(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[0])
    shut(meshes[1], 0)
    lost = [inbox.lost.get(timeout=WAIT_S) for _ in range(2)]
    assert [peer for peer, _ in lost] == [1, 1] and all(isinstance(error, OSError) for _, error in lost)
    meshes[2].send_control(0, 4)
    assert inbox.control.get(timeout=WAIT_S) == (2, 4)


def test_closing_reports_no_loss(meshes: dict[int, Mesh]) -> None:
    readers = [thread for thread in threading.enumerate() if thread.name.startswith("reader ")]
    inbox = Inbox(meshes[0])
    readers = [thread for thread in threading.enumerate() if thread.name.startswith("reader ") and thread not in readers]
    assert meshes[0].closing is False and len(readers) == 4
    meshes[0].close()
    for peer in (1, 2):
        shut(meshes[peer], 0)
        meshes[peer].close()
    for thread in readers:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in readers)
    assert inbox.lost.empty()


def test_sending_to_a_rank_that_is_gone_names_both(meshes: dict[int, Mesh]) -> None:
    meshes[0].close()
    for send in (
        lambda: meshes[0].send_control(1, 0),
        lambda: meshes[0].send_payload(1, 0, 0, [memoryview(b"1")]),
        lambda: meshes[0].send_done(1, 0, 0),
    ):
        with pytest.raises(WorkerFailed, match="rank 0: the connection to rank 1 broke"):
            send()


def test_ranks_are_connected_to_their_peers_only() -> None:
    made = connect({0: {1}, 1: {0, 2}, 2: {1}})
    with pytest.raises(KeyError):
        made[0].send_control(2, 0)
    inbox = Inbox(made[1])
    made[2].send_control(1, 9)
    assert inbox.control.get(timeout=WAIT_S) == (2, 9)
    for mesh in made.values():
        mesh.close()


def test_closing_leaves_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = connect({0: {1}, 1: {0}})
    assert len(os.listdir("/proc/self/fd")) == before + 4  # two connections with two ends; the listeners are closed
    for mesh in made.values():
        mesh.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_peer_that_never_answers_ends_the_wait() -> None:
    shared = store()
    with pytest.raises(TimeoutError):
        Mesh(0, {1}, shared, f"test{os.getpid()}-never", key=KEY, unix=True, timeout_s=0.05)
    shared.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(torch.distributed.DistStoreError):
        Mesh(1, {0}, HashStoreWithout(shared), f"test{os.getpid()}-none", key=KEY, unix=True, timeout_s=0.05)  # type: ignore[arg-type]


class HashStoreWithout:
    """A store in which rank 0 never writes its address."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self.inner.get(f"absent/{key}")


def test_a_descriptor_arrives_as_another_number_of_the_same_file_and_its_absence_is_said() -> None:
    made = connect({0: {1}, 1: {0}})
    file = os.memfd_create("test")
    os.write(file, b"shared")
    made[0].send_descriptor(1, file)
    received = made[1].receive_descriptor(0)
    assert received not in (-1, file) and os.pread(received, 6, 0) == b"shared"
    made[1].send_descriptor(0, -1)
    assert made[0].receive_descriptor(1) == -1
    for fd in (file, received):
        os.close(fd)
    for mesh in made.values():
        mesh.close()


def test_what_is_sent_right_after_a_descriptor_reaches_the_readers() -> None:
    made = connect({0: {1}, 1: {0}})
    made[0].send_descriptor(1, -1)
    made[0].send_done(1, 3, 4)
    assert made[1].receive_descriptor(0) == -1
    assert Inbox(made[1]).data.get(timeout=WAIT_S) == (0, Frame.DONE, 3, 4)
    for mesh in made.values():
        mesh.close()


def test_a_peer_that_ends_before_its_descriptor_is_named() -> None:
    made = connect({0: {1}, 1: {0}})
    made[1].close()
    with pytest.raises(WorkerFailed, match="rank 0: rank 1 ended before it handed over its blocks"):
        made[0].receive_descriptor(1)
    made[0].close()


def shut(mesh: Mesh, peer: int) -> None:
    """End the connections to ``peer`` as the end of a process does; a mere close waits for the thread that reads from them."""
    for channel in (Mesh.CONTROL, Mesh.DATA):
        mesh._links[peer, channel].shutdown(socket.SHUT_RDWR)


def test_acknowledgements_that_come_in_pieces_are_put_together() -> None:
    here, there = socket.socketpair()
    frames = b"".join(HEADER.pack(Frame.ACK, number, 0) for number in (3, 4, 5))
    for size in (5, 16, 21, 48):
        there.sendall(frames[:size])
        rest = threading.Timer(0.05, there.sendall, (frames[size:],))
        rest.start()
        got: list[int] = []
        while len(got) < 3:
            got += acknowledged(here)
        rest.join()
        assert got == [3, 4, 5]
