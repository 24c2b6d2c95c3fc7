"""'regista train': a whole training is the training of one device, and an interrupted one that goes on is the undisturbed one, bit for bit."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from command_line import Command, commands
from torch import nn

import regista
import regista.training.loop as loop
from backend.checkpoint.owner import Owner, held, saving_run
from backend.monitor import Heartbeat
from planner.ir.errors import InvalidFile, InvalidProgram, Mismatch
from regista.training.folder import TrainFolder
from tests.regista.refusals.refusal import assert_refused

SCRIPT = """
import torch
from torch import nn
import regista

def job(steps=4, every=2, width=8):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.25), nn.Linear(width, 3))
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    program = regista.Program(module, (x[:8], y[:8]), loss=nn.functional.cross_entropy, optimizer=optimizer, lr_schedule=schedule,
                              clip_norm=0.5, name="small", seed=3)
    return regista.TrainJob(program=program, train_data=(x, y), eval_data=(x[:16], y[:16]), steps=steps, eval_every=every,
                            metrics=("accuracy",), cluster="local:1")

def wider():
    return job(width=16)

def nothing():
    return 3

def fails():
    raise ValueError("no data today")
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def made(script: Path, **arguments: int) -> regista.TrainJob:
    names: dict[str, object] = {}
    exec(script.read_text(), names)
    make = names["job"]
    assert callable(make)
    job = make(**arguments)
    assert isinstance(job, regista.TrainJob)
    return job


def one_device(job: regista.TrainJob) -> tuple[list[float], list[tuple[float, float]]]:
    """Losses of the steps and (loss, accuracy) of the evaluations, in plain PyTorch."""
    program, batches, evaluation = job.program, job.training(), job.evaluation()
    assert callable(batches.feed) and evaluation is not None and callable(evaluation.feed)
    module = program.module
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    losses, found = [], []
    for step in range(job.num_steps(batches)):
        optimizer.param_groups[0]["lr"] = program.step_numbers(step)["lr.0"]
        optimizer.zero_grad()
        batch = batches.feed(step)
        with program.drawing(step):
            loss = program.loss_of(module, batch)
            loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 2 == 0:
            module.eval()
            with torch.no_grad():
                pairs = [(module(x), y) for x, y in map(evaluation.feed, range(2))]
                mean = sum(nn.functional.cross_entropy(out, y).item() for out, y in pairs) / 2
                right = sum((out.argmax(1) == y).sum().item() for out, y in pairs) / 16
            module.train()
            found.append((mean, right))
    return losses, found


@pytest.mark.processes
def test_a_training_is_that_of_one_device(script: Path, tmp_path: Path) -> None:
    """With dropout, batch norm, schedule and clipping."""
    trained = regista.train(made(script, steps=2), tmp_path / "out")
    losses, found = one_device(made(script, steps=2))
    assert list(trained.history.losses().values()) == pytest.approx(losses, rel=1e-5)
    ((loss, right),) = found
    assert trained.last_evaluation == pytest.approx({"loss": loss, "accuracy": right}, rel=1e-5)


