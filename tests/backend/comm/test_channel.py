"""Messages as JSON lines: whole ones only, in order, with a timeout, and None when the other end is gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from queue import Queue

import pytest

from backend.comm.channel import Channel, Message

pytestmark = pytest.mark.timeout(30)  # who waits for ever here has lost a message


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield Channel(here), there


def test_messages_arrive_whole_and_in_order_however_their_bytes_are_cut(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    there.sendall(b'{"a": 1}\n{"b"')
    assert channel.receive() == [{"a": 1}]
    there.sendall(b": 2")
    assert channel.receive() == []
    there.sendall(b'}\n{"c": 3}\n')
    assert channel.receive() == [{"b": 2}, {"c": 3}]


def test_without_a_message_a_timeout_gives_none_of_them_and_waits_no_longer(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    there.settimeout(20)
    assert channel.receive(timeout_s=0.01) == []
    there.sendall(b'{"a": 1}\n')
    assert channel.receive(timeout_s=20.0) == [{"a": 1}]


def test_without_a_timeout_a_message_is_waited_for(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    other = Channel(there)
    other.send(kind="ready", rank=3)
    assert channel.receive() == [{"kind": "ready", "rank": 3}]


def test_the_end_of_the_other_side_is_told_from_silence(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    there.close()
    assert channel.receive(timeout_s=20.0) is None
    with pytest.raises(OSError, match="Broken pipe"):
        channel.send(kind="too late")


def test_a_channel_that_this_side_closed_has_no_more_messages(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.close()
    assert channel.receive() is None


def test_every_message_reaches_the_handler(ends: tuple[Channel, socket.socket]) -> None:
    channel, there = ends
    handled = Queue[Message]()
    channel.start_receiving(handled.put)
    there.sendall(b'{"a": 1}\n{"a": 2}\n{"a"')
    there.sendall(b": 3}\n")
    assert [handled.get(timeout=20.0) for _ in range(3)] == [{"a": 1}, {"a": 2}, {"a": 3}]
    there.close()
