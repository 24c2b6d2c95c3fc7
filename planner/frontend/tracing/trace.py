"""From a module to an fx graph of one micro-batch: forward, loss and backward, on fake tensors (no memory, no values).

    parameters, buffers, micro-batch --> functional_call --> loss --> autograd.grad --> loss, gradients, new buffers

Two tracers give the same graph.  Ours (recorder/) is five to ten times quicker.  Where it cannot serve (a complex literal that is conjugated, an op
that writes and has no functional twin of its name), make_fx does: functionalization runs between autograd and torch's tracer, so writes in place
arrive here as new values.
The Capture says which of the two served, and why the recorder did not.
The optimizer is not traced: it is one op per parameter, and to_graph/finish.py writes it behind the accumulations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode, disable_fake_tensor_cache
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from planner.frontend.attention import Attention, whole_attention
from planner.frontend.batch import BatchDims
from planner.frontend.inputs import InputForm, holds_loss, loss_in
from planner.frontend.outputs import AskedOutputs
from planner.frontend.precision import Precision
from planner.frontend.random import Drawing, drawing
from planner.frontend.recurrent import ctc_losses, recurrent_layers
from planner.frontend.tracing.checks.asked import Checks, asked_in_make_fx, checks_of_values
from planner.frontend.tracing.checks.kept import kept_of, refuse_written
from planner.frontend.tracing.decomp import decomposition_table
from planner.frontend.tracing.hooks import BackwardHooks
from planner.frontend.tracing.lookup import sparse_lookups
from planner.frontend.tracing.recorder.record import Recorder
from planner.frontend.tracing.recorder.sharing import refuse_shared_memory
from planner.frontend.tracing.recorder.traced import NotRecordable
from planner.frontend.tracing.refusals import InvalidForBothTracers
from planner.frontend.tracing.repeat import Results, fit_buffers, refuse_other_next_step
from planner.frontend.tracing.stamp import Stamper
from planner.frontend.tracing.untouched import (
    as_in_make_fx,
    device_neutral,
    exporting,
    quiet,
    untouched,
    wide_grouped_products,
    without_checks,
    without_data_writes,
    without_reentrance,
)
from planner.frontend.tracing.values import explained, first_line, is_of_values
from planner.ir.errors import InvalidProgram, RegistaError
from planner.ir.graph import Mode

__all__ = ["Capture", "Step", "Tracer", "capture", "loss_of"]


class Tracer(Enum):
    """What traced a module."""

    RECORDER = "recorder"
    MAKE_FX = "make_fx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The traced micro-batch.  Placeholders and outputs stand in the order of the names; behind them ``whole``, the seed, the number of steps, and
    the scale of the loss where there is one.

    constants: what the graph's get_attr nodes name.
    trained: names of the parameters that have a gradient, in the order of the gradients; of an evaluation none.
    outputs: names of what an evaluation gives beside the loss, in the order behind it.
    mode: the kind of step.   has_loss: False: the module of an evaluation returns outputs alone, and 0 stands where the loss would.
    batch_dims: per batch input the dim that micro-batches slice, or None.
    whole: numbers of the batch inputs that the graph takes once more, as large as the whole batch (planner.frontend.whole_batch).
    tracer: what made the graph.   refusal: of make_fx, why the recorder did not; else empty.
    left_alone: what forward changes in Python without an op depending on it, in words: a run leaves it as it is.
    precision: forward and loss were traced in it; where it is scaled, gradients are those of scale x loss / micro_batches.
    """

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    batch_dims: tuple[int | None, ...]
    trained: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    mode: Mode = Mode.TRAIN
    has_loss: bool = True
    tracer: Tracer
    refusal: str = ""
    left_alone: str = ""
    precision: Precision = Precision.FP32
    whole: tuple[int, ...] = ()
    micro_batches: int = 1

    def notes(self) -> dict[str, str]:
        """What is to be told of the trace, by kind: why the recorder did not make it, and what a run leaves as it is; empty texts: nothing."""
        slow = f"traced by make_fx, five to ten times slower, since the recorder cannot: {self.refusal}"
        left = f"forward changes {self.left_alone}; nothing is computed with it, and a run leaves it as it is"
        return {"slow": slow if self.refusal else "", "left alone": left if self.left_alone else ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that can be traced: forward, loss and backward of a module, or the forward pass of an evaluation.

    example_inputs: one global batch; only shapes and dtypes are used.   batch_dims: which of their dims micro-batches slice.
    form: how the tensors of a batch are given to the module and to the loss.
    loss: applied to the module's output and the targets; None when the module returns the loss.
    precision: forward and loss run under its autocast.
    norm_parts: over so many parts of a micro-batch a batch norm takes its statistics one by one.
    attention: the form in which attention is traced.
    asked: an evaluation, the forward pass under no_grad, with these outputs; None: a training step.
    own: of a padded batch (planner.frontend.padding) the samples of its own, over which means are; else None.
    """

    module: nn.Module
    example_inputs: tuple[Tensor, ...]
    form: InputForm
    batch_dims: BatchDims
    loss: Callable[..., object] | None
    precision: Precision
    norm_parts: int
    attention: Attention
    asked: AskedOutputs | None
    own: tuple[Tensor, ...] | None = None

    @property
    def mode(self) -> Mode:
        """The kind of step."""
        return Mode.TRAIN if self.asked is None else Mode.EVAL

    def micro_batches(self, batch: Sequence[Tensor], count: int) -> list[tuple[Tensor, ...]]:
        """All micro-batches of a global batch."""
        return [self.batch_dims.sliced(batch, count, index) for index in range(count)]


def loss_of(module: nn.Module, loss: Callable[..., object] | None, form: InputForm, inputs: Sequence[Tensor]) -> Tensor:
    """The scalar loss of one (micro-)batch: what the user's ordinary loop would differentiate.

    Args:
        form: how the tensors ``inputs`` are given to the module, and to the loss as its targets.

    Raises:
        InvalidProgram: what comes out is no scalar floating tensor, nor anything that holds one or several (``loss_in``).
    """
    return _loss_in_returned(loss, *form.output(module, inputs))


def _loss_in_returned(loss: Callable[..., object] | None, returned: object, targets: Sequence[object]) -> Tensor:
    """The same, of what the module returned."""
    if loss is not None:
        return loss_in(loss(returned, *targets), "the loss callable")
    return loss_in(returned, "the module", "; return the loss from the module, or give Program(loss=...)")


class _Traced(nn.Module):
    """Forward, loss and backward as one module, so that the module holds the traced parameters during all three.

    Checkpointed parts run again in backward, and a loss may reach into the module: both must see the traced values.
    """

    def __init__(
        self,
        step: Step,
        micro_batches: int,
        parameters: Mapping[str, Tensor],
        stamper: Stamper,
        trained: list[str],
        hooks: BackwardHooks,
        checks: Checks,
    ) -> None:
        super().__init__()
        self.module, self._step = step.module, step  # the loss within the step: one that is a module must not become a submodule
        self._hooks, self._micro_batches, self._checks = hooks, micro_batches, checks
        self._trainable = [name for name, p in parameters.items() if p.requires_grad]
        self._names, self._stamper, self._trained = tuple(parameters), stamper, trained
        self.outputs: tuple[str, ...] = ()
        self.has_loss = True

    def forward(self, parameter_values: list[Tensor], inputs: list[Tensor], scale_of_loss: list[Tensor]) -> list[Tensor]:
        if self._step.asked is not None:
            return self._evaluated(inputs, self._step.asked)
        if not self._trainable:
            raise InvalidProgram("the module has no trainable parameter; set requires_grad on at least one")
        self._hooks.attach(dict(zip(self._names, parameter_values, strict=True)))
        with self._step.precision.autocast():
            value = self._checks.added_to(loss_of(self.module, self._step.loss, self._step.form, inputs))
        leaves = [(n, p) for n, p in zip(self._names, parameter_values, strict=True) if p.requires_grad and p.is_leaf]
        if (written := next((n for n, p in leaves if p.grad is not None), None)) is not None:
            raise InvalidForBothTracers(
                f"forward calls backward() itself, which adds to the gradient of {written}: a plan has the gradient of the loss alone; "
                "use torch.autograd.grad in forward, or add it to the loss"
            )
        wanted = {name: p for name, p in zip(self._names, parameter_values, strict=True) if name in self._trainable}
        if not value.requires_grad:
            raise InvalidProgram(_UNREACHED)
        self._stamper.watch(value)
        scale = self._micro_batches if self._hooks.present and not scale_of_loss else 1
        seed = None if scale == 1 else torch.full_like(value, 1 / scale)
        if scale_of_loss:
            seed = (scale_of_loss[0] / self._micro_batches).to(value.dtype)
        gradients = torch.autograd.grad(value, list(wanted.values()), seed, allow_unused=True)
        whole = {name: _with_own(grad, wanted[name]) for name, grad in zip(wanted, gradients, strict=True)}
        of_trained = {name: grad if scale == 1 else grad * scale for name, grad in whole.items() if grad is not None}
        if not of_trained:
            raise InvalidProgram(_UNREACHED)
        self._trained.extend(of_trained)
        return [value, *of_trained.values()]

    def _evaluated(self, inputs: list[Tensor], asked: AskedOutputs) -> list[Tensor]:
        loss = self._step.loss
        with self._step.precision.autocast():
            returned, targets = self._step.form.output(self.module, inputs)
            self.has_loss = loss is not None or asked.names == () or holds_loss(returned)
            value = _loss_in_returned(loss, returned, targets) if self.has_loss else None
        outputs = asked.of(returned, value)
        self.outputs = tuple(outputs)
        if value is None and self._checks.present:
            # Nobody reads the 0 in place of a loss.
            name = next((name for name, output in outputs.items() if output.is_floating_point()), None)
            if name is None:
                raise InvalidProgram(
                    "forward checks values, and none of the outputs asked for is of floating point: ask for one, or give a loss"
                )
            outputs = {**outputs, name: self._checks.added_to(outputs[name])}
        return [torch.zeros(()) if value is None else self._checks.added_to(value), *outputs.values()]


def _with_own(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    """A gradient, and what a backward pass within the backward pass has added to the parameter's itself, as reversible blocks do."""
    own = parameter.grad if parameter.is_leaf else None
    return own if gradient is None else gradient if own is None else gradient + own


_UNREACHED = "the loss does not depend on any trainable parameter; look for no_grad() or detach() on its way"


def capture(step: Step, micro_batches: int) -> Capture:
    """Trace one of so many micro-batches of the step.

    Raises:
        InvalidProgram: the step cannot be traced; the message names the module that raised.
    """
    work = _Work(step, micro_batches)
    with untouched({"": step.module, "loss": step.loss}, lambda: work.traced(Tracer.RECORDER)) as snapshot:
        try:
            captured = work.traced(Tracer.RECORDER)
        except InvalidForBothTracers:
            raise
        except RegistaError as error:
            # make_fx serves, or says better why the module cannot be traced, unless the recorder knows more values or has met a fault of the module
            snapshot.restore()
            cause = error.__cause__
            try:
                captured = replace(work.traced(Tracer.MAKE_FX), refusal=first_line(cause or error))
            except RegistaError as other:
                has_met_a_fault = cause is not None and not isinstance(cause, NotRecordable)
                if is_of_values(cause) or (has_met_a_fault and is_of_values(other.__cause__)):
                    raise error from cause
                raise
        left_alone = refuse_other_next_step(_results(captured), snapshot, lambda: _results(work.traced(captured.tracer, lines=True)))
        places = len(captured.parameters), 1 + len(captured.trained) + len(captured.outputs)
        fit_buffers(
            _results(captured), captured.buffers, places, lambda new: _results(work.keeping(new).traced(captured.tracer, lines=True))
        )
    return replace(captured, left_alone=left_alone)


def _results(captured: Capture) -> Results:
    return Results(graph=captured.graph, constants=captured.constants, trained=captured.trained)


_Values = list[Tensor]
_StepFunction = Callable[[_Values, _Values, _Values, _Values, _Values], tuple[_Values, ...]]
_Inputs = tuple[list["_Input"], ...]  # parameters, buffers, batch, seed and steps, scale of the loss


class _Input(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool


class _Work:
    """A step that is traced at one of so many micro-batches, with the names of the module's state as they are before the first trace."""

    def __init__(self, step: Step, micro_batches: int) -> None:
        self._step, self._micro_batches = step, micro_batches
        module = step.module
        self._parameters, self._buffers = dict(module.named_parameters()), dict(module.named_buffers())
        self._hooks = BackwardHooks(module)

    def keeping(self, buffers: Mapping[str, Tensor]) -> _Work:
        """The same with other buffers of these names."""
        work = copy(self)
        work._buffers = {**self._buffers, **buffers}
        return work

    def traced(self, tracer: Tracer, *, lines: bool = False) -> Capture:
        """One trace, in the state in which the module is now.   lines: nodes know the user's line that made them."""
        parameters, buffers = self._parameters, self._buffers
        of_module = parameters | buffers
        trained: list[str] = []
        stamper = Stamper(self._step.module, [p.requires_grad for p in parameters.values()], lines=lines)
        checks = Checks()
        whole = _Traced(self._step, self._micro_batches, parameters, stamper, trained, self._hooks, checks)

        def step(
            parameter_values: _Values, buffer_values: _Values, inputs: _Values, random: _Values, scale_of_loss: _Values
        ) -> tuple[_Values, ...]:
            state = dict(zip(of_module, [*parameter_values, *buffer_values], strict=True))
            checks.kept = kept_of(of_module, state)
            swapped = {f"module.{name}": value for name, value in state.items()}
            with drawing(Drawing(seed=random[0], steps=random[1])):
                results = functional_call(whole, swapped, (parameter_values, inputs, scale_of_loss), tie_weights=True)
            # functional_call writes reassigned buffers back; parameters and inputs come along to see that nobody changed them
            return results, [swapped[f"module.{name}"] for name in buffers], [swapped[f"module.{name}"] for name in parameters], inputs

        # shape and dtype alone: any source device, or none (meta), gives the same graph
        arguments = (
            [_Input(p.shape, p.dtype, p.requires_grad) for p in parameters.values()],
            [_Input(b.shape, b.dtype, False) for b in buffers.values()],
            [_Input(t.shape, t.dtype, False) for t in self._step.batch_dims.sliced(self._step.example_inputs, self._micro_batches, 0)],
            [_Input(torch.Size(), torch.int64, False)] * 2,
            [_Input(torch.Size(), torch.float32, False)] * self._step.precision.scales_loss,
        )
        try:
            with (
                quiet(),
                FakeTensorMode(allow_non_fake_inputs=True) as fake_mode,
                # the recorder asks for each type but once
                disable_fake_tensor_cache(fake_mode) if tracer is Tracer.RECORDER else nullcontext(),
                torch.set_grad_enabled(self._step.mode is Mode.TRAIN),
                self._hooks.noticed(),
                stamper,
                whole_attention(),
                sparse_lookups(),
                device_neutral(),
                recurrent_layers(),
                ctc_losses(),
                wide_grouped_products(),
                exporting(),
                without_reentrance(),
                checks_of_values(checks),
            ):
                graph, constants = (_recorded if tracer is Tracer.RECORDER else _made_fx)(step, stamper, arguments, list(of_module))
        except RegistaError:
            raise
        except Exception as error:
            raise explained(error, stamper.module) from error
        refuse_written(list(checks.kept), graph)
        return Capture(
            graph=graph,
            constants=constants,
            parameters=tuple(parameters),
            buffers=tuple(buffers),
            batch_dims=self._step.batch_dims.dims,
            trained=tuple(trained),
            outputs=whole.outputs,
            mode=self._step.mode,
            has_loss=whole.has_loss,
            tracer=tracer,
            precision=self._step.precision,
            micro_batches=self._micro_batches,
        )


def _recorded(step: _StepFunction, stamper: Stamper, arguments: _Inputs, state: Sequence[str]) -> tuple[fx.Graph, Mapping[str, Tensor]]:
    recorder = Recorder(decomposition_table(), stamper.stamp)
    groups = [[recorder.placeholder(*given) for given in group] for group in arguments]
    stamper.begin(recorder.graph)
    with as_in_make_fx(), recorder:
        results = step(*[list[Tensor](group) for group in groups])
    refuse_shared_memory(state, [*groups[0], *groups[1]], [*results[2], *results[1]])
    recorder.output([tensor for group in results for tensor in group])
    return recorder.graph, recorder.constants


def _made_fx(step: _StepFunction, stamper: Stamper, arguments: _Inputs, _state: Sequence[str]) -> tuple[fx.Graph, Mapping[str, Tensor]]:
    def functional_step(*values: _Values) -> tuple[_Values, ...]:
        stamper.attach()
        results: tuple[_Values, ...] = dispatch_functionalize(step, FunctionalTensorMode())(*values)
        return results

    fakes = ([torch.empty(shape, dtype=dtype).requires_grad_(grad) for shape, dtype, grad in group] for group in arguments)
    with without_checks(), without_data_writes(), asked_in_make_fx():
        traced = make_fx(functional_step, decomposition_table=decomposition_table())(*fakes)
    names = [str(node.target) for node in traced.graph.nodes if node.op == "get_attr"]
    return traced.graph, {name: getattr(traced, name) for name in names}
