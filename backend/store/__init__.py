"""The run's store: keys and values by which the processes of a run find each other and agree; JSON over authenticated sockets, never a pickle."""

from backend.store.client import RunStore, StoreAddress
from backend.store.secret import MOST_SECRET_BYTES, read_secret
from backend.store.server import StoreServer

__all__ = ["MOST_SECRET_BYTES", "RunStore", "StoreAddress", "StoreServer", "read_secret"]
