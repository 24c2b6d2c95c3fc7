"""State that no step changes, buffers and frozen parameters, whose values forward asks for: they decide what is computed, once and for ever.

    if self.initialized: ...        a flag that data-dependent initializations leave behind (codebooks of VQ, ActNorm, LSQ)
    if self.observer_enabled[0]:    torch's own quantization-aware training

While a step is traced such a tensor has the value that the module has.  The step checks that it still has it, since a run may begin from other
values (a checkpoint, ``--init``); and a step that writes what it asked for is refused, since its next step may go another way.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, fx
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.frontend.tracing.checks.known import STATE, node_of
from planner.frontend.tracing.refusals import InvalidForBothTracers
from planner.frontend.tracing.source import calling_line

__all__ = ["Kept", "kept_of", "refuse_written"]


class Kept:
    """A buffer or frozen parameter whose value forward may ask for while it is traced.

    tensor: of the module, with its value.   node: what it is at the beginning of the step.
    asked: the line of the user's that asked for it first, and its file; empty: none.
    """

    def __init__(self, name: str, tensor: Tensor, node: fx.Node) -> None:
        self.name, self.node, self._tensor, self.asked = name, node, tensor, ""

    def value(self) -> Tensor | None:
        """A copy on the CPU; None: it has no value, or holds something that is no number, which equals nothing."""
        if self._tensor.is_meta or self._tensor.layout is not torch.strided:
            return None
        with _disable_current_modes(), torch.no_grad():
            value = self._tensor.detach().to("cpu", copy=True)
            return None if bool((value != value).any()) else value

    def ask(self) -> None:
        """Record that the user's line which runs at present asked for the value."""
        line = calling_line()
        self.asked = self.asked or ("torch's own code" if line is None else f"'{linecache.getline(*line).strip()}' in {Path(line[0]).name}")

    def check(self, traced: Tensor) -> Tensor | None:
        """The check that it has this value in every step, a 0-d zero; None: nobody asks for it, or the step has written it (refuse_written).

        Args:
            traced: what it is now.
        """
        if not self.asked:
            return None
        if isinstance(traced, FunctionalTensor):
            torch._sync(traced)  # type: ignore[attr-defined, no-untyped-call]
        if node_of(traced) is not self.node:
            return None
        value = self.value()
        assert value is not None
        if value.numel() == 1:
            with _disable_current_modes():
                number = value.item()
            mask = traced == number
        else:
            mask = traced == value
        text = f"'{self.name} is as it was when the plan was made', for {self.asked} asked for it,"
        return torch.ops.regista.check(mask, True, text)  # type: ignore[no-any-return]


def kept_of(module: Mapping[str, Tensor], traced: Mapping[str, Tensor]) -> Mapping[Kept, Tensor]:
    """State that no optimizer changes, whose values a trace may ask for, and what stands for it.

    Args:
        module: its state by name.   traced: the same names -> what stands for each.
    """
    made = {}
    for name, tensor in module.items():
        node = node_of(traced[name])
        if node is not None and not tensor.requires_grad:
            node.meta[STATE] = kept = Kept(name, tensor, node)
            made[kept] = traced[name]
    return made


def refuse_written(kept: Sequence[Kept], graph: fx.Graph) -> None:
    """
    Args:
        graph: of the traced step, one of whose results is what each of them is at its end.

    Raises:
        InvalidForBothTracers: the step writes what it has asked for.
    """
    (*_, output) = graph.nodes
    results = set(output.args[0])
    for each in kept:
        if each.asked and each.node not in results:
            raise InvalidForBothTracers(
                f"the value of {each.name} decides what {each.asked} does, and the step changes it: the next step may be another "
                "one, but a plan repeats the first for ever; where it says whether something is initialized, run the module once on a batch "
                "before it is planned; where it is a place in a buffer, index by tensors (queue[:, (place + torch.arange(n)) % size] = keys); "
                "else compute with torch.where"
            )
