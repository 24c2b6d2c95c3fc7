"""The actor SAVE: what it reads, when it returns, what it delays."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_gpt import WAYS, plan_for
from torch import Tensor

import backend.checkpoint.folder as folder_module
from backend.checkpoint import Saved, SaveRequest
from backend.checkpoint.folder import steps_of
from backend.checkpoint.saver import Saver
from backend.initial.values import whole_box
from backend.memory.blocks import initial_states
from planner.cost import AnalyticCost
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan, Task, TaskKind
from planner.ir.traces.trace import check_trace
from planner.lower.data_actors.saving import saved_entries, with_saving, without_saving
from simulator import Engine, simulate
from tests.backend.checkpoint.checkpoint_cases import Store, drawn_state, full_disk


def test_saving_adds_one_reader_of_all_state_per_placement_and_nothing_else() -> None:
    for way in WAYS:
        plan = plan_for(way)
        saving = with_saving(plan)
        extra = [task for task in saving.tasks if task.id not in plan.task]
        assert {task.kind for task in extra} == {TaskKind.SAVE} and all(task.acts == 1 and not task.produces for task in extra)
        assert sorted(a.name for task in extra for a in task.reads) == sorted(saved_entries(plan))
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

    def slow(path: Path, tensors: Mapping[str, Tensor], notes: Any) -> Any:
        go.wait()
        order.append(f"written {path.parent.name[:14]}")
        return real(path, tensors, notes)

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


def test_a_prepared_file_is_torch_saves_to_the_last_byte_whenever_values_change(tmp_path: Path) -> None:
    """Small and large tensors, numbers, empty ones, and lengths of torch's own pieces."""
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
    tensors = {f"w{n}": torch.zeros(n, dtype=dtypes[n % 4]) for n in range(70)} | {
        "number": torch.zeros(()),
        "large": torch.zeros(700, 500),
    }
    prepared = folder_module.PreparedFile(tensors)
    for round_ in range(2):
        for n, tensor in enumerate(tensors.values()):
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) * (n + round_) % 251)
        torch.serialization.set_crc32_options(False)
        expected = folder_module.write_part(tmp_path / "expected.pt", tensors)
        torch.serialization.set_crc32_options(True)
        assert replace(folder_module.write_part(tmp_path / "made.pt", prepared), name="expected.pt") == expected
        assert (tmp_path / "made.pt").read_bytes() == (tmp_path / "expected.pt").read_bytes()
    loaded = torch.load(tmp_path / "made.pt", weights_only=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_the_last_save_hurries_though_the_one_before_it_is_still_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the one under way made it forget the hurry, so the run's end waited for a save that left the core to acts that had ended."""
    go, hurried = threading.Event(), []
    real = folder_module.write_part

    def watched(path: Path, tensors: Mapping[str, Tensor], notes: Any) -> Any:
        go.wait()
        hurried.append(saver._pace.hurry.is_set())
        return real(path, tensors, notes)

    monkeypatch.setattr("backend.checkpoint.saver.write_part", watched)
    saver, task, values = _saver(tmp_path, Store(), every=2)
    saver.act(task, 2, values)
    threading.Thread(target=lambda: (saver._pace.hurry.wait(), go.set())).start()
    saver.end(3, lambda regst, index: values[[(a.regst, a.index) for a in task.reads].index((regst, index))])
    assert hurried == [True, True]


def test_a_failed_save_fails_the_next_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module._Counted, "write", full_disk(3))
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
