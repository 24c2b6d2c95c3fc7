"""Means whose denominator depends on the data: ignored targets, class weights, masks.

One device divides the sum over the whole batch by the count over the whole batch.  The mean over micro-batches of sum / count is another
number unless every micro-batch counts the same:

    targets of two micro-batches   3 7 . .      2 5 1 4        (.  ignored)
    whole batch                    (l1 + .. + l6) / 6
    mean of two means              ((l1 + l2) / 2 + (l3 + .. + l6) / 4) / 2

So the counts of each batch are worked out from the batch alone.  Where those of the example differ, each micro-batch divides by the count of
the whole batch (planner.frontend.whole_batch).  Where that cannot be, or only a later batch differs, it is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from planner.frontend.tracing.stamp import STAMP, Stamp
from planner.frontend.tracing.trace import Capture
from planner.frontend.whole_batch import quotients, reached_from, with_whole_counts

__all__ = ["Denominators", "counted"]

_MOST_SHOWN = 4
_RELATIVE = 1e-6


def counted(part: Capture, whole: Callable[[], Capture], micro_batches: Sequence[Sequence[Tensor]], *, always: bool = False) -> Capture:
    """``part``, with the counts of the whole batch where those of the micro-batches differ, or wherever there are some (``always``).

    Args:
        part: the step traced at one micro-batch.   whole: traces it at the whole batch.
        micro_batches: of the example.
    """
    found = Denominators(part)
    if not (found.divisors if always else found.differ(micro_batches)):
        return part
    return with_whole_counts(part, whole(), found.divisors, found.varying, len(micro_batches))


class Denominators:
    """The scalars of a traced micro-batch that the forward part divides by, and that follow from the batch alone.

    varying: nodes that depend on what micro-batches cut.
    """

    def __init__(self, captured: Capture) -> None:
        nodes = list(captured.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        first = len(captured.parameters) + len(captured.buffers)
        inputs = placeholders[first : first + len(captured.batch_dims)]
        cut = {node for node, dim in zip(inputs, captured.batch_dims, strict=True) if dim is not None}
        self._places = {node: place for place, node in enumerate(inputs)}
        self._constants: Mapping[str, Tensor] = captured.constants
        known = _follows_from(nodes, set(self._places))
        self.varying = reached_from(nodes, cut)
        divided = [q for q in quotients(nodes) if q.divisor in known and q.divisor in self.varying]
        self.divisors = tuple(dict.fromkeys(q.divisor for q in divided))
        self._of_means = {q.divisor for q in divided if _is_scalar(q.dividend)}
        self._work = _needed(nodes, self.divisors)

    def values(self, inputs: Sequence[Tensor]) -> tuple[float, ...]:
        """What one micro-batch divides by."""
        held: dict[fx.Node, object] = {}
        for node in self._work:
            if node.op == "placeholder":
                held[node] = inputs[self._places[node]]
            elif node.op == "get_attr":
                held[node] = self._constants[str(node.target)]
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), cast(Any, held.__getitem__))
                assert callable(node.target)
                held[node] = node.target(*args, **kwargs)
        return tuple(float(torch.as_tensor(held[node])) for node in self.divisors)

    def _different(self, micro_batches: Sequence[Sequence[Tensor]]) -> dict[fx.Node, tuple[float, ...]]:
        """Divisors that micro-batches do not share, with the value in each."""
        if not self.divisors or any(t.is_meta or isinstance(t, torch._subclasses.FakeTensor) for t in micro_batches[0]):
            return {}
        by_divisor = zip(self.divisors, zip(*(self.values(inputs) for inputs in micro_batches), strict=True), strict=True)
        return {node: counts for node, counts in by_divisor if not all(math.isclose(c, counts[0], rel_tol=_RELATIVE) for c in counts)}

    def differ(self, micro_batches: Sequence[Sequence[Tensor]]) -> bool:
        """Whether micro-batches divide by different numbers."""
        return bool(self._different(micro_batches))

    def difference(self, micro_batches: Sequence[Sequence[Tensor]], what: str, *, later: bool = False) -> str:
        """What is to be told of a batch whose micro-batches take means over different counts: the counts, where they are and the way out.

        Args:
            what: the batch, as messages name it.   later: it is not the example, by which a plan would have told.

        Returns:
            empty if there is nothing to tell.
        """
        way_out = "let example_inputs be such a batch, and the plan divides by what the whole batch counts, " if later else ""
        for node, counts in self._different(micro_batches).items():
            if node in self._of_means:
                stamp = node.meta.get(STAMP)
                where = f"module {stamp.module!r}" if isinstance(stamp, Stamp) and stamp.module else "the loss"
                shown = ", ".join(f"{value:g}" for value in counts[:_MOST_SHOWN]) + (", ..." if len(counts) > _MOST_SHOWN else "")
                return (
                    f"{where} takes a mean whose count depends on the data: the {len(counts)} micro-batches of {what} count {shown} (ignored "
                    "targets, class weights, a mask), and each weighs alike, as where one device accumulates: the mean of their means is not the "
                    f"mean of the batch; {way_out}plan with one micro-batch, or divide a sum by a number that every micro-batch has"
                )
        return ""


def _is_scalar(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.ndim == 0


def _follows_from(nodes: Sequence[fx.Node], inputs: set[fx.Node]) -> set[fx.Node]:
    """Nodes that follow from these inputs and from constants alone, without drawing."""
    known = set(inputs)
    for node in nodes:
        drawn = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if node.op == "get_attr" or (node.op == "call_function" and not drawn and all(n in known for n in node.all_input_nodes)):
            known.add(node)
    return known


def _needed(nodes: Sequence[fx.Node], wanted: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    needed = set(wanted)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return tuple(node for node in nodes if node in needed)
