"""A job in the form of a framework: its settings by name, and the text to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping

from regista.jobs.formats.deepspeed import deepspeed_flags
from regista.jobs.formats.megatron import MODEL_FLAGS, megatron_flags, script_of
from regista.jobs.formats.megatron.bridge import bridge_tables
from regista.jobs.formats.megatron.nemo import nemo_tables
from regista.jobs.formats.megatron.texts import arguments_text, config_text
from regista.jobs.formats.regista_toml import regista_flags
from regista.jobs.formats.torchtitan import torchtitan_flags
from regista.jobs.formats.values import Flags, Form, Written
from regista.jobs.job import Job

__all__ = ["flags_text", "spelled_flags", "write_flags"]


def write_flags(job: Job, form: Form, cluster: str) -> Written:
    """The settings of a job.

    Args:
        cluster: its name, which our own TOML holds.
    """
    match form:
        case Form.MEGATRON | Form.MEGATRON_YAML | Form.BRIDGE | Form.NEMO:
            return _nemo(megatron_flags(job)) if form is Form.NEMO else megatron_flags(job)
        case Form.REGISTA:
            return regista_flags(job, cluster)
        case Form.TORCHTITAN:
            return torchtitan_flags(job)
        case Form.DEEPSPEED:
            return deepspeed_flags(job)


_NOT_OF_NEMO = (
    *("use-megatron-fsdp", "data-parallel-sharding-strategy", "pipeline-model-parallel-layout", "fp4-format", "fp4-param-gather"),
    *("use-precision-aware-optimizer", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype", "cuda-graph-impl"),
)
"""Arguments that its releases 1.x do not have."""


def _nemo(written: Written) -> Written:
    """Without what NeMo 1.x does not have."""
    lost = tuple(f"--{name}: NeMo 1.x has no such setting" for name in written.flags if name in _NOT_OF_NEMO)
    flags = {name: value for name, value in written.flags.items() if name not in _NOT_OF_NEMO}
    return Written(flags=flags, lost=(*written.lost, *lost))


def spelled_flags(flags: Flags, form: Form) -> Flags:
    """The settings under the names that the framework's file has for them."""
    if form not in (Form.BRIDGE, Form.NEMO):
        return flags
    tables = bridge_tables(flags) if form is Form.BRIDGE else nemo_tables(flags)
    return {f"{table}.{key}": value for table, own in tables.items() for key, value in own.items()}


def flags_text(written: Written, job: Job, form: Form, *, model: bool = True) -> str:
    """The settings as the framework reads them.

    Args:
        model: whether the model's numbers are written, too.
    """
    flags = written.flags
    match form:
        case Form.MEGATRON:
            return arguments_text(_part(flags, model), script_of(job.model)) + "\n"
        case Form.MEGATRON_YAML:
            return config_text(_part(flags, model))
        case Form.BRIDGE:
            return _yaml_text(bridge_tables(_part(flags, model)))
        case Form.NEMO:
            tables = nemo_tables(_part(flags, model))
            optim = "".join(f"    {key}: {_plain(value)}\n" for key, value in tables.pop("model.optim").items())
            return _yaml_text(tables) + "  optim:\n" + optim
        case Form.DEEPSPEED:
            return json.dumps(_nested(flags), indent=2) + "\n"
        case Form.TORCHTITAN | Form.REGISTA:
            return _toml_text({k: v for k, v in flags.items() if model or not k.startswith(("model.", "cluster."))})


def _part(flags: Flags, model: bool) -> Flags:
    return {name: value for name, value in flags.items() if model or name not in MODEL_FLAGS}


def _plain(value: object) -> str:
    """A value as YAML and TOML both read it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else json.dumps(value)


def _yaml_text(tables: Mapping[str, Mapping[str, object]]) -> str:
    return (
        "\n".join(line for table, own in tables.items() for line in (f"{table}:", *(f"  {k}: {_plain(v)}" for k, v in own.items()))) + "\n"
    )


def _toml_text(flags: Mapping[str, object]) -> str:
    tables: dict[str, list[str]] = {}
    for name, value in flags.items():
        table, _, key = name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {_plain(value)}")
    return "\n".join(line for table, lines in tables.items() for line in (f"[{table}]", *lines)) + "\n"


def _nested(flags: Flags) -> dict[str, object]:
    """Names with dots as tables in tables."""
    made: dict[str, object] = {}
    for name, value in flags.items():
        *tables, key = name.split(".")
        table = made
        for one in tables:
            table = table.setdefault(one, {})  # type: ignore[assignment]
        table[key] = value
    return made
