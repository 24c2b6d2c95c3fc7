"""Checkpoints as files: each element once, any box from any layout, whole or not there, refused when damaged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_gpt import WAYS, plan_for, program, uneven3
from torch import Tensor

import backend.checkpoint.folder as folder_module
from backend.checkpoint import Saved, SaveRequest, export, find, latest, resume_point, verify
from backend.checkpoint.export import optimizer_state_dict
from backend.checkpoint.folder import lock, remove_leftovers, steps_of, write_part
from backend.checkpoint.handover import hand_over
from backend.checkpoint.manifest import read_manifest
from backend.checkpoint.resume import empty_folder
from backend.checkpoint.saver import Saver
from backend.checkpoint.shares import optimizer_groups, shares
from backend.initial.values import numel_of, overlap, whole_box
from backend.layout.views import box_view
from backend.memory.blocks import initial_states
from backend.run_folder.files import Options
from backend.worker.checkpoints import begin
from planner.cost import AnalyticCost
from planner.frontend import AdamW
from planner.ir.errors import InvalidFile, RegistaError, WorkerFailed
from planner.ir.graph import InputKind
from planner.ir.plan import Plan, Task, TaskKind
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.saving import homes, with_saving, without_saving
from simulator import Engine, simulate
from zoo import ZOO


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 1 saved by four ranks: two stages, ZeRO 3 in each."""
    made = tmp_path_factory.mktemp("checkpoints")
    save(made, "zero3_pipeline2", drawn_state(1), 1)
    return made


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    target = tmp_path / "step-00000001"
    target.mkdir()
    for path in (folder / "step-00000001").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


# Shares.


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
        wanted = [n for n, s in homes(plan_for(way)).items() if s.kind is InputKind.PARAMETER]
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
    return homes(plan)[name].regst, homes(plan)[name].index


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


# For plain torch.


