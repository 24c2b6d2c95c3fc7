"""Megatron's ``--pipeline-model-parallel-layout``: ``Ett|(tt|)*3tL`` is five chunks; E embeds, t is a layer, m predicts a further token, L is the loss.

layout  = item*            item = (letter | "(" layout ")") ["*" number] | "," | "|"
"""

from __future__ import annotations

import re

from planner.ir.errors import InvalidFile, Unsupported

__all__ = ["layers_of_layout", "layout_of_layers"]

_MOST = 2**14


def layout_of_layers(layers: tuple[int, ...]) -> str:
    """The layout of chunks with so many layers; the embedding is in the first, the loss in the last."""
    parts = [f"t*{count}" if count > 1 else "t" * count for count in layers]
    parts[0] = "E" + parts[0]
    parts[-1] += "L"
    return "|".join(parts)


def layers_of_layout(text: str) -> tuple[int, ...]:
    """Layers of each chunk.

    Raises:
        InvalidFile: no such layout.   Unsupported: an embedding that is not in the first chunk alone, or a loss that is not in the last.
    """
    opened = _opened(text)
    chunks = opened.split("|")
    if "E" in "".join(chunks[1:]) or "L" in "".join(chunks[:-1]) or "E" not in chunks[0] or "L" not in chunks[-1]:
        raise Unsupported(f"pipeline layout {text!r}: the embedding (E) in the first chunk and the loss (L) in the last one are predicted")
    return tuple(chunk.count("t") for chunk in chunks)


def _opened(text: str) -> str:
    """Repetitions written out."""
    for sign in ", \\":  # shells need | and ( behind a backslash
        text = text.replace(sign, "")
    repeated = re.compile(r"(?:\(([EtmL|]*)\)|([EtmL]))\*(\d{1,5})")
    while found := repeated.search(text):
        inner = found[1] if found[1] is not None else found[2]
        if len(inner) * int(found[3]) + len(text) > _MOST:
            raise InvalidFile(f"pipeline layout of more than {_MOST} letters; a model has some hundred layers")
        text = text[: found.start()] + inner * int(found[3]) + text[found.end() :]
    text = text.replace("(", "").replace(")", "")
    if not text or set(text) - set("EtmL|"):
        raise InvalidFile(f"pipeline layout {text!r}: E, t, m, L, |, repetitions (tt|)*3 and t*3 are known")
    return text
