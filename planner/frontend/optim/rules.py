"""Update rules: what one parameter's op is called, which state tensors it keeps, and its numbers.

    op                  target                                states, in the order in which the op takes and returns them
    SGD                 regista.sgd                           momentum_buffer (with momentum)
    AdamW               regista.adamw                         exp_avg, exp_avg_sq, step
    Adam                regista.adam                          exp_avg, exp_avg_sq, step, max_exp_avg_sq (with amsgrad)
    LazyAdam            regista.rows_adam, regista.adam       as Adam
    Adagrad             regista.adagrad                       sum, step
    RMSprop             regista.rmsprop                       square_avg, step, momentum_buffer (with momentum), grad_avg (centered)
    Adafactor           regista.adafactor                     step, row_var, col_var (of matrices), variance (of vectors)
    Muon                regista.muon                          momentum_buffer
    Adamax, NAdam, RAdam, Adadelta                            planner.frontend.optim.adaptive

Of a table with a sparse gradient the target is ``rows`` (regista.rows_sgd, rows_adagrad, rows_adam), which updates the rows that were looked
up; a rule without refuses sparse gradients, as torch does.

An op's arguments are (parameter, gradient, states, learning rate, other numbers); a state that the rule does not keep is None.
``momentum_at``: where among the numbers momentum or the first beta stands, None: the rule has neither.
planner.frontend.optim.updates has what the ops compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.frontend.optim.adaptive import Adadelta, Adamax, NAdam, RAdam
from planner.frontend.optim.numbers import Number, check_betas, refuse_negative
from planner.ir.errors import InvalidProgram
from planner.ir.tensor import DType, TensorType

__all__ = ["SGD", "Adafactor", "Adagrad", "Adam", "AdamW", "LazyAdam", "Muon", "Optimizer", "RMSprop", "slot_type"]


@dataclass(frozen=True, slots=True)
class SGD:
    """torch.optim.SGD with dampening 0.

    Args:
        lr: step size.
        momentum: 0 keeps no state; otherwise the state ``momentum_buffer`` has the parameter's shape.
        weight_decay: L2 term added to the gradient.
        nesterov: look-ahead momentum.
        maximize: go up the gradient.
    """

    target: ClassVar[str] = "regista.sgd"
    momentum_at: ClassVar[int | None] = 1
    rows: ClassVar[str] = "regista.rows_sgd"
    all_slots: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "momentum", "weight_decay")
        if self.nesterov and self.momentum == 0:
            raise InvalidProgram("SGD(nesterov=True) needs momentum > 0; give a momentum or drop nesterov")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """State tensors of a parameter with ``ndim`` dims."""
        return self.all_slots if self.momentum else ()

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, self.momentum, self.weight_decay, self.nesterov)

    @property
    def row_numbers(self) -> tuple[Number, ...]:
        """Numbers of the update of rows, behind the learning rate."""
        return ()


@dataclass(frozen=True, slots=True)
class AdamW:
    """torch.optim.AdamW (decoupled weight decay).

    Args:
        lr: step size.
        betas: decay rates of the two moments, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times lr.
        maximize: go up the gradient.
    """

    target: ClassVar[str] = "regista.adamw"
    momentum_at: ClassVar[int | None] = 1
    all_slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "step")
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "eps", "weight_decay")
        check_betas(self, self.betas)

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return self.all_slots

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """torch.optim.Adam; and AdamW with amsgrad.

    Args:
        lr, betas, eps, maximize: as in AdamW.
        weight_decay: L2 term added to the gradient, or with ``decoupled`` that of AdamW.
        amsgrad: divide by the largest second moment so far.
    """

    target: ClassVar[str] = "regista.adam"
    momentum_at: ClassVar[int | None] = 1
    all_slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "step", "max_exp_avg_sq")
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    amsgrad: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "eps", "weight_decay")
        check_betas(self, self.betas)

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return self.all_slots if self.amsgrad else self.all_slots[:3]

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, self.weight_decay, self.decoupled)


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyAdam:
    """torch.optim.SparseAdam of tables with sparse gradients: moments and values of the rows in the batch alone are touched.

    Args:
        lr, betas, eps, maximize: as in Adam.
        dense: parameters with dense gradients are trained as by Adam with these numbers (TensorFlow's and OneFlow's LazyAdam); False: they are
            refused, as by torch.optim.SparseAdam.
    """

    target: ClassVar[str] = "regista.adam"
    momentum_at: ClassVar[int | None] = 1
    rows: ClassVar[str] = "regista.rows_adam"
    all_slots: ClassVar[tuple[str, ...]] = Adam.all_slots
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    dense: bool = True
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "eps")
        check_betas(self, self.betas)

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return self.all_slots[:3]

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, *self.betas, self.eps, 0.0, False)

    @property
    def row_numbers(self) -> tuple[Number, ...]:
        """As in SGD."""
        return (*self.betas, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adagrad:
    """torch.optim.Adagrad.

    Args:
        lr, weight_decay, eps, maximize: as in Adam.
        lr_decay: the rate of step k is lr / (1 + k lr_decay).
    """

    target: ClassVar[str] = "regista.adagrad"
    momentum_at: ClassVar[int | None] = None
    rows: ClassVar[str] = "regista.rows_adagrad"
    all_slots: ClassVar[tuple[str, ...]] = ("sum", "step")
    lr: float = 0.01
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "lr_decay", "weight_decay", "eps")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return self.all_slots

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, self.lr_decay, self.weight_decay, self.eps)

    @property
    def row_numbers(self) -> tuple[Number, ...]:
        """As in SGD."""
        return (self.lr_decay, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSprop:
    """torch.optim.RMSprop.

    Args:
        lr, eps, weight_decay, maximize: as in Adam.
        alpha: decay rate of the second moment.
        momentum: 0 keeps no momentum_buffer.
        centered: divide by the standard deviation instead of the root of the second moment.
    """

    target: ClassVar[str] = "regista.rmsprop"
    momentum_at: ClassVar[int | None] = 4
    all_slots: ClassVar[tuple[str, ...]] = ("square_avg", "step", "momentum_buffer", "grad_avg")
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "alpha", "eps", "weight_decay", "momentum")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return ("square_avg", "step", *("momentum_buffer",) * (self.momentum > 0), *("grad_avg",) * self.centered)

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, self.alpha, self.eps, self.weight_decay, self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adafactor:
    """torch.optim.Adafactor.  Its update needs means over the whole parameter, so parameters and gradients are not split for it.

    Args:
        lr, weight_decay, maximize: as in AdamW.
        beta2_decay: exponent of the step in the decay rate of the second moment.
        eps: of the squared update (None: that of the dtype), and of the step size.
        d: threshold of the update's root mean square.
    """

    target: ClassVar[str] = "regista.adafactor"
    momentum_at: ClassVar[int | None] = None
    all_slots: ClassVar[tuple[str, ...]] = ("step", "row_var", "col_var", "variance")
    lr: float = 0.01
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    maximize: bool = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "d", "weight_decay")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return ("step", "row_var", "col_var") if ndim > 1 else ("step", "variance")

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        return (self.lr, self.beta2_decay, self.eps[1], self.d, self.weight_decay, self.eps[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Muon:
    """torch.optim.Muon, for matrices.  Its update is a product of whole matrices, so parameters and gradients are not split for it.

    Args:
        lr, weight_decay: as in AdamW.
        momentum, nesterov: of the gradient that is made orthogonal.
        coefficients, num_iterations, eps: of the Newton-Schulz iteration (ns_coefficients, ns_steps).
        adjust_lr: torch's ``adjust_lr_fn``.
    """

    target: ClassVar[str] = "regista.muon"
    momentum_at: ClassVar[int | None] = 2
    all_slots: ClassVar[tuple[str, ...]] = ("momentum_buffer",)
    lr: float = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    num_iterations: int = 5
    adjust_lr: str | None = None
    maximize: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refuse_negative(self, "lr", "weight_decay", "momentum")

    def slots(self, ndim: int) -> tuple[str, ...]:
        """As in SGD."""
        return self.all_slots

    @property
    def hyper_parameters(self) -> tuple[Number, ...]:
        numbers = (self.lr, self.weight_decay, self.momentum, self.nesterov, *self.coefficients)
        return (*numbers, self.eps, self.num_iterations, self.adjust_lr)


Optimizer = SGD | AdamW | Adam | LazyAdam | Adagrad | RMSprop | Adafactor | Muon | Adamax | NAdam | RAdam | Adadelta


def slot_type(slot: str, parameter: TensorType) -> TensorType:
    """The type of a state: ``step`` and ``mu_product`` are 0-d float32, Adafactor's factors keep one of the last two dims, others are as the
    parameter.
    """
    match slot:
        case "step" | "mu_product":
            return TensorType((), DType.FLOAT32)
        case "row_var":
            return TensorType((*parameter.shape[:-1], 1), parameter.dtype)
        case "col_var":
            return TensorType((*parameter.shape[:-2], 1, parameter.shape[-1]), parameter.dtype)
        case _:
            return parameter
