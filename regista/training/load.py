"""Jobs from files: a function of a script that returns a TrainJob, or a TOML with a section [train].

[train]
model = "zoo:gpt?layers=2"                 # as 'regista plan' takes it
data = "tokens:corpus.bin?seq=128"         # training; left out: the program's own batches
eval_data = "tokens:held_out.bin?seq=128&shuffle=0"
steps = 1000                               # or epochs
eval_every = 100
metrics = ["perplexity"]
save_every = 200
keep = 3
cluster = "local:2"
lr_schedule = "cosine:1e-3?warmup=100&steps=1000"
clip_norm = 1.0                            # clip_value, ema, precision = "fp16-mixed", loss_scale = "fixed:1024", grad_dtype, attention

[plan]                                     # as arguments of regista.plan
stages = 2
micro_batches = 4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import regista.api as api
from planner.frontend.load import function_of_file
from planner.ir.errors import InvalidFile, InvalidProgram, RegistaError
from planner.ir.reading import read_toml
from regista.sweep.keys import known_keys
from regista.training.job import PLAN_OPTIONS, TrainJob
from regista.update_options import UpdateOptions, asked_formats

__all__ = ["load_job"]

_Kinds = type | tuple[type, ...]
_UPDATE: dict[str, _Kinds] = {
    "lr_schedule": str,
    "clip_norm": (int, float),
    "clip_value": (int, float),
    "ema": float,
    "loss_scale": (int, float, str),
}
_FORMATS = ("precision", "grad_dtype", "attention")
_JOB: dict[str, _Kinds] = {
    "model": str,
    "data": str,
    "eval_data": str,
    "steps": int,
    "epochs": int,
    "eval_every": int,
    "eval_ema": bool,
    "metrics": list,
    "save_every": int,
    "keep": int,
    "cluster": str,
    **dict.fromkeys(_FORMATS, str),
    **_UPDATE,
}


def load_job(text: str) -> TrainJob:
    """The job that ``SCRIPT.py:FUNCTION`` or ``FILE.toml`` says.

    Raises:
        InvalidFile, InvalidProgram: what is missing or cannot be, and the way out.
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        return _of_script(Path(path), name)
    if text.endswith(".toml"):
        return _of_toml(Path(text))
    raise InvalidProgram(
        f"{text!r} is no job; write SCRIPT.py:FUNCTION, a function without arguments that returns a regista.TrainJob, or FILE.toml"
    )


def _of_script(path: Path, name: str) -> TrainJob:
    where = f"{path}:{name}"
    with function_of_file(path, name) as function:
        job = _called(function, where)
    if not isinstance(job, TrainJob):
        raise InvalidProgram(f"{where} returned a {type(job).__name__}; it must return a regista.TrainJob")
    return job


def _called(function: Callable[[], object], where: str) -> object:
    try:
        return function()
    except RegistaError:
        raise
    except (Exception, SystemExit) as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidProgram(f"{where} raised {type(error).__name__}: {text}; mend the function") from error


def _of_toml(path: Path) -> TrainJob:
    data = read_toml(path, "give a job (TOML)")
    try:
        return _parsed(data)
    except InvalidFile as error:
        raise InvalidFile(f"{path}: {error}") from error


def _parsed(data: Mapping[str, Any]) -> TrainJob:
    known_keys(data, ("train", "plan"), "a job")
    asked, plan = data.get("train"), data.get("plan", {})
    if not isinstance(asked, Mapping) or not isinstance(plan, Mapping) or "model" not in asked:
        raise InvalidFile('a job needs a section [train] with model = "zoo:NAME" or "file.py:factory", and may have a section [plan]')
    known_keys(asked, _JOB, "[train]")
    known_keys(plan, PLAN_OPTIONS, "[plan]")
    for key, value in asked.items():
        if isinstance(value, bool) != (_JOB[key] is bool) or not isinstance(value, _JOB[key]):
            raise InvalidFile(f"[train] {key} = {value!r}: {_named(_JOB[key])} is needed")
    program = asked_formats(api.program_of(asked["model"]), *map(asked.get, _FORMATS))
    program = UpdateOptions(**{key: asked[key] for key in _UPDATE if key in asked}).applied(program)
    rest = {key: value for key, value in asked.items() if key not in (*_UPDATE, *_FORMATS, "model", "data", "metrics")}
    return TrainJob(program=program, train_data=asked.get("data"), metrics=tuple(asked.get("metrics", ())), plan=dict(plan), **rest)


def _named(kinds: _Kinds) -> str:
    words = {bool: "true or false", str: "a text", int: "a whole number", float: "a number", list: "a list"}
    if isinstance(kinds, type):
        return words[kinds]
    return "a number or a text" if str in kinds else "a number"
