"""The form of a batch: where its tensors lie in nested mappings, sequences and dataclasses, and how the module and the loss are called with it.

    {"x": tensor, "extra": (tensor, None), "flag": True}  --tensors-->  (tensor, tensor)  --call-->  module(x=., extra=(., None), flag=True)

A step knows tensors alone, in the order in which they stand (``input.0`` is the first); the rest is the same at every step.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram

__all__ = ["InputForm", "check_asked_again", "holds_loss", "loss_in", "most_arguments_of", "num_targets_of"]

_SETTINGS = (type(None), bool, int, float, str, torch.dtype)


@dataclass(frozen=True, slots=True)
class InputForm:
    """The form of a batch.

    example: the batch that showed it; its entries are the module's arguments and then the targets of the loss.
    num_targets: how many entries at the end are targets.
    """

    example: object
    num_targets: int

    @staticmethod
    def of(example: object, num_targets: int) -> InputForm:
        """The form of an example: a tensor, a sequence (positional arguments) or a mapping (keywords).

        Raises:
            InvalidProgram: it holds something that is neither a tensor nor a setting, or no tensor.
        """
        if not isinstance(example, Tensor | Sequence | Mapping) or isinstance(example, str):
            raise InvalidProgram(
                f"example_inputs must be a tensor, a tuple of arguments or a mapping of keywords, but is a {type(example).__name__}"
            )
        form = InputForm((example,) if isinstance(example, Tensor) else example, num_targets)
        if not form.tensors(example, "example_inputs"):
            raise InvalidProgram("example_inputs must hold at least one tensor")
        return form

    @property
    def num_entries(self) -> int:
        """How many arguments and targets."""
        assert isinstance(self.example, Sequence | Mapping)
        return len(self.example)

    def tensors(self, given: object, what: str) -> tuple[Tensor, ...]:
        """The tensors of a batch of this form, detached, in the order in which they stand.

        Raises:
            InvalidProgram: the batch, which messages call ``what``, has another form.
        """
        whole = (given,) if isinstance(given, Tensor) else given
        return tuple(tensor.detach() for tensor in _flat(self.example, whole, what))

    def like(self, example_inputs: Sequence[Tensor], given: object, what: str) -> tuple[Tensor, ...]:
        """The tensors of a batch, which have the types of the example's.  Raises as ``tensors``, or InvalidProgram: other types."""
        tensors = self.tensors(given, what)
        types, wanted = ([f"{str(t.dtype)[6:]}{list(t.shape)}" for t in many] for many in (tensors, example_inputs))
        if types != wanted:
            raise InvalidProgram(
                f"{what} gives {', '.join(types)} but example_inputs are {', '.join(wanted)}; every step has the same types"
            )
        return tensors

    @property
    def requires_grad(self) -> bool:
        """Whether a tensor of the example does: as an input it would be trained by nobody."""
        return any(tensor.requires_grad for tensor in _flat(self.example, self.example, "example_inputs"))

    def entries(self, tensors: Sequence[Tensor]) -> object:
        """The batch with these tensors: a sequence or a mapping, as the example is."""
        return _filled(self.example, iter(tensors))

    def output(self, module: nn.Module, tensors: Sequence[Tensor]) -> tuple[object, tuple[object, ...]]:
        """What the module gives on these tensors, and the targets."""
        entries = self.entries(tensors)
        if isinstance(entries, Mapping):
            keys = list(entries)
            split = len(keys) - self.num_targets
            return module(**{key: entries[key] for key in keys[:split]}), tuple(entries[key] for key in keys[split:])
        assert isinstance(entries, Sequence)
        split = len(entries) - self.num_targets
        return module(*entries[:split]), tuple(entries[split:])


