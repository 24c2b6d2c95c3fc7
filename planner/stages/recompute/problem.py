"""The problem: forward ops, what they read and make, what each costs, and the values that the backward pass reads.

A set Y of ops to compute again decides everything else.  The backward pass needs the values that it reads and, for each op of Y that makes a
needed value, the op's operands (1).  A needed value whose op is not in Y is kept (2).

    saved_bytes  = sum of the sizes of the kept values                                   -> SavingProblem.outcome()
    recomputed_s = sum of the seconds of the ops of Y that make a needed value           -> SavingProblem.outcome()

Values that no op of the problem makes (parameters, the batch) lie in memory anyway and count nothing.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", which keeps the borders of segments; here every value may be one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

__all__ = ["ForwardOp", "Keeping", "RecomputeChoice", "SavingProblem"]


class Keeping(Enum):
    """CHOSEN: results are kept, or computed again.   KEPT: never again (results that leave the pass; what was received; what cannot be
    repeated).   AGAIN: always again where they are needed (views and creations, which cost next to nothing).
    """

    CHOSEN = "chosen"
    KEPT = "kept"
    AGAIN = "again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOp:
    """inputs, outputs: values.   duration_s: of computing it once more.   parts: the graph's ops that it stands for; none: that of its id."""

    id: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    duration_s: float
    keeping: Keeping = Keeping.CHOSEN
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)  # no slots: the producers are kept
class SavingProblem:
    """Ops in an order in which they can be computed.

    size_bytes: of every value that an op makes.   read: values that the backward pass itself reads.
    """

    ops: tuple[ForwardOp, ...]
    size_bytes: Mapping[str, int]
    read: frozenset[str]

    @cached_property
    def producers(self) -> Mapping[str, ForwardOp]:
        return {value: op for op in self.ops for value in op.outputs}

    def outcome(self, again: Collection[str]) -> tuple[frozenset[str], frozenset[str], int, float]:
        """The ops of ``again`` (ids) that are needed again, the values kept, their bytes, and the seconds that are computed once more; by (1), (2)."""
        needed, repeated, kept = set(self.read), set(), set()
        duration_s = 0.0
        for op in reversed(self.ops):
            wanted = needed.intersection(op.outputs)
            if not wanted:
                continue
            if op.keeping is Keeping.AGAIN or (op.keeping is Keeping.CHOSEN and op.id in again):
                repeated.add(op.id)
                needed.update(op.inputs)
                duration_s += op.duration_s
            else:
                kept |= wanted
        return frozenset(repeated), frozenset(kept), sum(self.size_bytes[v] for v in kept), duration_s

    def graph_ops(self, again: Collection[str]) -> frozenset[str]:
        """Ids of the graph's ops for those of ``again``."""
        return frozenset(part for op in self.ops if op.id in again for part in op.parts or (op.id,))

    @cached_property
    def most_bytes(self) -> int:
        """What is kept if nothing but views and creations is computed again."""
        return self.outcome(())[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoice:
    """What ``choose_recompute`` decides, with its certificate.

    again: ids of the ops computed again (views and creations among them).   kept: values that are kept.
    saved_bytes: of the kept values: what lies in memory between the end of the forward pass and the begin of the backward one.  Not the peak: a
    backward pass holds besides what it computes again and its gradients.
    recomputed_s: of the ops of ``again``.   bound_s: no choice within the limit computes less again, to
    the tolerance of the solver, a millionth of the dearest op.
    """

    again: frozenset[str]
    kept: frozenset[str]
    saved_bytes: int
    limit_bytes: int
    recomputed_s: float
    bound_s: float

    @property
    def gap(self) -> float:
        """(recomputed - bound) / recomputed, 0 where the choice is proven best."""
        return 0.0 if self.recomputed_s <= 0 else max(0.0, 1.0 - self.bound_s / self.recomputed_s)

    @property
    def proof(self) -> str:
        """How near the seconds are to the best."""
        return "the least possible" if self.gap <= _CLOSE else f"at most {self.gap:.2%} above the least possible, {self.bound_s:.4g} s"

    def certificate(self) -> str:
        """What was chosen among what, and how near it is to the best."""
        return (
            f"{len(self.again)} ops computed again, {self.recomputed_s:.4g} s: {self.proof}, over all sets of forward ops that keep at most "
            f"{self.limit_bytes:,} bytes at the end of the forward pass ({self.saved_bytes:,} kept; not the peak within the backward pass)"
        )


_CLOSE = 1e-4  # relative: the bound is lowered by the tolerance of the solver
