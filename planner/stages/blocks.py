"""Numbered blocks: the repeated layers of a model, which are the units of recomputation, ZeRO-3, cuts between stages and bounds on a plan.

A numbered block is a member of a list of modules (nn.ModuleList, nn.Sequential).  Its name is the path of an op's module up to its first number.

    module of an op          its block
    h.3.mlp.c_fc             h.3
    encoder.blocks.0.ff      encoder.blocks.0
    wte                      none, written ""

A forward op belongs to the block of its module, which the front end records (planner.frontend.tracing.stamp).  A backward op belongs to the block
of the forward op whose gradient it computes, an accumulation or an update to the block of the op that makes what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from planner.ir.graph import LogicalGraph, Op, Role

__all__ = ["block_of", "blocks_of", "num_blocks", "unshard_unit"]


@cache
def block_of(module: str) -> str:
    """The numbered block in which a module lies, "" outside of blocks.

    >>> block_of("h.3.mlp.c_fc"), block_of("wte")
    ('h.3', '')
    """
    parts = module.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


def blocks_of(graph: LogicalGraph) -> Mapping[str, str]:
    """Op id -> its numbered block, "" outside of blocks."""
    return graph.kept("blocks", lambda: _blocks(graph))


def _blocks(graph: LogicalGraph) -> Mapping[str, str]:
    block: dict[str, str] = {}
    producers, consumers = graph.producers(), graph.consumers()
    for op in graph.ops:
        if op.role is Role.FORWARD:
            block[op.id] = block_of(op.module)
        elif op.role is Role.BACKWARD:
            block[op.id] = block.get(op.forward_of or "", block_of(op.module))
        else:
            sources = [block[producers[v].id] for v in op.inputs if v in producers and producers[v].id in block]
            readers = (block_of(reader.module) for v in op.inputs for reader in consumers[v] if reader.module)
            block[op.id] = sources[0] if sources else next(readers, "")
    return block


def num_blocks(graph: LogicalGraph) -> int:
    """The number of numbered blocks in the forward pass."""
    return len({block_of(op.module) for op in graph.ops if op.role is Role.FORWARD} - {""})


def unshard_unit(op: Op, by_id: Mapping[str, Op]) -> str:
    """The unit of an op whose parameters are unsharded together (ZeRO-3): its numbered block, or its module if it is outside of blocks.

    Args:
        op: a backward op has the unit of its forward op.   by_id: the graph's ops by their ids.
    """
    origin = by_id.get(op.forward_of or "", op) if op.role is Role.BACKWARD else op
    return block_of(origin.module) or origin.module
