"""The numbers of the zoo's language models that other frameworks have, too, from their name alone: nothing is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from zoo.language.gpt import gpt
from zoo.language.gpt_family import gpt2, gpt3, published_sizes
from zoo.language.llama import llama3, published_llamas

__all__ = ["LanguageNumbers", "language_numbers"]

_FACTORIES: Mapping[str, Callable[..., Any]] = {"gpt": gpt, "gpt2": gpt2, "gpt3": gpt3, "llama3": llama3}


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageNumbers:
    """inner: width of the feed-forward part.   gated: SwiGLU, no biases, rotary positions (Llama); else GPT-2's.   attention: eager or fused."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    seq: int
    gated: bool
    tied: bool
    dropout: float
    dtype: str
    attention: str


def language_numbers(reference: str) -> LanguageNumbers | None:
    """The numbers of ``zoo:gpt?layers=2``, gpt2, gpt3 or llama3 with these options; None: another model."""
    scheme, _, rest = reference.partition(":")
    name, _, query = rest.partition("?")
    if scheme != "zoo" or name not in _FACTORIES:
        return None
    signature = inspect.signature(_FACTORIES[name]).parameters
    given = {key: parameter.default for key, parameter in signature.items()} | dict(parse_qsl(query))
    sizes = published_llamas() if name == "llama3" else published_sizes(name)
    base = sizes.get(str(given.get("size")), {})

    def number(key: str) -> int:
        return int(given[key] if given.get(key) is not None else base[key])

    width, gated = number("width"), name == "llama3"
    return LanguageNumbers(
        name=f"{name}-{given['size']}" if "size" in given else name,
        layers=number("layers"),
        width=width,
        heads=number("heads"),
        kv_heads=number("kv_heads") if gated else number("heads"),
        inner=number("hidden") if gated else 4 * width,
        vocab=number("vocab"),
        seq=number("seq"),
        gated=gated,
        tied=not gated and bool(int(given["tied"])),
        dropout=float(given.get("dropout") or 0.0),
        dtype=str(given["dtype"]),
        attention=str(given["attention"]),
    )
