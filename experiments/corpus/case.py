"""A model of the corpus: how it is built, and what it is trained on."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["BATCH", "SEQ", "VOCAB", "Case", "Trained", "classes", "hugging_face", "ids", "images", "text"]

BATCH, SEQ, VOCAB, CLASSES = 4, 16, 96, 10


class Trained(NamedTuple):
    """What a Program takes: a module in training mode, one batch of BATCH samples, and the loss (None: the module returns it)."""

    module: nn.Module
    batch: Any
    loss: Callable[..., Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """library, name: of the model.   make: builds it from its config, seeded by the caller; its library is imported there.

    tensor: pins that split its weights (tensor parallelism), where the case stands for a family in all ways.
    by_value: a value decides shapes or what is computed, as its library documents: it is expected to be refused.
    """

    library: str
    name: str
    make: Callable[[], Trained]
    tensor: tuple[str, ...] = ()
    by_value: bool = False

    @property
    def key(self) -> str:
        return f"{self.library}/{self.name}"


def ids(*shape: int, low: int = 5, high: int = VOCAB) -> Tensor:
    """Tokens, none of them a special one."""
    return torch.randint(low, high, shape or (BATCH, SEQ))


def text(*, mask: bool = True, labels: bool = True, seq: int = SEQ) -> dict[str, Tensor]:
    """input_ids, the mask of a batch whose last sample is padded, and labels."""
    tokens = ids(BATCH, seq)
    lengths = torch.tensor([seq] * (BATCH - 1) + [seq - 3])
    given = {"input_ids": tokens}
    if mask:
        given["attention_mask"] = (torch.arange(seq) < lengths.unsqueeze(1)).long()
    return given | ({"labels": tokens.clone()} if labels else {})


def images(size: int, *, channels: int = 3, count: int = BATCH) -> Tensor:
    return torch.randn(count, channels, size, size)


def classes(count: int = CLASSES) -> Tensor:
    return torch.randint(0, count, (BATCH,))


def hugging_face(
    model_type: str,
    task: str,
    batch: Callable[[], Mapping[str, Tensor]],
    *,
    name: str = "",
    tensor: Sequence[str] = (),
    by_value: bool = False,
    loss: Callable[..., Tensor] | None = None,
    **sizes: object,
) -> Case:
    """transformers' model of ``model_type`` for a task (``AutoModelForCausalLM`` is CausalLM, ``AutoModel`` is empty, a class is its name).

    Args:
        sizes: what its config has otherwise than by default: sizes alone.   batch: by keyword.
    """

    def make() -> Trained:
        library = importlib.import_module("transformers")
        config = library.AutoConfig.for_model(model_type, **copy.deepcopy(sizes))  # a config may change what it is given
        if hasattr(library, task) and task:
            model = getattr(library, task)(config)
        else:
            model = getattr(library, f"AutoModelFor{task}" if task else "AutoModel").from_config(config)
        return Trained(model.train(), dict(batch()), loss)

    return Case(library="transformers", name=name or model_type, make=make, tensor=tuple(tensor), by_value=by_value)
