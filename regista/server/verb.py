"""The verb 'serve': plan and answer for clients, over a unix socket of the user's or a TCP port with a token."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from planner.ir.errors import Unsupported
from planner.ir.units import GIB, MIB
from regista.server.limits import Limits
from regista.server.place import default_folder, lock_folder, read_token, token_of
from regista.verbs.arguments import count, positive
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from regista.server.edge.listen import Address

__all__ = ["add_arguments", "perform"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", metavar="DIR", help="where files and requests are kept (default: ~/.local/state/regista/server)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the unix socket (default: 'socket' in the folder; mode 0600)")
    where.add_argument(
        "--tcp", metavar="HOST:PORT", help="listen on TCP instead, with a token; for example 127.0.0.1:8750, or :0 for a free port"
    )
    parser.add_argument(
        "--token", metavar="FILE", help="the token that TCP asks for, one line, mode 0600 (default: one is made in the folder)"
    )
    parser.add_argument("--searches", type=count, default=2, metavar="N", help="requests that are performed at once (default 2)")
    parser.add_argument("--request-seconds", type=positive, default=3600.0, metavar="S", help="end a request after so long (default 3600)")
    parser.add_argument("--memory-gb", type=positive, default=8.0, metavar="GB", help="memory of one request's process, in GiB (default 8)")
    parser.add_argument(
        "--upload-mb", type=positive, default=2048.0, metavar="MB", help="largest file that is taken, in MiB (default 2048)"
    )
    parser.add_argument("--keep", type=count, default=2000, metavar="N", help="ended requests whose results are kept (default 2000)")


def perform(args: argparse.Namespace) -> Json:
    """Serve until Ctrl-C or SIGTERM."""
    try:
        from regista.server.edge.listen import open_socket
    except ModuleNotFoundError as error:
        raise Unsupported(f"'serve' needs {error.name}, which is not installed; pip install 'regista[serve]'") from None
    address = _address(args)
    folder = Path(args.folder).absolute() if args.folder else default_folder()
    limits = Limits(
        searches=args.searches,
        request_seconds=args.request_seconds,
        memory_bytes=int(args.memory_gb * GIB),
        upload_bytes=int(args.upload_mb * MIB),
        kept=args.keep,
    )
    lock_folder(folder)
    token_file = None
    if address.path is None:
        token_file = Path(args.token) if args.token else token_of(folder)
    token = None if token_file is None else read_token(token_file)
    if args.token and token_file is None:
        raise Unsupported("--token belongs to --tcp: a unix socket lets in only its owner; leave it out, or listen with --tcp")
    listener = open_socket(_in_folder(address, folder))
    url, hosts = _url(listener)

    def ready() -> None:
        show(args, f"regista serves at {url}, files in {folder}; Ctrl-C ends it, requests that run go on with the next server")
        if token is not None:
            show(
                args, f"token: {token_file}   page: {url}/#token={token}", f"clients: regista --server {url} --token {token_file} VERB ..."
            )
        else:
            show(args, f"clients: regista --server {url} VERB ...")

    asyncio.run(_serve(folder, limits, listener, token, hosts, ready))
    if address.path is None and listener.fileno() >= 0:
        listener.close()
    return {"url": url, "folder": str(folder)}


async def _serve(
    folder: Path, limits: Limits, listener: socket.socket, token: str | None, hosts: tuple[str, ...], ready: Callable[[], None]
) -> None:
    from regista.server.edge import make_app, serve
    from regista.server.work import Service

    async with Service(folder, limits) as service:
        await serve(make_app(service, token, hosts), listener, limits, ready)


def _address(args: argparse.Namespace) -> Address:
    """Raises Unsupported: no address, or one that others reach without a token that the user has chosen."""
    from regista.server.edge.listen import Address

    if not args.tcp:
        return Address(path=Path(args.socket).absolute() if args.socket else Path("socket"))
    host, colon, port = args.tcp.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdigit() or int(port) > 65535:
        raise Unsupported(f"--tcp {args.tcp!r}: write HOST:PORT, for example 127.0.0.1:8750")
    if host not in _LOOPBACK and not args.token:
        raise Unsupported(
            f"--tcp {args.tcp}: other machines reach {host}, and what they send is not encrypted; give --token FILE that you hand to clients, and "
            "put a proxy with TLS in front, or listen at 127.0.0.1 and let clients come by ssh -L"
        )
    return Address(host="127.0.0.1" if host == "localhost" else host, port=int(port))


def _in_folder(address: Address, folder: Path) -> Address:
    from dataclasses import replace

    return address if address.path is None else replace(address, path=folder / address.path)


def _url(listener: socket.socket) -> tuple[str, tuple[str, ...]]:
    """Where clients find it, and what ``Host`` may be; empty: anything, where the address is every one of the machine."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}", ()
    host, port = (f"[{name[0]}]" if ":" in name[0] else name[0]), name[1]
    hosts = (f"{host}:{port}", f"localhost:{port}") if name[0] in ("127.0.0.1", "::1") else ()
    return f"http://{host}:{port}", hosts
