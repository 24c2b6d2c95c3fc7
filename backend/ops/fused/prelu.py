"""PReLU and its gradient as one kernel each.

y = where(x > 0, x, w x);   dx = where(x > 0, g, w g);   dw (by element) = where(x > 0, 0, x g)                   (torch's decompositions)
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.ops.fused.uses import Fusion, Uses
from planner.ir.graph import Arg, Op, Ref

__all__ = ["PRELU", "PRELU_GRADIENT", "find_prelu", "find_prelu_gradient", "prelu", "prelu_gradient"]

PRELU, PRELU_GRADIENT = "fused.prelu", "fused.prelu_gradient"
_MUL, _WHERE, _ZERO = "aten.mul.Tensor", "aten.where.self", "aten.scalar_tensor.default"


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    if weight.dtype == x.dtype:
        return torch._prelu_kernel(x, weight)
    return torch.where(x > 0, x, weight * x)


def prelu_gradient(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by x, and by the weight before they are added up."""
    if g.dtype == x.dtype == weight.dtype:
        by_x, by_weight = torch.ops.aten._prelu_kernel_backward(g, x, weight)
        return by_x, by_weight
    return torch.where(x > 0, g, weight * g), torch.where(x > 0, torch.zeros((), dtype=x.dtype), x * g)


def _chosen(where: Op, uses: Uses) -> tuple[Op, Ref, Arg, Op] | None:
    """Takes where(x > 0, a, product) apart: the comparison, x, a, and the product; None: it is no such, or another op reads a part."""
    compared, product = uses.part(where.args[0], "aten.gt.Scalar"), uses.part(where.args[2], _MUL)
    if compared is None or product is None or len(product.args) != 2 or compared.args[1] != 0 or not isinstance(compared.args[0], Ref):
        return None
    return compared, compared.args[0], where.args[1], product


def find_prelu(where: Op, uses: Uses) -> Fusion:
    match _chosen(where, uses):
        case compared, x, Ref() as same, product if x == same == product.args[1] and isinstance(product.args[0], Ref):
            return uses.whole(PRELU, (x, product.args[0]), [Ref(where.outputs[0] or "")], (compared, product, where))
        case _:
            return None


def find_prelu_gradient(where: Op, uses: Uses) -> Fusion:
    """The whole op for both gradients.   where: the op that computes the weight's; that of x stands before it."""
    chosen = _chosen(where, uses)
    zero = uses.makers.get(where.args[1].value) if isinstance(where.args[1], Ref) else None  # it has kwargs
    if (
        chosen is None
        or zero is None
        or (zero.target, zero.args) != (_ZERO, (0.0,))
        or chosen[3].args[0] != chosen[1]
        or not isinstance(chosen[3].args[1], Ref)
    ):
        return None
    compared, x, _, product = chosen
    g = product.args[1]
    assert isinstance(g, Ref)
    for scaled in uses.readers[g.value]:
        other = uses.only_reader(scaled, _WHERE) if scaled.target == _MUL and not scaled.kwargs else None
        match _chosen(other, uses) if other is not None else None:
            case of_x, same, Ref() as kept, weighted if same == x and kept == g == weighted.args[1] and weighted is scaled:
                weight = weighted.args[0]
                if other is None or not isinstance(weight, Ref):
                    return None
                results = [Ref(op.outputs[0] or "") for op in (other, where)]
                return uses.whole(PRELU_GRADIENT, (g, x, weight), results, (of_x, weighted, other, compared, product, zero, where))
            case _:
                continue
    return None
