"""Requests are performed by child processes: at most so many at once, each within memory and time, confined to the files of its request."""

from regista.server.work.entry import Event, Status
from regista.server.work.service import Service

__all__ = ["Event", "Service", "Status"]
