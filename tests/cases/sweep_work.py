"""What executors are given to do in tests, in a module of its own, so that other processes can import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from regista.sweep.measure import Columns
from regista.sweep.point import Point


def at_once(point: Point) -> Columns:
    """Nothing: what is left is the executor's own time."""
    return {"status": "ok", "says": point.label}


def ends_its_process(point: Point) -> Columns:
    """A point that no process survives."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def ends_its_process_once(point: Point) -> Columns:
    """The first process that takes the point called by the folder ends; whoever is next gets through."""
    folder = Path(str(point.plan["folder"]))
    if point.label == "fatal":
        try:
            (folder / "ended").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
    return {"status": "ok", "says": point.label}
