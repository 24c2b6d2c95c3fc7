"""The client of a run's store.  It is a torch.distributed Store, so process groups exchange their addresses through it.

Each thread has a connection of its own; so none waits for what another one waits for.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError, DistStoreError

from backend.comm.authentic import NotAuthentic, Sealed, call
from backend.store.messages import (
    Add,
    Answer,
    Check,
    CompareSet,
    Delete,
    End,
    Get,
    Join,
    Leave,
    NumKeys,
    Request,
    Set,
    Wait,
    bytes_of,
    from_bytes,
    read_answer,
    text_of,
)
from planner.ir.errors import InvalidFile

__all__ = ["RunStore", "StoreAddress"]

TIMEOUT_S = 120.0
_CONNECT_S = 30.0
PATIENCE_S = 15.0
"""How much later than promised an answer may come: the launcher shares its processor with the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where a run's store is, and the key to it.

    host: empty: ``name`` is an abstract unix address; else an IPv4 address, with its port.
    """

    key: bytes
    name: str = ""
    host: str = ""
    port: int = 0

    def connect(self) -> Sealed:
        """Raises OSError; NotAuthentic is one: whoever is there knows another key."""
        connection = socket.socket(socket.AF_INET if self.host else socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_S)
            connection.connect((self.host, self.port) if self.host else f"\0{self.name}")
            if self.host:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Sealed(connection, call(connection, self.key), caller=True)
        except BaseException:
            connection.close()
            raise

    def save(self, path: Path) -> None:
        """For the workers of this host; readable by this user alone."""
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w") as stream:
            json.dump({"key": self.key.hex(), "name": self.name, "host": self.host, "port": self.port}, stream)

    @classmethod
    def load(cls, path: Path) -> StoreAddress:
        data = json.loads(path.read_text())
        return cls(key=bytes.fromhex(data["key"]), name=data["name"], host=data["host"], port=int(data["port"]))


class RunStore(Store):
    """The store at an address.

    Raises (of all questions):
        DistNetworkError: the launcher that serves it is gone, or one of the launchers was lost.   DistStoreError: not in time.
    """

    def __init__(self, address: StoreAddress, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self._address, self._patience_s = address, patience_s
        self._own = threading.local()
        self._clones: list[RunStore] = []  # torch holds the C++ half alone of what it is given

    # What torch calls.

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Set(key=key, value=from_bytes(_as_bytes(value))))

    def get(self, key: str) -> bytes:
        return bytes_of(self._ask(Get(key=key, timeout_s=TIMEOUT_S), TIMEOUT_S).value)

    def add(self, key: str, value: int) -> int:
        return self._ask(Add(key=key, number=value)).number

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(Check(keys=tuple(keys))).number)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        expected, desired = from_bytes(_as_bytes(expected_value)), from_bytes(_as_bytes(desired_value))
        return bytes_of(self._ask(CompareSet(key=key, expected=expected, desired=desired)).value)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(Delete(key=key)).number)

    def num_keys(self) -> int:
        return self._ask(NumKeys()).number

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = TIMEOUT_S if timeout is None else timeout.total_seconds()
        self._ask(Wait(keys=tuple(keys), timeout_s=timeout_s), timeout_s)

    def clone(self) -> RunStore:
        self._clones.append(RunStore(self._address))
        return self._clones[-1]

    def has_extended_api(self) -> bool:
        return False

    deleteKey, getNumKeys, compareSet = delete_key, num_keys, compare_set  # the names by which torch's C++ half looks for them

    # What launchers add.

    def join(self, name: str) -> None:
        """This thread's connection is that of the launcher ``name``; when it breaks before ``leave``, the run is over for all."""
        self._ask(Join(name=name))

    def leave(self) -> None:
        self._ask(Leave())

    def end_run(self, why: str) -> None:
        """The run is over for all launchers; what was said first stays."""
        self._ask(End(why=why))

    def close(self) -> None:
        """Close this thread's connection."""
        sealed: Sealed | None = getattr(self._own, "sealed", None)
        if sealed is not None:
            sealed.connection.close()

    def _ask(self, request: Request, timeout_s: float = 0.0) -> Answer:
        try:
            sealed = self._connection()
            sealed.connection.settimeout(timeout_s + self._patience_s)
            sealed.send(text_of(request))
            answer = read_answer(sealed.receive())
        except TimeoutError as error:
            raise DistNetworkError(
                f"the launcher that serves the run's store has not answered for {timeout_s + self._patience_s:g} s"
            ) from error
        except NotAuthentic as error:
            raise DistNetworkError(f"the launcher that serves the run's store is gone: {error}") from error
        except (OSError, InvalidFile) as error:
            raise DistNetworkError(f"the run's store cannot be reached: {error}") from error
        if answer.late:
            raise DistStoreError(answer.error)
        if answer.error:
            raise DistNetworkError(answer.error)
        return answer

    def _connection(self) -> Sealed:
        sealed: Sealed | None = getattr(self._own, "sealed", None)
        if sealed is None:
            sealed = self._own.sealed = self._address.connect()
        return sealed


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
