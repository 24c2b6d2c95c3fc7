"""Dynamic scaling of the loss, by the rule of torch.amp.GradScaler: gradients that float16 would round to 0 are computed of a larger loss.

    regista.unscaling    scale -> micro-batches / scale: what the mean of the gradients of scale x loss / micro-batches is multiplied by
    regista.overflow     gradient -> 1 where an element is infinite or no number, else 0      (P(max) of parts, as the norm of clipping)
    regista.join_norms   one per gradient -> the largest
    regista.kept_if      old, new, overflow -> old where it is 1                              (parameters, optimizer state, step counts)
    regista.next_scale   scale, good steps, overflow -> scale x backoff, 0                    where it is 1
                                                        scale x growth, 0                     after ``growth_interval`` good steps
                                                        scale, good steps + 1                 else

So a step that is skipped is a step like any other: no device asks another, or the host, what to do.   [torch.amp.grad_scaler, torch 2.13]

In words (``--loss-scale``, loss_scale="..."):

    dynamic:FIRST?interval=2000&growth=2&backoff=0.5     GradScaler's rule from the first scale on; a number alone is this, too
    fixed:SCALE                                          the same scale at every step; steps that overflow are skipped as well
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

import torch
from torch import Tensor

from planner.frontend.optim.clipping import ClipNorm
from planner.frontend.precision import Precision
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["FORMS", "GOOD_STEPS", "KERNELS", "SCALE", "GivenLossScale", "LossScaling", "loss_scaling_of", "state_of"]

SCALE, GOOD_STEPS = "loss_scale", "loss_scale:good_steps"
"""The names of the states, which are their values too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling:
    """Numbers of torch.amp.GradScaler.

    Args:
        init_scale: of the first step.   good_steps: steps without overflow so far.
        growth_factor, growth_interval: the scale is multiplied by the one after so many steps without overflow.
        backoff_factor: it is multiplied by this after an overflow.   Both factors 1: the scale is fixed.

    Raises:
        InvalidProgram: numbers that cannot be.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    good_steps: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.init_scale <= _LARGEST:
            raise InvalidProgram(
                f"the scale of the loss is {self.init_scale:g}; give a number above 0 that float32 holds, for example 65536"
            )
        fixed = self.growth_factor == self.backoff_factor == 1
        grows = 1 < self.growth_factor < math.inf and 0 < self.backoff_factor < 1
        if not (fixed or grows) or not 1 <= self.growth_interval < 2**31 or not 0 <= self.good_steps < 2**31:
            raise InvalidProgram(
                f"{self}: the scale grows by a factor above 1 after 1 to 2,147,483,647 steps and shrinks by one below 1, or both are 1: it is fixed"
            )

    @staticmethod
    def parsed(text: str) -> LossScaling:
        """A scale in words.

        Raises:
            InvalidProgram: an unknown form or key, or a number that cannot be.

        >>> LossScaling.parsed("dynamic:1024?interval=100").growth_interval
        100
        """
        head, _, query = text.partition("?")
        kind, _, first = head.rpartition(":") if ":" in head else ("dynamic", "", head)
        pairs = parse_qsl(query, keep_blank_values=True)
        keys = _DEFAULTS if kind == "dynamic" else {}
        if kind not in ("dynamic", "fixed") or len(dict(pairs)) < len(pairs) or (query and len(pairs) != query.count("&") + 1):
            raise InvalidProgram(f"loss scale {text!r} is not understood; write {FORMS}")
        if unknown := [key for key, _ in pairs if key not in keys]:
            raise InvalidProgram(f"loss scale {text!r}: {unknown[0]} is not known; {kind} has {', '.join(keys) or 'no options'}")
        scale = _number(text, "the scale", first)
        if kind == "fixed":
            return LossScaling.fixed(scale)
        numbers = {**keys, **{key: _number(text, key, word) for key, word in pairs}}
        return LossScaling(
            init_scale=scale,
            growth_factor=numbers["growth"],
            backoff_factor=numbers["backoff"],
            growth_interval=_whole(text, "interval", numbers["interval"]),
            good_steps=_whole(text, "good_steps", numbers["good_steps"]),
        )

    @staticmethod
    def fixed(scale: float) -> LossScaling:
        """The same scale at every step."""
        return LossScaling(init_scale=scale, growth_factor=1.0, backoff_factor=1.0)

    @property
    def text(self) -> str:
        """It in words: ``parsed`` gives it back."""
        if self.growth_factor == 1:
            return f"fixed:{self.init_scale!r}"
        numbers = (self.growth_interval, self.growth_factor, self.backoff_factor, self.good_steps)
        return f"dynamic:{self.init_scale!r}?" + "&".join(f"{key}={number!r}" for key, number in zip(_DEFAULTS, numbers, strict=True))

    @property
    def state(self) -> dict[str, Tensor]:
        """The states before the first step."""
        return {
            SCALE: torch.tensor(self.init_scale, dtype=torch.float32),
            GOOD_STEPS: torch.tensor(self.good_steps, dtype=torch.int32),
        }


FORMS = "dynamic:FIRST?interval=2000&growth=2&backoff=0.5, or fixed:SCALE"
_DEFAULTS: Mapping[str, float] = {"interval": 2000, "growth": 2.0, "backoff": 0.5, "good_steps": 0}
_LARGEST = torch.finfo(torch.float32).max


def _number(text: str, key: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (number == 0 and key != "good_steps"):
        raise InvalidProgram(f"loss scale {text!r}: {key} is {word or 'missing'}; give a finite number above 0; write {FORMS}")
    return number


def _whole(text: str, key: str, number: float) -> int:
    if number != int(number):
        raise InvalidProgram(f"loss scale {text!r}: {key} is {number:g}; give a whole number of steps")
    return int(number)


GivenLossScale = LossScaling | torch.amp.GradScaler | float | str | None
"""What a Program takes."""


def loss_scaling_of(given: GivenLossScale, precision: Precision, clip_norm: ClipNorm | None) -> LossScaling | None:
    """How the loss is scaled; None where it is not.

    Raises:
        InvalidProgram: numbers that cannot be, or a scale for a precision that needs none.
        Unsupported: clipping would end the run where scaling skips the step.
    """
    if not precision.scales_loss:
        if given is not None:
            raise InvalidProgram(f"a loss scale belongs to precision fp16-mixed; the program computes in {precision.value}: leave it out")
        return None
    if clip_norm is not None and clip_norm.error_if_nonfinite:
        raise Unsupported(
            "clip_norm with error_if_nonfinite ends the run at an overflow, which fp16-mixed skips; leave error_if_nonfinite out, or use bf16-mixed"
        )
    if given is None or isinstance(given, LossScaling):
        return given or LossScaling()
    if isinstance(given, torch.amp.GradScaler):
        return _of_scaler(given)
    if isinstance(given, str):
        return LossScaling.parsed(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidProgram(f"loss_scale is a {type(given).__name__}; give a number, a text, a LossScaling or a torch.amp.GradScaler")
    return LossScaling(init_scale=float(given))


def _of_scaler(scaler: torch.amp.GradScaler) -> LossScaling:
    state = scaler.state_dict()
    if not state:
        raise InvalidProgram("this GradScaler is disabled, and without a scale float16 loses small gradients; enable it, or use bf16-mixed")
    return LossScaling(
        init_scale=float(state["scale"]),
        growth_factor=float(state["growth_factor"]),
        backoff_factor=float(state["backoff_factor"]),
        growth_interval=int(state["growth_interval"]),
        good_steps=int(state["_growth_tracker"]),
    )


def state_of(scaling: LossScaling | None) -> dict[str, Tensor]:
    """The states before the first step, by GraphInput.name; none where the loss is not scaled."""
    return {} if scaling is None else scaling.state


def unscaling(scale: Tensor, micro_batches: int) -> Tensor:
    """A 0-d tensor; the reciprocal is formed in float64, as GradScaler does."""
    return (micro_batches * scale.double().reciprocal()).float()


def overflow(gradient: Tensor) -> Tensor:
    """A 0-d float32 tensor, 1 or 0."""
    return gradient.isfinite().all().logical_not_().float()


def kept_if(old: Tensor, new: Tensor, overflowed: Tensor) -> Tensor:
    """Elementwise."""
    return torch.where(overflowed > 0, old, new)


def next_scale(
    scale: Tensor, good_steps: Tensor, overflowed: Tensor, growth_factor: float, backoff_factor: float, growth_interval: int
) -> list[Tensor]:
    """[new scale, new good steps].  A scale that would be infinite does not grow."""
    bad, steps = overflowed > 0, good_steps + 1
    grown = scale * growth_factor
    grows = (steps >= growth_interval) & ~bad
    new = torch.where(bad, scale * backoff_factor, torch.where(grows & grown.isfinite(), grown, scale))
    return [new, torch.where(bad | grows, torch.zeros_like(steps), steps)]


KERNELS: Mapping[str, Callable[..., Tensor | list[Tensor]]] = {
    "regista.unscaling": unscaling,
    "regista.overflow": overflow,
    "regista.kept_if": kept_if,
    "regista.next_scale": next_scale,
}
"""Target -> what it computes."""
