"""What is asked of a program's step beside what it says itself: its update, its formats, its mode.

Learning rates by step:

    constant:RATE                                   the same rate at every step
    linear:PEAK?warmup=100&steps=1000&end=0         up to PEAK in ``warmup`` steps, then down to ``end`` at step ``steps``, and there from then on
    cosine:PEAK?warmup=100&steps=1000&end=0         down along half a cosine
    step:RATE?every=30&factor=0.1&warmup=0          times ``factor`` after every so many steps
    FILE.py:FUNCTION                                a function of the step that gives the rate, or one rate per parameter group

Clipping, averages and the rule of the loss's scale are part of a Plan's graph and are recorded in its options.  A schedule is not: a Plan records
only that its rates come from outside, so another schedule is the same Plan with the same id, and whoever performs it says which one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from planner.frontend import Program
from planner.frontend.attention import Attention, attention_of
from planner.frontend.load import function_of_file
from planner.frontend.precision import Precision
from planner.ir.cluster import Cluster
from planner.ir.errors import InvalidProgram, Mismatch, Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan, TaskKind

__all__ = [
    "NO_UPDATE_OPTIONS",
    "SCHEDULE_FORMS",
    "UpdateOptions",
    "as_planned",
    "recorded_of",
    "with_batch_norm",
    "asked_formats",
    "in_mode",
    "own_rates",
    "parse_rates",
    "recorded_formats",
]

SCHEDULE_FORMS = (
    "constant:RATE, linear:PEAK?warmup=W&steps=N&end=0, cosine:PEAK?warmup=W&steps=N&end=0, "
    "step:RATE?every=K&factor=0.1, or FILE.py:FUNCTION"
)

_RECORDED = "by step"
"""What a Plan's option ``lr_schedule`` says: the rates come from outside."""

Rates = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """None: as the program itself says.   lr_schedule: a text of the forms above.   clip_norm, clip_value, ema, loss_scale: as in Program."""

    lr_schedule: str | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None
    loss_scale: str | float | None = None

    def applied(self, program: Program) -> Program:
        """The program with this update.

        Raises:
            InvalidProgram, InvalidFile: a norm, a value, a decay, a scale or a schedule that cannot be.
        """
        if self == NO_UPDATE_OPTIONS:
            return program
        rates = None if self.lr_schedule is None else parse_rates(self.lr_schedule)
        return program.updated_by(
            lr_schedule=rates, clip_norm=self.clip_norm, clip_value=self.clip_value, ema=self.ema, loss_scale=self.loss_scale
        )

    @property
    def recorded(self) -> dict[str, str]:
        """What a Plan's options keep of them."""
        numbers = {"clip_norm": self.clip_norm, "clip_value": self.clip_value, "ema": self.ema}
        texts = {name: repr(number) for name, number in numbers.items() if number is not None}
        texts |= {} if self.loss_scale is None else {"loss_scale": str(self.loss_scale)}
        return texts if self.lr_schedule is None else texts | {"lr_schedule": _RECORDED}

    @staticmethod
    def of(plan: Plan) -> UpdateOptions:
        """What a Plan records, without its schedule."""
        clip_norm, clip_value, ema = (
            float(plan.options[name]) if name in plan.options else None for name in ("clip_norm", "clip_value", "ema")
        )
        return UpdateOptions(clip_norm=clip_norm, clip_value=clip_value, ema=ema, loss_scale=plan.options.get("loss_scale"))


NO_UPDATE_OPTIONS = UpdateOptions()


