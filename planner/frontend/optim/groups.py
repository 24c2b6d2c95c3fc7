"""Parameter groups: which parameters of a module are trained, by which rule, from which optimizer state on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.frontend.optim.from_torch import check_untouched, group_names, rule_of
from planner.frontend.optim.rules import SGD, AdamW, Optimizer, slot_type
from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType, TensorType

__all__ = ["Group", "as_groups", "held_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters with one rule, by name, in the module's order.  A parameter in no group is frozen."""

    rule: Optimizer
    parameters: tuple[str, ...]


def as_groups(given: object, parameters: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """The groups of what the user gave as optimizer.

    Args:
        given: None (SGD with lr 0.01), one of ours, "sgd", "adamw", or an optimizer of torch.optim over parameters of the module.
        parameters: name -> parameter of the module; those that require no gradient are in no group.

    Raises:
        InvalidProgram: the kind is unknown; a group names no parameter, or one that is not the module's, or one of another group.
        Unsupported: an option that no rule here has, or something attached to the optimizer that would be left out.
    """
    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if isinstance(given, torch.optim.Optimizer):
        check_untouched(given)
        return tuple(
            Group(rule=rule_of(given, group), parameters=tuple(name for name in names if name in trainable))
            for group, names in zip(given.param_groups, group_names(given, parameters), strict=True)
        )
    return (Group(rule=_rule(given), parameters=tuple(trainable)),)


def _rule(given: object) -> Optimizer:
    if given is None:
        return SGD()
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        if given not in ("sgd", "adamw"):
            raise InvalidProgram(f"optimizer {given!r} is unknown; write 'sgd' or 'adamw', or give SGD(...) or AdamW(...)")
        return SGD() if given == "sgd" else AdamW()
    shown = given.__name__ if isinstance(given, type) else type(given).__name__
    raise InvalidProgram(
        f"optimizer of kind {shown} is unknown; give 'sgd', 'adamw', SGD(...), AdamW(...) or an instance of torch.optim.SGD / AdamW"
    )


def held_state(given: object, groups: tuple[Group, ...], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a torch optimizer holds for the trained parameters: ``NAME:SLOT`` -> tensor, of the type that the step has; what is missing is zero.

    Raises:
        InvalidProgram: a tensor of another shape than torch.optim's.
    """
    if not isinstance(given, torch.optim.Optimizer):
        return {}
    initial: dict[str, Tensor] = {}
    for group in groups:
        for name in group.parameters:
            parameter = parameters[name]
            type_ = TensorType(tuple(parameter.shape), DType.parse(str(parameter.dtype)))
            held = given.state.get(parameter, {})
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
