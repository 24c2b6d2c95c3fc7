"""The update of a step: an optimizer that torch has, with its numbers, its state so far, its rate by step and its clipping.

A step of optax is arithmetic on parameters, gradients and states, some thirty operations per parameter.  Here it is recognised as one rule per
parameter, so that a plan's update is the op, the state and the kernel that a torch user gets.  What is not recognised is refused; what is, was
asked at random values (planner.frontend.stablehlo.step.fit), and its gradients are those of the loss (planner.frontend.stablehlo.step.gradients).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from planner.frontend.optim.rules import SGD, AdamW
from planner.frontend.stablehlo.listing import Listing
from planner.frontend.stablehlo.performing import perform
from planner.frontend.stablehlo.performing.elementwise import ELEMENTWISE
from planner.frontend.stablehlo.step.cuts import Dependence
from planner.frontend.stablehlo.step.fit import Asked, Fit, fitted, plain
from planner.frontend.stablehlo.step.gradients import Clipping, OtherGradient, clipping_of, compared
from planner.frontend.stablehlo.step.patterns import simplified
from planner.ir.errors import Unsupported
from planner.ir.tensor import TensorType

__all__ = ["State", "Update", "recognised"]

_COUNTS = (0, 1, 9, 99, 999)
_PROBED = 64
"""Elements at which an update by element is asked, whatever the parameter's extent."""
_BY_ELEMENT = (*ELEMENTWISE, "broadcast_in_dim", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state and batch of a step.

    state, batch: inputs of the listing.   values: of both, on the meta device where there are none.   names: of the trained parameters, by input.
    paths: of the state, for messages.
    """

    state: tuple[int, ...]
    batch: tuple[int, ...]
    values: Mapping[int, Tensor]
    names: Mapping[int, str]
    paths: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """optimizer: of torch, on the module's parameters.   options: further arguments of Program: lr_schedule, clip_norm."""

    optimizer: torch.optim.Optimizer
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One parameter's.   slots: state input -> slot.   gradient: the value that takes the gradient's place, times ``per_gradient``."""

    parameter: int
    rule: SGD | AdamW
    slots: Mapping[int, str]
    rate: Callable[[int], float]
    gradient: int


def recognised(listing: Listing, module: nn.Module, given: State, name: str) -> Update:
    """The update of a step's listing, as an optimizer of the module's parameters.

    Raises:
        Unsupported: it is no SGD or AdamW, its gradients are not those of the loss, or it changes other state; with the parameter's name.
    """
    new_of = dict(zip(given.state, listing.results[:-1], strict=True))
    dependence = Dependence.of(listing)
    tainted = dependence.reached_from(given.batch)
    through_decay = True
    while True:
        try:
            rules = _rules(dependence, tainted, given, new_of, name, through_decay)
            clipping = clipping_of(dependence, {rule.parameter: rule.gradient for rule in rules}, tainted, name)
            scales = compared(
                listing, simplified(listing.needed_for(listing.results[-1:])), given.values, clipping.before, given.names, name
            )
            break
        except OtherGradient:
            if not through_decay:
                raise
            through_decay = False  # what was taken for the decay of SGD may be part of the loss
    used = {*given.names, *(state for rule in rules for state in rule.slots), *_counts(listing, given)}
    for number in given.state:
        if number not in used and new_of[number] != number:
            raise Unsupported(
                f"{name} changes {given.paths[number]} in a way that is neither an optimizer's nor a count of steps (running statistics of a "
                "batch norm, an average of parameters); keep it out of the step"
            )
    return _optimizer(module, given, rules, scales, clipping, name)


def _rules(
    dependence: Dependence, tainted: set[int], given: State, new_of: Mapping[int, int], name: str, through_decay: bool
) -> list[_Rule]:
    known: dict[object, Fit | None] = {}  # updates of equal operations are one, as those of all layers are
    return [_rule_of(dependence, tainted, given, new_of, number, name, known, through_decay) for number in given.names]


def _counts(listing: Listing, given: State) -> list[int]:
    """Whole numbers without dims: the steps taken."""
    return [number for number in given.state if listing.types[number].shape == () and not listing.types[number].dtype.is_floating]


def _rule_of(
    dependence: Dependence,
    tainted: set[int],
    given: State,
    new_of: Mapping[int, int],
    number: int,
    name: str,
    known: dict[object, Fit | None],
    through_decay: bool,
) -> _Rule:
    listing = dependence.listing
    type_ = listing.types[number]
    counts = set(_counts(listing, given))
    met = dependence.inputs_of([new_of[number]])
    states = [s for s in given.state if s in met and s not in given.names and s not in counts and listing.types[s].dtype.is_floating]
    states = [s for s in states if new_of[s] != s]
    refusal = Unsupported(
        f"{name} updates parameter {given.names[number]} in a way that is no SGD (with momentum, Nesterov, decay) and no Adam or AdamW; take one "
        "of these of optax, or give loss(params, batch) and optimizer="
    )
    if new_of[number] not in tainted:
        raise OtherGradient(name, given.names[number])
    sinks = [new_of[number], *(new_of[s] for s in states)]
    gradient = dependence.last_cut(sinks, tainted)
    if gradient is None or any(listing.types[s] != type_ for s in states) or listing.types[gradient] != type_:
        raise refusal
    if not states:
        gradient = _before_rates(dependence, gradient, tainted, counts, {number} if through_decay else set())
    part, shape = _at_few_elements(dependence.between([number, gradient, *states], sinks), type_.shape)
    read = {value for operation in part.operations for value in operation.operands} - {v for o in part.operations for v in o.results}
    if read - {number, gradient, *states, *counts}:
        raise refusal
    roles = {"p": number, "g": gradient} | {f"state {place}": s for place, s in enumerate(states)}

    def ask(values: Mapping[str, Tensor], count: int) -> Mapping[str, Tensor]:
        counted = {value: torch.tensor(count, dtype=getattr(torch, listing.types[value].dtype.value)) for value in counts}
        made = perform(part, {roles[role]: value for role, value in values.items()} | counted, wide=True)
        return dict(zip(["p", *(f"state {place}" for place in range(len(states)))], made, strict=True))

    asked = Asked(ask, shape, tuple(role for role in roles if role.startswith("state")), bool(read & counts))
    key = _key(part, list(roles.values()), counts)
    found = fitted(asked, _COUNTS) if key not in known else known[key]
    known[key] = found
    if found is None:
        raise refusal
    rule, slots, rate = found
    return _Rule(parameter=number, rule=rule, slots={roles[role]: slot for role, slot in slots.items()}, rate=rate, gradient=gradient)


def _at_few_elements(part: Listing, shape: tuple[int, ...]) -> tuple[Listing, tuple[int, ...]]:
    """An update that is the same for every element, of a parameter with few; another as it is."""
    types = part.types
    for operation in part.operations:
        scalar = all(types[value].shape in ((), shape) for value in (*operation.operands, *operation.results))
        array = isinstance(operation.attributes.get("value"), np.ndarray)
        if (
            operation.name not in _BY_ELEMENT
            or not scalar
            or array
            or (operation.name == "broadcast_in_dim" and types[operation.operands[0]].shape)
        ):
            return part, shape
    fewer = {value: TensorType((_PROBED,), type_.dtype) if type_.shape == shape and shape else type_ for value, type_ in types.items()}
    return replace(part, types=fewer), (_PROBED,) if shape else ()


def _key(part: Listing, roles: Sequence[int], counts: set[int]) -> object:
    """Equal for updates of equal operations."""
    number = {value: place for place, value in enumerate(roles)} | dict.fromkeys(counts, -1)
    key = []
    for operation in part.operations:
        operands = tuple(number[value] for value in operation.operands if value in number)
        number.update((value, len(number)) for value in operation.results)
        attributes = tuple((name, repr(value)) for name, value in sorted(operation.attributes.items()))
        key.append((operation.name, operands, attributes, part.types[operation.results[0]]))
    return tuple(key), tuple(number.get(value) for value in part.results)


def _before_rates(dependence: Dependence, gradient: int, tainted: set[int], counts: set[int], decayed: set[int]) -> int:
    """Of SGD without state nothing tells a gradient from one that is scaled: go back over products with rates and sums with the parameter."""
    while (operation := dependence.made_by.get(gradient)) is not None and operation.name in ("multiply", "negate", "add"):
        from_batch = [value for value in operation.operands if value in tainted]
        others = [value for value in operation.operands if value not in tainted]
        read = dependence.inputs_of(others)
        if (
            len(from_batch) != 1
            or read - counts - (decayed if operation.name == "add" else set())
            or (operation.name == "add" and not read)
        ):
            break
        gradient = from_batch[0]
    return gradient


def _optimizer(
    module: nn.Module, given: State, rules: Sequence[_Rule], scales: Mapping[int, float], clipping: Clipping, name: str
) -> Update:
    kinds = {type(rule.rule) for rule in rules}
    if len(kinds) != 1:
        raise Unsupported(f"{name} updates some parameters by SGD and some by AdamW; give all of them one optimizer")
    groups: dict[tuple[tuple[object, ...], tuple[float, ...]], list[_Rule]] = {}
    for rule in rules:
        rates = tuple(_rate(rule, scales, count) for count in _COUNTS)
        groups.setdefault((tuple(asdict(rule.rule).items())[1:], rates), []).append(rule)
    parameters = dict(module.named_parameters())
    listed, schedules = [], []
    for (_, rates), members in groups.items():
        options = asdict(members[0].rule)
        options["lr"] = max(rates) if isinstance(members[0].rule, SGD) else options["lr"]
        listed.append({"params": [parameters[given.names[rule.parameter]] for rule in members], **options})
        schedules.append(members[0])
    kind = torch.optim.AdamW if kinds == {AdamW} else torch.optim.SGD
    optimizer = kind(listed)
    taken = _hold_state(optimizer, parameters, given, rules)
    options = {} if clipping.max_norm is None else {"clip_norm": clipping.max_norm}
    if any(len(set(rates)) > 1 for _, rates in groups):
        options["lr_schedule"] = lambda step: [_rate(rule, scales, taken + step) for rule in schedules]
    return Update(optimizer=optimizer, options=options)


def _rate(rule: _Rule, scales: Mapping[int, float], count: int) -> float:
    return plain(abs(rule.rate(count) * (scales[rule.parameter] if not rule.slots else 1.0)))


def _hold_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], given: State, rules: Sequence[_Rule]) -> int:
    """Give the optimizer what the step's state holds, unless that is all zero; returns the steps that were taken."""
    counts = [number for number in given.state if given.values[number].ndim == 0 and not given.values[number].dtype.is_floating_point]
    taken = max((int(given.values[number]) for number in counts if not given.values[number].is_meta), default=0)
    held = [given.values[state] for rule in rules for state in rule.slots]
    if not taken and not any(not value.is_meta and bool(value.any()) for value in held):
        return 0
    for rule in rules:
        slots: dict[str, Tensor] = {slot: given.values[state].clone() for state, slot in rule.slots.items()}
        if isinstance(rule.rule, AdamW):
            slots["step"] = torch.tensor(float(taken))
        optimizer.state[parameters[given.names[rule.parameter]]] = slots
    return taken
