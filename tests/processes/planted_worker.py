"""A worker that stands still at a chosen point of its life, so that a test can kill it there.

PLANTED = {"rank": r, "where": "forward" | "collective" | "checkpoint", "act": n, "mark": path}: the rank's pid is written to ``mark`` when it comes
there for the n-th time in this process; then it waits in the midst of the act, the collective or the half-written file.  Once per mark.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import backend.checkpoint.saver
import backend.worker.process
from backend.worker.rank import RankBody
from planner.ir.plan import TaskKind

KINDS = {"forward": TaskKind.FORWARD, "collective": TaskKind.BOXING}


def stand_still(mark: Path) -> None:
    neighbour = mark.with_suffix(".tmp")
    neighbour.write_text(str(os.getpid()))
    neighbour.rename(mark)
    time.sleep(3600)


def plant(order: dict[str, Any]) -> None:
    mark, rank = Path(order["mark"]), int(os.environ["RANK"])
    if mark.exists():
        return
    seen = 0

    def here() -> bool:
        nonlocal seen
        seen += 1
        return seen == order["act"] + 1 and rank == order["rank"]

    if order["where"] == "checkpoint":
        write = backend.checkpoint.saver.write_part

        def half_written(path: Path, *rest: Any) -> Any:
            if here():
                path.write_bytes(b"half")
                stand_still(mark)
            return write(path, *rest)

        backend.checkpoint.saver.write_part = half_written
        return
    perform = RankBody.perform

    def performed(self: RankBody, actor: Any, number: int) -> Any:
        if actor.task.kind is KINDS[order["where"]] and here():
            stand_still(mark)
        return perform(self, actor, number)

    RankBody.perform = performed  # type: ignore[method-assign]


def main(path: str) -> int:
    plant(json.loads(os.environ["PLANTED"]))
    return backend.worker.process.main(path)


if __name__ == "__main__":
    import sys

    os._exit(main(sys.argv[1]))
