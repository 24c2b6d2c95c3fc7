"""What a user asks for, and the ops of a staged graph that it means.

    attention     what lies between the two products of attention: scores, mask, softmax, dropout, and the products (Korthikanti et al. 2022)
    60%           on each stage the ops that cost least while 60 % of the bytes are kept that are kept where nothing is computed again

The choice of the second is certified (-> RecomputeChoice) on whole tensors, before layouts are chosen, with no price for collectives, which stand in no
graph yet: the search prices those of the copies that result, and its bound is for this choice of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph, Op, Role
from planner.opset import is_creation, is_view
from planner.stages.recompute.choose import choose_recompute
from planner.stages.recompute.problem import ForwardOp, Keeping, SavingProblem
from planner.stages.staged import region_of

__all__ = ["ATTENTION", "ops_again", "share_kept", "stage_problem"]

ATTENTION = "attention"
_PRODUCTS = frozenset({"aten.matmul.default", "aten.bmm.default"})


def share_kept(text: str) -> float | None:
    """The share that ``60%`` keeps, 0 to 1; None for ``attention``.

    Raises:
        Unsupported: the text is neither.

    >>> share_kept("60%"), share_kept("attention")
    (0.6, None)
    """
    if text == ATTENTION:
        return None
    number = text.removesuffix("%")
    if text.endswith("%") and number.replace(".", "", 1).isdecimal() and 0 <= float(number) <= 100:
        return float(number) / 100
    raise Unsupported(f"recompute {text!r}: ask for auto, none, blocks, attention, or the share of bytes to keep, 0% to 100%")


def ops_again(graph: LogicalGraph, stage: Mapping[str, int], asked: str, op_s: Callable[[Op], float]) -> frozenset[str]:
    """Ids of the forward ops that the backward part computes again.

    Args:
        stage: of each op.   asked: as above.   op_s: seconds of an op.

    Raises:
        Unsupported: the text is unknown, there is no attention of several ops, or the share is less than what must be kept.
    """
    share = share_kept(asked)
    problems = [stage_problem(graph, stage, number, op_s) for number in sorted(set(stage.values()))]
    if share is None:
        free = {op.id for problem in problems for op in problem.ops if op.keeping is not Keeping.KEPT}
        found = _attention(graph) & free
        if not found:
            raise Unsupported(
                "recompute attention: this graph has no softmax between two products of several ops; attention that is one op keeps its output and "
                "a number per row only.  Ask for a share to keep (60%), or for attention eager"
            )
        return found
    return frozenset().union(*(choose_recompute(p, int(share * p.most_bytes)).again for p in problems if p.most_bytes))


def stage_problem(graph: LogicalGraph, stage: Mapping[str, int], number: int, op_s: Callable[[Op], float]) -> SavingProblem:
    """What stage ``number`` keeps for its own backward part.  What it receives, and what leaves it or the step, is kept.

    An op that draws (dropout) draws the same again (SEMANTICS 7.2), and state is updated behind the passes, so both are free to choose.
    """
    producers, consumers = graph.producers(), graph.consumers()
    here, back = (number, Role.FORWARD), (number, Role.BACKWARD)
    results = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values(), *graph.output_values}
    ops: list[ForwardOp] = []
    received: dict[str, None] = {}
    read: set[str] = set()
    for op in graph.ops:
        region = region_of(op, stage, producers)
        if region == back:
            read.update(op.inputs)
        if region not in (here, back):
            continue
        of_others = (v for v in op.inputs if v in producers and producers[v].role is Role.FORWARD and stage[producers[v].id] != number)
        received.update(dict.fromkeys(of_others))
        if region != here or op.role is not Role.FORWARD:
            continue
        outputs = tuple(v for v in op.outputs if v)
        leaves = not results.isdisjoint(outputs) or any(
            region_of(reader, stage, producers) not in (here, back) for v in outputs for reader in consumers[v]
        )
        free = is_view(op) or is_creation(op)
        keeping = Keeping.AGAIN if free and results.isdisjoint(outputs) else Keeping.KEPT if leaves else Keeping.CHOSEN
        ops.append(ForwardOp(id=op.id, inputs=op.inputs, outputs=outputs, duration_s=0.0 if free else op_s(op), keeping=keeping))
    arrivals = [ForwardOp(id=f"received {v}", inputs=(), outputs=(v,), duration_s=0.0, keeping=Keeping.KEPT) for v in received]
    made = {v for op in (*arrivals, *ops) for v in op.outputs}
    return SavingProblem(ops=(*arrivals, *ops), size_bytes={v: graph.values[v].size_bytes for v in made}, read=frozenset(read & made))


def _attention(graph: LogicalGraph) -> frozenset[str]:
    """Forward ops from the product before a softmax to the product behind it, both included."""
    producers, consumers = graph.producers(), graph.consumers()
    found: set[str] = set()
    for op in graph.ops:
        if op.role is Role.FORWARD and op.target == "aten._softmax.default":
            above = _until_product(op, lambda o: [producers[v] for v in o.inputs if v in producers])
            below = _until_product(op, lambda o: [r for v in o.outputs if v for r in consumers[v] if r.role is Role.FORWARD])
            if above and below:
                found |= above | below
    return frozenset(found)


def _until_product(op: Op, further: Callable[[Op], list[Op]]) -> frozenset[str]:
    """The op and those from it to the nearest products; none if a way ends at another contraction, or at no product."""
    found, open_ops, ends = {op.id}, [op], False
    while open_ops:
        for other in further(open_ops.pop()):
            if other.id in found:
                continue
            found.add(other.id)
            if other.target in _PRODUCTS:
                ends = True
            else:
                open_ops.append(other)
    return frozenset(found) if ends else frozenset()
