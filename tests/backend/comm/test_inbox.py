"""Messages through memory that two processes map: each frame once, in its sender's order; whoever sleeps is woken; a full ring says what it took."""

from __future__ import annotations

import mmap
import os
import select
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.comm.host import inbox
from backend.comm.host.inbox import FRAMES, Arrived, Inbox, Outbox, connect_inboxes
from backend.comm.transport import Frame, Mesh
from tests.backend.comm.test_transport import WAIT_S, connect

COUNT = 20_000

Ends = tuple[Inbox, dict[int, Outbox]]


def made(senders: tuple[int, ...] = (3, 5)) -> Ends:
    doorbell = os.eventfd(0, os.EFD_NONBLOCK)
    rings = {sender: memoryview(mmap.mmap(-1, inbox._BYTES)).cast("Q") for sender in senders}
    return Inbox(rings, doorbell), {sender: Outbox(ring, doorbell) for sender, ring in rings.items()}


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield (both := made())
    os.close(both[0].doorbell)


def rings(box: Inbox) -> bool:
    return bool(select.select([box.doorbell], [], [], 0)[0])


@given(
    st.lists(
        st.one_of(st.integers(0, 1), st.tuples(st.sampled_from([3, 5]), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))), max_size=60
    )
)
def test_what_is_taken_is_what_was_sent_by_each_sender_and_nothing_twice(story: list[int | tuple[int, int, int]]) -> None:
    """An int: take what is there."""
    box, out = made()
    sent: list[Arrived] = []
    taken: list[Arrived] = []
    for event in (*story, 0):
        if isinstance(event, int):
            taken += box.take()
        else:
            sender, number, act = event
            kind = Frame.DONE if act % 2 else Frame.ACK
            assert out[sender].send(kind, [(number, act)]) == 1
            sent.append((sender, kind, number, act))
    os.close(box.doorbell)
    for sender in (3, 5):
        assert [frame for frame in taken if frame[0] == sender] == [frame for frame in sent if frame[0] == sender]


def test_a_full_ring_takes_no_more_and_takes_again_once_it_was_read(ends: Ends) -> None:
    box, out = ends
    assert out[3].send(Frame.ACK, [(n, 0) for n in range(FRAMES - 1)]) == FRAMES - 1
    assert out[3].send(Frame.ACK, [(n, 0) for n in range(3)]) == 1
    assert out[3].send(Frame.DONE, [(7, 7)]) == 0
    assert out[5].send(Frame.DONE, [(7, 7)]) == 1, "the ring of another sender has room"
    assert len(box.take()) == FRAMES + 1
    assert out[3].send(Frame.DONE, [(8, 9)]) == 1
    assert box.take() == [(3, Frame.DONE, 8, 9)]


def test_the_doorbell_rings_once_for_a_receiver_that_sleeps_and_never_for_one_that_is_awake(ends: Ends) -> None:
    box, out = ends
    out[3].send(Frame.ACK, [(1, 0)])
    out[3].send(Frame.ACK, [(2, 0)])
    assert os.eventfd_read(box.doorbell) == 1
    box.wakes()
    out[3].send(Frame.ACK, [(3, 0)])
    assert not rings(box)
    box.sleeps()
    assert len(box.take()) == 3, "what came before it slept is taken after it said so"
    out[5].send(Frame.ACK, [(4, 0)])
    assert rings(box)


def test_a_receiver_that_goes_to_sleep_again_and_again_misses_no_frame(ends: Ends) -> None:
    """Symptom of a missed ring: the receiver waits for ever for a frame that lies there."""
    box, out = ends

    def send(sender: int) -> None:
        number = 0
        while number < COUNT:
            number += out[sender].send(Frame.DONE, [(number, number)])

    threads = [threading.Thread(target=send, args=(sender,), daemon=True) for sender in out]
    for thread in threads:
        thread.start()
    got: list[Arrived] = []
    while len(got) < COUNT * len(out):
        box.wakes()
        got += box.take()
        box.sleeps()
        if more := box.take():
            got += more
            continue
        if len(got) < COUNT * len(out):
            assert select.select([box.doorbell], [], [], WAIT_S)[0], "a frame lies there and nobody rang"
            box.heard()
    for sender in out:
        assert [number for other, _, number, _ in got if other == sender] == list(range(COUNT))


