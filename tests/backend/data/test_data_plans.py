"""Plans that read their own data: the same numbers as Python-fed ones, lawful traces, bounded read-ahead, and an end to every fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import backend
import regista
from backend.data import Loader, open_source, parse_source
from backend.data.describe import Arrays
from backend.launch.session import Session
from backend.run_folder.outcome import Outcome
from planner.frontend import Program
from planner.ir.errors import InvalidFile, InvalidProgram, WorkerFailed
from planner.ir.plan import Plan, TaskKind
from planner.ir.traces.trace import Trace, check_trace
from planner.lower.data_actors.loading import with_loading
from regista.api import program_of
from regista.calibrate import cost_of
from simulator import simulate

STEPS, SEQ, IMAGE = 3, 8, 8
GPT = f"zoo:gpt?layers=2&batch=12&seq={SEQ}&vocab=32&width=8&heads=2"
CONVNET = f"zoo:convnet?batch=8&size={IMAGE}&channels=2&classes=3"

WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "one device": (GPT, {"cluster": "local:1", "micro_batches": 2}),
    "data parallel": (GPT, {"cluster": "local:2", "mesh": (2,), "micro_batches": 2, "pins": ["input.*=S(0)"]}),
    "tensor parallel": (GPT, {"cluster": "local:2", "mesh": (2,), "micro_batches": 2, "pins": ["h.*.mlp.c_fc.weight=S(0)", "input.*=B"]}),
    "2 x 2": (GPT, {"cluster": "local:4", "mesh": (2, 2), "micro_batches": 2, "pins": ["input.0=S(0),S(1)", "input.1=S(0),B"]}),
    "split sequence": (GPT, {"cluster": "local:2", "mesh": (2,), "micro_batches": 1, "pins": ["input.0=S(1)"]}),
    "pipeline": (GPT, {"cluster": "local:2", "stages": 2, "micro_batches": 3}),
    "zero bubble": (GPT, {"cluster": "local:2", "stages": 2, "micro_batches": 4, "schedule": "zb-h1"}),
    "images": (CONVNET, {"cluster": "local:2", "mesh": (2,), "micro_batches": 2, "pins": ["input.0=S(0)"]}),
}


@cache
def program(model: str) -> Program:
    return program_of(model)


@cache
def planned(way: str) -> tuple[Plan, Program]:
    model, options = WAYS[way]
    source = program(model)
    return regista.plan(source, **options), source  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rng.integers(0, 32, 64 * SEQ + 1).astype("<u2").tofile(path / "tokens.bin")
    for label in range(3):
        (path / "images" / f"class{label}").mkdir(parents=True)
        for number in range(7):
            pixels = rng.integers(0, 256, (12 + number, 20, 3), np.uint8)
            Image.fromarray(pixels).save(path / "images" / f"class{label}" / f"{number}.png")
    return path


def described(way: str, data: Path) -> str:
    return f"images:{data}/images?size={IMAGE}" if way == "images" else f"tokens:{data}/tokens.bin?seq={SEQ}&vocab=32"


def perform(plan: Plan, source: Program, batches: Callable[[int], tuple[Tensor, ...]]) -> Outcome:
    return backend.perform(plan, source.initial_state(plan.micro_batches), batches, STEPS, gradients=True)


def assert_equal(outcome: Outcome, wanted: Outcome) -> None:
    """To the last bit: the same numbers enter, and the same fragments compute."""
    assert outcome.losses == wanted.losses
    for kind in ("states", "gradients"):
        for name, value in getattr(wanted, kind).items():
            assert torch.equal(getattr(outcome, kind)[name], value), f"{kind} {name}"


@pytest.mark.representatives(*list(WAYS)[::3])
@pytest.mark.parametrize("way", WAYS)
def test_a_chain_of_loading_actors_changes_no_number(way: str, data: Path) -> None:
    plan, source = planned(way)
    reader = open_source(parse_source(described(way, data)))
    whole = Loader(reader, plan)
    fed = perform(plan, source, lambda step: whole(step))  # batches from Python
    assert_equal(perform(plan, source, whole), fed)  # SOURCE reads and prepares at once
    for load_quota, copy in ((1, False), (2, True)):
        chained = with_loading(plan, reader.raw, load_quota=load_quota, copy=copy)
        outcome = perform(chained, source, Loader(reader, chained))
        assert_equal(outcome, fed)
        check_trace(chained, outcome.trace)


@pytest.mark.parametrize("plan", [handmade.data_parallel(4, 2), handmade.pipeline(2, width=2)], ids=["6 samples on 4 ranks", "2 x 2"])
def test_a_chain_changes_no_number_where_samples_do_not_divide_evenly(plan: Plan, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((17, handmade.WIDTH)).astype(np.float32))
    reader = open_source(Arrays(paths=(str(tmp_path / "x.npy"),)))
    whole = Loader(reader, plan)
    fed = backend.perform(plan, handmade.start(), lambda step: whole(step), STEPS, gradients=True)
    chained = with_loading(plan, reader.raw, copy=True)
    assert_equal(backend.perform(chained, handmade.start(), Loader(reader, chained), STEPS, gradients=True), fed)


def test_a_python_feed_may_be_copied_by_an_actor_too() -> None:
    plan, source = planned("pipeline")
    assert_equal(perform(with_loading(plan, copy=True), source, source.batch), perform(plan, source, source.batch))


def test_a_wrong_performer_that_skips_preparing_is_caught(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: PREPARE gives the targets for the inputs."""
    plan, source = planned("data parallel")
    reader = open_source(parse_source(described("data parallel", data)))
    chained = with_loading(plan, reader.raw)
    fed = perform(plan, source, Loader(reader, plan))
    plain = type(reader).prepare
    monkeypatch.setattr(type(reader), "prepare", lambda self, raw, inputs: plain(self, raw, [1 for _ in inputs]))
    with pytest.raises(AssertionError):
        assert_equal(perform(chained, source, Loader(reader, chained)), fed)


