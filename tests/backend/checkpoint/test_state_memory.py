"""State of ranks of one host lies in memory of the launcher's, which reads it when the ranks have ended; where it cannot, it leaves in files."""

from __future__ import annotations

import gc
import os
import weakref
from importlib import import_module
from pathlib import Path

import pytest
import torch
from small_gpt import plan_for, program
from torch import Tensor

import backend
from backend import run
from backend.checkpoint.leaving import final_state, leave_state, own_state_memory, state_memory
from backend.checkpoint.leaving.memory import pieces
from backend.checkpoint.manifest import SavedFile
from backend.checkpoint.shares import shares
from backend.memory.arena import Arena
from backend.memory.blocks import Blocks, initial_states, state_parts
from backend.memory.options import MemoryOptions, RegisterMode
from planner.ir.plan import Plan
from tests.backend.checkpoint.checkpoint_cases import drawn_state

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks on .* cores")
WAYS = ["one", "data2", "zero3_pipeline2", "data2_tensor2"]


def leave_in_memory(plan: Plan, rank: int, path: str, given: dict[str, Tensor]) -> bool:
    """What a worker does, in this process: its registers filled with its parts of the state."""
    placed = own_state_memory(plan, rank, path)
    blocks = Blocks(plan, rank, arena=Arena.make(plan, rank, placed=placed))
    blocks.fill_state(state_parts(plan, rank, given))
    assert blocks.arena is not None
    blocks.arena.check(plan)
    return placed is not None


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_in_the_memory_is_the_whole_state_and_outlives_it(way: str, tmp_path: Path) -> None:
    plan, given = plan_for(way), drawn_state(1)
    with state_memory(plan, True) as path:
        held = [rank for rank in range(plan.num_ranks) if leave_in_memory(plan, rank, path, given)]
        final = final_state(plan, tmp_path, [], steps=1, memory=path, held=held)
    assert held == [piece.rank for piece in pieces(plan)] and not Path(path).exists()
    assert set(final) == {entry.name for entry in plan.states}
    for name, value in final.items():
        assert torch.equal(value, given[name]), name
        assert value is not final[name]


def test_of_copies_the_lowest_rank_leaves_its_own_so_that_no_memory_is_kept_twice() -> None:
    assert [piece.rank for piece in pieces(plan_for("data2"))] == [0]
    for way in WAYS:
        plan = plan_for(way)
        spread, lowest = shares(plan), shares(plan, spread=False)
        assert [(share.state.name, share.box) for share in lowest] == [(share.state.name, share.box) for share in spread]
        assert all(low.rank <= other.rank for low, other in zip(lowest, spread, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_pieces_of_ranks_do_not_overlap(way: str) -> None:
    own = pieces(plan_for(way))
    for one, next_one in zip(own, own[1:], strict=False):
        assert one.offset_bytes + one.size_bytes <= next_one.offset_bytes


def test_ranks_that_have_no_room_there_leave_files_and_the_state_is_whole(tmp_path: Path) -> None:
    plan, given = plan_for("zero3_pipeline2"), drawn_state(1)
    with state_memory(plan, True) as path:
        own = [piece.rank for piece in pieces(plan)]
        held, files = own[::2], list[SavedFile]()
        for rank in range(plan.num_ranks):
            if rank in held:
                assert leave_in_memory(plan, rank, path, given)
            else:
                parts = initial_states(plan, rank, given)
                files += leave_state(tmp_path, plan, rank, lambda regst, index, parts=parts: parts[regst, index], spread=False)  # type: ignore[misc]
        final = final_state(plan, tmp_path, files, steps=1, memory=path, held=held)
    assert len(own) > len(held) > 0
    for name, value in final.items():
        assert torch.equal(value, given[name]), name


def test_without_a_path_or_where_it_leads_nowhere_there_is_no_memory() -> None:
    plan = plan_for("data2")
    with state_memory(plan, False) as path:
        assert path == "" and own_state_memory(plan, 0, path) is None
    with state_memory(plan, True) as path:
        pass
    assert own_state_memory(plan, 0, path) is None
    assert own_state_memory(plan, 0, f"/proc/{os.getpid()}/fd/no-such") is None


def test_a_full_machine_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    plan = plan_for("data2")
    with state_memory(plan, True) as path:
        monkeypatch.setattr(os, "posix_fallocate", full)
        assert own_state_memory(plan, 0, path) is None


@pytest.mark.processes
@pytest.mark.parametrize("registers", list(RegisterMode))
def test_a_run_leaves_the_state_of_the_reference_in_memory_where_registers_stay_and_in_files_where_they_do_not(
    registers: RegisterMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[str]] = []

    def watched(plan: Plan, folder: Path, *args: object, **options: object) -> object:
        left.append(sorted(path.name for path in folder.rglob("rank*.pt") if path.parent.name == "state"))
        return final_state(plan, folder, *args, **options)  # type: ignore[arg-type]

    merging = import_module("backend.run_folder.merge")  # its room has a function of the same name
    monkeypatch.setattr(merging, "final_state", watched)
    plan = plan_for("data2")
    state = program().initial_state(plan.micro_batches)
    outcome = run(plan, state, program().batch, 2, timeout_s=120, workdir=tmp_path, memory=MemoryOptions(registers=registers))
    assert left == [[] if registers is RegisterMode.STATIC else ["rank0000.pt"]]
    expected = backend.perform(plan, state, program().batch, 2).states
    assert set(outcome.states) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(outcome.states[name], value)


@pytest.mark.processes
def test_first_values_that_nobody_else_keeps_are_free_while_the_run_goes_on() -> None:
    """To free 1 GB of them took 0.1 s at the run's end."""
    plan = plan_for("one")
    first = [program().initial_state(plan.micro_batches)]
    watched = [weakref.ref(tensor) for tensor in first[0].values()]
    there: list[int] = []

    def on_progress(step: int, loss: float) -> None:
        gc.collect()
        there.append(sum(tensor() is not None for tensor in watched))

    run(plan, first.pop, program().batch, 2, timeout_s=120, on_progress=on_progress)
    assert there == [0, 0]
