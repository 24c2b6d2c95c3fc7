"""Bytes that training keeps per trained parameter, before anything is split, from the Plan alone.

    fp32               4 parameter + 8 moments (AdamW)                     + 4 gradient        16
    mixed precision    4 parameter + 8 moments          + 2 working copy   + 4 or 2 gradient   18 or 16
    all in bfloat16    2 parameter + 4 moments                             + 2 gradient         8

The 16 of the papers are mixed precision with gradients in the low format.   [Rajbhandari et al. 2020, ZeRO, section 3.1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from planner.ir.graph import InputKind
from planner.ir.plan import PlacedTensor, Plan
from planner.ir.tensor import DType

__all__ = ["StateBytes", "state_bytes"]

_NAMES = {InputKind.PARAMETER: "parameter", InputKind.OPTIMIZER_STATE: "optimizer state", InputKind.WORKING_COPY: "working copy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """parameters: elements that are trained.   bytes_of: what is kept -> its bytes.   counters: bytes of 0-d states, which are in none of these.

    narrowest: the shortest format of a trained parameter; None: nothing is trained.
    computed_whole: elements without a working copy, where others have one.
    """

    parameters: int
    bytes_of: Mapping[str, int]
    counters: int
    narrowest: DType | None
    computed_whole: int

    @property
    def per_parameter(self) -> dict[str, float]:
        """What is kept -> bytes per trained parameter, and ``all``."""
        each = {what: size / max(self.parameters, 1) for what, size in self.bytes_of.items()}
        return {**each, "all": sum(each.values())}

    def __str__(self) -> str:
        if self.narrowest is None:
            return "nothing is trained"
        per_parameter = self.per_parameter
        parts = " + ".join(f"{size:.4g} {what}" for what, size in per_parameter.items() if what != "all")
        text = f"{per_parameter['all']:.4g} bytes = {parts}; {self.parameters:,} trained"
        if self.computed_whole:
            text += f", {self.computed_whole:,} of them computed with as they are (norms, embeddings)"
        if self.narrowest.size_bytes < 4:
            text += f"; trained in {self.narrowest.value} alone, without float32 masters (mixed precision: --precision)"
        return text


def state_bytes(plan: Plan) -> StateBytes:
    """What a Plan keeps for its trained parameters."""
    states = {entry.name: (entry, plan.regst[entry.regst].tensors[entry.index]) for entry in reversed(plan.states)}
    trained = {name: states[name][1] for name in plan.gradients if name in states}
    copied = {entry.copy_of for entry, _ in states.values() if entry.copy_of is not None}
    held: Counter[str] = Counter()
    counters = 0
    for entry, tensor in states.values():
        if entry.kind not in _NAMES or (entry.kind is InputKind.PARAMETER and entry.name not in trained):
            continue
        if entry.kind is InputKind.OPTIMIZER_STATE and not tensor.shape:
            counters += tensor.dtype.size_bytes
        else:
            held[_NAMES[entry.kind]] += _size(tensor)
    held["gradient"] = sum(_size(plan.regst[a.regst].tensors[a.index]) for a in plan.gradients.values())
    order = (*_NAMES.values(), "gradient")
    return StateBytes(
        parameters=sum(prod(tensor.shape) for tensor in trained.values()),
        bytes_of={what: held[what] for what in order if held[what]},
        counters=counters,
        narrowest=min((tensor.dtype for tensor in trained.values()), key=lambda dtype: dtype.size_bytes, default=None),
        computed_whole=sum(prod(tensor.shape) for name, tensor in trained.items() if copied and name not in copied),
    )


def _size(tensor: PlacedTensor) -> int:
    return prod(tensor.shape) * tensor.dtype.size_bytes
