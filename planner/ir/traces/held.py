"""Which steps of a long run a trace holds, and the part of such a trace that can be read like a whole one.

first:20,last:20,every:1000    of 5,000 steps:    0-19  999  1999  2999  3999  4980-4999
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate

from planner.ir.errors import InvalidTrace, Unsupported
from planner.ir.plan import Plan
from planner.ir.traces.trace import Act, Trace, steps_text

__all__ = ["StepSelection", "consecutive", "longest"]

_ITEM = re.compile(r"(first|last|every):([0-9]{1,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSelection:
    """Steps of a run, counted from its own first: the ``first``, the ``last``, and the last of each ``every`` steps; 0: none."""

    first: int = 0
    last: int = 0
    every: int = 0

    @classmethod
    def parse(cls, text: str) -> StepSelection:
        """Raises Unsupported: it is no list of ``first:N``, ``last:N``, ``every:N``, each once at most and N at least 1."""
        numbers: dict[str, int] = {}
        for item in text.split(","):
            named = _ITEM.fullmatch(item.strip())
            if named is None or named[1] in numbers or int(named[2]) == 0:
                raise Unsupported(
                    f"trace steps {text!r}: {item.strip()!r} is none of first:N, last:N, every:N, each once and N at least 1; "
                    "for example first:20,last:20,every:1000"
                )
            numbers[named[1]] = int(named[2])
        return cls(**numbers)

    def check(self, steps: int) -> None:
        """Raises Unsupported: a run of so many steps has none of these."""
        if not (self.first or self.last) and self.every > steps:
            raise Unsupported(
                f"trace steps every:{self.every} name no step of a run of {steps} steps; give {steps} or less, or first:N or last:N beside it"
            )

    def ranges(self, steps: int) -> tuple[tuple[int, int], ...]:
        """(first, end) of the runs of consecutive steps, ascending; of a run that is shorter than ``every`` (after a restart) the last step."""
        spans = [(0, min(self.first, steps)), (max(0, steps - self.last), steps)]
        if self.every:
            spans += [(step, step + 1) for step in range(self.every - 1, steps, self.every)]
        wanted = sorted(span for span in spans if span[0] < span[1]) or [(steps - 1, steps)]
        joined: list[tuple[int, int]] = []
        for (first, end), furthest in zip(wanted, accumulate((end for _, end in wanted), max), strict=True):
            if joined and first <= joined[-1][1]:
                joined[-1] = joined[-1][0], furthest
            else:
                joined.append((first, end))
        return tuple(joined)


def longest(trace: Trace) -> tuple[int, int]:
    """(first, end) of the longest run of consecutive steps that a trace holds, the last of several."""
    return max(trace.held_steps or ((0, trace.steps),), key=lambda span: (span[1] - span[0], span[0]))


def consecutive(plan: Plan, trace: Trace) -> Trace:
    """The longest run of consecutive steps that a trace holds (the last of several), as a trace of these steps alone; a whole trace as it is.

    ``about`` says under ``trace steps`` which they are.

    Raises:
        InvalidTrace: it holds no two steps in a row, and a step's time is between the ends of two.
    """
    if not trace.held_steps:
        return trace
    first, end = longest(trace)
    if end - first < min(2, trace.steps):
        raise InvalidTrace(
            f"the trace holds no two steps in a row ({steps_text(trace.held_steps)} of {trace.steps}), and the time of a step is between two ends; "
            "run again with first:N or last:N among --trace-steps, N at least 2"
        )
    acts: list[Act] = []
    for act in trace.acts:
        per_step = plan.task[act.task].acts
        if first <= act.number // per_step < end:
            acts.append(replace(act, number=act.number - first * per_step))
    said = f"{first} to {end - 1} of {trace.steps}; held are {steps_text(trace.held_steps)}"
    return replace(
        trace,
        steps=end - first,
        held_steps=(),
        acts=tuple(acts),
        losses=trace.losses[first:end],
        about=dict(trace.about) | {"trace steps": said},
    )
