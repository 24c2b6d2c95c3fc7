"""Parameter groups: which parameters of a module are trained, by which rule, from which optimizer state on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.frontend.optim.from_torch import check_untouched, group_names, rule_of
from planner.frontend.optim.rules import SGD, AdamW, LazyAdam, Optimizer, slot_type
from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType, TensorType

__all__ = ["Group", "as_groups", "held_state", "torch_optimizers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters with one rule, by name, in the module's order.  A parameter in no group is frozen."""

    rule: Optimizer
    parameters: tuple[str, ...]


def as_groups(given: object, parameters: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """The groups of what the user gave as optimizer.

    Args:
        given: None (SGD with lr 0.01), one of ours, "sgd", "adamw", "lazy_adam", or an optimizer of torch.optim over parameters of the module,
            or several of them, each over parameters of its own (SparseAdam for tables, Adam for the rest): their groups follow each other.
        parameters: name -> parameter of the module; those that require no gradient are in no group.

    Raises:
        InvalidProgram: the kind is unknown; a group names no parameter, or one that is not the module's, or one of another group.
        Unsupported: an option that no rule here has, or something attached to the optimizer that would be left out.
    """
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if optimizers := torch_optimizers(given):
        groups = []
        for optimizer in optimizers:
            check_untouched(optimizer)
            groups += [
                Group(rule=rule_of(optimizer, group), parameters=tuple(name for name in names if name in trainable))
                for group, names in zip(optimizer.param_groups, group_names(optimizer, parameters), strict=True)
            ]
        counted = Counter(name for group in groups for name in group.parameters)
        if twice := [name for name, count in counted.items() if count > 1]:
            raise InvalidProgram(f"{twice[0]} is a parameter of two of the {len(optimizers)} optimizers; give it to one of them")
        return tuple(groups)
    return (Group(rule=_rule(given), parameters=tuple(trainable)),)


_NAMED: dict[str, type[SGD] | type[AdamW] | type[LazyAdam]] = {"sgd": SGD, "adamw": AdamW, "lazy_adam": LazyAdam}


def _rule(given: object) -> Optimizer:
    if given is None:
        return SGD()
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        if given not in _NAMED:
            raise InvalidProgram(f"optimizer {given!r} is unknown; write 'sgd', 'adamw' or 'lazy_adam', or give SGD(...) or AdamW(...)")
        return _NAMED[given]()
    shown = given.__name__ if isinstance(given, type) else type(given).__name__
    raise InvalidProgram(
        f"optimizer of kind {shown} is unknown; give 'sgd', 'adamw', SGD(...), AdamW(...) or an instance of torch.optim.SGD / AdamW"
    )


def torch_optimizers(given: object) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers of torch that were given: one, or several in a list; none of other kinds.

    Raises:
        InvalidProgram: a list that holds something else, or nothing.
    """
    if isinstance(given, torch.optim.Optimizer):
        return (given,)
    if not isinstance(given, list | tuple):
        return ()
    optimizers = tuple(o for o in given if isinstance(o, torch.optim.Optimizer))
    if not optimizers or len(optimizers) < len(given):
        kinds = ", ".join(type(o).__name__ for o in given) or "nothing"
        raise InvalidProgram(
            f"optimizer is a list of {kinds}; a list holds optimizers of torch.optim alone, each over parameters of its own"
        )
    return optimizers


def held_state(given: object, groups: tuple[Group, ...], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a torch optimizer holds for the trained parameters: ``NAME:SLOT`` -> tensor, of the type that the step has; what is missing is zero.

    Raises:
        InvalidProgram: a tensor of another shape than torch.optim's.
    """
    initial: dict[str, Tensor] = {}
    optimizers = torch_optimizers(given)
    for group in groups if optimizers else ():
        for name in group.parameters:
            parameter = parameters[name]
            type_ = TensorType(tuple(parameter.shape), DType.parse(str(parameter.dtype)))
            held: Mapping[str, Tensor] = next((o.state[parameter] for o in optimizers if parameter in o.state), {})
            for slot in group.rule.slots(parameter.ndim):
                if (value := held.get(slot)) is not None:
                    initial[f"{name}:{slot}"] = _typed(value, slot_type(slot, type_), f"{name}:{slot}")
    return initial


def _typed(value: Tensor | float, wanted: TensorType, name: str) -> Tensor:
    tensor = torch.as_tensor(value).detach().to(device="cpu", dtype=getattr(torch, wanted.dtype.value)).contiguous()
    if tuple(tensor.shape) != wanted.shape:
        raise InvalidProgram(
            f"the optimizer holds {name} of shape {list(tensor.shape)}, and {list(wanted.shape)} is needed; "
            "load a state_dict that belongs to this module, or give a fresh optimizer"
        )
    return tensor.clone()
