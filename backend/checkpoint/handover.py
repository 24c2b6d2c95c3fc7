"""How the parent of a run tells its workers where state comes from: tensors in a file, or a description that each cuts its own part from.

state.pt                     a mapping of tensors (the values in memory)
values.json + values.pt      a list of sources; those that are tensors stand in values.pt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoint.saved import Saved
from backend.initial.drawn import Drawn
from backend.initial.values import Given, Layers, Renamed, Values
from backend.initial.weights import Weights
from planner.ir.errors import Unsupported
from planner.ir.text import canonical, decode, encode, load_json, save_text

__all__ = ["compact", "hand_over", "let_go", "take_over"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """The tensors of values.pt under ``key``."""

    key: str


_Source = Drawn | Weights | Saved | Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A source under other names (backend.initial.values.Renamed)."""

    source: _Source
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    items: tuple[_Source | Other, ...]


def compact(value: Tensor) -> Tensor:
    """The value, detached, in memory of just its size: torch.save writes whole storages, so a view would drag its base along."""
    value = value.detach()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes or not value.is_contiguous() else value


def hand_over(folder: Path, state: Mapping[str, Tensor] | Values, names: set[str]) -> None:
    """Write what ``take_over`` reads.

    Args:
        names: the states that the Plan has; no other tensor is written.

    Raises:
        Unsupported: a source of values that cannot be described.
    """
    if isinstance(state, Mapping):
        torch.save({name: compact(value) for name, value in state.items() if name in names}, folder / "state.pt")
        return
    tensors: dict[str, dict[str, Tensor]] = {}
    items: list[_Source | Other] = []
    for source, other_names in _flat(state):
        wanted = {other_names.get(name, name) for name in names}
        item = _described(source, wanted, tensors)
        items.append(Other(source=item, names=other_names) if other_names else item)
    torch.save(tensors, folder / "values.pt")
    save_text(folder / "values.json", canonical({"kind": "values", "version": VERSION, "values": encode(Sources(items=tuple(items)))}))


def _described(source: Values, names: set[str], tensors: dict[str, dict[str, Tensor]]) -> _Source:
    """The description of a source that a file can hold; its tensors in memory are added to ``tensors``, under the key that it names."""
    match source:
        case Given(tensors=given):
            key = str(len(tensors))
            tensors[key] = {name: compact(value) for name, value in given.items() if name in names}
            return Tensors(key=key)
        case Weights(path=path):
            return Weights(str(Path(path).absolute()))
        case Saved(folder=where):
            return Saved(str(Path(where).absolute()))
        case Drawn():
            return source
        case _:
            raise Unsupported(
                f"values of type {type(source).__name__} cannot be sent to processes; give Layers of the sources of backend.initial"
            )


def _flat(values: Values) -> tuple[tuple[Values, Mapping[str, str]], ...]:
    """Sources in their order, each with the names under which its values stand there."""
    match values:
        case Layers(sources=sources):
            return tuple(inner for source in sources for inner in _flat(source))
        case Renamed(source=source, names=names):
            return tuple((inner, {**own, **{name: own.get(there, there) for name, there in names.items()}}) for inner, own in _flat(source))
    return ((values, {}),)


def let_go(folder: Path) -> None:
    """Remove the tensors that were handed over, once nobody will read them: at the run's end it would take as long as they are large."""
    for name in ("state.pt", "values.pt"):
        (folder / name).unlink(missing_ok=True)


def take_over(folder: Path) -> Values:
    """The values that the parent handed over; tensors are mapped, so a rank reads the pages of its own part."""
    if not (folder / "values.json").exists():
        return Given(torch.load(folder / "state.pt", mmap=True, weights_only=True))
    sources = decode(Sources, load_json(folder / "values.json", "values", VERSION).get("values"), "values")
    tensors = torch.load(folder / "values.pt", mmap=True, weights_only=True)

    def taken(item: _Source | Other) -> Values:
        if isinstance(item, Other):
            return Renamed(taken(item.source), item.names)
        return Given(tensors[item.key]) if isinstance(item, Tensors) else item

    return Layers(tuple(map(taken, sources.items)))
