"""What a module returns beside the loss, by name: the outputs of an evaluation.

a tensor                       output
a tuple or a list              output.0, output.1, ...
a mapping or a dataclass       its keys: logits, hidden_states.0, ...

The loss itself is no output; a module that returns none is evaluated for its outputs alone.  What is
neither tensor nor container (a cache, a string, None) is none either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from torch import Tensor

from planner.ir.errors import InvalidProgram

__all__ = ["AskedOutputs", "asked_outputs"]

_ROOT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOutputs:
    """names: those asked for; None: all.   Without names and not all: none."""

    names: tuple[str, ...] | None = ()

    def of(self, returned: object, loss: Tensor | None) -> dict[str, Tensor]:
        """Name -> tensor of what was asked for, in the order in which it stands (of names: in theirs).

        Args:
            returned: what the module returned.   loss: the scalar loss, which is no output; None: there is none.

        Raises:
            InvalidProgram: an output that is not there, or none at all.
        """
        if self.names == ():
            return {}
        found = {name: tensor for name, tensor in _flat("", returned) if tensor is not loss}
        if not found:
            raise InvalidProgram(
                "the module returns nothing beside its loss, so an evaluation has no outputs; leave outputs out, or return what you want "
                "to see beside the loss: {'loss': loss, 'logits': logits}"
            )
        if missing := [name for name in self.names or () if name not in found]:
            raise InvalidProgram(f"the module returns no output {missing[0]!r}; it returns {', '.join(found)}")
        return found if self.names is None else {name: found[name] for name in self.names}


def asked_outputs(given: object) -> AskedOutputs:
    """What ``outputs=`` of a plan asks for: True, False, or names.

    Raises:
        InvalidProgram: something else, or a name twice.
    """
    if isinstance(given, bool):
        return AskedOutputs(names=None if given else ())
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        names = tuple(map(str, given))
        if len(set(names)) < len(names):
            raise InvalidProgram(f"outputs {', '.join(names)} name one twice; name each once")
        return AskedOutputs(names=names)
    raise InvalidProgram(f"outputs={given!r} is no choice of outputs; give True, or a list of names such as ['logits']")


def _flat(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name or _ROOT, value
        return
    entries: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        entries = list(value.items())
    elif isinstance(value, list | tuple):
        entries = list(enumerate(value))
        name = name or _ROOT
    elif is_dataclass(value) and not isinstance(value, type):
        entries = [(field.name, getattr(value, field.name)) for field in fields(value)]
    for key, entry in entries:
        yield from _flat(f"{name}.{key}" if name else str(key), entry)