def _flat(example: object, given: object, where: str) -> Iterator[Tensor]:
    """The tensors of ``given``, which must be as ``example`` is but for the tensors."""
    if isinstance(example, Tensor):
        if not isinstance(given, Tensor):
            raise InvalidProgram(f"{where} must be a tensor, as in example_inputs, but is a {type(given).__name__}")
        yield given
    elif isinstance(example, _SETTINGS):
        if type(given) is not type(example) or given != example:
            raise InvalidProgram(f"{where} is {given!r} but {example!r} in example_inputs; what is no tensor is the same at every step")
    elif isinstance(example, Mapping):
        if not isinstance(given, Mapping) or tuple(given) != tuple(example):
            raise InvalidProgram(
                f"{where} must be a mapping with the keys of example_inputs, in their order: {', '.join(map(str, example))}"
            )
        for key, entry in example.items():
            yield from _flat(entry, given[key], f"{where}[{key!r}]")
    elif isinstance(example, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(example):
            raise InvalidProgram(f"{where} must be a sequence of {len(example)} entries, as in example_inputs")
        for place, entry in enumerate(example):
            yield from _flat(entry, given[place], f"{where}[{place}]")
    elif is_dataclass(example) and not isinstance(example, type):
        if type(given) is not type(example):
            raise InvalidProgram(f"{where} must be a {type(example).__name__}, as in example_inputs, but is a {type(given).__name__}")
        for field in fields(example):
            yield from _flat(getattr(example, field.name), getattr(given, field.name), f"{where}.{field.name}")
    else:
        raise InvalidProgram(
            f"{where} is a {type(example).__name__}; inputs are tensors, numbers, strings and None, in mappings, sequences and dataclasses"
        )


def _filled(example: object, tensors: Iterator[Tensor]) -> object:
    """A copy of the example with other tensors."""
    if isinstance(example, Tensor):
        return next(tensors)
    if isinstance(example, Mapping):
        filled: MutableMapping[object, object] = copy.copy(example) if isinstance(example, MutableMapping) else dict(example)
        for key, entry in example.items():
            filled[key] = _filled(entry, tensors)
        return filled
    if isinstance(example, list | tuple):
        entries = [_filled(entry, tensors) for entry in example]
        if isinstance(example, list):
            return entries
        make: Callable[[list[object]], object] = getattr(type(example), "_make", tuple)  # a named tuple keeps its names
        return make(entries)
    if is_dataclass(example) and not isinstance(example, type):
        made = copy.copy(example)
        for field in fields(example):
            object.__setattr__(made, field.name, _filled(getattr(example, field.name), tensors))  # frozen ones, too
        return made
    return example


def loss_in(given: object, source: str, hint: str = "") -> Tensor:
    """The scalar loss in what a module or a loss callable returns.

    A tensor is the loss.  An object or a mapping that holds one as ``loss`` says so (models of Hugging Face).  A mapping or a sequence of
    scalars and nothing else holds several losses, which are added up (detection models of torchvision).

    Args:
        source: who returned it, for messages.   hint: the way out.

    Raises:
        InvalidProgram: there is no such scalar of floating type.
    """
    named = given.get("loss") if isinstance(given, Mapping) else getattr(given, "loss", None)
    if isinstance(named, Tensor) and not isinstance(given, Tensor):
        return _scalar(named, source, hint)
    several = list(given.values()) if isinstance(given, Mapping) else list(given) if isinstance(given, list | tuple) else []
    if several and all(isinstance(entry, Tensor) and entry.ndim == 0 for entry in several):
        first, *others = (_scalar(entry, source, hint) for entry in several)
        return sum(others, start=first)
    return _scalar(given, source, hint)


def holds_loss(given: object) -> bool:
    """Whether ``loss_in`` finds a loss in what a module returned; a ``loss`` that is no scalar is one that is wrong."""
    named = given.get("loss") if isinstance(given, Mapping) else getattr(given, "loss", None)
    if isinstance(named, Tensor) and not isinstance(given, Tensor):
        return True
    try:
        loss_in(given, "the module")
    except InvalidProgram:
        return False
    return True


def _scalar(given: object, source: str, hint: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise InvalidProgram(f"{source} must return a scalar loss but returned a {type(given).__name__}, not a tensor{hint}")
    if given.ndim:
        raise InvalidProgram(
            f"the loss must be a scalar but {source} returned shape {tuple(given.shape)}{hint or '; reduce it with mean() or sum()'}"
        )
    if not given.dtype.is_floating_point:
        raise InvalidProgram(f"the loss must be floating but {source} returned {given.dtype}{hint}")
    return given


def num_targets_of(loss: Callable[..., object], num_inputs: int, most_arguments: int | None = None) -> int:
    """How many of a batch's entries are targets: as many as the loss has required positional parameters beside the module's output.

    Entries for which the module has no argument are targets, too, as far as the loss has optional parameters: ``def loss(output, labels=None)``.

    Args:
        most_arguments: of the module, as ``most_arguments_of`` gives them; None: the batch is given by keyword, or the module takes any number.

    Raises:
        InvalidProgram: it cannot be called, or not with what the batch has.
    """
    if not callable(loss):
        raise InvalidProgram(f"loss must be callable but is a {type(loss).__name__}; give loss(output, *targets)")
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidProgram("the loss has no signature to count its targets; wrap it: def loss(output, target): ...") from None
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = sum(p.default is inspect.Parameter.empty for p in positional)
    if required < 1:
        raise InvalidProgram("the loss must take the module's output as its first parameter: def loss(output, target): ...")
    if required - 1 > num_inputs:
        raise InvalidProgram(
            f"the loss needs {required - 1} targets but example_inputs holds {num_inputs} entries; targets stand at its end"
        )
    left_over = 0 if most_arguments is None else num_inputs - most_arguments
    return min(max(required, left_over + 1), len(positional)) - 1


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def most_arguments_of(module: nn.Module) -> int | None:
    """How many positional arguments a module takes; None: any number, or nothing says how many."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in _POSITIONAL for p in parameters)


def check_asked_again(first: Sequence[Tensor], second: Sequence[Tensor], step: int) -> None:
    """Raises InvalidProgram: a program's ``data`` gave two batches for one step."""
    for number, (given, again) in enumerate(zip(first, second, strict=True)):
        if not torch.equal(given.nan_to_num(), again.nan_to_num()):
            raise InvalidProgram(
                f"data({step}) gives another input.{number} when it is asked again: every rank asks for every step, once per micro-batch; "
                "let the batch follow from the step alone, for example torch.Generator().manual_seed(step)"
            )
