"""Options that cannot be granted are refused by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import TINY, Command

from backend.checkpoint import owner
from backend.checkpoint.owner import Owner, held
from tests.regista.refusals.refusal import assert_refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pin", "foo"], "pin 'foo': write PATTERN=SBP"),
        (["--pin", "=S(0)"], "write PATTERN=SBP"),
        (["--pin", "head.weight=Q"], "'Q' is not an SBP; write S"),
        (["--pin", "head.weight=P"], "only values can be pinned"),
        (["--pin", "nothing=S(0)"], "names no parameter, state or input of the model; names are like"),
        (["--pin", "out:nothing=S(0)"], "names no module of the model"),
        (["--pin", "head.weight=S(0)", "--pin", "head.*=S(1)"], "contradict each other on head.weight|does not split evenly"),
        (["--pin", "head.weight=S(0),B"], "has 2 entries, the mesh 2 has 1 axes; write one per axis"),
        (["--pin", "head.weight=S(5)"], "does not split evenly"),
        (["--stages", "3"], "3 stages do not divide the 2 devices"),
        (["--stages", "0"], "--stages: 0: at least 1"),
        (["--stages", "two"], "--stages: invalid whole number or auto value: 'two'"),
        (["--stages", "2", "--cut", "nope"], "cut at module 'nope': .*modules are"),
        (["--cut", "head"], "1 cuts make 2 stages, but 1 stages were asked for"),
        (["--mesh", "2,2"], "mesh 2x2 has 4 places, but each of 1 stages has 2 devices"),
        (["--mesh", "0,2"], "mesh 0x2 has 0 places"),
        (["--mesh", "a"], "mesh 'a': write numbers joined by commas"),
        (["--micro-batches", "9"], r"9 micro-batches do not divide a batch of 8; choose one of \[1, 2, 4, 8\]"),
        (["--micro-batches", "0"], "--micro-batches: 0: at least 1"),
        (["--quota", "x"], "write PATTERN=N"),
        (["--quota", "*=²"], "write PATTERN=N"),
        (["--quota", "*=0"], r"quota \*=0: an actor needs at least 1 block"),
        (["--quota", "nomatch=2"], "no regst has such an id; ids are"),
        (["--bucket-mb", "nan"], "--bucket-mb: nan: a finite number above 0"),
        (["--clip-norm", "-1"], "--clip-norm: -1: a finite number above 0"),
        (["--clip-norm", "nan"], "--clip-norm: nan: a finite number above 0"),
        (["--clip-value", "0"], "--clip-value: 0: a finite number above 0"),
        (["--ema", "1"], "--ema: 1: a number between 0 and 1"),
        (["--lr-schedule", "constant:nan"], "'constant:nan': the rate is nan; give a finite number of at least 0"),
        (["--lr-schedule", "linear:0.1"], "steps is missing"),
        (["--precision", "bf8"], "precision .bf8. is unknown; it is one of fp32, bf16-mixed, fp16-mixed"),
        (
            ["--precision", "fp16-mixed", "--loss-scale", "0"],
            "loss scale '0': the scale is 0; give a finite number above 0; write dynamic:FIRST",
        ),
        (["--precision", "fp16-mixed", "--loss-scale", "nan"], "the scale is nan; give a finite number above 0"),
        (["--precision", "fp16-mixed", "--loss-scale=-8"], "the scale is -8; give a finite number above 0"),
        (
            ["--precision", "fp16-mixed", "--loss-scale", "fixed:1e39"],
            "the scale of the loss is 1e\\+39; give a number above 0 that float32 holds",
        ),
        (["--precision", "fp16-mixed", "--loss-scale", "dynamic:8?interval=0"], "interval is 0; give a finite number above 0"),
        (["--precision", "fp16-mixed", "--loss-scale", "dynamic:8?interval=1.5"], "interval is 1.5; give a whole number of steps"),
        (["--precision", "fp16-mixed", "--loss-scale", "dynamic:8?growth=1"], "the scale grows by a factor above 1"),
        (["--precision", "fp16-mixed", "--loss-scale", "fixed:8?growth=2"], "growth is not known; fixed has no options"),
        (["--precision", "fp16-mixed", "--loss-scale", "static:8"], "'static:8' is not understood; write dynamic:FIRST"),
        (["--loss-scale", "8"], "a loss scale belongs to precision fp16-mixed; the program computes in fp32: leave it out"),
        (
            ["--mode", "eval", "--precision", "fp16-mixed", "--loss-scale", "8"],
            "an evaluation updates nothing, and loss_scale was asked for",
        ),
        (["--grad-dtype", "int8"], "grad_dtype .int8. is unknown; it is one of fp32, bf16"),
        (["--schedule", "zigzag"], "choose from '1f1b', 'gpipe'"),
        (["--stage", "2"], "unrecognized arguments: --stage 2"),
    ],
)
def test_an_option_that_cannot_be_granted_is_refused_by_name(command: Command, tmp_path: Path, options: list[str], says: str):
    assert_refused(command, tmp_path, "plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json", *options, says=says)


def test_a_pin_that_cuts_unevenly_is_refused_with_the_shape(command: Command, tmp_path: Path):
    goal = ("--cluster", "local:2", "-o", tmp_path / "p.json", "--pin", "head.weight=S(0)")
    assert_refused(
        command, tmp_path, "plan", TINY + "&classes=5", *goal, says=r"head.weight has shape \(5, 16\), which does not split evenly"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "arguments are required: VERB; 'regista --help'"),
        (["plan"], "arguments are required: MODEL, --cluster, -o/--out; 'regista plan --help'"),
        (["nope"], "invalid choice: 'nope'"),
        (["run", "p.json", "--steps", "0"], "--steps: 0: at least 1"),
        (["simulate", "p.json", "--steps", "-1"], "--steps: -1: at least 1"),
        (["simulate", "p.json", "--steps", "1.5"], "--steps: invalid whole number value"),
        (["demo", "--steps", "0"], "--steps: 0: at least 1"),
        (["gantt", "t.json", "--steps", "0", "-o", "g.png"], "--steps: 0: at least 1"),
        (["calibrate", "--rounds", "0", "-o", "c.toml"], "--rounds: 0: at least 1"),
        (["run", "p.json", "--timeout", "nan"], "--timeout: nan: a finite number above 0"),
        (["run", "p.json", "--performer", "nccl"], "choose from 'gloo', 'threads', 'reference'"),
    ],
)
def test_arguments_that_make_no_command_are_refused_in_one_line(command: Command, tmp_path: Path, arguments: list[str], says: str):
    message = assert_refused(command, tmp_path, *arguments, says=says)
    assert message.count("\n") == 1


def test_an_option_without_meaning_here_is_refused_not_ignored(command: Command, made: dict[str, Path], tmp_path: Path):
    assert_refused(command, tmp_path, "run", made["plan"], "--performer", "reference", "--timeout", "3", says="--timeout watches processes")
    assert_refused(
        command, tmp_path, "calibrate", made["plan"], "--cluster", "local:2", "-o", tmp_path / "c", says="has no meaning beside a plan"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--graphs"], "graphs, ahead, tf32 and deterministic are options of devices with streams, and all ranks are on CPUs"),
        (["--performer", "threads", "--ahead", "2"], "options of devices with streams"),
        (["--performer", "threads", "--tf32"], "leave them out, or give --device"),
        (["--ahead", "0"], "--ahead: 0: at least 1"),
        (["--device", "fake:8"], "device fake:8 of rank 0: this host has 8 fake devices, numbered from 0"),
        (["--device", "cuda:99"], r"device cuda:99 of rank 0: this host has \d+ cuda devices, numbered from 0; use --device cpu"),
        (["--device", "tpu"], "'tpu' is not known; it is cpu, cuda"),
        (["--device", "0=cpu,1=fake:0"], "ranks 0 on cpu, 1 on fake:0 meet in collectives"),
        (["--device", "fake", "--ahead", "2"], "ahead is an option of all ranks in one process"),
        (["--performer", "reference", "--device", "fake"], "performer reference runs on CPUs; use performer gloo or threads"),
        (["--performer", "threads", "--device", "cuda:0", "--deterministic"], "CUBLAS_WORKSPACE_CONFIG is not set; set it to :4096:8"),
    ],
)
def test_an_option_of_devices_that_would_be_ignored_is_refused(command: Command, tmp_path: Path, options: list[str], says: str):
    plan = tmp_path / "p.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    assert_refused(command, tmp_path, "run", plan, "--steps", "1", *options, says=says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trace-steps", "every:7"], "every:7 name no step of a run of 6 steps; give 6 or less"),
        (["--trace-steps", "last:-1"], "'last:-1' is none of first:N, last:N, every:N"),
        (["--trace-steps", "soon"], "for example first:20,last:20,every:1000"),
        (["--trace-steps", "first:2", "--performer", "threads"], "--trace-steps belongs to a run on real processes"),
        (["--waiting", "sleep", "--performer", "threads"], "--waiting belongs to a run on real processes"),
    ],
)
def test_a_selection_of_steps_that_cannot_be_met_is_refused_before_the_run(
    command: Command, made: dict[str, Path], tmp_path: Path, options: list[str], says: str
):
    assert_refused(command, tmp_path, "run", made["plan"], "--steps", "6", *options, "-o", tmp_path / "run.json", says=says)


@pytest.mark.parametrize("more", [[], ["--resume"], ["--nnodes", "2", "--rdzv", "127.0.0.1:1"]])
def test_a_checkpoint_folder_in_use_by_another_run_is_refused_at_once_and_before_the_run(
    command: Command, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
):
    monkeypatch.setenv("REGISTA_SECRET", "00" * 32)
    monkeypatch.setattr(owner, "time", SimpleNamespace(monotonic=time.monotonic, sleep=None))  # nothing waits
    saves = tmp_path / "saves"
    saves.mkdir()
    with held(saves, Owner.here("one")):
        arguments = ("run", made["plan"], "--checkpoint", saves, "-o", tmp_path / "run.json", *more)
        says = rf"another run is saving into {saves} \(run one, started by process {os.getpid()} of host .*\); wait for its end, or give another"
        assert_refused(command, tmp_path, *arguments, says=says)