def own_rates(plan: Plan, program: Program, lr_schedule: str | None, *, performs: bool) -> Program:
    """The program with the rates that performing ``plan`` takes.

    Args:
        lr_schedule: the schedule that was given now; None: none.
        performs: it is trained by them; otherwise (a trace, a measurement) the optimizer's own rates stand in for a schedule that is not given.

    Raises:
        Mismatch: a schedule is needed and not given, or given and not needed.
    """
    takes_rates = any(task.kind is TaskKind.STEP_INPUT for task in plan.tasks)
    if lr_schedule is not None:
        if not takes_rates:
            raise Mismatch(f"plan {plan.plan_id} has constant learning rates; leave --lr-schedule out, or give it to 'regista plan', too")
        return UpdateOptions(lr_schedule=lr_schedule).applied(program)
    if "lr_schedule" not in plan.options:
        return program
    if performs:
        raise Mismatch(
            f"plan {plan.plan_id} takes its learning rates from outside and holds no schedule, so that all schedules have one plan; "
            f"give --lr-schedule again: {SCHEDULE_FORMS}"
        )
    rates = tuple(group.rule.lr for group in program.groups)
    return program.updated_by(lr_schedule=lambda step: rates)


def asked_formats(program: Program, precision: str | None, grad_dtype: str | None, attention: str | None = None) -> Program:
    """The program in these formats; None: in its own.  Raises as Program.in_formats does."""
    if precision is None and grad_dtype is None and attention is None:
        return program
    return program.in_formats(precision or program.precision, grad_dtype or program.grad_dtype, attention)


def recorded_formats(program: Program) -> dict[str, str]:
    """What a Plan's options say of the formats in which a program computes and adds up gradients; nothing of those that the module has."""
    precision = {} if program.precision is Precision.FP32 else {"precision": program.precision.value}
    return precision if program.grad_dtype is None else {**precision, "grad_dtype": program.grad_dtype}


def with_batch_norm(program: Program, batch_norm: str, stages: int | None, mesh: Sequence[int] | None, cluster: Cluster) -> Program:
    """The program with the statistics of batch norm that were asked for.

    Args:
        batch_norm: ``global``: of the whole micro-batch, as on one device; ``local``: of each part, as under DistributedDataParallel, with as
            many parts as the first axis of the mesh has devices (no mesh: as a stage has).

    Raises:
        Unsupported: it is neither, the number of stages is searched, or the module has no batch norm that can be local.
    """
    if batch_norm not in ("global", "local"):
        raise Unsupported(f"batch norm {batch_norm!r} is not known; choose global or local")
    if batch_norm == "global":
        return program
    if mesh is None and stages is None:
        raise Unsupported("batch norm local has a part per device of a stage; say how many stages there are, or the mesh")
    parts = mesh[0] if mesh else cluster.num_devices // (stages or 1)
    return program.with_local_batch_norm(parts) if parts > 1 else program


def recorded_of(program: Program) -> dict[str, str]:
    """What a Plan's options say of formats (``recorded_formats``), and of batch norm and attention where they are not global and fused."""
    batch_norm = {"batch_norm": f"{_LOCAL}{program.norm_parts}"} if program.norm_parts > 1 else {}
    attention = {} if program.attention is Attention.FUSED else {"attention": program.attention.value}
    return recorded_formats(program) | batch_norm | attention


_LOCAL = "local, parts: "


def as_planned(plan: Plan, program: Program) -> Program:
    """The program with the batch norm, attention and formats that were asked for when it was planned; one that says its formats is left in them."""
    if "batch_norm" in plan.options:
        program = program.with_local_batch_norm(int(plan.options["batch_norm"].removeprefix(_LOCAL)))
    attention = attention_of(plan.options.get("attention", Attention.FUSED.value))
    if attention is not program.attention:
        program = program.in_formats(program.precision, program.grad_dtype, attention)
    recorded = {option: plan.options[option] for option in ("precision", "grad_dtype") if option in plan.options}
    if not recorded or recorded_formats(program):
        return program
    return program.in_formats(recorded.get("precision", Precision.FP32), recorded.get("grad_dtype"))


