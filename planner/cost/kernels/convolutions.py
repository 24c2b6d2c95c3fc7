"""How convolutions compare with the products that they are: a few fitted constants per device (convolutions.toml), since no table is shipped.

(1) convolution   t = product / (share gain)      share: by precision;  gain: of fewer multiplications, for filters of 3 x 3 that move by one,
                                                  in float32 without matrix units (Lavin and Gray 2016; at most 4 with tiles of 4 x 4)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from planner.cost.kernels.devices import Precision

__all__ = ["ConvolutionRates", "convolution_rates"]

GENERIC = "generic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionRates:
    """shares: precision -> of the rate of the product.   rest: the share in any other precision.   winograd: the gain of equation (1)."""

    shares: Mapping[Precision, float]
    rest: float
    winograd: float
    source: str

    def share(self, precision: Precision) -> float:
        return self.shares.get(precision, self.rest)


def convolution_rates(device: str) -> ConvolutionRates:
    """Of a device by its name in devices.toml; those of all where it has none of its own."""
    known = _known()
    return known.get(device, known[GENERIC])


@lru_cache(maxsize=1)
def _known() -> Mapping[str, ConvolutionRates]:
    data = tomllib.loads(resources.files(__package__).joinpath("convolutions.toml").read_text(encoding="utf-8"))
    precisions = {precision.value: precision for precision in Precision}
    return {
        name: ConvolutionRates(
            shares={precisions[key]: float(value) for key, value in entry.items() if key in precisions},
            rest=float(entry["rest"]),
            winograd=float(entry["winograd"]),
            source=str(entry["source"]),
        )
        for name, entry in data.items()
    }
