"""Which of this host's addresses the other hosts of a run can reach, and on which interface it lies."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys

from planner.ir.errors import Unsupported

__all__ = ["interface_of", "own_address", "parse_endpoint"]

_SIOCGIFADDR = 0x8915
"""ioctl's number for the address of an interface [linux/sockios.h]."""
_OUTSIDE = "192.0.2.1"
"""An address that belongs to no host (TEST-NET-1, RFC 5737): the route to it is the route outside."""


def parse_endpoint(text: str) -> tuple[str, int]:
    """``HOST:PORT``.

    Raises:
        Unsupported: not of this form, or a port that does not exist.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise Unsupported(f"rendezvous {text!r}: write HOST:PORT with a port of 1 to 65535, for example node0:29400")
    if ":" in host:
        raise Unsupported(f"rendezvous {text!r}: IPv6 addresses are not carried out; give a name or an IPv4 address")
    return host, int(port)


def own_address(host: str) -> str:
    """This host's IPv4 address on the way to ``host``.

    The name of this very host may stand for a loopback address in its own tables, which no other host can use: then the address on the way
    outside, if there is one.

    Raises:
        Unsupported: the name is not known, or no way leads there.
    """
    try:
        target = socket.gethostbyname(host)
        address = _toward(target)
    except OSError as error:
        raise Unsupported(
            f"rendezvous host {host!r} cannot be reached from here ({error.strerror or error}); give its name or address"
        ) from error
    if not ipaddress.ip_address(address).is_loopback or host == "localhost" or host.startswith("127."):
        return address
    try:
        return _toward(_OUTSIDE)
    except OSError:
        return address


def _toward(target: str) -> str:
    """This host's address on the route to ``target``.  No packet is sent: connecting a datagram socket only looks up the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The name of the interface with this IPv4 address; empty where it cannot be told (not Linux)."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo" if sys.platform == "linux" else ""
    if sys.platform != "linux":
        return ""
    import fcntl  # not everywhere

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
