"""Who reads a rank's messages where workers have cores of their own: one thread at a time, in order, and whoever has nothing to do helps."""

from __future__ import annotations

import queue
import random
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from backend.acts.bookkeeper import BegunAct
from backend.comm.host.inbox import Inbox as SharedInbox
from backend.comm.transport import Frame, Mesh, receive_into, tensor_bytes
from backend.devices.cores import LOOKING_NS
from backend.worker.reading import SharedReader
from backend.worker.threads import ActThreads
from tests.backend.comm.test_inbox import connected as inboxes
from tests.backend.comm.test_transport import WAIT_S, connect, shut
from tests.backend.inprocess.test_threads import QUICK_NS, actor

COUNT = 1_000


class Inbox:
    """What a reader accounts for; every message lets an act start that is named as it."""

    def __init__(self, mesh: Mesh, *, idle: bool = True, size: int = 0, shared: SharedInbox | None = None) -> None:
        self.idle, self.target = idle, torch.zeros(size)
        self.control: list[tuple[int, int]] = []
        self.data: list[tuple[int, Frame, int, int]] = []
        self.lost = queue.SimpleQueue[tuple[int, Exception]]()
        self.inside, self.most_inside = 0, 0
        self.performed = queue.SimpleQueue[str]()
        self.reader = SharedReader(mesh, self.on_control, self.on_data, lambda *lost: self.lost.put(lost), lambda: self.idle, shared)

    def on_control(self, peer: int, numbers: Sequence[int]) -> list[BegunAct]:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.control += [(peer, number) for number in numbers]
        self.inside -= 1
        return [(actor(f"{peer}:{number}"), 0, 0) for number in numbers]

    def on_data(self, peer: int, connection: socket.socket | None, frame: Frame, task: int, act: int) -> list[BegunAct]:
        if frame is Frame.PAYLOAD:
            assert connection is not None
            receive_into(connection, tensor_bytes(self.target))
        self.data.append((peer, frame, task, act))
        return [(actor(f"{task}/{act}"), 0, 0)] if frame is Frame.DONE else []

    def perform(self, acts: list[BegunAct]) -> None:
        for act in acts:
            self.performed.put(act[0].task.id)

    def look(self) -> None:
        self.reader.attend()
        self.reader.look(self.perform)

    def serve(self) -> None:
        threading.Thread(target=self.reader.serve, args=(lambda: None, self.perform), daemon=True).start()

    def next(self, count: int) -> list[str]:
        return [self.performed.get(timeout=WAIT_S) for _ in range(count)]


@pytest.fixture
def meshes() -> Iterator[dict[int, Mesh]]:
    made = connect({rank: {0, 1, 2} for rank in range(3)})
    yield made
    for mesh in made.values():
        mesh.close()


@pytest.fixture(params=[False, True], ids=["sockets", "shared memory"])
def shared(request: pytest.FixtureRequest, meshes: dict[int, Mesh]) -> SharedInbox | None:
    """Of rank 1."""
    return inboxes(meshes, dict.fromkeys(meshes, request.param))[1]


