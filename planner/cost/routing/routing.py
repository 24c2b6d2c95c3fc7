"""Which experts tokens choose, as a distribution.

(1) popularity  w_e = 1 (uniform), e^-s in some order (Zipf), or the tokens of a measured histogram, over their sum     -> Routing.popularity
(2) choice      a token takes k different experts, each with probability pi_e = 1 - exp(-w_e t), where t is such that sum pi_e = k
                -> Routing.choice;  k = 1: pi = w

(2) is the race of Rosen 1972 for draws without replacement: exact for equal w and for k = 1 or E.  For Zipf 1.2 on 4 to 32 experts it is within 8 % of
draws one by one, and within 6 % for the most popular expert (tests/planner/cost/test_routing.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from planner.ir.errors import Unsupported

__all__ = ["Popularity", "Routing"]

_MOST_EXPONENT = 8.0
"""Beyond, the first expert has all but 1/200 of the tokens, and the rest is below a float's precision."""


class Popularity(Enum):
    """Of experts."""

    UNIFORM = "uniform"
    ZIPF = "zipf"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A router's habit.   exponent: of Zipf, at least 0; 0 is uniform.   histogram: tokens that each expert got, in the order of experts.

    Which expert is the first of Zipf's is drawn anew for each layer and step; a histogram says which.

    Raises:
        Unsupported: an exponent below 0, above 8 or no number; a histogram that is empty, negative, not finite,
            or of sum zero; numbers that the kind has not.
    """

    kind: Popularity = Popularity.UNIFORM
    exponent: float = 0.0
    histogram: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not Popularity.ZIPF and self.exponent:
            raise Unsupported(f"routing {self.kind.value} with exponent {self.exponent:g}; an exponent belongs to zipf")
        if (self.kind is Popularity.HISTOGRAM) != bool(self.histogram):
            raise Unsupported(
                f"routing {self.kind.value} with a histogram of {len(self.histogram)} experts; a histogram has at least one, other kinds none"
            )
        if not 0 <= self.exponent <= _MOST_EXPONENT:
            raise Unsupported(f"routing zipf with exponent {self.exponent:g}; it is between 0 (uniform) and {_MOST_EXPONENT:g}")
        if bad := [tokens for tokens in self.histogram if not 0 <= tokens < math.inf]:
            raise Unsupported(f"routing histogram holds {bad[0]:g}; tokens per expert are finite and at least 0")
        if self.histogram and not 0 < sum(self.histogram) < math.inf:
            raise Unsupported(
                f"routing histogram of {len(self.histogram)} experts has {sum(self.histogram):g} tokens in all; give at least one"
            )

    @classmethod
    def parse(cls, text: str) -> Routing:
        """'uniform', 'zipf:EXPONENT' or 'histogram:TOKENS,TOKENS,...'.

        Raises:
            Unsupported: anything else.

        >>> Routing.parse("zipf:1.2").exponent
        1.2
        """
        kind, _, rest = text.partition(":")
        try:
            match Popularity(kind):
                case Popularity.UNIFORM if not rest:
                    return cls()
                case Popularity.ZIPF:
                    return cls(kind=Popularity.ZIPF, exponent=float(rest))
                case Popularity.HISTOGRAM:
                    return cls(kind=Popularity.HISTOGRAM, histogram=tuple(float(tokens) for tokens in rest.split(",")))
        except Unsupported:
            raise
        except ValueError:
            pass
        raise Unsupported(
            f"routing {text!r} is unknown; write uniform, zipf:EXPONENT (zipf:1.2) or histogram:TOKENS,... (histogram:90,30,20,20)"
        )

    def __str__(self) -> str:
        match self.kind:
            case Popularity.UNIFORM:
                return "uniform"
            case Popularity.ZIPF:
                return f"zipf:{self.exponent:g}"
            case Popularity.HISTOGRAM:
                return "histogram:" + ",".join(f"{tokens:.12g}" for tokens in self.histogram)
            case _:
                assert_never(self.kind)

    @property
    def has_places(self) -> bool:
        """Whether it says which expert is the popular one."""
        return self.kind is Popularity.HISTOGRAM

    def popularity(self, num_experts: int) -> tuple[float, ...]:
        """Equation (1): shares that sum to 1, the largest first but for a histogram.

        Raises:
            Unsupported: fewer than 1 expert, or a histogram of another number of experts.
        """
        if num_experts < 1:
            raise Unsupported(f"routing to {num_experts} experts; at least 1 is needed")
        if self.histogram and len(self.histogram) != num_experts:
            raise Unsupported(
                f"routing histogram of {len(self.histogram)} experts for a layer of {num_experts}; give one number per expert"
            )
        weights = self.histogram or tuple((e + 1) ** -self.exponent for e in range(num_experts))
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def choice(self, num_experts: int, top_k: int) -> tuple[float, ...]:
        """Equation (2): with which probability a token takes each expert; they sum to ``top_k``.

        Raises:
            Unsupported: top_k is not between 1 and the number of experts that anybody chooses.
        """
        shares = self.popularity(num_experts)
        chosen = sum(share > 0 for share in shares)
        if not 1 <= top_k <= chosen:
            raise Unsupported(f"top {top_k} of {chosen} experts that tokens go to; it is between 1 and {chosen}")
        if top_k == 1:
            return shares
        if top_k == chosen:
            return tuple(float(share > 0) for share in shares)
        low, high = 0.0, 1.0
        while _taken(shares, high) < top_k:
            high *= 2
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if _taken(shares, middle) < top_k else (low, middle)
        raw = [-math.expm1(-share * high) for share in shares]
        return tuple(min(1.0, value * top_k / math.fsum(raw)) for value in raw)


def _taken(shares: tuple[float, ...], t: float) -> float:
    return math.fsum(-math.expm1(-share * t) for share in shares)
