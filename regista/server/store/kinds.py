"""What files a server takes: text (plans, traces, clusters, jobs, tables) and programs that hold nothing but data."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from planner.ir.errors import InvalidFile, Untrusted
from regista.server.store.exported import check_exported

__all__ = ["check_kind"]

_PIECE = 1 << 20
_BYTECODE = b"ML\xefR"


def check_kind(path: Path, check_archive: Callable[[Path], None] = check_exported) -> None:
    """Refuse a file that could be more than data.

    Raises:
        Untrusted: a pickle, or an exported program with code.   InvalidFile: neither text nor an exported program.
    """
    with path.open("rb") as file:
        head = file.read(4)
        if head.startswith(b"PK"):
            if not zipfile.is_zipfile(path):
                raise InvalidFile("the upload is a zip archive that is cut short or damaged; send it again")
            check_archive(path)
            return
        if head == _BYTECODE:
            return  # MLIR's, which its parser reads within limits and which names no code to run (planner.frontend.stablehlo)
        if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5:
            raise Untrusted("the upload is a pickle, which runs code when it is read; a server takes text and the .pt2 of torch.export")
        file.seek(0)
        while piece := file.read(_PIECE):
            if b"\0" in piece:
                raise InvalidFile(
                    "the upload is neither text (plan, trace, cluster, job, table) nor a .pt2 of torch.export nor StableHLO; nothing else is taken"
                )
