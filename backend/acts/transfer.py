"""Which pieces of which tensors a TRANSFER moves."""

from __future__ import annotations

from planner.ir.actors.routes import Piece, pieces
from planner.ir.errors import InvalidPlan
from planner.ir.plan import Plan, Task

__all__ = ["pieces_of"]


def pieces_of(plan: Plan, task: Task) -> list[tuple[Piece, ...]]:
    """Per (read, write) pair of a TRANSFER, the pieces between all its ranks.

    Raises:
        InvalidPlan: the transfer would have to add up what it sends.
    """
    moves: list[tuple[Piece, ...]] = []
    for read, write in zip(task.reads, task.writes, strict=True):
        target = plan.regst[write.regst]
        if any(port.acts_per_block > 1 for port in task.produces):
            raise InvalidPlan(f"transfer {task.id} fills a block with several acts; accumulate before or after the transfer")
        src = plan.regst[read.regst].tensors[read.index]
        moves.append(pieces(src, plan.placement[task.placement], target.tensors[write.index], plan.placement[target.placement]))
    return moves