def test_frames_of_another_process_arrive(ends: Ends) -> None:
    box, out = ends
    child = os.fork()
    if child == 0:
        try:
            for number in range(COUNT):
                while not out[3].send(Frame.DONE, [(number, number * number)]):
                    os.sched_yield()
        finally:
            os._exit(0)
    got: list[Arrived] = []
    while len(got) < COUNT:
        assert select.select([box.doorbell], [], [], WAIT_S)[0]
        box.heard()
        box.wakes()
        got += box.take()
        box.sleeps()
        got += box.take()
    os.waitpid(child, 0)
    assert got == [(3, Frame.DONE, number, number * number) for number in range(COUNT)]


def connected(meshes: dict[int, Mesh], wanted: dict[int, bool]) -> dict[int, Inbox | None]:
    boxes: dict[int, Inbox | None] = {}
    threads = [
        threading.Thread(
            target=lambda rank=rank: boxes.update({rank: connect_inboxes(meshes[rank], set(meshes) - {rank}, wanted=wanted[rank])})
        )
        for rank in meshes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return boxes


def test_a_rank_without_an_inbox_is_sent_to_by_sockets_and_its_peers_by_memory() -> None:
    meshes = connect({rank: {0, 1, 2} for rank in range(3)})
    boxes = connected(meshes, {0: True, 1: False, 2: True})
    got: list[tuple[int, int]] = []
    arrived = threading.Event()

    def heard(peer: int, numbers: object) -> None:
        got.append((peer, *numbers))  # type: ignore[misc]
        arrived.set()

    meshes[1].start_readers(heard, lambda *frame: None, lambda *lost: None)
    meshes[0].send_control(1, 4)
    assert arrived.wait(WAIT_S) and got == [(0, 4)] and boxes[1] is None
    meshes[1].send_done(0, 6, 2, behind_payload=False)
    meshes[2].send_control(0, 8, 9)
    first = boxes[0]
    assert first is not None
    assert sorted(first.take()) == [(1, Frame.DONE, 6, 2), (2, Frame.ACK, 8, 0), (2, Frame.ACK, 9, 0)]
    for mesh in meshes.values():
        mesh.close()


def test_what_a_full_ring_does_not_take_comes_by_the_sockets() -> None:
    meshes = connect({0: {1}, 1: {0}})
    boxes = connected(meshes, {0: True, 1: True})
    numbers = list(range(FRAMES + 40))
    meshes[0].send_control(1, *numbers)
    meshes[0].send_done(1, 3, 5, behind_payload=False)
    control, data = [], []
    over = threading.Event()
    meshes[1].start_readers(
        lambda peer, links: control.extend(links), lambda peer, _, *frame: (data.append(frame), over.set()), lambda *lost: None
    )
    assert over.wait(WAIT_S)
    box = boxes[1]
    assert box is not None
    while len(control) < 40:
        over.wait(0.01)
    assert [number for _, _, number, _ in box.take()] == numbers[:FRAMES] and control == numbers[FRAMES:]
    assert data == [(Frame.DONE, 3, 5)]
    for mesh in meshes.values():
        mesh.close()


def test_a_machine_that_keeps_no_order_of_stores_has_no_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.comm.host.counters.platform.machine", lambda: "aarch64")
    meshes = connect({0: {1}, 1: {0}})
    assert connected(meshes, {0: True, 1: True}) == {0: None, 1: None}
    for mesh in meshes.values():
        mesh.close()
