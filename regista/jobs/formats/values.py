"""What a framework's job is read to, and in which forms jobs are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from regista.jobs.job import Job, Model, Running

__all__ = ["EXPERT_KNOBS", "Asked", "Flags", "Form", "Reading", "Written", "expert_knobs"]

Flags = Mapping[str, object]
"""A framework's settings by name, in the order in which they are shown; sections of a file are joined by dots (parallelism.tensor_parallel_degree)."""


EXPERT_KNOBS = ("overlap_experts", "expert_once", "host_experts", "fused_experts", "sort_experts")
"""Of Running, how experts are exchanged and launched: our TOML alone has words for all of them."""


def expert_knobs(run: Running) -> list[str]:
    """Those that are set, as what another form does not say."""
    return [f"{name} of experts" for name in EXPERT_KNOBS if getattr(run, name)]


class Form(Enum):
    """How a job is written down.   MEGATRON: an argument string.   MEGATRON_YAML: model_config.yaml of its functional tests.   BRIDGE: YAML of
    Megatron-Bridge's ConfigContainer.   NEMO: YAML of NeMo 1.x.   REGISTA: our TOML."""

    MEGATRON = "Megatron-LM arguments"
    MEGATRON_YAML = "Megatron-LM model_config.yaml"
    BRIDGE = "Megatron-Bridge recipe"
    NEMO = "NeMo recipe"
    TORCHTITAN = "torchtitan TOML"
    DEEPSPEED = "DeepSpeed JSON"
    REGISTA = "Regista TOML"

    @property
    def is_megatron(self) -> bool:
        return self in (Form.MEGATRON, Form.MEGATRON_YAML, Form.BRIDGE, Form.NEMO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What stands beside the job's file: frameworks learn the devices when they are started, and some never see the model's numbers.

    cluster: name or file; None: the job has it.   family, seq, vocab: in place of what the file does not say.
    ignored: settings that the user wants named and not refused.
    """

    cluster: str | None = None
    family: Model | None = None
    seq: int | None = None
    vocab: int | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A job as read.   flags: as they stand in the file.   unmapped: settings that change a step or its memory and that predictions do not know.

    without_effect: settings on which neither time nor memory hangs.   assumed: what the file leaves open, in sentences.
    """

    job: Job
    form: Form
    flags: Flags
    unmapped: tuple[str, ...]
    without_effect: tuple[str, ...]
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A job as a framework's settings.   lost: knobs of the job that the form cannot express, in sentences."""

    flags: Flags
    lost: tuple[str, ...]