def in_mode(program: Program, mode: str, outputs: bool | Sequence[str], update: UpdateOptions) -> Program:
    """The program as a training step or as an evaluation.

    Raises:
        Unsupported: an unknown mode, outputs of a training step, or an update of an evaluation.
    """
    if mode not in {m.value for m in Mode}:
        raise Unsupported(f"mode {mode!r} is not known; choose from {', '.join(m.value for m in Mode)}")
    if Mode(mode) is Mode.TRAIN:
        if outputs:
            raise Unsupported("outputs leave an evaluation; plan it with mode eval, or leave them out")
        return program
    if asked := ", ".join(update.recorded):
        raise Unsupported(f"an evaluation updates nothing, and {asked} was asked for; leave it out, or plan a training step")
    return program.evaluating(outputs)


def parse_rates(text: str) -> Callable[[int], float]:
    """A schedule from its form on the command line.

    Raises:
        InvalidProgram: an unknown form or key, or a number that cannot be.   InvalidFile: the file cannot be read.

    >>> [parse_rates("linear:1.0?warmup=2&steps=6")(step) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        with function_of_file(Path(path), name) as function:
            of_file: Rates = function
        return of_file
    head, _, query = text.partition("?")
    kind, _, peak = head.partition(":")
    if kind not in _FORMS or not peak:
        raise InvalidProgram(f"learning rates {text!r} are not understood; write {SCHEDULE_FORMS}")
    make, defaults = _FORMS[kind]
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs) or (query and len(pairs) != query.count("&") + 1):
        raise InvalidProgram(f"learning rates {text!r}: options are key=value, joined by &, each once; write {SCHEDULE_FORMS}")
    if unknown := sorted(set(given) - set(defaults)):
        raise InvalidProgram(
            f"learning rates {text!r}: {', '.join(unknown)} is not known; {kind} has {', '.join(defaults) or 'no options'}"
        )
    numbers = {key: _number(text, key, given.get(key, default)) for key, default in defaults.items()}
    return make(text, _number(text, "the rate", peak), numbers)


def _number(text: str, key: str, word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidProgram(
            f"learning rates {text!r}: {key} is {word or 'missing'}; give a finite number of at least 0; write {SCHEDULE_FORMS}"
        )
    return number


def _constant(text: str, rate: float, numbers: Mapping[str, float]) -> Rates:
    return lambda step: rate


def _decaying(shape: Callable[[float], float]) -> Callable[[str, float, Mapping[str, float]], Rates]:
    """shape: share of the way down -> share of the height, 1 at 0 and 0 at 1."""

    def make(text: str, peak: float, numbers: Mapping[str, float]) -> Rates:
        warmup, steps, end = numbers["warmup"], numbers["steps"], numbers["end"]
        if not steps > warmup:
            raise InvalidProgram(
                f"learning rates {text!r}: the way down ends at step {steps:g} and begins at {warmup:g}; give steps=N above warmup"
            )

        def rates(step: int) -> float:
            if step < warmup:
                return peak * (step + 1) / warmup
            return end + (peak - end) * shape(min(1.0, (step - warmup) / (steps - warmup)))

        return rates

    return make


def _stepped(text: str, rate: float, numbers: Mapping[str, float]) -> Rates:
    every, factor, warmup = numbers["every"], numbers["factor"], numbers["warmup"]
    if every < 1 or every != int(every):
        raise InvalidProgram(f"learning rates {text!r}: every={every:g}; give a whole number of steps, at least 1")
    return lambda step: rate * (step + 1) / warmup if step < warmup else rate * factor ** (step // every)


_FORMS: Mapping[str, tuple[Callable[[str, float, Mapping[str, float]], Rates], Mapping[str, str]]] = {
    "constant": (_constant, {}),
    "linear": (_decaying(lambda share: 1 - share), {"warmup": "0", "steps": "", "end": "0"}),
    "cosine": (_decaying(lambda share: (1 + math.cos(math.pi * share)) / 2), {"warmup": "0", "steps": "", "end": "0"}),
    "step": (_stepped, {"every": "", "factor": "0.1", "warmup": "0"}),
}
"""Kind -> how it is made, and its options with their defaults (empty: it must be given)."""
