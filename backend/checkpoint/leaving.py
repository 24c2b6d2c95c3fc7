"""How the last state of a run reaches whoever started it: as the files of a checkpoint, read tensor by tensor when one is asked for.

a run that saves        its checkpoint of the last step is all that it leaves
any other run           rank r --its shares, not synced--> state/rank000r.pt in the run's folder --> the launcher maps them

The launcher reads nothing by itself, so neither its memory nor its time follows the state's size.  A mapped file lives on when the run's folder
(or an older checkpoint) is removed; it goes with the last FinalState that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoint.folder import PreparedFile, step_folder, write_part
from backend.checkpoint.manifest import MANIFEST, Manifest, SavedFile, manifest_text
from backend.checkpoint.saved import Saved
from backend.checkpoint.shares import file_name, saved_states, shares
from planner.ir.plan import Plan, State
from planner.ir.text import save_text
from planner.lower.data_actors.saving import plain

__all__ = ["FinalState", "final_state", "leave_state", "left_file"]

_FOLDER = "state"


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


def left_file(plan: Plan, rank: int) -> str | None:
    """The file under the run's folder in which this rank leaves its shares; None: others hold all that it has."""
    return f"{_FOLDER}/{file_name(rank)}" if any(share.rank == rank for share in shares(plan)) else None


def leave_state(folder: Path, plan: Plan, rank: int, state_of: Callable[[str, int], Tensor]) -> tuple[SavedFile, ...]:
    """Write this rank's shares into the run's folder: one file, or none.

    Args:
        state_of: (regst, index) -> this rank's part of the state, on any device.

    Raises:
        InvalidFile: no room for it.
    """
    (folder / _FOLDER).mkdir(exist_ok=True)
    own = {
        share.state.name: state_of(share.state.regst, share.state.index).detach().to("cpu").contiguous()
        for share in shares(plan)
        if share.rank == rank
    }
    # torch.save writes whole storages, here that of all blocks; copies would take as long as the writing.
    like = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in own.items()}
    return (write_part(folder / _FOLDER / file_name(rank), PreparedFile(like, own), durable=False),) if own else ()


def final_state(plan: Plan, folder: Path, files: Sequence[SavedFile], *, steps: int, checkpoint: str = "") -> FinalState:
    """The state after ``steps`` steps, all in all, as the ranks of a run left it; its files are mapped from now on.

    Args:
        folder: of the run.   files: what leave_state returned on all ranks.   checkpoint: where the run saved; empty: nowhere.

    Raises:
        InvalidFile: a file is missing or altered.
    """
    where = step_folder(Path(checkpoint), steps) if checkpoint else folder / _FOLDER
    if not checkpoint:
        manifest = Manifest(
            plan_id=plain(plan).plan_id,
            model=plan.model,
            step=steps,
            next_batch=steps,
            num_ranks=plan.num_ranks,
            states=saved_states(plan, shares(plan)),
            groups=(),
            files=tuple(files),
        )
        save_text(where / MANIFEST, manifest_text(manifest))
    saved = Saved(str(where))
    saved.map_all()
    return FinalState(plan, saved)