@pytest.mark.parametrize("idle", [True, False], ids=["nothing runs", "an act runs"])
def test_every_message_is_accounted_for_once_in_the_order_of_its_sender_and_its_acts_are_performed(
    meshes: dict[int, Mesh], shared: SharedInbox | None, idle: bool
) -> None:
    inbox = Inbox(meshes[1], idle=idle, shared=shared)
    inbox.serve()
    for number in range(COUNT):
        meshes[number % 2 * 2].send_control(1, number)
    assert set(inbox.next(COUNT)) == {f"{number % 2 * 2}:{number}" for number in range(COUNT)}
    for peer in (0, 2):
        assert [number for sender, number in inbox.control if sender == peer] == list(range(peer // 2, COUNT, 2))


def test_helpers_beside_the_reader_never_account_at_the_same_time_and_nothing_is_lost(
    meshes: dict[int, Mesh], shared: SharedInbox | None
) -> None:
    inbox, over = Inbox(meshes[1], shared=shared), threading.Event()

    def help_until_over() -> None:
        while not over.is_set():
            inbox.look()

    inbox.serve()
    for _ in range(3):
        threading.Thread(target=help_until_over, daemon=True).start()
    for number in range(COUNT):
        meshes[0].send_control(1, number)
    got = inbox.next(COUNT)
    over.set()
    assert sorted(got) == sorted(f"0:{number}" for number in range(COUNT))
    assert inbox.control == [(0, number) for number in range(COUNT)]
    assert inbox.most_inside == 1


def test_a_thread_that_looks_gives_up_after_half_a_millisecond_of_silence(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[1])
    start_ns = time.monotonic_ns()
    inbox.look()
    assert time.monotonic_ns() - start_ns >= LOOKING_NS


def test_a_thread_that_looks_reads_nothing_while_an_act_runs(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[1], idle=False)
    meshes[0].send_control(1, 4)
    inbox.look()
    assert inbox.control == []


@pytest.mark.parametrize("by_memory", [False, True], ids=["sockets", "shared memory"])
@pytest.mark.parametrize("size", [1 << 20, 16], ids=["more than a socket takes", "both lie there before anybody reads"])
def test_a_payload_is_read_whole_before_the_word_that_follows_it(meshes: dict[int, Mesh], size: int, by_memory: bool) -> None:
    """Symptom: the consumer's act reads a block of which nothing, or a part, has come."""
    inbox = Inbox(meshes[2], size=size, shared=inboxes(meshes, dict.fromkeys(meshes, by_memory))[2])
    sent = torch.randn(size)
    if size > 16:
        inbox.serve()
    meshes[0].send_payload(2, 7, 3, [tensor_bytes(sent)])
    meshes[0].send_done(2, 7, 3)
    if size == 16:
        inbox.serve()
    assert inbox.next(1) == ["7/3"]
    assert inbox.data == [(0, Frame.PAYLOAD, 7, 3), (0, Frame.DONE, 7, 3)] and torch.equal(inbox.target, sent)


def test_a_peer_that_goes_is_reported_and_the_others_are_read_on(meshes: dict[int, Mesh]) -> None:
    inbox = Inbox(meshes[0])
    inbox.serve()
    shut(meshes[1], 0)
    lost = [inbox.lost.get(timeout=WAIT_S) for _ in range(2)]
    assert [peer for peer, _ in lost] == [1, 1] and all(isinstance(error, OSError) for _, error in lost)
    meshes[2].send_control(0, 4)
    assert inbox.next(1) == ["2:4"]


def test_what_a_handler_raises_is_reported_as_it_is(meshes: dict[int, Mesh]) -> None:
    lost = queue.SimpleQueue[tuple[int, Exception]]()

    def fails(peer: int, numbers: Sequence[int]) -> list[BegunAct]:
        raise KeyError(numbers[0])

    reader = SharedReader(meshes[0], fails, lambda *frame: [], lambda *what: lost.put(what), lambda: True)
    meshes[1].send_control(0, 9)
    reader.attend()
    reader.look(lambda acts: None)
    peer, error = lost.get(timeout=WAIT_S)
    assert peer == 1 and isinstance(error, KeyError) and error.args == (9,)


@pytest.fixture
def box(meshes: dict[int, Mesh]) -> SharedInbox:
    """Of rank 1."""
    made = inboxes(meshes, dict.fromkeys(meshes, True))[1]
    assert made is not None
    return made


def rang(box: SharedInbox) -> bool:
    return bool(select.select([box.doorbell], [], [], 0)[0])


def test_the_doorbell_rings_only_where_nobody_attends_and_the_last_to_leave_takes_what_came(
    meshes: dict[int, Mesh], box: SharedInbox
) -> None:
    inbox = Inbox(meshes[1], shared=box)
    inbox.reader.attend()
    inbox.reader.attend()
    meshes[0].send_control(1, 4)
    assert inbox.reader.leave() == [] and inbox.control == []
    assert [act[0].task.id for act in inbox.reader.leave()] == ["0:4"]
    assert not rang(box)
    meshes[0].send_control(1, 5)
    assert rang(box)


def test_short_acts_are_attended_and_a_long_one_is_not(meshes: dict[int, Mesh], box: SharedInbox) -> None:
    """One message comes during a short act, one during a long act: the first is taken right after that act, the second rings the doorbell."""
    inbox, seen = Inbox(meshes[1], idle=False, shared=box), list[tuple[str, bool, int]]()

    def perform(act: BegunAct) -> list[BegunAct]:
        name, known = act[0].task.id, len(inbox.control)
        if name in ("first", "long"):
            meshes[2].send_control(1, known)
        seen.append((name, rang(box), known))
        return []

    threads = ActThreads(perform, lambda act: False, inbox.reader)
    for name in ("first", "second", "2:0", "2:1"):
        for _ in range(8):
            threads.took(actor(name), QUICK_NS)
    inbox.reader.attend()
    threads.work([(actor(name), 0, 0) for name in ("long", "first", "second")])
    assert seen == [("first", False, 0), ("second", False, 1), ("2:0", False, 1), ("long", True, 1), ("2:1", True, 2)]


def test_no_message_is_missed_by_threads_that_come_and_go(meshes: dict[int, Mesh]) -> None:
    """Two ranks answer each other.  Symptom of a message that nobody was told of: both wait for ever."""
    boxes, over, rounds = inboxes(meshes, dict.fromkeys(meshes, True)), threading.Event(), 1_500

    def end(rank: int) -> SharedReader:
        def on_data(peer: int, connection: object, frame: Frame, task: int, act: int) -> list[BegunAct]:
            return [(actor("answer"), act, 0)]

        def perform(acts: list[BegunAct]) -> None:
            for _, number, _ in acts:
                meshes[rank].send_done(1 - rank, 0, number + 1, behind_payload=False)
                if number >= 2 * rounds:
                    over.set()

        reader = SharedReader(meshes[rank], lambda *acks: [], on_data, lambda *lost: None, lambda: True, boxes[rank])
        chance = random.Random(rank)

        def come_and_go() -> None:
            while not over.is_set():
                reader.attend()
                time.sleep(chance.uniform(0, 1e-4))
                perform(reader.take_now())
                if acts := reader.leave():
                    reader.attend()
                    perform(acts)
                    reader.look(perform)
                time.sleep(chance.uniform(0, 1e-4))

        threading.Thread(target=reader.serve, args=(lambda: None, perform), daemon=True).start()
        for _ in range(2):
            threading.Thread(target=come_and_go, daemon=True).start()
        return reader

    for rank in (0, 1):
        end(rank)
    meshes[0].send_done(1, 0, 0, behind_payload=False)
    assert over.wait(WAIT_S), "both ranks wait"
