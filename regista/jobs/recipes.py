"""How values are scaled before products take them in 8 or 4 bits, and what that costs: the recipes of mixed-precision training.

(1) cast   bytes per element of an operand: read in 16 bits, written twice (as it is and transposed, for the next product and the gradient's),
           with its scales; the largest absolute value is read first where the scale is the tensor's own
(2) share  speed of the products against those that one scale per tensor serves

           delayed       one scale per tensor, from values of the last steps                 2 + 1 + 1             Micikevicius et al. 2022
           tensorwise    one scale per tensor, from its own values                           2 + 2 + 1 + 1         torchao, Transformer Engine
           rowwise       one scale per row and column                                        2 + 2 + 1 + 1         torchao
           blockwise     scales of 1 x 128 and 128 x 128 elements                            2 + 1 + 1 + 1/16      DeepSeek-V3 (2024)
           mx            scales of 32 elements, multiplied by the product itself             2 + 1 + 1 + 1/16      OCP Microscaling (2023)
           nvfp4         scales of 16 elements, 4 bits, one operand of a gradient rotated    2 + 2 + 1/2 + 1/2 + 1/8   NVIDIA (2025)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["Casting", "Recipe", "casting"]


class Recipe(Enum):
    """MX and NVFP4: products that multiply the scales themselves, on devices since Blackwell."""

    DELAYED = "delayed"
    TENSORWISE = "tensorwise"
    ROWWISE = "rowwise"
    BLOCKWISE = "blockwise"
    MX = "mx"
    NVFP4 = "nvfp4"

    @property
    def scales_in_products(self) -> bool:
        return self in (Recipe.MX, Recipe.NVFP4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Casting:
    """cast_bytes: equation (1).   product_share: equation (2).   kept_bytes: of an element as products take it, with its scales."""

    cast_bytes: float
    product_share: float
    kept_bytes: float


_CASTINGS: Mapping[Recipe, Casting] = {
    Recipe.DELAYED: Casting(cast_bytes=4.0, product_share=1.0, kept_bytes=1.0),
    Recipe.TENSORWISE: Casting(cast_bytes=6.0, product_share=1.0, kept_bytes=1.0),
    Recipe.ROWWISE: Casting(cast_bytes=6.0, product_share=0.9, kept_bytes=1.0),  # [assumed]
    Recipe.BLOCKWISE: Casting(cast_bytes=4.0625, product_share=0.85, kept_bytes=1.03),  # [assumed; DeepGEMM prints 1,350 to 1,550 TFLOP/s]
    Recipe.MX: Casting(cast_bytes=4.0625, product_share=1.0, kept_bytes=1.03),
    Recipe.NVFP4: Casting(cast_bytes=5.125, product_share=1.0, kept_bytes=0.56),
}


def casting(recipe: Recipe) -> Casting:
    return _CASTINGS[recipe]
