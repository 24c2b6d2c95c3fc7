"""The last state of a run, all in all, as its ranks left it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoint.folder import step_folder
from backend.checkpoint.leaving.files import FOLDER
from backend.checkpoint.leaving.memory import pieces
from backend.checkpoint.manifest import MANIFEST, Manifest, SavedFile, manifest_text
from backend.checkpoint.saved import Saved
from backend.checkpoint.shares import file_name, saved_states, shares
from planner.ir.plan import Plan, State
from planner.ir.text import save_text
from planner.lower.data_actors.saving import plain

__all__ = ["FinalState", "final_state"]


class FinalState(Mapping[str, Tensor]):
    """The logical tensors of a run's last state by name, each read whenever it is asked for: two readings are two tensors.

    Raises (when a tensor is asked for):
        KeyError: the Plan has no state of this name.   InvalidFile: a file of the checkpoint was altered meanwhile.
    """

    def __init__(self, plan: Plan, saved: Saved) -> None:
        self._saved = saved
        self._entries: dict[str, State] = {}
        for entry in plan.states:
            self._entries.setdefault(entry.name, entry)
        self._types = {name: plan.regst[entry.regst].tensors[entry.index] for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        type_ = self._types[name]
        whole = self._saved.part(self._entries[name].given_as, tuple((0, length) for length in type_.shape))
        # A working copy is its parameter, cast, and no file holds it.
        return whole.to(getattr(torch, type_.dtype.value))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def final_state(
    plan: Plan, folder: Path, files: Sequence[SavedFile], *, steps: int, checkpoint: str = "", memory: str = "", held: Collection[int] = ()
) -> FinalState:
    """The state after ``steps`` steps, all in all, as the ranks of a run left it; its files are mapped from now on.

    Args:
        folder: of the run.   files: what leave_state returned on all ranks.   checkpoint: where the run saved; empty: nowhere.
        memory: path of the memory (state_memory) that ranks were given for their state; empty: none was.   held: the ranks that held it there.

    Raises:
        InvalidFile: a file is missing or altered.
    """
    where = step_folder(Path(checkpoint), steps) if checkpoint else folder / FOLDER
    in_memory = _in_memory(plan, memory, held) if held else {}
    if not checkpoint:
        where.mkdir(exist_ok=True)
        sizes = [SavedFile(name=file, size_bytes=sum(t.nbytes for t in own.values()), crc32=0) for file, own in in_memory.items()]
        manifest = Manifest(
            plan_id=plain(plan).plan_id,
            model=plan.model,
            step=steps,
            next_batch=steps,
            num_ranks=plan.num_ranks,
            states=saved_states(plan, shares(plan, spread=not memory)),
            groups=(),
            files=(*files, *sizes),
        )
        save_text(where / MANIFEST, manifest_text(manifest))
    saved = Saved(str(where))
    for file, tensors in in_memory.items():
        saved.take(file, tensors)
    saved.map_all()
    return FinalState(plan, saved)


def _in_memory(plan: Plan, memory: str, held: Collection[int]) -> dict[str, Mapping[str, Tensor]]:
    """The name that each of these ranks' file would have -> the tensors that it holds in the memory at this path."""
    handle = os.open(memory, os.O_RDWR | os.O_CLOEXEC)
    try:
        return {file_name(piece.rank): piece.tensors(plan, piece.map(handle)) for piece in pieces(plan) if piece.rank in held}
    finally:
        os.close(handle)