def test_ranks_of_one_data_parallel_group_read_different_samples_and_together_all(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = planned("data parallel")
    reader = open_source(parse_source(described("data parallel", data)))
    chained = with_loading(plan, reader.raw)
    served = Loader(reader, chained)
    assert read_by(served, chained, monkeypatch) == [served.samples(0, 0, (0, 3)), served.samples(0, 0, (3, 3))]


def test_ranks_of_one_tensor_parallel_group_read_the_same_samples(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = planned("tensor parallel")
    reader = open_source(parse_source(described("tensor parallel", data)))
    chained = with_loading(plan, reader.raw)
    served = Loader(reader, chained)
    assert read_by(served, chained, monkeypatch) == [served.samples(0, 0, (0, 6))] * 2


def read_by(served: Loader, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Samples that each rank's first SOURCE act reads."""
    (source,) = [task for task in plan.tasks if task.kind is TaskKind.SOURCE]
    samples_read: list[list[int]] = []
    plain = type(served.reader).read
    monkeypatch.setattr(
        type(served.reader), "read", lambda self, samples, raw: (samples_read.append(list(samples)), plain(self, samples, raw))[1]
    )
    for rank in plan.ranks_of(source):
        served.source(plan, source, rank, 0)
    return samples_read


def test_batches_from_python_do_not_fit_a_chain_that_reads(data: Path) -> None:
    plan, source = planned("one device")
    chained = with_loading(plan, open_source(parse_source(described("one device", data))).raw)
    with pytest.raises(InvalidProgram, match="only a reader gives"):
        perform(chained, source, source.batch)


def test_a_chain_is_simulated_by_its_laws_and_by_both_engines(data: Path) -> None:
    plan, _ = planned("pipeline")
    chained = regista.with_data(plan, described("pipeline", data), copy=True)
    one, other = (regista.simulate(chained, steps=3, engine=engine) for engine in ("simpy", "compiled"))
    check_trace(chained, one)
    when = [{(a.task, a.rank, a.number): (a.start_s, a.end_s) for a in trace.acts} for trace in (one, other)]
    assert when[0].keys() == when[1].keys()
    for act, span in when[0].items():
        assert span == pytest.approx(when[1][act]), act


# Real processes.


@pytest.mark.representatives("pipeline")
@pytest.mark.processes
@pytest.mark.parametrize("way", ["data parallel", "pipeline", "images"])
def test_on_real_processes_a_chain_changes_no_number(way: str, data: Path) -> None:
    plan, source = planned(way)
    reader = open_source(parse_source(described(way, data)))
    chained = with_loading(plan, reader.raw, copy=True)
    state = source.initial_state(plan.micro_batches)
    wanted = backend.run(plan, state, Loader(reader, plan), STEPS, gradients=True, timeout_s=60)
    outcome = backend.run(chained, state, Loader(reader, chained), STEPS, gradients=True, timeout_s=60)
    assert_equal(outcome, wanted)
    check_trace(chained, outcome.trace)
    # The first step's loss comes before any update, whose rounding differs between performers.
    assert outcome.losses[0] == pytest.approx(perform(plan, source, Loader(reader, plan)).losses[0], rel=1e-6)


def ahead(plan: Plan, trace: Trace) -> int:
    """The most micro-batches on one rank that SOURCE has begun and the last compute task has not ended."""
    (first,) = [task.id for task in plan.tasks if task.kind is TaskKind.SOURCE]
    last = [task.id for task in plan.tasks if task.kind is TaskKind.BACKWARD][-1]
    most = 0
    for rank in plan.ranks_of(plan.task[first]):
        events = [(act.start_s, 1) for act in trace.acts if (act.task, act.rank) == (first, rank)]
        events += [(act.end_s, -1) for act in trace.acts if (act.task, act.rank) == (last, rank)]
        now = 0
        for _, change in sorted(events):
            now += change
            most = max(most, now)
    return most


@pytest.mark.thorough
@pytest.mark.processes
def test_on_real_processes_quotas_bound_how_far_the_loader_runs_ahead(data: Path) -> None:
    plan, source = planned("one device")
    seen = {}
    for load_quota in (1, 3):
        chained = regista.with_data(plan, described("one device", data), load_quota=load_quota)
        outcome = regista.run(chained, source, steps=12, data=described("one device", data), timeout_s=60)
        seen[load_quota] = ahead(chained, outcome.trace)
        blocks = [r.quota for r in chained.regsts if r.producer is not None and chained.task[r.producer].kind.is_loading]
        assert seen[load_quota] <= blocks[0] + max(blocks[1:])
    assert seen[3] > seen[1]


@pytest.mark.thorough
@pytest.mark.processes
def test_calibration_prices_every_actor_of_a_chain(data: Path) -> None:
    plan, source = planned("one device")
    chained = regista.with_data(plan, described("one device", data), copy=True)
    loader = Loader(open_source(parse_source(described("one device", data))), chained)
    cost = cost_of(chained, backend.profile(chained, source.initial_state(2), loader, rounds=3, warmup=1))
    assert all(cost.act_s(chained, task, 0) > 0 for task in chained.tasks)
    check_trace(chained, simulate(chained, cost, steps=2))


def _at_step(number: int, change: Callable[[], object]) -> Callable[[int, float], None]:
    def at_step(step: int, loss: float) -> None:
        if step == number:
            change()

    return at_step


@pytest.mark.processes
def test_a_file_that_is_cut_short_while_it_is_read_ends_the_run_by_name(tmp_path: Path) -> None:
    """With a mapped file this was the end by SIGBUS, of which nobody can tell what was read; so files are read, not mapped."""
    plan, source = planned("data parallel")
    path = tmp_path / "tokens.bin"
    np.zeros(4096 * SEQ + 1, "<u2").tofile(path)
    text = f"tokens:{path}?seq={SEQ}"
    chained = regista.with_data(plan, text)
    cut = _at_step(5, lambda: os.truncate(path, 4096))
    begin = time.monotonic()
    with pytest.raises(
        WorkerFailed, match=r"rank [01] failed in task s0\.source \(act \d+, micro-batch [01]\): data file .* has 4096 bytes, it had 65538"
    ):
        regista.run(chained, source, steps=100_000, data=text, timeout_s=60, on_progress=cut)
    assert time.monotonic() - begin < 60


def _overwrite(path: Path, content: bytes) -> None:
    """Other bytes in a file that keeps its length all the while."""
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.thorough
@pytest.mark.processes
def test_an_image_that_is_damaged_while_training_ends_the_run_by_name(tmp_path: Path) -> None:
    plan, source = planned("images")
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "x.bmp"
    Image.fromarray(np.zeros((IMAGE, IMAGE, 3), np.uint8)).save(path)
    content = path.read_bytes()
    text = f"images:{tmp_path}?size={IMAGE}"
    chained = regista.with_data(plan, text)
    damage = _at_step(3, lambda: _overwrite(path, bytes(len(content))))
    with pytest.raises(WorkerFailed, match=r"failed in task s0\.prepare \(act \d+, micro-batch [01]\): data file .*x\.bmp is not an image"):
        regista.run(chained, source, steps=100_000, data=text, timeout_s=60, on_progress=damage)


@pytest.mark.thorough
@pytest.mark.processes
def test_storage_that_does_not_answer_ends_the_run_within_the_timeout() -> None:
    plan, source = planned("one device")
    text = f"synthetic:int64[{SEQ}]:32,int64[{SEQ}]:32?wait_s=1000"
    chained = regista.with_data(plan, text)
    begin = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"s0\.source act 0 is running and does not end"):
        regista.run(chained, source, steps=2, data=text, timeout_s=3)
    assert time.monotonic() - begin < 30


@pytest.mark.processes
def test_a_worker_without_the_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a second host that does not have the file: the parent opened it, and it went away before the workers came."""
    plan, source = planned("data parallel")
    path = tmp_path / "tokens.bin"
    np.zeros(64 * SEQ + 1, "<u2").tofile(path)
    loader = Loader(open_source(parse_source(f"tokens:{path}?seq={SEQ}")), plan)
    path.unlink()
    with pytest.raises(WorkerFailed, match=r"tokens\.bin cannot be read: No such file"):
        backend.run(plan, source.initial_state(2), loader, STEPS, timeout_s=60)


def test_data_that_is_not_there_is_refused_before_anything_starts() -> None:
    plan, source = planned("one device")
    with pytest.raises(InvalidFile, match="nowhere cannot be read"):
        regista.run(plan, source, data=f"tokens:/nowhere?seq={SEQ}")


@pytest.mark.processes
def test_a_session_reads_its_own_data(data: Path) -> None:
    plan, source = planned("data parallel")
    reader = open_source(parse_source(described("data parallel", data)))
    chained = with_loading(plan, reader.raw)
    served = Loader(reader, chained)
    wanted = backend.run(chained, source.initial_state(2), served, STEPS, timeout_s=60)
    with Session(chained, source.initial_state(2), data=served, timeout_s=60) as session:
        with pytest.raises(InvalidProgram, match="one of the two"):
            session.step(source.batch(0))
        losses = [handle.loss() for handle in [session.step() for _ in range(STEPS)]]
    assert tuple(losses) == wanted.losses
