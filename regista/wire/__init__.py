"""What a client and a server say to each other: requests, their states and results, and which arguments of a verb name files."""

from regista.wire.request import WIRE_VERSION, Request, parse_request
from regista.wire.result import Outcome, State
from regista.wire.roles import SERVED, Role

__all__ = ["SERVED", "WIRE_VERSION", "Outcome", "Request", "Role", "State", "parse_request"]
