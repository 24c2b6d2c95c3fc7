"""The load of experts and of ranks under a routing, drawn with a seed.

Of T tokens each takes k of E experts, so the even load of an expert is T k / E.

(1) wanted    tokens per expert: T k draws by the choice pi / k; no expert gets a token twice, what is above T goes to others        -> draw_loads
(2) kept      min(wanted, ceil(c T k / E)) with a capacity factor c; dropless: wanted.   dropped share = 1 - sum kept / (T k)
(3) skew      busiest expert's wanted load / T k / E
(4) of ranks  E experts in p equal parts in their order (SEMANTICS 1.3); kept load of a rank / even load of the fullest one           -> Loads.of_ranks
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.routing.routing import Routing
from planner.ir.errors import Unsupported

__all__ = ["Loads", "draw_loads"]

Tokens = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loads:
    """Tokens of each draw and expert, shape [draws, experts].   even: of an expert under even routing, T k / E."""

    wanted: Tokens
    kept: Tokens
    even: float

    @property
    def skew(self) -> Reals:
        """Equation (3), shape [draws]."""
        return np.asarray(self.wanted.max(axis=1) / self.even)

    @property
    def dropped_share(self) -> Reals:
        """Of the tokens' choices, those that found no room, shape [draws]."""
        return np.asarray(1 - self.kept.sum(axis=1) / self.wanted.sum(axis=1))

    def of_ranks(self, num_ranks: int) -> Reals:
        """Equation (4), shape [draws, ranks].

        Raises:
            Unsupported: more ranks than experts.
        """
        experts = self.kept.shape[1]
        if not 1 <= num_ranks <= experts:
            raise Unsupported(f"{experts} experts on {num_ranks} ranks; every rank needs at least one")
        whole, more = divmod(experts, num_ranks)
        first = [rank * whole + min(rank, more) for rank in range(num_ranks)]
        return np.asarray(np.add.reduceat(self.kept, first, axis=1) / (math.ceil(experts / num_ranks) * self.even))


def draw_loads(
    routing: Routing,
    *,
    num_experts: int,
    tokens: int,
    top_k: int,
    capacity_factor: float | None = None,
    draws: int = 1,
    key: str = "",
    popular: str | None = None,
) -> Loads:
    """Equations (1) and (2): ``draws`` draws; the same arguments give the same numbers.

    Args:
        tokens: T, that are routed together.   top_k: k.   capacity_factor: c; None: no expert is ever full (dropless).   key: seeds the draws.
        popular: seeds which expert is the popular one, alike in all draws; None: each draw has its own.

    Raises:
        Unsupported: more experts than tokens, a capacity factor that is not positive and finite, fewer than 1 draw; as Routing.choice.
    """
    if num_experts > tokens:
        raise Unsupported(f"{num_experts} experts for {tokens} tokens; take at most as many experts as tokens")
    if capacity_factor is not None and not 0 < capacity_factor < math.inf:
        raise Unsupported(f"capacity factor {capacity_factor:g}; it is positive and finite, or none where experts are never full")
    if draws < 1:
        raise Unsupported(f"{draws} draws of expert loads; at least 1 is needed")
    choice = np.array(routing.choice(num_experts, top_k))
    rng, rows = _seeded(key), []
    if popular is not None and not routing.has_places:
        choice = _seeded(popular).permutation(choice)
    for _ in range(draws):
        here = choice if routing.has_places or popular is not None else rng.permutation(choice)
        rows.append(_one(rng, here, tokens, top_k))
    wanted, even = np.stack(rows), tokens * top_k / num_experts
    kept = wanted if capacity_factor is None else np.minimum(wanted, math.ceil(capacity_factor * even))
    return Loads(wanted=wanted, kept=kept, even=even)


def _seeded(key: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "little")))


def _one(rng: np.random.Generator, choice: Reals, tokens: int, top_k: int) -> Tokens:
    loads = np.zeros(len(choice), dtype=np.int64)
    rest = tokens * top_k
    while rest:
        open_to = np.where(loads < tokens, choice, 0.0)
        if not open_to.any():
            raise Unsupported(f"{tokens} tokens of {top_k} experts each; too few experts are ever chosen")
        loads = np.minimum(loads + rng.multinomial(rest, open_to / open_to.sum()), tokens)
        rest = tokens * top_k - int(loads.sum())
    return loads
