"""Copies the losses and heartbeats of ranks on other hosts to host 0's folder during a run, twice a second, over the store.

    host 1: progress, rank*.heartbeat --its first rank--> store --rank 0--> host 0: progress, rank*.heartbeat --> launcher of host 0

It serves the display of progress only: lines of the last half second may be missing; the results of the run hold all losses.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

from backend.monitor.tail import Tail

__all__ = ["relaying_logs"]

PERIOD_S = 0.5


@contextmanager
def relaying_logs(store: Store, folder: Path, node: int, nodes: int, *, is_leader: bool, period_s: float = PERIOD_S) -> Iterator[None]:
    """Send this host's new lines to host 0, or on host 0 append those of the others, while the body runs.

    Args:
        node: this host's place among ``nodes``.   is_leader: this is the first rank of its host; the others relay nothing.
    """
    if not is_leader:
        yield
        return
    stop = threading.Event()
    # A clone may be used beside the original, whose lock is held while it waits for peers; without one, lines come later.
    own_store: Store = getattr(store, "clone", lambda: store)()
    target = _collect if node == 0 else _post
    thread = threading.Thread(target=target, args=(own_store, folder, node, nodes, period_s, stop), daemon=True, name="log relay")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(period_s)


def _key(node: int, number: int) -> str:
    return f"log/{node}/{number}"


def _post(store: Store, folder: Path, node: int, nodes: int, period_s: float, stop: threading.Event) -> None:
    tails: dict[Path, Tail] = {}
    number, last = 0, False
    try:
        while not last:
            last = stop.wait(period_s)
            paths = [folder / "progress", *sorted(folder.glob("rank*.heartbeat"))]
            if new_lines := {path.name: text for path in paths if (text := tails.setdefault(path, Tail(path)).new_lines())}:
                store.set(_key(node, number), json.dumps(new_lines))
                number += 1
    except (DistError, OSError):
        return  # whoever is lost, the run itself reports it


def _collect(store: Store, folder: Path, node: int, nodes: int, period_s: float, stop: threading.Event) -> None:
    numbers = dict.fromkeys(range(1, nodes), 0)
    last = False
    try:
        while not last:
            last = stop.wait(period_s / 2)
            for other, number in numbers.items():
                key = _key(other, number)
                if not store.check([key]):
                    continue
                for name, text in json.loads(store.get(key)).items():
                    with (folder / name).open("a") as file:
                        file.write(text)
                store.delete_key(key)
                numbers[other] = number + 1
    except (DistError, OSError):
        return
