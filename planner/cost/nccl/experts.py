"""Dispatch and combine of a mixture of experts, as DeepEP's normal kernels perform them: each token travels once to each room that has an expert of it.

(1) reach     r = n (1 - (1 - 1/n)^k)     rooms, of n, that k experts chosen evenly lie in: ranks of a node, or nodes (at most LIMIT of them)
(2) bytes     b = tokens hidden v (r (n-1)/n + own)                              v: 33/32 bytes to dispatch (fp8 with scales), 2 to combine
(3) time      base + notify + tokens r c / sms + b (1/B^4 + 1/(sms B_sm)^4)^(1/4)                                          -> ExpertModel.seconds

The constants of (2) and (3) are fitted per interconnect, phase and number of nodes: interconnects/experts.csv, with rows and error.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from importlib import resources

from planner.ir.errors import Unsupported
from planner.ir.units import GB, US

__all__ = ["ExpertModel", "ExpertTimes", "Phase"]

LIMIT = 4
"""Nodes that a token's experts lie on at most: the measured router chooses within so many groups (DeepSeek-V3)."""
SHARP = 4.0
FILE = "experts.csv"


class Phase(Enum):
    """Tokens to their experts, and their results back."""

    DISPATCH = "dispatch"
    COMBINE = "combine"

    @property
    def value_bytes(self) -> float:
        return 33 / 32 if self is Phase.DISPATCH else 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimes:
    """base_us; notify_us: to agree on counts between nodes; token_ns: c;  sm_GBps, port_GBps: B_sm, B;  own_copies: own of (2).

    rooms: n of (1), ranks of a node or nodes.
    """

    rooms: int
    base_us: float
    notify_us: float
    token_ns: float
    sm_GBps: float
    port_GBps: float
    own_copies: float

    def seconds(self, phase: Phase, tokens: float, hidden: int, top_k: int, sms: int) -> float:
        """Equations (1) to (3)."""
        n = self.rooms
        reach = n * (1 - (1 - 1 / n) ** top_k)
        reach = min(reach, LIMIT) if n > LIMIT and self.notify_us > 0 else reach
        size_bytes = tokens * hidden * phase.value_bytes * (reach * (n - 1) / n + self.own_copies)
        s_per_byte = ((1 / (GB * self.port_GBps)) ** SHARP + (1 / (GB * self.sm_GBps * sms)) ** SHARP) ** (1 / SHARP)
        seconds: float = US * (self.base_us + self.notify_us) + 1e-9 * self.token_ns * tokens * reach / sms + size_bytes * s_per_byte
        return seconds


@dataclass(frozen=True, slots=True)
class ExpertModel:
    """Seconds of dispatch and combine on one interconnect: (phase, nodes) -> constants."""

    name: str
    times: Mapping[tuple[Phase, int], ExpertTimes]

    @classmethod
    def for_interconnect(cls, name: str) -> ExpertModel:
        """The model of a named interconnect.

        Raises:
            Unsupported: nothing was measured there.
        """
        known = _all_times()
        if name not in known:
            raise Unsupported(f"interconnect {name!r}: no expert dispatch was measured there; there is {', '.join(known)}")
        return cls(name, known[name])

    def seconds(self, phase: Phase, tokens: float, hidden: int, top_k: int, nodes: int = 1, sms: int = 20) -> float:
        """Seconds of one dispatch or combine of ``tokens`` tokens per rank, all ranks of ``nodes`` nodes taking part.

        Args:
            top_k: experts per token.   sms: streaming multiprocessors given to the kernel.

        Raises:
            Unsupported: a number of nodes that was not measured, or counts below 1.

        >>> model = ExpertModel.for_interconnect("h100-nvswitch")
        >>> model.seconds(Phase.DISPATCH, 4096, 7168, 8) < model.seconds(Phase.COMBINE, 4096, 7168, 8)
        True
        """
        if tokens < 0 or min(hidden, top_k, sms) < 1:
            raise Unsupported(
                f"{phase.value} of {tokens} tokens, hidden {hidden}, top {top_k}, {sms} multiprocessors: counts are at least 1"
            )
        if (phase, nodes) not in self.times:
            measured = sorted({count for _, count in self.times})
            raise Unsupported(f"{phase.value} on {nodes} nodes of {self.name}: measured on {', '.join(map(str, measured))}")
        return self.times[phase, nodes].seconds(phase, tokens, hidden, top_k, sms)


@lru_cache(maxsize=1)
def _all_times() -> Mapping[str, Mapping[tuple[Phase, int], ExpertTimes]]:
    text = resources.files(__package__).joinpath("interconnects", FILE).read_text(encoding="utf-8")
    names = [f.name for f in fields(ExpertTimes) if f.name != "rooms"]
    found: dict[str, dict[tuple[Phase, int], ExpertTimes]] = {}
    for row in csv.DictReader(text.splitlines()):
        times = ExpertTimes(rooms=int(row["rooms"]), **{name: float(row[name]) for name in names})
        found.setdefault(row["interconnect"], {})[Phase(row["phase"]), int(row["nodes"])] = times
    return found
