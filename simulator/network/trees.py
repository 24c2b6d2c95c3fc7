"""Two binary trees over the same ranks, such that a rank with children in one is a leaf in the other (one rank may be both when p is odd).

    positions 0..7           0                 the second tree is the first one
                             |                 p even: mirrored    position r -> p - 1 - r
                             4                 p odd:  shifted     position r -> r + 1 mod p
                        2         6
                      1   3     5   7          all odd positions are leaves

A position r > 0 that is 2^l times an odd number hangs below r - 2^l or r + 2^l: the one that is an odd multiple of 2^(l+1) if it exists,
else r - 2^l, which is a multiple of a still higher power.  So powers of 2 grow towards the root, and no circle can arise.

Source: Sanders, Speck & Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (in-order trees,
mirrored and shifted).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Tree", "double_tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """``parent[r]`` of each rank (None at the root) and its ``depth`` below the root."""

    parent: tuple[int | None, ...]
    depth: tuple[int, ...]

    @property
    def height(self) -> int:
        return max(self.depth)

    def edges(self) -> Iterator[tuple[int, int]]:
        """(rank, its parent)."""
        return ((rank, parent) for rank, parent in enumerate(self.parent) if parent is not None)


def _parent(position: int, size: int) -> int | None:
    if position == 0:
        return None
    step = position & -position
    odd = position + step if position // step % 4 == 1 else position - step
    return odd if odd < size else position - step


def _tree(rank_at: tuple[int, ...]) -> Tree:
    """The tree over positions, with rank ``rank_at[i]`` at position i."""
    size = len(rank_at)
    parent: list[int | None] = [None] * size
    for position, rank in enumerate(rank_at):
        above = _parent(position, size)
        parent[rank] = None if above is None else rank_at[above]
    depth = [0] * size
    for rank in range(size):
        above = parent[rank]
        while above is not None:
            depth[rank] += 1
            above = parent[above]
    return Tree(tuple(parent), tuple(depth))


def double_tree(num_ranks: int) -> tuple[Tree, Tree]:
    """The two trees over ranks 0 .. p-1, each of height at most ceil(log2 p)."""
    p = num_ranks
    second = tuple(p - 1 - r for r in range(p)) if p % 2 == 0 else tuple((r + 1) % p for r in range(p))
    return _tree(tuple(range(p))), _tree(second)
