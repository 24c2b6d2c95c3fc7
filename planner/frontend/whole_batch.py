"""Means over the whole batch in the graph of one micro-batch: what a mean divides by is counted over the inputs of the whole step.

    loss of micro-batch k    a n_k / d_k     n_k a sum over its samples, d_k follows from the batch alone, a: numbers of the trace
    loss of the batch        A n / d         the same step traced at the whole batch;  n = n_1 + .. + n_m
    mean over k of  a n_k / D  =  A n / d    with  D = d (a / A) / m                                            (1) -> _Shares.of_divisors()

So d is computed beside each micro-batch, from the batch's inputs once more, which are not cut (Capture.whole).  That holds where the loss is
linear in the quotient and sums over samples; a quotient of another kind stays what it is for one device that accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from planner.frontend.tracing.stamp import STAMP, Stamp
from planner.frontend.tracing.trace import Capture
from planner.ir.graph import Role

__all__ = ["Quotient", "quotients", "reached_from", "with_whole_counts"]

aten = torch.ops.aten

_RELATIVE = 1e-6
# Linear in their first operand, element by element or in the order of elements.
_UNARY = frozenset(
    {
        aten.neg.default,
        aten._to_copy.default,
        aten.alias.default,
        aten.clone.default,
        aten.detach.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
    }
)
_SUMS = frozenset({aten.sum.default, aten.sum.dim_IntList})
_ADDITIONS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar})
_PRODUCTS = frozenset({aten.mul.Tensor, aten.mul.Scalar})
_DIVISIONS = frozenset({aten.div.Tensor, aten.div.Scalar})
_JOINS = frozenset({aten.cat.default, aten.stack.default})


@dataclass(frozen=True, slots=True)
class Quotient:
    """node = dividend / divisor; the divisor is a scalar."""

    node: fx.Node
    dividend: fx.Node
    divisor: fx.Node


def quotients(nodes: Iterable[fx.Node]) -> list[Quotient]:
    """Divisions by scalars in the forward part: ``x / d`` and ``x * reciprocal(d)``."""
    found: list[Quotient] = []
    for node in nodes:
        if node.op != "call_function" or not _is_forward(node) or len(node.args) < 2:
            continue
        a, b = node.args[:2]
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
            continue
        if node.target is aten.div.Tensor and _is_scalar(b):
            found.append(Quotient(node, a, b))
        elif node.target is aten.mul.Tensor:
            for dividend, inverse in ((a, b), (b, a)):
                divisor = inverse.args[0] if inverse.target is aten.reciprocal.default else None
                if isinstance(divisor, fx.Node) and _is_scalar(divisor):
                    found.append(Quotient(node, dividend, divisor))
    return found


def reached_from(nodes: Sequence[fx.Node], origins: Iterable[fx.Node]) -> set[fx.Node]:
    """The origins and all nodes that depend on them."""
    reached = set(origins)
    for node in nodes:
        if any(n in reached for n in node.all_input_nodes):
            reached.add(node)
    return reached


def with_whole_counts(part: Capture, whole: Capture, divisors: Sequence[fx.Node], varying: set[fx.Node], micro_batches: int) -> Capture:
    """``part``, whose quotients divide by the counts of the whole batch wherever (1) holds.

    Args:
        part, whole: the same step, traced at a micro-batch and at the whole batch.
        divisors: scalars of ``part`` that follow from the batch alone.   varying: nodes of ``part`` that depend on what micro-batches cut.
    """
    twins = _twins(part.graph, whole.graph)
    if twins is None:
        return part
    shares = _Shares(part.graph, twins, set(divisors), varying, micro_batches).of_divisors()
    if not shares:
        return part
    rewriting = _Rewriting(part, whole)
    for divisor in (node for node in part.graph.nodes if node in shares):
        rewriting.divide_by(divisor, twins[divisor], shares[divisor] / micro_batches)
    return rewriting.finished()


def _is_forward(node: fx.Node) -> bool:
    stamp = node.meta.get(STAMP)
    return isinstance(stamp, Stamp) and stamp.role is Role.FORWARD


def _tensor(node: fx.Node) -> Tensor | None:
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None


def _is_scalar(node: fx.Node) -> bool:
    value = _tensor(node)
    return value is not None and value.ndim == 0


def _numel(node: fx.Node) -> int:
    value = _tensor(node)
    return -1 if value is None else value.numel()


def _twins(part: fx.Graph, whole: fx.Graph) -> dict[fx.Node, fx.Node] | None:
    """Node of the micro-batch's forward part -> the same of the whole batch's; None where forward computes something else there."""
    pairs = [[n for n in graph.nodes if n.op in ("placeholder", "get_attr") or _is_forward(n)] for graph in (part, whole)]
    few, many = ([n for n in nodes if n.op != "get_attr" or _is_forward(n)] for nodes in pairs)
    if len(few) != len(many) or any(
        a.op != b.op or (a.op == "call_function" and a.target is not b.target) for a, b in zip(few, many, strict=True)
    ):
        return None
    return dict(zip(few, many, strict=True))


class _Shares:
    """Follows the loss back to each quotient, through linear ops alone, and multiplies their factors a / A of equation (1)."""

    def __init__(
        self, graph: fx.Graph, twins: Mapping[fx.Node, fx.Node], divisors: set[fx.Node], varying: set[fx.Node], micro_batches: int
    ) -> None:
        self._twins, self._varying, self._micro_batches = twins, varying, micro_batches
        nodes = list(graph.nodes)
        self._quotients = {q.node: q for q in quotients(nodes) if q.divisor in divisors}
        self._above = reached_from(nodes, self._quotients)
        ((self._loss, *_),) = nodes[-1].args

    def of_divisors(self) -> dict[fx.Node, float]:
        """Divisor -> a / A of equation (1), of those for which it holds."""
        ratios: dict[fx.Node, list[float]] = {}
        refused: set[fx.Node] = set()
        pending: list[tuple[fx.Node, float, bool]] = [(self._loss, 1.0, False)]
        seen = set(pending)
        while pending:
            node, ratio, summed = pending.pop()
            quotient = self._quotients.get(node)
            if quotient is not None:
                inner = 1.0 if summed and _numel(quotient.dividend) == _numel(node) else self._of_sum(quotient.dividend)
                if inner is None or quotient.dividend in self._above:
                    refused |= self._divisors_below(node)
                else:
                    ratios.setdefault(quotient.divisor, []).append(ratio * inner)
                continue
            below = self._below(node)
            if below is None:
                refused |= self._divisors_below(node)
                continue
            for operand, factor in below:
                following = (operand, ratio * factor, summed or self._sums_samples(node))
                if operand in self._above and following not in seen:
                    seen.add(following)
                    pending.append(following)
        return {
            divisor: found[0]
            for divisor, found in ratios.items()
            if divisor not in refused and all(math.isclose(ratio, found[0], rel_tol=_RELATIVE) for ratio in found)
        }

    def _divisors_below(self, node: fx.Node) -> set[fx.Node]:
        pending, seen = [node], {node}
        while pending:
            for operand in pending.pop().all_input_nodes:
                if operand in self._above and operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return {self._quotients[n].divisor for n in seen if n in self._quotients}

    def _sums_samples(self, node: fx.Node) -> bool:
        """Whether the node sums over samples: of the whole batch it sums m times as many elements."""
        operand = node.args[0] if node.target in _SUMS else None
        if not isinstance(operand, fx.Node):
            return False
        few, many = (_numel(a) // max(_numel(b), 1) for a, b in ((operand, node), (self._twins[operand], self._twins[node])))
        return many == few * self._micro_batches

    def _below(self, node: fx.Node) -> list[tuple[fx.Node, float]] | None:
        """Operands that the node is linear in, as far as quotients enter it, each with its factor a / A; None: it is not linear in one."""
        on_the_way = [n for n in node.all_input_nodes if n in self._above]
        if not on_the_way:
            return []
        first, *others = node.args
        if node.target in _UNARY or node.target in _SUMS or (node.target is aten.masked_fill.Scalar and others[1:] == [0]):
            return [(first, 1.0)] if on_the_way == [first] and isinstance(first, fx.Node) else None
        if node.target in _JOINS:
            return [(n, 1.0) for n in on_the_way]
        if any(_numel(n) != _numel(node) for n in on_the_way):
            return None  # spread over samples
        if node.target in _ADDITIONS:
            return [(n, 1.0) for n in on_the_way] if node.kwargs == self._twins[node].kwargs else None
        if node.target is aten.where.self:
            return None if first in on_the_way else [(n, 1.0) for n in on_the_way]
        factor = self._factor(node)
        return None if factor is None or len(on_the_way) != 1 else [(on_the_way[0], factor)]

    def _factor(self, node: fx.Node) -> float | None:
        """a / A of a product or a quotient, which is linear in one operand; None: of another op, or where a sum over samples is a factor."""
        if node.target not in _PRODUCTS | _DIVISIONS:
            return None
        a, b = node.args[:2]
        constant = a if isinstance(b, fx.Node) and b in self._above else b
        if node.target in _DIVISIONS and constant is a:
            return None
        if isinstance(constant, fx.Node):
            return None if _is_scalar(constant) and constant in self._varying else 1.0
        at = 0 if constant is a else 1
        few, many = float(str(constant)), float(str(self._twins[node].args[at]))
        if few == 0 or many == 0:
            return None
        return few / many if node.target in _PRODUCTS else many / few

    def _of_sum(self, node: fx.Node) -> float | None:
        """a / A of a scalar that is linear in sums over samples; None: it depends on something else, or not linearly."""
        first = node.args[0] if node.args else None
        if self._sums_samples(node):
            return 1.0 if _is_scalar(node) else None
        if not isinstance(first, fx.Node) or not _is_scalar(node):
            return None
        if node.target in _UNARY:
            return self._of_sum(first)
        if node.target in _ADDITIONS:
            second = node.args[1]
            if not isinstance(second, fx.Node) or node.kwargs != self._twins[node].kwargs:
                return None
            ratios = self._of_sum(first), self._of_sum(second)
            same = None not in ratios and math.isclose(ratios[0] or 0, ratios[1] or 0, rel_tol=_RELATIVE)
            return ratios[0] if same else None
        if node.target not in _PRODUCTS | _DIVISIONS:
            return None
        second = node.args[1]
        if isinstance(second, fx.Node):
            if second in self._varying and node.target in _PRODUCTS and first not in self._varying:
                first, second = second, first
            return None if second in self._varying else self._of_sum(first)
        factor, inner = self._factor(node), self._of_sum(first)
        return None if factor is None or inner is None else factor * inner


class _Rewriting:
    """Rewrites the micro-batch's graph, so that it divides by counts of the whole batch, which it computes itself."""

    def __init__(self, part: Capture, whole: Capture) -> None:
        self._part, self._whole, self._graph = part, whole, part.graph
        self._constants = dict(part.constants)
        self._first = len(part.parameters) + len(part.buffers)
        self._placeholders: list[fx.Node] = [node for node in part.graph.nodes if node.op == "placeholder"]
        outer = [node for node in whole.graph.nodes if node.op == "placeholder"]
        self._number = {node: number - self._first for number, node in enumerate(outer)}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._inputs: dict[int, fx.Node] = {}

    def divide_by(self, divisor: fx.Node, of_whole: fx.Node, factor: float) -> None:
        """Let every op that divides by ``divisor`` divide by ``factor`` times the whole batch's divisor instead."""
        dividing = [user for user in divisor.users if user.target is aten.reciprocal.default or user.args[1:2] == (divisor,)]
        dividing = [user for user in dividing if user.target in (aten.reciprocal.default, aten.div.Tensor)]
        value, wanted = _tensor(divisor), _tensor(dividing[0])
        assert value is not None and wanted is not None
        with self._graph.inserting_before(divisor.next):
            made = self._copied(of_whole, divisor.meta[STAMP])
            dtype = value.dtype
            if not dtype.is_floating_point:
                dtype = wanted.dtype
                made = self._made(aten._to_copy.default, (made,), {"dtype": dtype}, divisor, dtype)
            if factor != 1:
                made = self._made(aten.mul.Tensor, (made, factor), {}, divisor, dtype)
        for user in dividing:
            user.args = (made, *user.args[1:]) if user.target is aten.reciprocal.default else (user.args[0], made)

    def _made(
        self,
        target: torch._ops.OpOverload,
        args: tuple[fx.Node | float, ...],
        kwargs: dict[str, torch.dtype],
        like: fx.Node,
        dtype: torch.dtype,
    ) -> fx.Node:
        node = self._graph.call_function(target, args, dict(kwargs))
        node.meta |= {STAMP: like.meta[STAMP], "val": torch.empty((), dtype=dtype, device="meta")}
        return node

    def _copied(self, node: fx.Node, stamp: Stamp) -> fx.Node:
        """A copy, in this graph, of a node of the whole batch's graph; what it is computed from is copied too."""
        needed, pending = {node}, [node]
        while pending:
            for operand in pending.pop().all_input_nodes:
                if operand not in needed and operand not in self._copies:
                    needed.add(operand)
                    pending.append(operand)
        for original in self._whole.graph.nodes:
            if original in needed and original not in self._copies:
                self._copies[original] = self._copy(original, stamp)
        return self._copies[node]

    def _copy(self, node: fx.Node, stamp: Stamp) -> fx.Node:
        if node.op == "placeholder":
            return self._input(self._number[node], node)
        if node.op == "get_attr":
            name = f"_whole{node.target}"
            self._constants[name] = self._whole.constants[str(node.target)]
            made: fx.Node = self._graph.create_node("get_attr", name)
        else:
            made = self._graph.node_copy(node, lambda operand: self._copies[operand])
        made.meta = {**node.meta, STAMP: stamp}
        return made

    def _input(self, number: int, of_whole: fx.Node) -> fx.Node:
        if self._part.batch_dims[number] is None:
            return self._placeholders[self._first + number]
        if number not in self._inputs:
            behind = self._placeholders[self._first + len(self._part.batch_dims)]
            with self._graph.inserting_before(behind):
                self._inputs[number] = self._graph.placeholder("whole")
            self._inputs[number].meta["val"] = of_whole.meta["val"]
        return self._inputs[number]

    def finished(self) -> Capture:
        return replace(self._part, constants=self._constants, whole=tuple(self._inputs))
