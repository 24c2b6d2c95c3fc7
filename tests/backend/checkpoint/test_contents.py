"""Each element of the state is written once, and any box is read from any layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_gpt import WAYS, plan_for, uneven3
from torch import Tensor

from backend.checkpoint import Saved, resume_point
from backend.checkpoint.manifest import read_manifest
from backend.checkpoint.shares import optimizer_groups, shares
from backend.initial.values import numel_of, overlap, whole_box
from backend.layout.views import box_view
from backend.memory.blocks import initial_states
from planner.ir.graph import InputKind
from planner.ir.plan import Plan
from planner.lower.data_actors.saving import saved_entries
from tests.backend.checkpoint.checkpoint_cases import drawn_state, save


@pytest.mark.parametrize("way", list(WAYS))
def test_each_element_of_the_state_is_written_once(way: str) -> None:
    plan = plan_for(way)
    boxes: dict[str, list[Any]] = {}
    for share in shares(plan):
        assert all(overlap(share.box, other) is None for other in boxes.get(share.state.name, []))
        boxes.setdefault(share.state.name, []).append(share.box)
    for entry in plan.states:
        shape = plan.regst[entry.regst].tensors[entry.index].shape
        assert sum(map(numel_of, boxes[entry.name])) == numel_of(whole_box(shape))


@pytest.mark.parametrize("way", list(WAYS))
def test_a_rank_writes_only_what_lies_on_it(way: str) -> None:
    plan = plan_for(way)
    for share in shares(plan):
        regst = plan.regst[share.state.regst]
        placement, tensor = plan.placement[regst.placement], regst.tensors[share.state.index]
        assert tensor.sbp.region(tensor.shape, placement.mesh, placement.coordinate(share.rank)) == share.box


@pytest.mark.parametrize("way", ["data2", "data2_tensor2"])
def test_copies_share_the_bytes_to_within_the_largest_tensor(way: str) -> None:
    load: Counter[int] = Counter()
    for share in shares(plan_for(way)):
        load[share.rank] += numel_of(share.box)
    largest = max(numel_of(share.box) for share in shares(plan_for(way)))
    assert len(load) == WAYS[way][0] and max(load.values()) - min(load.values()) <= largest


def test_the_manifest_knows_the_optimizer_of_each_parameter() -> None:
    for way in WAYS:
        (group,) = optimizer_groups(plan_for(way), {})
        wanted = [n for n, s in saved_entries(plan_for(way)).items() if s.kind is InputKind.PARAMETER]
        assert group.target == "regista.adamw" and group.numbers == (1e-2, 0.9, 0.999, 1e-3, 0.01)
        assert sorted(group.parameters) == sorted(wanted)


# What is in a checkpoint.


@pytest.mark.parametrize("way", list(WAYS))
def test_what_was_saved_from_any_layout_is_what_was_there(way: str, tmp_path: Path) -> None:
    state = drawn_state(3)
    plan = save(tmp_path, way, state, 7)
    point = resume_point(tmp_path)
    assert point is not None and point.steps == 7
    for name in {entry.name for entry in plan.states}:
        assert torch.equal(point.values.part(name, whole_box(tuple(state[name].shape))), state[name]), name


@pytest.mark.parametrize("way", list(WAYS))
def test_any_layout_loads_from_any_other(way: str, folder: Path) -> None:
    """Parameters and optimizer state, bit by bit: what each rank gets from the checkpoint is its part of the state."""
    state, plan = drawn_state(1), plan_for(way)
    for rank in range(plan.num_ranks):
        wanted = initial_states(plan, rank, state)
        loaded = initial_states(plan, rank, Saved(str(folder / "step-00000001")))
        assert wanted.keys() == loaded.keys() and all(torch.equal(wanted[key], loaded[key]) for key in wanted)


def test_uneven_parts_are_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    """SEMANTICS 1.3: 64 rows on three ranks are 22, 21 and 21."""
    plan, state = uneven3(), drawn_state(1)
    loaded = [initial_states(plan, rank, Saved(str(folder / "step-00000001"))) for rank in range(3)]
    for rank in range(3):
        wanted = initial_states(plan, rank, state)
        assert all(torch.equal(wanted[key], loaded[rank][key]) for key in wanted)
    assert {parts[home].shape[0] for home in [_home(plan, "wte.weight")] for parts in loaded} == {22, 21}
    save(tmp_path, plan, state, 2)
    for rank in range(4):
        wanted = initial_states(plan_for("data2_tensor2"), rank, state)
        parts = initial_states(plan_for("data2_tensor2"), rank, Saved(str(tmp_path / "step-00000002")))
        assert all(torch.equal(wanted[key], parts[key]) for key in wanted)


def _home(plan: Plan, name: str) -> tuple[str, int]:
    return saved_entries(plan)[name].regst, saved_entries(plan)[name].index


@given(st.data())
def test_any_box_is_put_together_from_the_pieces_it_overlaps(folder: Path, data: st.DataObject) -> None:
    saved, state = Saved(str(folder / "step-00000001")), drawn_state(1)
    name = data.draw(st.sampled_from(sorted(saved.manifest.state)))
    box = []
    for extent in state[name].shape:
        offset = data.draw(st.integers(0, extent - 1))
        box.append((offset, data.draw(st.integers(1, extent - offset))))
    assert torch.equal(saved.part(name, tuple(box)), box_view(state[name], tuple(box)))


def test_plain_torch_reads_every_file(folder: Path) -> None:
    manifest = read_manifest(folder / "step-00000001")
    names = set()
    for file in manifest.files:
        held = torch.load(folder / "step-00000001" / file.name, weights_only=True)
        assert all(isinstance(value, Tensor) for value in held.values())
        names |= set(held)
    assert names == {state.name for state in manifest.states}


def test_the_manifest_names_the_plan_that_was_given(folder: Path) -> None:
    manifest = read_manifest(folder / "step-00000001")
    assert manifest.plan_id == plan_for("zero3_pipeline2").plan_id
    assert (manifest.step, manifest.next_batch, manifest.num_ranks) == (1, 1, 4)
