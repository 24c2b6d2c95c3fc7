"""A server of plans: requests of clients, performed by child processes within limits, over a unix socket or a token, with a page."""

from regista.server.limits import Limits

__all__ = ["Limits"]
