"""Update rules akin to Adam; planner.frontend.optim.rules says what a rule is.

op                  target                                states, in the order in which the op takes and returns them
Adamax              regista.adamax                        exp_avg, exp_inf, step
NAdam               regista.nadam                         exp_avg, exp_avg_sq, step, mu_product
RAdam               regista.radam                         exp_avg, exp_avg_sq, step
Adadelta            regista.adadelta                      square_avg, acc_delta, step
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.frontend.optim.numbers import Number, check_betas, refuse_negative

__all__ = ["Adadelta", "Adamax", "NAdam", "RAdam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Numbers of rules with decaying means of gradients.

    Args:
        maximize: go up the gradient.   lr: step size.   betas: decay rates, in [0, 1).   eps: added to what is divided by.
        weight_decay: L2 term added to the gradient.
    """

    all_slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "step")
    momentum_at: ClassVar[int | None] = 1
    maximize: bool = False
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "eps", "weight_decay")
        check_betas(self, self.betas)

    def slots(self, ndim: int) -> tuple[str, ...]:
        """State tensors of a parameter with ``ndim`` dims."""
        return self.all_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Adamax(_Moments):
    """torch.optim.Adamax: divides by the largest absolute value of the gradients, which decays.

    Args:
        betas: decay rates of the mean and of the largest value.   eps: added to the absolute value of a gradient.
    """

    target: ClassVar[str] = "regista.adamax"
    all_slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf", "step")

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class NAdam(_Moments):
    """torch.optim.NAdam: Adam with Nesterov's momentum, whose rate grows with the step.

    Args:
        momentum_decay: how quickly the momentum reaches its rate.   decoupled: weight decay as AdamW's.
    """

    target: ClassVar[str] = "regista.nadam"
    all_slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "step", "mu_product")
    momentum_decay: float = 4e-3
    decoupled: bool = False

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay, self.momentum_decay, self.decoupled)


@dataclass(frozen=True, slots=True, kw_only=True)
class RAdam(_Moments):
    """torch.optim.RAdam: Adam with the adaptive rate corrected for its variance; its first steps are those of plain momentum.

    Args:
        decoupled: as in NAdam.
    """

    target: ClassVar[str] = "regista.radam"
    lr: float = 1e-3
    decoupled: bool = False

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay, self.decoupled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adadelta:
    """torch.optim.Adadelta: steps in the units of the parameter, by the ratio of its past steps to its gradients.

    Args:
        lr: factor of the step.   rho: decay rate of both means of squares.   eps: added to both.   weight_decay, maximize: as in Adamax.
    """

    target: ClassVar[str] = "regista.adadelta"
    momentum_at: ClassVar[int | None] = None
    all_slots: ClassVar[tuple[str, ...]] = ("square_avg", "acc_delta", "step")
    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "rho", "eps", "weight_decay")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """State tensors of a parameter with ``ndim`` dims."""
        return self.all_slots

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, self.rho, self.eps, self.weight_decay)