@pytest.mark.processes
@pytest.mark.thorough
def test_an_interrupted_training_goes_on_bit_for_bit(
    command: Command, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the midst of a run, after a checkpoint: the table and the states are those of the undisturbed training."""
    whole = command("train", f"{script}:job", "--out", tmp_path / "whole", "--json").json
    losses, found = one_device(made(script))
    assert whole["losses"] == pytest.approx(losses, rel=1e-5)
    assert [(e["loss"], e["accuracy"]) for e in whole["evaluations"].values()] == [pytest.approx(pair, rel=1e-5) for pair in found]
    assert list(whole["evaluations"]) == ["2", "4"]
    assert (tmp_path / "whole/curve.png").stat().st_size > 1000

    real, calls = loop.api.run, []

    def stopped(*args: object, **kwargs: object) -> object:
        calls.append(kwargs)
        if len(calls) == 2:
            on_progress = kwargs["on_progress"]
            assert callable(on_progress)
            on_progress(2, 1.0)
            raise KeyboardInterrupt
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.api, "run", stopped)
    ran = command("train", f"{script}:job", "--out", tmp_path / "cut")
    assert (ran.code, ran.err.splitlines()[-1]) == (
        130,
        f"regista train: interrupted; 2 steps are saved, go on: regista train {script}:job --out {tmp_path}/cut --resume",
    )
    monkeypatch.undo()
    assert_refused(
        command, tmp_path, "train", f"{script}:job", "--out", tmp_path / "cut", says=r"holds a training, saved after 2 steps.*--resume"
    )
    resumed = command("train", f"{script}:job", "--out", tmp_path / "cut", "--resume", "--json").json
    assert resumed["first_step"] == 2
    assert (tmp_path / "cut/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    last = {name: next((tmp_path / name / "checkpoints/step-00000004").glob("*.pt")) for name in ("cut", "whole")}
    states = {name: torch.load(path, weights_only=True) for name, path in last.items()}
    assert all(torch.equal(states["cut"][name], value) for name, value in states["whole"].items())
    with pytest.raises(Mismatch, match=r"the job's step is graph .* now"):
        regista.train(made(script, width=16), tmp_path / "cut", resume=True)


class Impatient:
    """Presses Ctrl-C when the loss of step 5 is told, and again a step later if ``twice``."""

    def __init__(self, *, twice: bool = False) -> None:
        self.presses = 1 + twice
        self.seen: list[int] = []

    def __call__(self, step: int, loss: float) -> None:
        self.seen.append(step)
        if step >= 5 and self.presses:
            self.presses -= 1
            raise KeyboardInterrupt

    def on_heartbeat(self, heartbeat: Heartbeat) -> None: ...

    def on_evaluation(self, step: int, values: dict[str, float]) -> None: ...


@pytest.mark.processes
@pytest.mark.parametrize("cluster", ["local:1", pytest.param("local:2", marks=pytest.mark.thorough)])
def test_a_training_that_is_stopped_saves_the_step_in_hand_and_goes_on_bit_for_bit(script: Path, tmp_path: Path, cluster: str) -> None:
    def job() -> regista.TrainJob:
        long = made(script, steps=20_000, every=0)  # never ended before a busy host has told of step 5
        return replace(
            long, cluster=cluster, eval_data=None, metrics=(), plan={} if cluster == "local:1" else {"stages": 2, "micro_batches": 2}
        )

    screen = Impatient()
    with pytest.raises(KeyboardInterrupt):
        regista.train(job(), tmp_path / "cut", watching=lambda plan, steps: nullcontext(screen))
    saved = TrainFolder(tmp_path / "cut").saved_steps
    assert saved is not None and 5 <= saved < 20_000
    regista.train(replace(job(), steps=saved + 3), tmp_path / "cut", resume=True)
    regista.train(replace(job(), steps=saved + 3), tmp_path / "whole")
    assert (tmp_path / "cut/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()


@pytest.mark.processes
@pytest.mark.thorough
def test_a_second_interrupt_ends_a_training_at_once(script: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    long = replace(made(script, steps=4000, every=0), eval_data=None, metrics=())
    with pytest.raises(KeyboardInterrupt):
        regista.train(long, tmp_path / "cut", watching=lambda plan, steps: nullcontext(Impatient(twice=True)))
    assert time.monotonic() - started < 60


def test_each_run_of_a_training_may_start_again_so_often(
    command: Command, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def stopped(*args: object, **kwargs: object) -> NoReturn:
        given.append((kwargs["max_restarts"], kwargs["save_when_interrupted"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.api, "run", stopped)
    assert command("train", f"{script}:job", "--out", tmp_path / "out", "--max-restarts", "2").code == 130
    assert given == [(2, True)]


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("script.py", "is no job; write SCRIPT.py:FUNCTION"),
        ("none.py:job", "none.py does not exist"),
        ("script.py:jobs", "has no function 'jobs'; it has job"),
        ("script.py:nothing", "returned a int; it must return a regista.TrainJob"),
        ("script.py:fails", "raised ValueError: no data today"),
        ("none.toml", "no such file"),
    ],
)
def test_what_is_no_job_is_refused_and_nothing_is_written(command: Command, script: Path, tmp_path: Path, job: str, says: str) -> None:
    assert_refused(command, tmp_path, "train", tmp_path / job, "--out", tmp_path / "out", says=says)


def test_options_that_contradict_a_job_are_refused(command: Command, script: Path, tmp_path: Path) -> None:
    goal = ("train", f"{script}:job", "--out", tmp_path / "out")
    assert_refused(command, tmp_path, *goal, "--steps", "3", "--epochs", "2", says="--steps 3 and --epochs 2 both say how long")
    assert_refused(command, tmp_path, *goal, "--cluster", "nowhere", says="nowhere")
    assert_refused(command, tmp_path, "train", f"{script}:job", "--out", script, says="is a file; give a folder")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": None}, "steps = None or epochs = None; give one of the two"),
        ({"epochs": 2}, "steps = 4 or epochs = 2"),
        ({"eval_every": -1}, "eval_every = -1; a whole number of at least 0"),
        ({"metrics": ("f1",)}, "metric 'f1' is not known"),
        ({"plan": {"micro_batch": 2}}, "a job has no plan option 'micro_batch'; did you mean micro_batches"),
        ({"plan": {"precision": "bf16-mixed"}}, "plan option precision is of the program that a job trains"),
        ({"eval_ema": True}, "the program keeps none; give Program\\(ema=0.999\\)"),
        ({"steps": None, "epochs": 1, "train_data": None}, "which has no length; give steps, or train_data"),
    ],
)
def test_a_job_that_cannot_be_is_refused(script: Path, change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        replace(made(script), **change)  # type: ignore[arg-type]


def test_evaluation_data_that_leaves_samples_over_is_refused_before_anything_is_written(script: Path, tmp_path: Path) -> None:
    job = replace(made(script), eval_data=(torch.randn(20, 4), torch.zeros(20, dtype=torch.int64)))
    with pytest.raises(InvalidProgram, match="eval_data leaves 4 samples over after 2 batches of 8"):
        regista.train(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("of", ["training", "run"])
def test_a_folder_in_which_another_training_goes_on_is_refused_before_a_plan_is_made(
    command: Command, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """Between its runs, while it evaluates, nothing held the folder; in a run the refusal came after two searches."""
    out = tmp_path / "out"
    monkeypatch.setattr(loop.api, "plan", None)
    with held(out if of == "training" else out / "checkpoints", Owner.here("one")):
        for more in ([], ["--resume"]):
            assert_refused(
                command, tmp_path, "train", f"{script}:job", "--out", out, *more, says=r"another run is saving into .* \(run one, started"
            )


def test_a_training_holds_its_folder_between_runs_and_gives_it_back(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object, **__: object) -> NoReturn:
        raise InvalidProgram(
            f"held by {saving_run(tmp_path / 'out')!r}, its checkpoints by {saving_run(tmp_path / 'out' / 'checkpoints')!r}"
        )

    monkeypatch.setattr(loop.api, "run", look)
    with pytest.raises(InvalidProgram, match="held by 'of training out', its checkpoints by ''"):
        regista.train(replace(made(script), eval_data=None, eval_every=0, metrics=()), tmp_path / "out")
    assert saving_run(tmp_path / "out") == "" and not list(tmp_path.rglob(".saving.json"))


def test_a_schedule_without_a_rate_is_refused_before_anything_is_written(script: Path, tmp_path: Path) -> None:
    job = made(script)
    broken = replace(job, program=job.program.updated_by(lr_schedule=lambda step: float("nan") if step == 3 else 0.1))
    with pytest.raises(InvalidProgram, match="the learning rate of step 3 is nan"):
        regista.train(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nmodel = 'zoo:mlp'\nstep = 3\n", r"\[train\] has no key 'step'; did you mean steps"),
        ("[train]\nsteps = 3\n", r"needs a section \[train\] with model"),
        ("[train]\nmodel = 'zoo:mlp'\nsteps = 'three'\n", r"steps = 'three': a whole number is needed"),
        ("[train]\nmodel = 'zoo:mlp'\nsteps = 3\n[plan]\nstage = 2\n", r"\[plan\] has no key 'stage'; did you mean stages"),
        ("[train\n", "not a readable TOML file"),
    ],
)
def test_a_toml_with_a_slip_is_refused_with_the_nearest_key(command: Command, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "job.toml").write_text(text)
    assert_refused(command, tmp_path, "train", tmp_path / "job.toml", "--out", tmp_path / "out", says=says)


@pytest.mark.processes
@pytest.mark.thorough
def test_a_toml_trains_what_the_zoo_has(command: Command, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        "[train]\nmodel = 'zoo:mlp?batch=8&width=16&hidden=16&depth=2'\nsteps = 3\ncluster = 'local:2'\n"
        "lr_schedule = 'linear:0.1?steps=3'\nclip_norm = 1\nprecision = 'bf16-mixed'\nsave_every = 1\nkeep = 0\n[plan]\nstages = 2\nmicro_batches = 2\n"
    )
    ran = command("train", tmp_path / "job.toml", "--out", tmp_path / "out", "--json").json
    assert len(ran["losses"]) == 3 and ran["evaluations"] == {}
    assert json.loads((tmp_path / "out/plan.json").read_text())["kind"]
    assert sorted(path.name for path in (tmp_path / "out/checkpoints").iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]


def test_a_folder_that_is_a_file_is_refused(script: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="is a file; give a folder"):
        regista.train(made(script), script)


class ByName(nn.Module):
    """Takes keywords and gives a mapping with its loss and logits, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.embed(ids))
        return {"loss": nn.functional.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}


