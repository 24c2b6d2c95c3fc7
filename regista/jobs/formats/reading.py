"""Which framework a job is of, and the job: from a file, or from an argument string as it is typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_json, read_text, read_toml
from regista.jobs.cluster import machine_and_devices
from regista.jobs.formats.deepspeed import is_deepspeed, read_deepspeed
from regista.jobs.formats.megatron import read_megatron
from regista.jobs.formats.megatron.bridge import bridge_flags, is_bridge
from regista.jobs.formats.megatron.nemo import is_nemo, nemo_flags
from regista.jobs.formats.megatron.texts import config_flags, parse_arguments
from regista.jobs.formats.regista_toml import read_regista
from regista.jobs.formats.torchtitan import flat, preset_flags, python_flags, read_torchtitan
from regista.jobs.formats.values import Asked, Form, Reading
from regista.jobs.formats.yaml_file import read_yaml

__all__ = ["WAY_OUT", "read_framework"]

WAY_OUT = (
    "give Megatron's arguments (a string or a file), its model_config.yaml, a recipe of Megatron-Bridge or NeMo (YAML), torchtitan's TOML, "
    "DeepSpeed's JSON, or a job's TOML"
)
_MOST_ARGUMENTS = 2**18
_KINDS = {"bert": "bert", "t5": "t5", "hybrid": "mamba"}
"""Folders of Megatron's functional tests by the script that they run; of all others it is GPT's."""


def read_framework(job: str, asked: Asked) -> Reading:
    """A job as its framework writes it.

    Args:
        job: a path, with ``:NAME`` of a configuration in Python, or Megatron's arguments themselves (``--num-layers 32 ...``).

    Raises:
        RegistaError: no file, no job, or a setting that is unknown, impossible, or contradicts another.
    """
    if re.search(r"(^|\s)--[a-z]", job):
        return _arguments(job, asked, "job")
    if python := re.fullmatch(r"(.+\.py)(?::(\w+))?", job):
        name = python[2] or Path(python[1]).stem
        return read_torchtitan(python_flags(Path(python[1]), python[2], WAY_OUT), asked, name=name)
    path = Path(job)
    match path.suffix:
        case ".toml":
            return _toml(path, asked)
        case ".json":
            return _json(path, asked)
        case ".yaml" | ".yml":
            return _yaml(path, asked)
        case ".csv":
            raise InvalidFile(f"{path}: a CSV holds many jobs; regista predict reads them, {WAY_OUT}")
        case _:
            text = read_text(path, WAY_OUT, max_bytes=_MOST_ARGUMENTS)
            try:
                return _arguments(text, asked, path.stem)
            except InvalidFile as error:
                raise InvalidFile(f"{path}: {error}") from None


def _arguments(text: str, asked: Asked, name: str) -> Reading:
    """Megatron's arguments, or torchtitan's settings on the command line, which have dots."""
    flags, script = parse_arguments(text)
    if not any("." in flag for flag in flags) and "config" not in flags:
        return read_megatron(flags, Form.MEGATRON, asked, name=name, script=script)
    given = {flag.replace("-", "_"): value for flag, value in flags.items() if flag not in ("config", "module")}
    preset: Mapping[str, object] = {}
    if "config" in flags:
        preset = preset_flags(str(flags["config"]))
    if "job.config_file" in flags:
        raise InvalidFile(f"--job.config_file {flags['job.config_file']}: give that file itself; arguments name no other file")
    return read_torchtitan({**preset, **given}, asked, name=name)


def _toml(path: Path, asked: Asked) -> Reading:
    data = read_toml(path, WAY_OUT)
    if "cluster" in data or "layout" in data or not set(data) & {"training", "parallelism", "job", "model"}:
        return read_regista(data, asked, name=path.stem)
    return read_torchtitan(flat(data), asked, name=path.stem)


def _json(path: Path, asked: Asked) -> Reading:
    data = read_json(path, WAY_OUT)
    if not isinstance(data, dict) or not is_deepspeed(data):
        raise InvalidFile(f"{path}: no JSON of DeepSpeed (train_micro_batch_size_per_gpu, zero_optimization); {WAY_OUT}")
    return read_deepspeed(flat(data), asked, name=path.stem, folder=path.parent)


def _yaml(path: Path, asked: Asked) -> Reading:
    data = read_yaml(path, WAY_OUT)
    if not isinstance(data, Mapping):
        raise InvalidFile(f"{path}: no table at its top; {WAY_OUT}")
    if "MODEL_ARGS" in data:
        name = path.parent.name if path.stem == "model_config" else path.stem
        script = _KINDS.get(path.parent.parent.name, "gpt")
        return read_megatron(config_flags(data), Form.MEGATRON_YAML, asked, name=name, script=script)
    if is_nemo(data):
        devices = machine_and_devices(asked.cluster)[1] if asked.cluster else 0
        return read_megatron(nemo_flags(data, devices), Form.NEMO, asked, name=path.stem, spelled="{}")
    if is_bridge(data):
        return read_megatron(bridge_flags(data), Form.BRIDGE, asked, name=path.stem, spelled="{}")
    raise InvalidFile(
        f"{path}: neither MODEL_ARGS (Megatron-LM) nor model and train (Megatron-Bridge) or trainer (NeMo) stand at its top; {WAY_OUT}"
    )
