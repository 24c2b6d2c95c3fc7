"""Megatron's arguments as texts: a command line or a file of it, and the ``model_config.yaml`` of its functional tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.formats.megatron.model import Script
from regista.jobs.formats.values import Flags

__all__ = ["arguments_text", "config_flags", "config_text", "parse_arguments"]

_SCRIPTS = re.compile(r"(?:.*/)?pretrain_(gpt|bert|t5|mamba)\w*\.py")
_SECTIONS = ("ENV_VARS", "MODEL_ENV_VARS", "MODEL_ARGS", "BASE_MODEL_ARGS", "TEST_TYPE", "METRICS", "MODE", "LAUNCHER")
_FURTHER = re.compile(r"MODEL_ARGS_\d+")
"""Further runs of a test; the first is read."""
_SWITCHED_OFF = ("0", "false")


def parse_arguments(text: str) -> tuple[Flags, Script]:
    """Flags by name without dashes, and what the training script before them trains (gpt where there is none).

    Raises:
        InvalidFile: quotes that do not end, a value without a flag, or one that stands twice with two values.
    """
    try:
        words = shlex.split(text.replace("\\\n", " ").replace("\\\r\n", " "), comments=True)
    except ValueError as error:
        raise InvalidFile(f"Megatron's arguments cannot be read ({error}); write --flag value --flag ...") from None
    scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
    script = "gpt"
    if scripts:
        found = _SCRIPTS.fullmatch(words[scripts[-1]])
        script, words = (found[1] if found else "gpt"), words[scripts[-1] + 1 :]
    flags: dict[str, object] = {}
    name = ""
    values: list[str] = []

    def end() -> None:
        if not name:
            return
        value: object = True if not values else values[0] if len(values) == 1 else list(values)
        if flags.get(name, value) != value:
            raise InvalidFile(f"--{name} stands twice, with {flags[name]} and {value}; give one")
        flags[name] = value

    for word in words:
        if word.startswith("--") and len(word) > 2:
            end()
            name, _, value = word[2:].partition("=")
            values = [value] if value else []
        elif not name:
            raise InvalidFile(f"{word!r} stands before the first --flag; write --flag value --flag ...")
        else:
            values.append(word)
    end()
    if not flags:
        raise InvalidFile("there is no --flag; write Megatron's arguments, or give a file of them")
    return flags, script


def arguments_text(flags: Flags, script: Script = "gpt") -> str:
    """The command line of flags; of a script that is not GPT's, with its name."""
    words = [] if script == "gpt" else [f"pretrain_{script}.py"]
    for name, value in flags.items():
        words.append(f"--{name}")
        if value is not True:
            words += [shlex.quote(str(item)) for item in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def config_flags(data: Mapping[str, object]) -> Flags:
    """The flags of a model_config.yaml's MODEL_ARGS, and what ENV_VARS says of attention.

    Raises:
        InvalidFile: no table of flags.   Unsupported: a section that such files do not have.
    """
    if unknown := sorted(str(key) for key in data if key not in _SECTIONS and not _FURTHER.fullmatch(str(key))):
        raise Unsupported(f"unknown sections {unknown}; a model_config.yaml has {', '.join(_SECTIONS)}")
    args, environment = data.get("MODEL_ARGS"), data.get("ENV_VARS") or {}
    if not isinstance(args, dict) or not isinstance(environment, dict):
        raise InvalidFile("MODEL_ARGS and ENV_VARS are tables; write --flag: value, one a line")
    flags: dict[str, object] = {}
    for key, value in args.items():
        if not str(key).startswith("--"):
            raise InvalidFile(f"MODEL_ARGS has {key!r}; write --flag: value")
        if value is not False:
            flags[str(key)[2:]] = value
    off = {name for name in ("FUSED", "FLASH") if str(environment.get(f"NVTE_{name}_ATTN", "1")).lower() in _SWITCHED_OFF}
    if off and "attention-backend" not in flags:
        flags["attention-backend"] = "unfused" if len(off) == 2 else "flash" if off == {"FUSED"} else "fused"
    return flags


def config_text(flags: Flags) -> str:
    """A model_config.yaml with these flags."""
    lines = ["ENV_VARS:", "  CUDA_DEVICE_MAX_CONNECTIONS: 1", "MODEL_ARGS:"]
    for name, value in flags.items():
        plain = isinstance(value, bool | int) or re.fullmatch(r"[A-Za-z0-9_.]+", str(value))
        lines.append(f"  --{name}: {str(value).lower() if isinstance(value, bool) else value if plain else repr(value)}")
    return "\n".join(lines) + "\n"
