"""What expert layers are priced with: a routing, how many experts a token takes, their room, and a quantile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.cost.routing.routing import Routing
from planner.ir.errors import Unsupported

if TYPE_CHECKING:
    from planner.cost.routing.loads import Loads

__all__ = ["ExpertLoad"]

_DRAWS = 256
"""Draws of which a quantile is taken: the outer 2 % are five of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """What the expert layers of a step are priced with.

    top_k: experts per token.   capacity_factor: room of an expert over its even load; None: dropless.
    quantile: of the busiest rank's load over draws.
    """

    routing: Routing
    top_k: int = 1
    capacity_factor: float | None = None
    quantile: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise Unsupported(f"routing quantile {self.quantile:g}; it is between 0 and 1, for example 0.9")
        if self.top_k < 1:
            raise Unsupported(f"top {self.top_k} experts per token; at least 1 is needed")

    def draws(self, num_experts: int, tokens: int, draws: int = _DRAWS, key: str = "", popular: str | None = None) -> Loads:
        """``draws`` draws of ``tokens`` tokens that are routed together; errors as draw_loads."""
        from planner.cost.routing.loads import draw_loads  # numpy: not before it is needed

        return draw_loads(
            self.routing,
            num_experts=num_experts,
            tokens=tokens,
            top_k=self.top_k,
            capacity_factor=self.capacity_factor,
            draws=draws,
            key=f"{self.seed}/{key}",
            popular=None if popular is None else f"{self.seed}/{popular}/popular",
        )

    def busiest(self, num_experts: int, tokens: int, num_ranks: int) -> float:
        """The quantile of the busiest rank's load over the even load of the fullest rank."""
        return _busiest(self, num_experts, tokens, num_ranks)

    def tokens(self, num_experts: int, rows: int) -> int:
        """Tokens whose choices take so many places of each expert under even routing; at least one per expert."""
        return max(num_experts, num_experts * rows // self.top_k)

    def dropped(self, num_experts: int, tokens: int) -> float:
        """The mean share of choices that find no room."""
        return float(self.draws(num_experts, tokens).dropped_share.mean())

    def as_text(self) -> dict[str, str]:
        """For a Plan's record of how it was made."""
        room = {} if self.capacity_factor is None else {"capacity_factor": f"{self.capacity_factor:g}"}
        return {"routing": str(self.routing), "top_k": str(self.top_k), "routing_quantile": f"{self.quantile:g}"} | room

    @classmethod
    def recorded(cls, options: Mapping[str, str]) -> ExpertLoad | None:
        """What ``as_text`` wrote; None: nothing of a routing.

        Raises:
            Unsupported: the record is no routing.
        """
        if "routing" not in options:
            return None
        try:
            return cls(
                routing=Routing.parse(options["routing"]),
                top_k=int(options["top_k"]),
                capacity_factor=float(options["capacity_factor"]) if "capacity_factor" in options else None,
                quantile=float(options["routing_quantile"]),
            )
        except KeyError as error:
            raise Unsupported(f"a routing {options['routing'][:60]!r} is recorded without {error.args[0]}; plan the model again") from None

    def __str__(self) -> str:
        room = "dropless" if self.capacity_factor is None else f"capacity factor {self.capacity_factor:g}"
        return f"routing {self.routing}, top {self.top_k}, {room}"


@lru_cache(maxsize=4096)
def _busiest(load: ExpertLoad, num_experts: int, tokens: int, num_ranks: int) -> float:
    import numpy as np

    return float(np.quantile(load.draws(num_experts, tokens).of_ranks(num_ranks).max(axis=1), load.quantile))
