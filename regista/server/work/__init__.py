"""Requests are performed by child processes: at most so many at once, each within memory and time, confined to the files of its request."""

from regista.server.work.service import Event, Service, Status

__all__ = ["Event", "Service", "Status"]