def test_an_exported_checkpoint_goes_on_in_plain_torch_as_in_ours(tmp_path: Path) -> None:
    """state_dict and optimizer state load, and a step of torch.optim from there equals one of a model that never left torch."""
    model = ZOO["gpt"](layers=2, width=32, heads=4, vocab=64, batch=16, seq=16, tied=1)
    module, batch = model.module, model.batch(0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3)

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model.loss_of(module, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(module, optimizer)
    state: dict[str, Tensor] = {n: v.detach().clone() for n, v in (*module.named_parameters(), *module.named_buffers())}
    for name, parameter in module.named_parameters():
        state |= {f"{name}:{slot}": value.clone() for slot, value in optimizer.state[parameter].items()}
    constants = program().constants(4)
    save(tmp_path, "zero3_pipeline2", state | constants, 1)
    export(tmp_path, tmp_path / "all.pt", optimizer=True)
    held = torch.load(tmp_path / "all.pt", weights_only=True)
    other = ZOO["gpt"](layers=2, width=32, heads=4, vocab=64, batch=16, seq=16, tied=1, seed=5).module
    missing = other.load_state_dict(held["model"], strict=False)
    assert missing.missing_keys == ["lm_head.weight"]  # tied to wte.weight
    assert set(missing.unexpected_keys) == {"h.0.attn.mask", "h.1.attn.mask"}  # buffers that are not persistent
    resumed = torch.optim.AdamW(other.parameters(), lr=0.5)
    resumed.load_state_dict(held["optimizer"])
    assert held["step"] == 1
    for _ in range(2):
        assert step(other, resumed) == step(module, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_an_export_without_optimizer_is_a_plain_state_dict(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "w.pt")
    held = torch.load(tmp_path / "w.pt", weights_only=True)
    assert set(held) == set(dict(program().module.named_parameters()) | dict(program().module.named_buffers()))
    assert all(torch.equal(held[name], drawn_state(1)[name]) for name in held)


def test_the_optimizer_state_of_torch_has_its_own_keys(folder: Path) -> None:
    (group,) = optimizer_state_dict(folder)["param_groups"]
    assert (group["lr"], group["eps"], group["weight_decay"], tuple(group["betas"])) == (1e-2, 1e-3, AdamW().weight_decay, (0.9, 0.999))
    assert set(group) == set(torch.optim.AdamW([torch.zeros(1)]).state_dict()["param_groups"][0])


# Damage.


def test_a_whole_checkpoint_is_verified(copied: Path) -> None:
    assert verify(copied).step == 1


def test_a_missing_file_is_refused_by_name(copied: Path) -> None:
    (copied / "rank0002.pt").unlink()
    for look in (verify, _read_all):
        with pytest.raises(InvalidFile, match=r"rank0002\.pt is missing \([0-9]+ bytes were written\)"):
            look(copied)


def test_a_truncated_file_is_refused_with_both_sizes(copied: Path) -> None:
    path = copied / "rank0001.pt"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    for look in (verify, _read_all):
        with pytest.raises(InvalidFile, match=rf"rank0001\.pt has {len(data) - 100} bytes, {len(data)} were written"):
            look(copied)


def test_an_altered_byte_is_refused_before_a_run_starts(copied: Path) -> None:
    path = copied / "rank0003.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InvalidFile, match=r"rank0003\.pt has checksum [0-9a-f]{8}, [0-9a-f]{8} was written.*\(remove .*step-00000001"):
        resume_point(copied.parent)


def test_a_missing_or_foreign_manifest_is_refused(copied: Path) -> None:
    (copied / "manifest.json").write_text('{"kind": "plan"}')
    with pytest.raises(InvalidFile, match="expected a regista checkpoint file"):
        verify(copied)
    (copied / "manifest.json").unlink()
    with pytest.raises(InvalidFile, match=r"is no checkpoint: it has no manifest\.json"):
        verify(copied)


def _read_all(path: Path) -> None:
    saved = Saved(str(path))
    for state in saved.manifest.states:
        saved.part(state.name, whole_box(state.shape))


def test_a_folder_without_checkpoints_says_what_to_give(tmp_path: Path) -> None:
    assert latest(tmp_path / "none") is None and resume_point(tmp_path / "none") is None
    with pytest.raises(InvalidFile, match="does not exist; give the folder of 'regista run --checkpoint'"):
        find(tmp_path / "none")


# Whole or not there.


def test_a_killed_save_leaves_the_last_good_one_and_the_next_removes_what_it_left(tmp_path: Path) -> None:
    save(tmp_path, "data2", drawn_state(1), 1)
    half = tmp_path / ".step-00000002.killed.tmp"
    half.mkdir()
    (half / "rank0000.pt").write_bytes(b"half")
    assert latest(tmp_path) == tmp_path / "step-00000001"
    save(tmp_path, "data2", drawn_state(3), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_leftovers_are_only_our_own_hidden_folders(tmp_path: Path) -> None:
    for name in (".step-00000002.run.tmp", ".step-00000002.run.old", ".git", "notes", "step-00000002"):
        (tmp_path / name).mkdir()
    assert remove_leftovers(tmp_path) == (".step-00000002.run.old", ".step-00000002.run.tmp")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "notes", "step-00000002"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, "one", drawn_state(step), step, keep=2)
    assert steps_of(tmp_path) == (3, 4)


def test_two_runs_do_not_mix_in_one_folder(folder: Path, tmp_path: Path) -> None:
    empty_folder(tmp_path)
    with pytest.raises(InvalidFile, match=r"holds 1 checkpoints, the newest of step 1; resume from it \(--resume\)"):
        empty_folder(folder)


def _full(after: int) -> Callable[..., int]:
    """A disk that takes so many writes."""
    real, count = folder_module._Counted.write, Counter[str]()

    def write(self: Any, data: bytes) -> int:
        count["writes"] += 1
        if count["writes"] > after:
            self._file = _Refusing()
        return real(self, data)

    return write


def test_two_runs_at_once_do_not_save_into_one_folder(tmp_path: Path) -> None:
    handle = lock(tmp_path)
    with pytest.raises(InvalidFile, match="another run is saving into"):
        lock(tmp_path, timeout_s=0.2)
    os.close(handle)
    os.close(lock(tmp_path, timeout_s=0.2))


def test_a_rank_that_does_not_write_fails_the_save_within_the_timeout_and_is_named(tmp_path: Path) -> None:
    plan = with_saving(plan_for("data2"))
    parts = initial_states(plan, 0, drawn_state(1))
    saver = Saver(plan, 0, SaveRequest(folder=str(tmp_path)), Store(), run_id="t", timeout_s=0.5)
    with pytest.raises(WorkerFailed, match=r"checkpoint of step 1 failed: rank 1 has written nothing more for 0\.5 s"):
        saver.end(1, lambda regst, index: parts[regst, index])
    assert latest(tmp_path) is None


def test_a_restarted_worker_begins_where_the_newest_checkpoint_ends(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks by the word of rank 0; the first attempt begins with what the parent handed over."""
    hand_over(tmp_path, drawn_state(5), set(drawn_state(5)))
    options, store = Options(run_id="r", steps=9, checkpoint=str(folder)), Store()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    same, values = begin(tmp_path, options, store, 0)  # type: ignore[arg-type]
    assert same == options and torch.equal(values.part("ln_f.weight", ((0, 32),)), drawn_state(5)["ln_f.weight"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    for rank in (0, 1):
        then, values = begin(tmp_path, options, store, rank)  # type: ignore[arg-type]
        assert (then.first_step, then.steps) == (1, 8)
        assert torch.equal(values.part("ln_f.weight", ((0, 32),)), drawn_state(1)["ln_f.weight"])
    again, _ = begin(tmp_path, replace(options, checkpoint=str(tmp_path / "empty")), Store(), 0)  # type: ignore[arg-type]
    assert (again.first_step, again.steps) == (0, 9)


class _Refusing:
    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None: ...

    def fileno(self) -> int:
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("after", [0, 5, 60])
def test_a_full_disk_is_told_with_its_numbers_and_the_last_good_one_stays(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "data2", drawn_state(1), 1)
    monkeypatch.setattr(folder_module._Counted, "write", _full(after))
    with pytest.raises(
        RegistaError, match=r"checkpoint of step 2 failed.*cannot write .*, [0-9]+ bytes.*No space left on device; [0-9]+ bytes are free"
    ):
        save(tmp_path, "data2", drawn_state(2), 2)
    monkeypatch.undo()
    assert latest(tmp_path) == tmp_path / "step-00000001" and verify(tmp_path / "step-00000001").step == 1


@pytest.mark.thorough
def test_a_file_beyond_the_kernels_limit_is_told_with_its_numbers(tmp_path: Path) -> None:
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from backend.checkpoint.folder import write_part\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"write_part(Path({str(tmp_path)!r}) / 'x.pt', {{'w': torch.zeros(100_000)}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120)
    assert done.returncode == 1
    assert "InvalidFile: cannot write" in done.stderr and "File too large" in done.stderr and "bytes are free there" in done.stderr


def test_size_and_checksum_are_those_of_the_file(tmp_path: Path) -> None:
    import zlib

    written = write_part(tmp_path / "x.pt", {"w": torch.arange(1000.0)})
    data = (tmp_path / "x.pt").read_bytes()
    assert (written.name, written.size_bytes, written.crc32) == ("x.pt", len(data), zlib.crc32(data))


# The task.


def test_saving_adds_one_reader_of_all_state_per_placement_and_nothing_else() -> None:
    for way in WAYS:
        plan = plan_for(way)
        saving = with_saving(plan)
        extra = [task for task in saving.tasks if task.id not in plan.task]
        assert {task.kind for task in extra} == {TaskKind.SAVE} and all(task.acts == 1 and not task.produces for task in extra)
        assert sorted(a.name for task in extra for a in task.reads) == sorted(homes(plan))
        assert with_saving(saving) is saving
        assert replace(saving, tasks=plan.tasks, streams=plan.streams).plan_id == plan.plan_id


def _saver(folder: Path, store: Store, every: int) -> tuple[Saver, Any, list[Tensor]]:
    plan = with_saving(plan_for("one"))
    (task,) = [task for task in plan.tasks if task.kind is TaskKind.SAVE]
    parts = initial_states(plan, 0, drawn_state(1))
    saver = Saver(plan, 0, SaveRequest(folder=str(folder), every=every), store, run_id="t")
    return saver, task, [parts[access.regst, access.index] for access in task.reads]


def test_an_act_returns_before_anything_is_written_and_the_next_save_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So training goes on during a save, and at most one copy of the state is staged."""
    go, order = threading.Event(), []
    real = folder_module.write_part

    def slow(path: Path, tensors: Mapping[str, Tensor], told: Any) -> Any:
        go.wait()
        order.append(f"written {path.parent.name[:14]}")
        return real(path, tensors, told)

    monkeypatch.setattr("backend.checkpoint.saver.write_part", slow)
    saver, task, values = _saver(tmp_path, Store(), every=2)
    for number in (0, 1, 2, 3):
        saver.act(task, number, values)
        order.append(f"act {number}")
    second = threading.Thread(target=lambda: (saver.act(task, 4, values), order.append("act 4")))
    second.start()
    second.join(0.2)
    assert order == ["act 0", "act 1", "act 2", "act 3"] and second.is_alive()
    go.set()
    second.join()
    saver.end(6, lambda regst, index: values[[(a.regst, a.index) for a in task.reads].index((regst, index))])
    assert order.index("written .step-00000002") < order.index("act 4")
    assert saver.saved == [2, 4, 6] == list(steps_of(tmp_path))


def test_a_checkpoint_holds_the_values_of_its_act_though_they_change_at_once(tmp_path: Path) -> None:
    saver, task, values = _saver(tmp_path, Store(), every=1)
    before = {access.name: value.clone() for access, value in zip(task.reads, values, strict=True)}
    saver.act(task, 1, values)
    for value in values:
        value.zero_()
    saver.end(2, lambda regst, index: values[[(a.regst, a.index) for a in task.reads].index((regst, index))])
    saved = Saved(str(tmp_path / "step-00000001"))
    assert all(torch.equal(saved.part(name, whole_box(tuple(value.shape))), value) for name, value in before.items())


def test_a_failed_save_fails_the_next_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module._Counted, "write", _full(3))
    saver, task, values = _saver(tmp_path, Store(), every=1)
    saver.act(task, 1, values)
    while saver._error is None:
        time.sleep(0.01)
    with pytest.raises(RegistaError, match="the checkpoint of step 1 failed: cannot write"):
        saver.act(task, 2, values)


@pytest.mark.representatives("Engine.SIMPY-data2", "Engine.COMPILED-pipeline2")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("engine", list(Engine))
def test_a_plan_that_saves_is_simulated_within_the_laws_and_no_slower_where_the_copy_hides(way: str, engine: Engine) -> None:
    """The copy is shorter than a forward and backward pass, so the next update does not wait for it."""
    plan, saving = plan_for(way), with_saving(plan_for(way))
    cost = AnalyticCost(plan.cluster)
    trace = simulate(saving, cost, steps=3, engine=engine)
    check_trace(saving, trace)
    check_trace(plan, without_saving(plan, trace))
    alone = simulate(plan, cost, steps=3, engine=engine)
    ends = max(act.end_s for act in trace.acts if act.task in plan.task)
    assert ends == pytest.approx(max(act.end_s for act in alone.acts), rel=1e-9)


def test_a_slow_copy_delays_the_next_update_and_nothing_before_it() -> None:
    """Act k of SAVE and update k read and write one block (quota 1): the update starts when the copy has ended."""
    plan = with_saving(plan_for("one"))
    fast, cost = AnalyticCost(plan.cluster), _SlowSave(10.0)
    trace = simulate(plan, cost, steps=2)
    check_trace(plan, trace)
    (save,) = [task for task in plan.tasks if task.kind is TaskKind.SAVE]
    (ended,) = [act.end_s for act in trace.acts if act.task == save.id and act.number == 0]
    stored = {access.regst for access in save.reads}
    updates = [task.id for task in plan.tasks if any(port.regst in stored for port in task.produces)]
    assert min(act.start_s for act in trace.acts if act.task in updates and act.number == 0) == pytest.approx(ended)
    alone = {(a.task, a.number): a.start_s for a in simulate(plan, fast, steps=2).acts}
    before = [act for act in trace.acts if act.number < plan.task[act.task].acts and plan.task[act.task].kind.is_backward]
    assert before and all(act.start_s == pytest.approx(alone[act.task, act.number]) for act in before)


class _SlowSave(AnalyticCost):
    """Prices of the cluster, but a save takes ``save_s``."""

    def __init__(self, save_s: float) -> None:
        super().__init__(plan_for("one").cluster)
        object.__setattr__(self, "save_s", save_s)

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return float(self.save_s) if task.kind is TaskKind.SAVE else super().act_s(plan, task, rank)  # type: ignore[attr-defined]
