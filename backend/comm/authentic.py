"""Who may talk to the processes of a run: a proof of the run's key, before a word of a message is read.

    caller   <-- MAGIC, nonce a ---------------------------- listener      all lengths are fixed, so nothing is parsed
             --- nonce b, HMAC(key, "caller", a, b) ------->               a wrong proof: the connection is closed
             <-- HMAC(key, "listener", a, b) ---------------               the caller knows whom it has called, too

A proof that was overheard is of no use again, since both nonces are new each time.  On a unix socket the other process must be of the same
user besides: abstract names stand in /proc/net/unix for everybody to read.
HMAC of SHA-256 [RFC 2104, FIPS 180-4]; multiprocessing's challenge is HMAC of MD5 in Python 3.11, and its listener waits for a silent caller forever.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable

__all__ = ["KEY_BYTES", "NotAuthentic", "Sealed", "answer", "call", "derived_key", "new_key"]

MAGIC = b"regista1"
NONCE_BYTES = KEY_BYTES = _DIGEST_BYTES = 32
HANDSHAKE_S = 5.0
"""How long a stranger may keep a listener waiting."""
MOST_BYTES = 16 << 20
"""The largest message: addresses, reports of saves, lines of progress."""
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid: struct ucred of SO_PEERCRED [unix(7)]."""


class NotAuthentic(ConnectionError):
    """The other end does not know the key of this run, is of another user, or its message was altered."""


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def derived_key(secret: bytes, *names: str) -> bytes:
    """A key for one use of a secret: equal names, equal key.  The secret cannot be worked out from it."""
    return _mac(secret, *(hashlib.sha256(name.encode()).digest() for name in names))


def answer(connection: socket.socket, key: bytes) -> bytes:
    """The listener's side; returns the key of this connection alone.

    Raises:
        NotAuthentic: a wrong proof, another user, or silence for HANDSHAKE_S.
    """
    return _within_handshake(connection, lambda: _answer(connection, key))


def call(connection: socket.socket, key: bytes) -> bytes:
    """The caller's side; raises as ``answer``."""
    return _within_handshake(connection, lambda: _call(connection, key))


def _within_handshake(connection: socket.socket, exchange: Callable[[], bytes]) -> bytes:
    patience_s = connection.gettimeout()
    connection.settimeout(HANDSHAKE_S if patience_s is None else min(HANDSHAKE_S, patience_s))
    try:
        _check_user(connection)
        return exchange()
    except TimeoutError as error:
        raise NotAuthentic(f"no proof of the run's key within {HANDSHAKE_S:g} s") from error
    finally:
        connection.settimeout(patience_s)


def _answer(connection: socket.socket, key: bytes) -> bytes:
    ours = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(MAGIC + ours)
    hello = _receive(connection, NONCE_BYTES + _DIGEST_BYTES)
    theirs, proof = hello[:NONCE_BYTES], hello[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _mac(key, b"caller", ours, theirs)):
        raise NotAuthentic("a caller does not know the key of this run")
    connection.sendall(_mac(key, b"listener", ours, theirs))
    return _mac(key, b"session", ours, theirs)


def _call(connection: socket.socket, key: bytes) -> bytes:
    greeting = _receive(connection, len(MAGIC) + NONCE_BYTES)
    if not greeting.startswith(MAGIC):
        raise NotAuthentic("whoever listens there is no process of a run")
    theirs, ours = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
    connection.sendall(ours + _mac(key, b"caller", theirs, ours))
    if not hmac.compare_digest(_receive(connection, _DIGEST_BYTES), _mac(key, b"listener", theirs, ours)):
        raise NotAuthentic("whoever listens there does not know the key of this run")
    return _mac(key, b"session", theirs, ours)


def _check_user(connection: socket.socket) -> None:
    """A unix socket's other end must be a process of our user."""
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user != os.getuid():
        raise NotAuthentic(f"the other process is of user {user}, not of {os.getuid()}")


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    parts: list[bytes] = []
    while size_bytes:
        part = connection.recv(min(size_bytes, 1 << 20))
        if not part:
            raise NotAuthentic("the other end closed the connection")
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


class Sealed:
    """A connection whose messages each carry a length, a digest and a payload: none can be forged, altered, repeated or left out.

    One thread at a time uses it.
    """

    def __init__(self, connection: socket.socket, session: bytes, *, caller: bool) -> None:
        self.connection, self._session = connection, session
        self._sends, self._takes = (b"caller says", b"listener says") if caller else (b"listener says", b"caller says")
        self._num_sent = self._num_taken = 0

    def send(self, payload: bytes) -> None:
        """Raises OSError: the other end is gone.   ValueError: more than MOST_BYTES."""
        if len(payload) > MOST_BYTES:
            raise ValueError(f"a message of {len(payload)} bytes; the most is {MOST_BYTES}")
        digest = _mac(self._session, self._sends, _COUNT.pack(self._num_sent), payload)
        self._num_sent += 1
        self.connection.sendall(_LENGTH.pack(len(payload)) + digest + payload)

    def receive(self) -> bytes:
        """Raises NotAuthentic: closed, altered or too long.   TimeoutError: the socket's."""
        head = _receive(self.connection, _LENGTH.size + _DIGEST_BYTES)
        (size_bytes,) = _LENGTH.unpack(head[: _LENGTH.size])
        if size_bytes > MOST_BYTES:
            raise NotAuthentic(f"a message of {size_bytes} bytes is announced; the most is {MOST_BYTES}")
        payload = _receive(self.connection, size_bytes)
        if not hmac.compare_digest(head[_LENGTH.size :], _mac(self._session, self._takes, _COUNT.pack(self._num_taken), payload)):
            raise NotAuthentic("a message was altered on its way, or said before")
        self._num_taken += 1
        return payload
