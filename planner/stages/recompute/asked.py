"""What a user asks for, and the forward ops of a graph that the backward part computes again.

    blocks        all that lies inside of numbered blocks (h.0, h.1, ...), so that only what enters them is kept
    attention     what lies between the two products of attention: scores, mask, softmax, dropout, and the products (Korthikanti et al. 2022);
                  a product of attention has no parameter for an operand, so the softmax of a router is none
    60%           the ops that cost least while 60 % of the bytes are kept that are kept where nothing is computed again, the same for equal blocks

The choice of the third is certified (-> RecomputeChoice) on whole tensors, before stages and layouts are chosen, with no price for collectives, which
stand in no graph yet: the search prices those of the copies that result, and its bound is for this choice of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Op, Role
from planner.opset import is_creation, is_view
from planner.opset.elementwise import TABLE
from planner.stages.blocks import block_of
from planner.stages.recompute.problem import ForwardOp, Keeping, SavingProblem
from planner.stages.recompute.repeated import choose_repeated
from planner.stages.recompute.wholes import put_together
from planner.stages.staged import region_of

__all__ = [
    "ATTENTION",
    "BLOCKS",
    "KEPT_OPTION",
    "SELECTIVE",
    "OpsAgain",
    "Recompute",
    "inside_blocks",
    "on_one_stage",
    "ops_again",
    "recompute_of",
    "saving_problem",
    "share_kept",
]

Recompute = bool | str | None
"""As options have it.   False: nothing; True: numbered blocks; None: these where nothing else fits; a text: ATTENTION, SELECTIVE or a share."""
ATTENTION, BLOCKS, SELECTIVE = "attention", "blocks", "selective"
KEPT_OPTION = "kept"
"""Of a Plan: which ops' results are kept, where the choice was made op by op."""
_PRODUCTS = frozenset({"aten.matmul.default", "aten.bmm.default"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsAgain:
    """ops: ids of the forward ops that the backward part computes again.   told: what that keeps and costs, and its proof; "" of blocks."""

    ops: frozenset[str] = frozenset()
    told: str = ""


def recompute_of(text: str) -> Recompute:
    """What a word of the command line means.

    Raises:
        Unsupported: there is no such word.

    >>> recompute_of("blocks"), recompute_of("auto"), recompute_of("60%")
    (True, None, '60%')
    """
    meant: dict[str, Recompute] = {"auto": None, "none": False, BLOCKS: True, SELECTIVE: SELECTIVE}
    if text not in meant:
        share_kept(text)
    return meant.get(text, text)


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
    raise Unsupported(f"recompute {text!r}: ask for auto, none, blocks, attention, selective, or the share of bytes to keep, 0% to 100%")


def ops_again(graph: LogicalGraph, asked: str, op_s: Callable[[Op], float]) -> OpsAgain:
    """The forward ops that the backward part computes again.

    Args:
        asked: as above, or "" for none.   op_s: seconds of an op.

    Raises:
        Unsupported: the text is unknown, there is no attention of several ops, or the share is less than what must be kept.
    """
    if asked in ("", BLOCKS):
        return OpsAgain(ops=inside_blocks(graph) if asked else frozenset())
    share, problem = share_kept(asked), saving_problem(graph, op_s)
    if share is None:
        attention = _attention(graph)
        inside = {op.id for op in problem.ops if op.keeping is not Keeping.KEPT and attention.issuperset(op.parts or (op.id,))}
        found = problem.graph_ops(inside)
        if not found:
            raise Unsupported(
                "recompute attention: this graph has no softmax between two products of several ops; attention that is one op keeps its output and "
                "a number per row only.  Ask for a share to keep (60%), or for attention eager"
            )
        _, _, saved_bytes, repeated_s = problem.outcome(found)
        return OpsAgain(ops=found, told=f"{saved_bytes:,} of {problem.most_bytes:,} bytes kept, {repeated_s:.4g} s computed again")
    choice = choose_repeated(problem, {op.id: block_of(op.module) for op in graph.ops}, int(share * problem.most_bytes))
    again = problem.graph_ops(choice.again)
    saved_bytes = saving_problem(graph, op_s, together=False).outcome(again)[2]  # without statistics whose copies are there
    told = f"{saved_bytes:,} of {problem.most_bytes:,} bytes kept, {choice.recomputed_s:.4g} s computed again, {choice.proof}"
    return OpsAgain(ops=again, told=f"{told} where equal blocks are alike")


def on_one_stage(graph: LogicalGraph, stage: Mapping[str, int], again: Collection[str]) -> frozenset[str]:
    """``again`` without the ops whose results a forward op of another stage reads, where a stage ends inside of a block, and what serves these alone.

    Args:
        stage: of each op.
    """
    consumers = graph.consumers()
    crossing: set[str] = set()
    for op in reversed(graph.ops):
        for reader in (r for v in op.outputs if v for r in consumers[v] if r.role is Role.FORWARD):
            if op.role is Role.FORWARD and (stage[reader.id] != stage[op.id] or (is_view(reader) and reader.id in crossing)):
                crossing.add(op.id)
    if crossing.isdisjoint(again):
        return frozenset(again)
    problem = saving_problem(graph, lambda _: 0.0)
    left = {op.id for op in problem.ops if crossing.isdisjoint(parts := op.parts or (op.id,)) and all(part in again for part in parts)}
    return problem.graph_ops(problem.outcome(left)[0])


def inside_blocks(graph: LogicalGraph) -> frozenset[str]:
    """Forward ops in numbered blocks whose results no forward op outside of their block reads."""
    consumers = graph.consumers()
    inside = set()
    for op in graph.ops:
        block = block_of(op.module)
        if op.role is Role.FORWARD and block:
            readers = [r for v in op.outputs if v for r in consumers[v]]
            if all(block_of(r.module) == block for r in readers if r.role is Role.FORWARD):
                inside.add(op.id)
    return frozenset(inside)


def saving_problem(graph: LogicalGraph, op_s: Callable[[Op], float], *, together: bool = True) -> SavingProblem:
    """What a micro-batch keeps for its backward part.  What leaves the passes, or the block that makes it, is kept.

    Args:
        together: the parts of what one kernel computes are one op (planner.stages.recompute.wholes).

    An op that draws (dropout) draws the same again (SEMANTICS 7.2), and state is updated behind the passes, so both are free to choose.
    """
    producers, consumers = graph.producers(), graph.consumers()
    stage = dict.fromkeys((op.id for op in graph.ops), 0)
    results = {graph.loss, graph.mean_loss, *graph.gradients.values(), *graph.updates.values(), *graph.output_values}
    ops: list[ForwardOp] = []
    read: set[str] = set()
    leaving: set[str] = set()  # ops whose results another block reads, as they are or by a view
    for op in reversed(graph.ops):
        region = region_of(op, stage, producers)
        if region == (0, Role.BACKWARD):
            read.update(op.inputs)
        if op.role is not Role.FORWARD:
            continue
        outputs, free = tuple(v for v in op.outputs if v), is_view(op) or is_creation(op)
        readers = [(reader, region_of(reader, stage, producers)) for v in outputs for reader in consumers[v]]
        ends = not results.isdisjoint(outputs) or any(at[1] not in (Role.FORWARD, Role.BACKWARD) for _, at in readers)
        if ends or any(
            reader.role is Role.FORWARD and (block_of(reader.module) != block_of(op.module) or (is_view(reader) and reader.id in leaving))
            for reader, _ in readers
        ):
            leaving.add(op.id)
        keeping = Keeping.AGAIN if free and results.isdisjoint(outputs) else Keeping.KEPT if op.id in leaving else Keeping.CHOSEN
        ops.append(ForwardOp(id=op.id, inputs=op.inputs, outputs=outputs, duration_s=0.0 if free else op_s(op), keeping=keeping))
    made = {v for op in ops for v in op.outputs}
    size_bytes = {v: graph.values[v].size_bytes for v in made}
    in_order = put_together(ops[::-1], graph, size_bytes) if together else tuple(ops[::-1])
    return SavingProblem(ops=in_order, size_bytes=size_bytes, read=frozenset(read & made))


def _attention(graph: LogicalGraph) -> frozenset[str]:
    """Forward ops from the product before a softmax to the product behind it, both included."""
    producers, consumers = graph.producers(), graph.consumers()
    weights = _weights(graph)
    found: set[str] = set()
    for op in graph.ops:
        if op.role is Role.FORWARD and op.target == "aten._softmax.default":
            above = _until_product(op, weights, lambda o: [producers[v] for v in o.inputs if v in producers])
            below = _until_product(op, weights, lambda o: [r for v in o.outputs if v for r in consumers[v] if r.role is Role.FORWARD])
            if above and below:
                found |= above | below
    return frozenset(found)


def _weights(graph: LogicalGraph) -> frozenset[str]:
    """Parameters, and what views and casts make of them."""
    weights = {i.value for i in graph.inputs if i.kind in (InputKind.PARAMETER, InputKind.WORKING_COPY)}
    for op in graph.ops:
        if op.role is Role.FORWARD and op.inputs and op.inputs[0] in weights and (is_view(op) or op.target == "aten._to_copy.default"):
            weights.update(v for v in op.outputs if v)
    return frozenset(weights)


def _until_product(op: Op, weights: frozenset[str], further: Callable[[Op], list[Op]]) -> frozenset[str]:
    """The op and those from it to the nearest products; none if no way ends at one.

    A way ends, without it, at an op that joins weights to a value other than elementwise (a linear layer, a norm, an embedding).
    """
    found, open_ops, ends = {op.id}, [op], False
    while open_ops:
        for other in further(open_ops.pop()):
            if other.id in found or (other.target not in TABLE and not weights.isdisjoint(other.inputs)):
                continue
            found.add(other.id)
            if other.target in _PRODUCTS:
                ends = True
            else:
                open_ops.append(other)
    return frozenset(found) if ends else frozenset()
