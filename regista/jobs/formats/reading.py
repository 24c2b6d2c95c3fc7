"""Which framework a job is of, and the job: from a file, or from an argument string as it is typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_text, read_toml
from regista.jobs.formats.megatron import read_megatron
from regista.jobs.formats.megatron.bridge import bridge_flags, is_bridge
from regista.jobs.formats.megatron.texts import config_flags, parse_arguments
from regista.jobs.formats.regista_toml import read_regista
from regista.jobs.formats.values import Asked, Form, Reading
from regista.jobs.formats.yaml_file import read_yaml

__all__ = ["WAY_OUT", "read_framework"]

WAY_OUT = "give Megatron's arguments (a string or a file), its model_config.yaml, or a job's TOML"
_MOST_ARGUMENTS = 2**18
_KINDS = {"bert": "bert", "t5": "t5", "hybrid": "mamba"}
"""Folders of Megatron's functional tests by the script that they run; of all others it is GPT's."""


def read_framework(job: str, asked: Asked) -> Reading:
    """A job as its framework writes it.

    Args:
        job: a path, or Megatron's arguments themselves (``--num-layers 32 ...``).

    Raises:
        RegistaError: no file, no job, or a setting that is unknown, impossible, or contradicts another.
    """
    if re.search(r"(^|\s)--[a-z]", job):
        flags, script = parse_arguments(job)
        return read_megatron(flags, Form.MEGATRON, asked, name="job", script=script)
    path = Path(job)
    match path.suffix:
        case ".toml":
            return _toml(path, asked)
        case ".yaml" | ".yml":
            return _yaml(path, asked)
        case ".csv":
            raise InvalidFile(f"{path}: a CSV holds many jobs; regista predict reads them, {WAY_OUT}")
        case _:
            text = read_text(path, WAY_OUT, max_bytes=_MOST_ARGUMENTS)
            try:
                flags, script = parse_arguments(text)
            except InvalidFile as error:
                raise InvalidFile(f"{path}: {error}") from None
            return read_megatron(flags, Form.MEGATRON, asked, name=path.stem, script=script)


def _toml(path: Path, asked: Asked) -> Reading:
    data = read_toml(path, WAY_OUT)
    return read_regista(data, asked, name=path.stem)


def _yaml(path: Path, asked: Asked) -> Reading:
    data = read_yaml(path, WAY_OUT)
    if not isinstance(data, Mapping):
        raise InvalidFile(f"{path}: no table at its top; {WAY_OUT}")
    if "MODEL_ARGS" in data:
        name = path.parent.name if path.stem == "model_config" else path.stem
        script = _KINDS.get(path.parent.parent.name, "gpt")
        return read_megatron(config_flags(data), Form.MEGATRON_YAML, asked, name=name, script=script)
    if is_bridge(data):
        return read_megatron(bridge_flags(data), Form.BRIDGE, asked, name=path.stem, spelled="{}")
    raise InvalidFile(f"{path}: neither MODEL_ARGS (Megatron-LM) nor model and train (Megatron-Bridge) stand at its top; {WAY_OUT}")
