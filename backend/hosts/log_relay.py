"""What the ranks of other hosts report while a run goes on, brought to host 0's folder: losses and pulses, twice a second, over the store.

    host 1: progress, rank*.pulse --its first rank--> store --rank 0--> host 0: progress, rank*.pulse --> launcher of host 0

It is for looking on only: the last lines may miss the end of the run, whose losses are in its results.
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

__all__ = ["Lines", "carrying"]

PERIOD_S = 0.5


class Lines:
    """The whole lines that a folder's files of progress and pulses have gained since the last look, by file name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, Tail] = {}

    def fresh(self) -> dict[str, str]:
        """Only files that have gained any."""
        found: dict[str, str] = {}
        for path in [self._folder / "progress", *sorted(self._folder.glob("rank*.pulse"))]:
            if whole := self._tails.setdefault(path, Tail(path)).fresh():
                found[path.name] = whole
        return found


@contextmanager
def carrying(store: Store, folder: Path, node: int, nodes: int, *, is_leader: bool, period_s: float = PERIOD_S) -> Iterator[None]:
    """Carry news while the body runs.

    Args:
        node: this host's place among ``nodes``.   is_leader: this is the first rank of its host; the others carry nothing.
    """
    if not is_leader:
        yield
        return
    stop = threading.Event()
    # A clone may be used beside the original, whose lock is held while it waits for peers; without one, news come later.
    own: Store = getattr(store, "clone", lambda: store)()
    target = _collect if node == 0 else _post
    thread = threading.Thread(target=target, args=(own, folder, node, nodes, period_s, stop), daemon=True, name="news")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(period_s)


def _post(store: Store, folder: Path, node: int, nodes: int, period_s: float, stop: threading.Event) -> None:
    lines, number, last = Lines(folder), 0, False
    try:
        while not last:
            last = stop.wait(period_s)
            if fresh := lines.fresh():
                store.set(f"news/{node}/{number}", json.dumps(fresh))
                number += 1
    except (DistError, OSError):
        return  # whoever is lost, the run itself will tell


def _collect(store: Store, folder: Path, node: int, nodes: int, period_s: float, stop: threading.Event) -> None:
    numbers = dict.fromkeys(range(1, nodes), 0)
    last = False
    try:
        while not last:
            last = stop.wait(period_s / 2)
            for other, number in numbers.items():
                key = f"news/{other}/{number}"
                if not store.check([key]):
                    continue
                for name, text in json.loads(store.get(key)).items():
                    with (folder / name).open("a") as file:
                        file.write(text)
                store.delete_key(key)
                numbers[other] = number + 1
    except (DistError, OSError):
        return
