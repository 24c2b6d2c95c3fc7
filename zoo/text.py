"""What the language models share: random tokens to learn from, the token loss, named sizes and number formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram
from zoo.seeded import seeded_data

__all__ = ["chosen", "divides", "float_type", "in_format", "initialise", "next_tokens", "skewed_tokens", "token_loss"]

T = TypeVar("T")

_FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def chosen(model: str, sizes: Mapping[str, T], size: str | int | float) -> T:
    """The published size of that name.

    Raises:
        InvalidProgram: there is none.
    """
    if str(size) not in sizes:
        raise InvalidProgram(f"{model} has no size {size!r}; it has {', '.join(sizes)}, and every number can be given by itself")
    return sizes[str(size)]


def divides(model: str, part: int, name: str, whole: int, whole_name: str) -> None:
    """Raises InvalidProgram unless ``part`` is at least 1 and divides ``whole``."""
    if part < 1 or whole % part:
        raise InvalidProgram(f"{model}: {part} {name} do not divide {whole_name} {whole}; choose a divisor")


def float_type(model: str, dtype: str) -> torch.dtype:
    """The number format called fp32, bf16 or fp16.

    Raises:
        InvalidProgram: another one.
    """
    if dtype not in _FORMATS:
        raise InvalidProgram(f"{model}: dtype {dtype!r} is unknown; it is one of {', '.join(_FORMATS)}")
    return _FORMATS[dtype]


def in_format(build: Callable[[], nn.Module], model: str, dtype: str) -> Callable[[], nn.Module]:
    """``build`` with all floating parameters and buffers as ``dtype``: fp32, bf16 or fp16 (optimizer state too).

    That is training in the format alone, 8 bytes per parameter with AdamW, not mixed precision (Program(precision=...)), which keeps 16 or 18.

    Raises:
        InvalidProgram: another format.
    """
    number = float_type(model, dtype)
    return build if dtype == "fp32" else lambda: build().to(number)


def initialise(module: nn.Module) -> None:
    """Normal weights of deviation 0.02 and zero biases, for ``Module.apply``."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def skewed_tokens(generator: torch.Generator, batch: int, seq: int, vocab: int) -> Tensor:
    """Token ids (batch, seq) of a frequency skewed like that of words, so that there is something to learn and the loss falls."""
    return (torch.rand((batch, seq), generator=generator) ** 4 * vocab).long().clamp_(max=vocab - 1)


def next_tokens(batch: int, seq: int, vocab: int, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
    """step -> (ids, the ids one further), both (batch, seq)."""

    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        tokens = skewed_tokens(generator, batch, seq + 1, vocab)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return seeded_data(draw, seed)


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens whose target is not -100."""
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))
