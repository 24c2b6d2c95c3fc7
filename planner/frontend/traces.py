"""The traces of a step: one per number of micro-batches, made when it is first asked for and then kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from torch import Tensor, nn

from planner.frontend.attention import Attention, attention_in
from planner.frontend.batch import BatchDims
from planner.frontend.denominators import Denominators, counted
from planner.frontend.inputs import InputForm
from planner.frontend.outputs import AskedOutputs
from planner.frontend.precision import Precision
from planner.frontend.to_graph.outputs import put_together
from planner.frontend.to_graph.translate import Translated, translate
from planner.frontend.to_graph.update import Update
from planner.frontend.tracing.decomp.local_norm import statistics_of_parts
from planner.frontend.tracing.trace import Capture, capture
from planner.frontend.tracing.untouched import untouched
from planner.frontend.trial import refuse_ambiguous
from planner.ir.collector import collector_paused
from planner.ir.graph import Mode

__all__ = ["Step", "Traces"]

_LOGGER = logging.getLogger("planner.frontend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is traced: one step on ``module``, which is named ``name`` in messages.

    example_inputs, form, batch_dims, loss, precision: as Program has them.
    update: what stands behind the backward part.
    norm_parts: over so many parts of a micro-batch each batch norm takes its statistics one by one.
    attention: the form in which attention is traced.
    asked: the outputs of an evaluation; None: a training step.
    """

    name: str
    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    form: InputForm
    batch_dims: BatchDims
    loss: Callable[..., object] | None
    precision: Precision
    update: Update
    norm_parts: int
    attention: Attention
    asked: AskedOutputs | None

    @property
    def mode(self) -> Mode:
        """The kind of step."""
        return Mode.TRAIN if self.asked is None else Mode.EVAL

    def micro_batches(self, batch: Sequence[Tensor], count: int) -> list[tuple[Tensor, ...]]:
        """All micro-batches of a global batch."""
        return [self.batch_dims.sliced(batch, count, index) for index in range(count)]

    def captured(self, micro_batches: int) -> Capture:
        """The step traced at one of so many micro-batches."""
        return capture(
            self.module,
            self.batch_dims.sliced(self.example_inputs, micro_batches, 0),
            self.loss,
            form=self.form,
            batch_dims=self.batch_dims.dims,
            micro_batches=micro_batches,
            asked=self.asked,
            precision=self.precision,
        )


class Traces:
    """The traces of one step.

    Args:
        told: the kinds of warnings that were logged already: each is logged once per program.
    """

    def __init__(self, told: set[str] | None = None) -> None:
        self._translated: dict[int, Translated] = {}
        self._denominators: dict[int, Denominators] = {}
        self._told: set[str] = set() if told is None else told

    def of_another_step(self) -> Traces:
        """Traces of another step of the same program: none yet."""
        return Traces(self._told)

    def of(self, step: Step, micro_batches: int) -> Translated:
        """The graph of one of so many micro-batches, and the values that it holds.

        Raises:
            InvalidProgram: micro_batches does not divide the batch, or the step cannot be traced.
            Unsupported: the step draws what no counter can give, or writes into shared memory.
        """
        step.batch_dims.check(micro_batches)
        if micro_batches not in self._translated:
            with collector_paused(), _in_mode(step.module, step.mode), statistics_of_parts(step.norm_parts), attention_in(step.attention):
                if micro_batches > 1 and not any(count > 1 for count in self._translated):
                    refuse_ambiguous(step.batch_dims, step.example_inputs, step.module, step.loss, step.form, step.precision)
                captured = step.captured(micro_batches)
                if micro_batches > 1:
                    example = step.micro_batches(step.example_inputs, micro_batches)
                    captured = counted(captured, lambda: step.captured(1), example)
                    self._denominators[micro_batches] = Denominators(captured)
                    self.tell_counts(step, micro_batches, step.example_inputs, "example_inputs")
                translated = translate(captured, step.update)
            if micro_batches > 1 and translated.graph.outputs:
                translated = replace(translated, graph=put_together(translated.graph, self.of(step, 1).graph, micro_batches))
            self._translated[micro_batches] = translated
            for kind, text in captured.notes().items():
                self._tell(step, kind, text)
        return self._translated[micro_batches]

    def tell_counts(self, step: Step, micro_batches: int, batch: Sequence[Tensor], what: str, *, later: bool = False) -> None:
        """Log, once, that the micro-batches of a traced step's batch take their means over different counts (``Denominators.difference``)."""
        if micro_batches > 1 and "counts" not in self._told:
            cut = step.micro_batches(batch, micro_batches)
            self._tell(step, "counts", self._denominators[micro_batches].difference(cut, what, later=later))

    def _tell(self, step: Step, kind: str, text: str) -> None:
        """Log the text, if it is the first of its kind."""
        if text and kind not in self._told:
            self._told.add(kind)
            _LOGGER.warning("%s: %s", step.name, text)


@contextmanager
def _in_mode(module: nn.Module, mode: Mode) -> Iterator[None]:
    """Inside, the module is as a step of this kind has it: for an evaluation in eval mode, afterwards every part of it in its own again."""
    with nullcontext() if mode is Mode.TRAIN else untouched({"": module}):
        if mode is Mode.EVAL:
            module.eval()
        yield
