"""Attention takes keys and values as they are: heads that a module repeats for the queries that share them are repeated nowhere.

    k [N, G, T, E] -> unsqueeze -> expand [N, G, r, T, E] -> clone -> view [N, G r, T, E] -> attention(q, .., ..)
    attention_backward(.., q, .., ..) -> dk' [N, G r, T, E] -> view [N, G, r, T, E] -> sum over r -> dk [N, G, T, E]

        become       attention(q, k, v)       and       attention_backward(.., q, k, v) -> dk

The op groups queries itself (planner.frontend.attention.ops), and its gradient of a shared head is that sum.  So a model that repeats heads (as
transformers' does beside a mask) is the same step as one that says enable_gqa: no copies of keys and values, and none of their gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.frontend.to_graph.finish import Body
from planner.ir.graph import Op, Ref
from planner.ir.tensor import TensorType

__all__ = ["with_shared_heads"]

_KEYS = {"regista.attention": 1, "regista.attention_backward": 2}
"""Target -> where keys stand in its arguments; values stand behind them."""
_VIEW, _CLONE, _EXPAND, _SUM = "aten.view.default", "aten.clone.default", "aten.expand.default", "aten.sum.dim_IntList"
_UNSQUEEZE, _SQUEEZE = "aten.unsqueeze.default", "aten.squeeze.dim"
_HEADS = 1


def with_shared_heads(body: Body) -> Body:
    """The same micro-batch without repeated heads; what nobody reads any more is still there."""
    known = _Known.of(body)
    same: dict[str, str] = {}
    types, ops = dict(body.types), list[Op]()
    for op in body.ops:
        taken = op.renamed(same)
        if op.target in _KEYS and (bases := known.bases(op)) is not None and (folds := known.folds(op, bases)) is not None:
            first = _KEYS[op.target]
            taken = replace(taken, args=(*taken.args[:first], *(Ref(same.get(base, base)) for base in bases), *taken.args[first + 2 :]))
            for gradient, (fold, base) in folds.items():
                types[gradient] = types[base]
                same[fold] = gradient
        ops.append(taken)
    return replace(
        body,
        ops=tuple(ops),
        types=types,
        loss=same.get(body.loss, body.loss),
        gradients={name: same.get(value, value) for name, value in body.gradients.items()},
        outputs={name: same.get(value, value) for name, value in body.outputs.items()},
        updates={name: same.get(value, value) for name, value in body.updates.items()},
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """Who makes a value, which ops read it, and its type.   leaving: values that are results of the step."""

    makers: Mapping[str, Op]
    readers: Mapping[str, list[Op]]
    types: Mapping[str, TensorType]
    leaving: frozenset[str]

    @classmethod
    def of(cls, body: Body) -> _Known:
        readers: dict[str, list[Op]] = defaultdict(list)
        for op in body.ops:
            for value in dict.fromkeys(op.inputs):
                readers[value].append(op)
        leaving = frozenset({body.loss, *body.gradients.values(), *body.outputs.values(), *body.updates.values()})
        return cls({value: op for op in body.ops for value in op.outputs if value is not None}, readers, body.types, leaving)

    def bases(self, op: Op) -> tuple[str, str] | None:
        """Keys and values that are repeated for this attention; None: they are not, or not both."""
        first = _KEYS[op.target]
        keys, values = (arg.value if isinstance(arg, Ref) else "" for arg in op.args[first : first + 2])
        of_keys, of_values = self._base(keys), self._base(values)
        if of_keys is None or of_values is None or self.types[of_keys].shape[_HEADS] != self.types[of_values].shape[_HEADS]:
            return None
        return of_keys, of_values

    def _base(self, repeated: str) -> str | None:
        view = self.makers.get(repeated)
        if view is None or view.target != _VIEW:
            return None
        expand = self.makers.get(view.inputs[0])
        if expand is not None and expand.target == _CLONE:
            expand = self.makers.get(expand.inputs[0])
        if expand is None or expand.target != _EXPAND:
            return None
        apart, expanded, whole = expand.inputs[0], self.types[view.inputs[0]].shape, self.types[repeated].shape
        if len(expanded) != 5 or len(whole) != 4 or self.types[apart].shape != (*expanded[:2], 1, *expanded[3:]):
            return None
        if whole != (expanded[0], expanded[1] * expanded[2], *expanded[3:]):
            return None
        made = self.makers.get(apart)
        if made is None or made.target not in (_UNSQUEEZE, _VIEW):
            return None
        base = made.inputs[0]
        return base if self.types[base].shape == (*expanded[:2], *expanded[3:]) else None

    def folds(self, op: Op, bases: tuple[str, str]) -> dict[str, tuple[str, str]] | None:
        """Gradient of repeated keys or values -> (the sum over those that share a head, what they are of); None: one is read otherwise."""
        found: dict[str, tuple[str, str]] = {}
        if op.target == "regista.attention":
            return found
        for gradient, base in zip(op.outputs[1:], bases, strict=True):
            if gradient is None or not (self.readers.get(gradient) or gradient in self.leaving):
                continue
            fold = self._fold(gradient, self.types[base].shape)
            if fold is None:
                return None
            found[gradient] = fold, base
        return found

    def _fold(self, gradient: str, shape: tuple[int, ...]) -> str | None:
        apart = (*shape[:2], self.types[gradient].shape[_HEADS] // shape[_HEADS], *shape[2:])
        view = self._only_reader(gradient, _VIEW)
        if view is None or self.types[view].shape != apart:
            return None
        total = self._only_reader(view, _SUM)
        if total is None or self.makers[total].args[1] != (2,):
            return None
        if self.types[total].shape == shape:
            return total
        squeezed = self._only_reader(total, _SQUEEZE) or self._only_reader(total, _VIEW)
        return squeezed if squeezed is not None and self.types[squeezed].shape == shape else None

    def _only_reader(self, value: str, target: str) -> str | None:
        """What the one op that reads the value makes of it; None: it is of another kind, there are others, or the value is a result."""
        readers = self.readers.get(value, [])
        return readers[0].outputs[0] if len(readers) == 1 and readers[0].target == target and value not in self.leaving else None
