"""Communication between ranks: collectives, sockets, and memory that processes of one host share."""

from backend.comm.collectives import GroupExchange, exchange, scratch_bytes
from backend.comm.transport import Mesh

__all__ = ["GroupExchange", "Mesh", "exchange", "scratch_bytes"]
