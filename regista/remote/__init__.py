"""Clients of a server: ``regista.connect(url)`` and ``regista --server URL VERB ...``, which leave the files that the verbs leave without it."""

from regista.remote.connection import Connection, connect

__all__ = ["Connection", "connect"]
