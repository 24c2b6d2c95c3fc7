"""The traces of a step: one per number of micro-batches, made when it is first asked for and then kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch import Tensor, nn

from planner.frontend.attention import attention_in
from planner.frontend.denominators import Denominators, counted
from planner.frontend.to_graph.outputs import put_together
from planner.frontend.to_graph.padded_numbers import with_numbers_of
from planner.frontend.to_graph.translate import Translated, translate
from planner.frontend.to_graph.update import Update
from planner.frontend.tracing.decomp.local_norm import statistics_of_parts
from planner.frontend.tracing.trace import Capture, Step, capture
from planner.frontend.tracing.untouched import untouched
from planner.frontend.trial import refuse_ambiguous
from planner.ir.collector import collector_paused
from planner.ir.graph import Mode

__all__ = ["TracedStep", "Traces"]

_LOGGER = logging.getLogger("planner.frontend")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step traced at one size.

    denominators: of its means; None: of one that is the whole batch, or that another process has traced.
    notes: what is to be told of the trace, by kind.
    """

    translated: Translated
    denominators: Denominators | None
    notes: Mapping[str, str]


class Traces:
    """The traces of one step.

    Args:
        name: of the program, for messages.   told: the kinds of warnings that were logged already: each is logged once per program.
    """

    def __init__(self, name: str, told: set[str] | None = None) -> None:
        self._name = name
        self._traced: dict[int, TracedStep] = {}
        self._told: set[str] = set() if told is None else told
        self._is_tried = False

    def of_another_step(self) -> Traces:
        """Traces of another step of the same program: none yet."""
        return Traces(self._name, self._told)

    def of(self, step: Step, update: Update, micro_batches: int) -> Translated:
        """The graph of one of so many micro-batches with the update behind it, and the values that it holds.

        Raises:
            InvalidProgram: micro_batches does not divide the batch, or the step cannot be traced.
            Unsupported: the step draws what no counter can give, or writes into shared memory.
        """
        return self.traced(step, update, micro_batches).translated

    def traced(self, step: Step, update: Update, micro_batches: int) -> TracedStep:
        """As ``of``, with what else is known of the trace."""
        step.batch_dims.check(micro_batches)
        if micro_batches not in self._traced:
            denominators: Denominators | None = None
            notes: dict[str, str] = {}
            with _as_in(step):
                if micro_batches > 1:
                    self._try_batch_dims(step)
                captured = _counted(step, micro_batches)
                if micro_batches > 1:
                    denominators = Denominators(captured)
                    if step.own is None and "counts" not in self._told:
                        cut = step.micro_batches(step.example_inputs, micro_batches)
                        notes["counts"] = denominators.difference(cut, "example_inputs")
                translated = translate(captured, update)
            if micro_batches > 1 and translated.graph.outputs:
                translated = replace(translated, graph=put_together(translated.graph, self.of(step, update, 1).graph, micro_batches))
            self.take(micro_batches, TracedStep(translated=translated, denominators=denominators, notes=notes | captured.notes()))
        return self._traced[micro_batches]

    def has(self, micro_batches: int) -> bool:
        """Whether the step was traced at that size."""
        return micro_batches in self._traced

    def take(self, micro_batches: int, traced: TracedStep) -> None:
        """Take a step traced at that size, and log what is to be told of it."""
        self._traced[micro_batches] = traced
        for kind, text in traced.notes.items():
            self._tell(kind, text)

    def try_batch_dims(self, step: Step) -> None:
        """Check, once, that batch dims found by their extents are the batch (trial.extents); raises InvalidProgram: they may not be."""
        if not self._is_tried:
            with _as_in(step):
                self._try_batch_dims(step)

    def take_as_tried(self) -> None:
        """Do not try out the batch dims: for a fork of a process that does."""
        self._is_tried = True

    def _try_batch_dims(self, step: Step) -> None:
        if not self._is_tried:
            refuse_ambiguous(step.batch_dims, step.example_inputs, step.module, step.loss, step.form, step.precision)
            self._is_tried = True

    def tell_counts(self, step: Step, micro_batches: int, batch: Sequence[Tensor], what: str, *, later: bool = False) -> None:
        """Log, once, that the micro-batches of a traced step's batch take their means over different counts (``Denominators.difference``)."""
        if micro_batches > 1 and "counts" not in self._told:
            cut = step.micro_batches(batch, micro_batches)
            self._tell("counts", self._denominators(step, micro_batches).difference(cut, what, later=later))

    def _denominators(self, step: Step, micro_batches: int) -> Denominators:
        """Of a step that was traced; where another process has traced it, it is traced here again, without the update."""
        traced = self._traced[micro_batches]
        if traced.denominators is None:
            with _as_in(step):
                traced = replace(traced, denominators=Denominators(_counted(step, micro_batches)))
            self._traced[micro_batches] = traced
        assert traced.denominators is not None
        return traced.denominators

    def _tell(self, kind: str, text: str) -> None:
        """Log the text, if it is the first of its kind."""
        if text and kind not in self._told:
            self._told.add(kind)
            _LOGGER.warning("%s: %s", self._name, text)


def _captured(step: Step, micro_batches: int) -> Capture:
    """The trace, of a padded batch with means over its own samples."""
    captured = capture(step, micro_batches)
    if step.own is None:
        return captured
    samples = next(t.shape[dim] for t, dim in zip(step.own, step.batch_dims.dims, strict=True) if dim is not None)
    at_once = replace(step.batch_dims, size=samples * micro_batches)  # so that the slice traced is all of them
    return with_numbers_of(capture(replace(step, example_inputs=step.own, batch_dims=at_once), micro_batches), captured, micro_batches)


def _counted(step: Step, micro_batches: int) -> Capture:
    """The trace, with the counts of the whole batch where it has to divide by these."""
    captured = _captured(step, micro_batches)
    if micro_batches == 1:
        return captured
    example = step.micro_batches(step.example_inputs, micro_batches)
    return counted(captured, lambda: _captured(step, 1), example, always=step.own is not None)


@contextmanager
def _as_in(step: Step) -> Iterator[None]:
    """Inside, the module is traced as the step has it."""
    with collector_paused(), _in_mode(step.module, step.mode), statistics_of_parts(step.norm_parts), attention_in(step.attention):
        yield


@contextmanager
def _in_mode(module: nn.Module, mode: Mode) -> Iterator[None]:
    """Inside, the module is as a step of this kind has it: for an evaluation in eval mode, afterwards every part of it in its own again."""
    with nullcontext() if mode is Mode.TRAIN else untouched({"": module}):
        if mode is Mode.EVAL:
            module.eval()
        yield
