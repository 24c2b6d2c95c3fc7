"""The files of one run: what the parent hands to the workers and what they leave behind.

plan.json  state.pt  batches.pt  options.json          written by the parent
rank0.pid  rank0.pt (acts, losses, states, gradients)  rank0.error.json  progress           written by the workers
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.body import Batches
from planner.ir.errors import InvalidFile
from planner.ir.files import PLAN_VERSION, save_plan
from planner.ir.plan import Plan
from planner.ir.text import decode, load_json, save_text

__all__ = ["Failure", "Options", "load_options", "prepare", "read_batches", "read_failures", "read_plan", "write_failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``isolated_rounds``: after the run, time each task alone so often (0: not at all); ``warmup`` rounds come first and do not count."""

    run_id: str
    steps: int
    gradients: bool = False
    timeout_s: float = 30.0
    one_host: bool = True
    isolated_rounds: int = 0
    warmup: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker ended.  kind: ``raised`` (its own fault), ``stalled`` (nothing moved), ``peer_lost`` (a consequence)."""

    rank: int
    kind: str
    message: str
    task: str = ""
    act: int = -1
    micro_batch: int = -1
    traceback: str = ""
    time_ns: int = 0


def _own(value: Tensor) -> Tensor:
    """torch.save writes whole storages: a view would drag its base along."""
    value = value.detach()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes or not value.is_contiguous() else value


def prepare(folder: Path, plan: Plan, state: Mapping[str, Tensor], batches: Batches, options: Options) -> None:
    """Write the parent's files; a batch that is the same object at several steps is stored once."""
    save_plan(plan, str(folder / "plan.json"))
    names = {entry.name for entry in plan.states}
    torch.save({name: _own(value) for name, value in state.items() if name in names}, folder / "state.pt")
    distinct: list[tuple[Tensor, ...]] = []
    index: list[int] = []
    places: dict[tuple[int, ...], int] = {}
    for step in range(options.steps):
        batch = tuple(batches(step))
        key = tuple(id(tensor) for tensor in batch)
        if key not in places:
            places[key] = len(distinct)
            distinct.append(batch)  # holding the batch keeps its ids from being used again
        index.append(places[key])
    torch.save({"index": index, "batches": [[_own(t) for t in batch] for batch in distinct]}, folder / "batches.pt")
    save_text(folder / "options.json", json.dumps(asdict(options)))


def load_options(folder: Path) -> Options:
    return Options(**json.loads((folder / "options.json").read_text()))


def read_plan(folder: Path) -> Plan:
    """The Plan, without verifying it again: the parent did.

    Raises:
        InvalidFile: its content is not what its id says.
    """
    data = load_json(folder / "plan.json", "plan", PLAN_VERSION)
    plan = decode(Plan, data.get("plan"), "plan")
    assert isinstance(plan, Plan)
    if plan.plan_id != data.get("plan_id"):
        raise InvalidFile(f"{folder / 'plan.json'}: holds plan {plan.plan_id} under the id {data.get('plan_id')}")
    return plan


def read_batches(folder: Path) -> Batches:
    """Mapped into memory: a rank reads only the pages of its own part."""
    data = torch.load(folder / "batches.pt", mmap=True, weights_only=True)
    index: Sequence[int] = data["index"]
    return lambda step: tuple(data["batches"][index[step]])


def write_failure(folder: Path, failure: Failure) -> None:
    fields: dict[str, Any] = asdict(failure) | {"time_ns": time.monotonic_ns()}
    path = folder / f"rank{failure.rank}.error.json"
    neighbour = path.with_suffix(".tmp")
    neighbour.write_text(json.dumps(fields))
    os.replace(neighbour, path)


def read_failures(folder: Path) -> list[Failure]:
    """In the order in which they happened."""
    found = [Failure(**json.loads(path.read_text())) for path in folder.glob("rank*.error.json")]
    return sorted(found, key=lambda failure: failure.time_ns)