@pytest.mark.processes
@pytest.mark.thorough
def test_an_evaluation_of_averages_is_that_of_the_averaged_module(script: Path, tmp_path: Path) -> None:
    plain = made(script, steps=2)
    job = replace(plain, program=plain.program.updated_by(ema=0.5), eval_ema=True)
    trained = regista.train(job, tmp_path / "out")
    direct = regista.run(trained.plan, job.program, steps=2, data=job.training().feed, performer=regista.Performer.REFERENCE)
    module, evaluation = job.program.module, job.evaluation()
    assert evaluation is not None and callable(evaluation.feed) and trained.last_evaluation is not None
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensor.copy_(direct.states.get(f"{name}:ema", direct.states[name]))
        module.eval()
        mean = sum(nn.functional.cross_entropy(module(x), y).item() for x, y in map(evaluation.feed, range(2))) / 2
    assert trained.last_evaluation["loss"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.processes
@pytest.mark.thorough
def test_inputs_by_name_and_outputs_by_name_reach_the_metrics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = {"ids": torch.randint(0, 11, (24, 5)), "labels": torch.randint(0, 11, (24, 5))}
    program = regista.Program(ByName(), {name: value[:8] for name, value in data.items()}, optimizer=regista.AdamW(lr=0.01))
    metrics = {"size": lambda outputs: outputs["logits"].abs().max()}
    job = regista.TrainJob(program=program, train_data=data, eval_data=data, epochs=1, metrics=metrics, cluster="local:2")
    trained = regista.train(job, tmp_path / "out")
    assert len(trained.history.rows) == 3
    evaluation = trained.last_evaluation
    assert evaluation is not None and 1.0 < evaluation["loss"] < 4.0 and evaluation["size"] > 0


@pytest.mark.processes
@pytest.mark.thorough
def test_data_by_description_is_read_by_the_workers(tmp_path: Path) -> None:
    import numpy as np

    np.random.default_rng(0).integers(0, 11, 8 * 5 * 6 + 1).astype("uint16").tofile(tmp_path / "tokens.bin")
    text = f"tokens:{tmp_path}/tokens.bin?seq=5"
    ids = torch.zeros(8, 5, dtype=torch.int64)
    program = regista.Program(ByName(), (ids, ids))
    job = regista.TrainJob(
        program=program, train_data=text, eval_data=f"{text}&shuffle=0", epochs=1, metrics=("perplexity",), cluster="local:2"
    )
    trained = regista.train(job, tmp_path / "out")
    assert len(trained.history.rows) == 6 and trained.last_evaluation is not None
