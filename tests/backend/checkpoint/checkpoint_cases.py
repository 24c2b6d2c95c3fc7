"""A store, a state and the savers of all ranks, inside one process."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from small_gpt import plan_for, program
from torch import Tensor

import backend.checkpoint.folder as folder_module
from backend.checkpoint import SaveRequest
from backend.checkpoint.saver import Saver
from backend.memory.blocks import initial_states
from planner.ir.plan import Plan
from planner.lower.data_actors.saving import with_saving


class Store:
    """A run's store inside one process."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.content[key] = value

    def get(self, key: str) -> bytes:
        return self.content[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.content for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.content.pop(key, None) is not None


def drawn_state(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator).to(value.dtype) if value.is_floating_point() else value
        for name, value in program().initial_state(4).items()
    }


def save(folder: Path, way: str | Plan, state: Mapping[str, Tensor], step: int, *, keep: int = 0) -> Plan:
    """All ranks' savers, in threads of this process."""
    plan, store = with_saving(plan_for(way) if isinstance(way, str) else way), Store()
    savers = [
        Saver(plan, rank, SaveRequest(folder=str(folder), keep=keep), store, run_id=f"t{step}", first_step=step - 1)
        for rank in range(plan.num_ranks)
    ]
    parts = {rank: initial_states(plan, rank, state) for rank in range(plan.num_ranks)}
    errors: list[BaseException] = []

    def end(rank: int) -> None:
        try:
            savers[rank].end(step, lambda regst, index: parts[rank][regst, index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=end, args=(rank,)) for rank in range(plan.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return plan


class _Refusing:
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None: ...

    def fileno(self) -> int:
        return 0

    def close(self) -> None: ...


def full_disk(after: int) -> Callable[..., int]:
    """A disk that takes so many writes."""
    real, count = folder_module._Counted.write, Counter[str]()

    def write(self: Any, data: bytes) -> int:
        count["writes"] += 1
        if count["writes"] > after:
            self._file = _Refusing()
        return real(self, data)

    return write
