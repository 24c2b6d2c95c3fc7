"""A Program whose batch is padded, so that micro-batches and devices divide it: the numbers are those of its own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from planner.frontend.padding.samples import Padding
from planner.frontend.padding.weighted import weighted
from planner.frontend.program import Program
from planner.frontend.to_graph.translate import Translated
from planner.frontend.tracing.trace import Step
from planner.frontend.trial import refuse_ambiguous
from planner.ir.errors import Unsupported

__all__ = ["PaddedProgram"]


class PaddedProgram(Program):
    """``source`` on a batch of ``size`` samples, of which those behind its own count nothing.

    Its graph has one input more, the weights of the samples.  A data function and a session give batches as ``source`` has them.

    Raises:
        Unsupported: ``source`` is an evaluation with outputs.   InvalidProgram: what was found to be its batch may be none.
    """

    def __init__(self, source: Program, size: int) -> None:
        self.__dict__ = dict(source._anew().__dict__)
        self._own = source
        if self._asked is not None and self._asked != source.evaluating(False)._asked:
            raise Unsupported(
                f"a batch of {source.batch_size} samples would be padded to {size}, and outputs are of its own samples alone; "
                f"choose micro-batches and devices that divide {source.batch_size}"
            )
        refuse_ambiguous(source.batch_dims, source.example_inputs, source._module, source.loss, source.form, source.precision)
        self.padding = Padding(samples=source.batch_size, size=size, dims=source.batch_dims.dims)
        self.example_inputs = self.padding.batch(source.example_inputs)
        self.batch_dims = replace(source.batch_dims, dims=(*source.batch_dims.dims, 0), size=size)
        self._weighted: dict[int, Translated] = {}

    def _anew(self) -> Program:
        other = super()._anew()
        assert isinstance(other, PaddedProgram)
        other._weighted = {}
        return other

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.padding.batch(self._own.batch(step))

    def tensors(self, batch: object, what: str = "the batch") -> tuple[Tensor, ...]:
        return self.padding.batch(self._own.tensors(batch, what))

    def batches(self, micro_batches: int) -> Callable[[int], tuple[Tensor, ...]]:
        """``batch``; counts are always those of the whole batch, so there is nothing to tell of them."""
        self._translate(micro_batches)
        return self.batch

    def _translate(self, micro_batches: int) -> Translated:
        if micro_batches not in self._weighted:
            translated = super()._translate(micro_batches)
            graph = weighted(translated.graph, name=f"input.{len(self.padding.dims)}", size=self.padding.size, micro_batches=micro_batches)
            self._weighted[micro_batches] = replace(translated, graph=graph)
        return self._weighted[micro_batches]

    @property
    def _step(self) -> Step:
        dims = replace(self._own.batch_dims, size=self.padding.size, given=True)
        return replace(super()._step, example_inputs=self.example_inputs[:-1], batch_dims=dims, own=self._own.example_inputs)
