"""Program: a module, a batch, a loss and an optimizer, read as one training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.frontend.attention import Attention, attention_of
from planner.frontend.batch import BatchDim, resolved
from planner.frontend.deferred import Deferred, import_dynamo
from planner.frontend.first_values import first_values
from planner.frontend.inputs import InputForm, check_asked_again, most_arguments_of, num_targets_of
from planner.frontend.optim import Group, Optimizer, as_groups
from planner.frontend.optim.clipping import ClipNorm, clip_norm_of, clip_value_of
from planner.frontend.optim.groups import held_state
from planner.frontend.optim.loss_scale import GivenLossScale, loss_scaling_of, state_of
from planner.frontend.optim.schedule import LrSchedule, schedule_of
from planner.frontend.optim.updates import checked_decay
from planner.frontend.outputs import AskedOutputs, asked_outputs
from planner.frontend.plannable import refuse_module
from planner.frontend.precision import Precision, grad_dtype_of, precision_of
from planner.frontend.random import Drawing, drawing
from planner.frontend.random.eager import EagerDraws
from planner.frontend.random.kernels import RANDOM_STATE
from planner.frontend.to_graph.translate import Translated
from planner.frontend.to_graph.update import Update, average_of
from planner.frontend.traces import Traces, TracesBeside
from planner.frontend.tracing.decomp.local_norm import check_batch_norms
from planner.frontend.tracing.hooks import refuse_hooks
from planner.frontend.tracing.trace import Step, Tracer, loss_of
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Mode

__all__ = ["Program"]


class Program:
    """One training step of an ordinary module.  The module is never edited.

    Args:
        module: any nn.Module; its train()/eval() mode is used as it is.  Parameters that are tied count once, under their first
            name; parameters with requires_grad=False are inputs without gradient and update.  A Deferred is planned without memory:
            its values are made when ``module`` or ``initial_state`` is first asked for.
        example_inputs: one GLOBAL batch.  A sequence holds positional arguments; a mapping is given by keyword, module(**example_inputs).
            An argument may be a tensor, a number, a string or None, or hold such in mappings, sequences and dataclasses; what is no tensor
            is the same at every step.  Tensors are numbered in the order in which they stand (``input.0`` is the first).
        batch_dim: the dim of the inputs that is the batch: one for all, or one per input (a sequence, or in the form of example_inputs),
            None for an input without batch.  None alone: found; dim 0 of the first tensor is the batch, and so is dim 0 of every tensor
            with that extent; before a batch is cut into micro-batches that is tried out, and what is ambiguous is refused.
        loss: None when module(*example_inputs) is the scalar loss, or holds it as ``.loss`` or ``["loss"]`` (an output of Hugging Face), or is a
            mapping or a sequence of scalars, which are added up; else loss(output, *targets), the targets being the last example inputs, as
            many as ``loss`` has required positional parameters less one.  What it returns is read in the same way.
        optimizer: SGD(...), AdamW(...), "sgd", "adamw", or an instance of torch.optim (SGD, Adam, AdamW, NAdam, RAdam, Adamax,
            Adagrad, Adadelta, RMSprop, Adafactor, Muon, SparseAdam) with its parameter groups and its state; SGD(lr=0.01) by default.
            Parameters in none of its groups are frozen.
        lr_schedule: the learning rate by step: a scheduler of torch on this optimizer, which is copied and stepped once per step, several of
            them, or a function of the step, which gives the rate of all groups or one each.  It is no part of the graph: Plans of two
            schedules are equal, and whoever performs them asks for ``step_numbers``.  None: rates are constants.
        clip_norm: gradients are scaled down together where their 2-norm over all trained parameters is larger, as
            torch.nn.utils.clip_grad_norm_ does; or a ClipNorm.
        clip_value: each element of a gradient is cut to [-clip_value, clip_value], after clip_norm if both are given.
        ema: decay of a moving average of each trained parameter, ema x average + (1 - ema) x parameter after each step, from its first value on.
            It is a state ``NAME:ema``, saved, split and resumed as optimizer state is.
        precision: "fp32", which leaves formats as the module has them; "bf16-mixed" and "fp16-mixed" compute under torch.autocast with
            low-precision working copies of float32 parameters (planner.frontend.precision).
        loss_scale: of "fp16-mixed": the first scale of the loss, a LossScaling, the same in words (planner.frontend.optim.loss_scale), or a
            torch.amp.GradScaler, whose numbers and state are taken.
        grad_dtype: "fp32" or "bf16": in which format gradients are accumulated and reduced; as autograd gives them by default.
        attention: "fused": scaled_dot_product_attention is one op each way, which keeps its output and a number per row; "eager": the products and
            the softmax that it is made of (planner.frontend.attention).
        name: for reports; the module's class name by default.
        data: step -> global batch; the example inputs at every step by default.
        seed: of the random ops (dropout); also for whoever makes data or weights.

    Raises:
        InvalidProgram, Unsupported: what is wrong with the inputs, the loss or the optimizer, and the way out.
    """

    def __init__(
        self,
        module: nn.Module | Deferred,
        example_inputs: Tensor | Sequence[object] | Mapping[str, object],
        loss: Callable[..., object] | None = None,
        optimizer: Optimizer | torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | str | None = None,
        *,
        lr_schedule: LrSchedule | None = None,
        batch_dim: BatchDim = None,
        clip_norm: ClipNorm | float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
        precision: Precision | str = Precision.FP32,
        grad_dtype: str | None = None,
        attention: Attention | str = Attention.FUSED,
        loss_scale: GivenLossScale = None,
        name: str | None = None,
        data: Callable[[int], Tensor | Sequence[object] | Mapping[str, object]] | None = None,
        seed: int = 0,
    ) -> None:
        import_dynamo()
        self._deferred = self.factory = module if isinstance(module, Deferred) else None
        if isinstance(module, Deferred):
            module = module.skeleton()
        refuse_module(module)
        self._module = module
        form = InputForm.of(example_inputs, 0)
        most_arguments = None if isinstance(form.example, Mapping) else most_arguments_of(module)
        self.num_targets = 0 if loss is None else num_targets_of(loss, form.num_entries, most_arguments)
        self.form = replace(form, num_targets=self.num_targets)
        self.example_inputs = form.tensors(example_inputs, "example_inputs")
        if form.requires_grad:
            raise InvalidProgram("an example input requires grad: it would be trained by nobody; detach() it, or make it a parameter")
        self.batch_dims = resolved(batch_dim, form.example, self.example_inputs)
        self.loss = loss
        refuse_hooks(module, optimizer)
        self.groups: tuple[Group, ...] = as_groups(optimizer, dict(module.named_parameters()))
        self._given_optimizer = optimizer
        self._schedule = schedule_of(lr_schedule, optimizer, len(self.groups))
        self._update = Update(
            groups=self.groups,
            scheduled=self._schedule is not None,
            cycled=self._schedule is not None and self._schedule.momenta is not None,
            clip_norm=clip_norm_of(clip_norm),
            clip_value=clip_value_of(clip_value),
            ema=checked_decay(ema),
            grad_dtype=grad_dtype_of(grad_dtype),
        )
        self.precision, self.grad_dtype, self._given_loss_scale = precision_of(precision, module), grad_dtype, loss_scale
        self.loss_scaling = loss_scaling_of(loss_scale, self.precision, self._update.clip_norm)
        self._update = replace(self._update, loss_scaling=self.loss_scaling)
        self.name = name or type(module).__name__.lower()
        self.data, self.norm_parts = data, 1
        self.seed, self.attention = seed, attention_of(attention)
        self._traces = Traces(self.name)
        self._asked: AskedOutputs | None = None
        self._evaluations: dict[AskedOutputs, Program] = {}

    @property
    def module(self) -> nn.Module:
        """The module with its values; a Deferred one is built here, once, and from then on it is the one that is traced."""
        if self._deferred is not None:
            self._module, self._deferred = self._deferred.build(), None
        return self._module

    @property
    def is_large(self) -> bool:
        """Whether a trace takes about half a second or more: of 400 modules and more."""
        return sum(1 for _ in self._module.modules()) >= 400

    @property
    def optimizer(self) -> Optimizer:
        """The rule of all trained parameters.

        Raises:
            Unsupported: there are several groups (``groups``).
        """
        if len(self.groups) != 1:
            raise Unsupported(f"{self.name} trains its parameters in {len(self.groups)} groups; ask for groups instead of the optimizer")
        return self.groups[0].rule

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return self.batch_dims.size

    def cut_along(self, batch_dim: BatchDim) -> Program:
        """The same program with batch dims that are given.  Raises InvalidProgram: they do not fit the inputs."""
        other = self._anew()
        other.batch_dims = resolved(batch_dim, self.form.example, self.example_inputs)
        return other

    def updated_by(
        self,
        *,
        lr_schedule: LrSchedule | None = None,
        clip_norm: ClipNorm | float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
        loss_scale: GivenLossScale = None,
    ) -> Program:
        """The same program with another update; what is None stays as it is.  Raises as Program() does."""
        other, old = self._anew(), self._update
        if lr_schedule is not None:
            other._schedule = schedule_of(lr_schedule, self._given_optimizer, len(self.groups))
        other._update = replace(
            old,
            scheduled=other._schedule is not None,
            cycled=other._schedule is not None and other._schedule.momenta is not None,
            clip_norm=old.clip_norm if clip_norm is None else clip_norm_of(clip_norm),
            clip_value=old.clip_value if clip_value is None else clip_value_of(clip_value),
            ema=old.ema if ema is None else checked_decay(ema),
        )
        other._given_loss_scale = self._given_loss_scale if loss_scale is None else loss_scale
        other.loss_scaling = loss_scaling_of(other._given_loss_scale, other.precision, other._update.clip_norm)
        other._update = replace(other._update, loss_scaling=other.loss_scaling)
        return other

    def _anew(self) -> Program:
        """A copy that has traced nothing."""
        other = copy.copy(self)
        other._traces, other._evaluations = self._traces.of_another_step(), {}
        return other

    def with_local_batch_norm(self, parts: int) -> Program:
        """The same program whose batch norms take statistics over each of ``parts`` parts of a micro-batch; Unsupported: it has none."""
        check_batch_norms(self._module)
        other = self._anew()
        other.norm_parts = parts
        return other

    def evaluating(self, outputs: object = False) -> Program:
        """The same program as an evaluation: graphs of the forward pass alone, of the module in eval mode, without gradient and update.

        ``outputs``: what they give beside the loss: all that the module returns (True), or some by name (planner.frontend.outputs).  Raises
        InvalidProgram: it is neither.
        """
        asked = asked_outputs(outputs)
        if asked not in self._evaluations:
            other = self._evaluations[asked] = self._anew()
            other._asked, other._schedule = asked, None
        return self._evaluations[asked]

    @property
    def mode(self) -> Mode:
        """The kind of step."""
        return Mode.TRAIN if self._asked is None else Mode.EVAL

    def in_formats(self, precision: Precision | str, grad_dtype: str | None, attention: Attention | str | None = None) -> Program:
        """The same program in another precision, with gradients in another format and attention in another form (None: its own).

        Raises InvalidProgram: one of them is unknown, or the parameters are not float32.
        """
        other = self._anew()
        other.attention = attention_of(attention or self.attention)
        other.precision, other.grad_dtype = precision_of(precision, self._module), grad_dtype
        other.loss_scaling = loss_scaling_of(self._given_loss_scale, other.precision, self._update.clip_norm)
        other._update = replace(self._update, grad_dtype=grad_dtype_of(grad_dtype), loss_scaling=other.loss_scaling)
        return other

    def loss_of(self, module: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
        """The scalar loss of ``module`` on one (micro-)batch in the order of example_inputs, as an ordinary training loop computes it.

        Raises InvalidProgram: it is no scalar of floating type.
        """
        with self.precision.autocast():
            return loss_of(module, self.loss, self.form, inputs)

    def graph(self, micro_batches: int = 1) -> LogicalGraph:
        """The step as a graph, traced at batch_size / micro_batches samples.

        Raises:
            InvalidProgram: micro_batches does not divide the batch, or the step cannot be traced.
            Unsupported: the step draws what no counter can give, or writes into shared memory.
        """
        return self._translate(micro_batches).graph

    def traces_beside(self) -> TracesBeside:
        """How a fork of this process traces the step for it."""
        return TracesBeside(self._traces, self._step, self._update)

    def tracer(self, micro_batches: int = 1) -> Tracer:
        """What traced ``graph(micro_batches)``: the recorder, or make_fx where the recorder cannot serve.  Raises as graph() does."""
        return self._translate(micro_batches).tracer

    def has_loss(self, micro_batches: int = 1) -> bool:
        """Whether a step has a loss: an evaluation of a module that returns none has outputs alone.  Raises as graph() does."""
        return self._translate(micro_batches).has_loss

    def _translate(self, micro_batches: int) -> Translated:
        return self._traces.of(self._step, self._update, micro_batches)

    @property
    def _step(self) -> Step:
        return Step(
            module=self._module,
            example_inputs=self.example_inputs,
            form=self.form,
            batch_dims=self.batch_dims,
            loss=self.loss,
            precision=self.precision,
            norm_parts=self.norm_parts,
            attention=self.attention,
            asked=self._asked,
        )

    def batches(self, micro_batches: int) -> Callable[[int], tuple[Tensor, ...]]:
        """``batch``, for a run in so many micro-batches: the first whose micro-batches take their means over different counts is told.

        Raises:
            InvalidProgram: as graph(); the function that is returned: as batch(), or when the first batch that it is asked for is another
                one when it is asked for again.
        """
        self._translate(micro_batches)
        checked: list[int] = []  # the last step: a worker asks once per micro-batch

        def batch(step: int) -> tuple[Tensor, ...]:
            given = self.batch(step)
            if not checked and self.data is not None:
                check_asked_again(given, self.batch(step), step)
            if [step] != checked:
                self._traces.tell_counts(self._step, micro_batches, given, f"the batch of step {step}", later=True)
            checked[:] = [step]
            return given

        return batch

    def initial_state(self, micro_batches: int = 1) -> dict[str, Tensor]:
        """Values of the state inputs of ``graph(micro_batches)`` by GraphInput.name, without working copies: they are parameters, cast.

        Returns:
            Detached tensors of the graph's types: parameters and buffers are copies of the module's (bit-identical), optimizer
            state is what the torch optimizer holds, else zero, constants are what the trace lifted.

        Raises:
            InvalidProgram: as graph(); or the module has no values (meta or fake tensors).
        """
        translated = self._translate(micro_batches)
        held = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        averaged = {average: held[name] for name, average in self.averages.items()}
        given = self.optimizer_state() | averaged | self.random_state | state_of(self.loss_scaling) | translated.constants
        return first_values(translated.graph, held, given)

    @property
    def averages(self) -> dict[str, str]:
        """Trained parameter -> the state that is its moving average; none without ``ema``."""
        return {} if self._update.ema is None else {name: average_of(name) for name in self._update.group_of}

    def optimizer_state(self) -> dict[str, Tensor]:
        """What the given torch optimizer holds now, by GraphInput.name; what it does not hold is zero (InvalidProgram: of a wrong shape)."""
        return held_state(self._given_optimizer, self.groups, dict(self._module.named_parameters()))

    def step_numbers(self, step: int) -> dict[str, float]:
        """The step inputs of the graph at a step, by GraphInput.name: ``lr.0`` is the learning rate of group 0; none without a schedule.

        With a scheduler that cycles momentum ``momentum.0`` is that of group 0, the first of its betas where it has such.

        Raises:
            InvalidProgram: the schedule gives no finite rate of at least 0 for this step.
        """
        return {} if self._schedule is None else self._schedule.numbers(step)

    @property
    def random_state(self) -> dict[str, Tensor]:
        """The state that random ops draw from, before the first step, by GraphInput.name."""
        return {name: torch.tensor(value, dtype=torch.int64) for name, value in zip(RANDOM_STATE, (self.seed, 0), strict=True)}

    @contextmanager
    def drawing(self, step: int = 0, micro_batch: int = 0) -> Iterator[None]:
        """Within it plain PyTorch draws what every Plan of this Program draws: the single-device run to compare with.

        Forward and backward of one micro-batch stand inside, so that what is recomputed draws the same again:

            with program.drawing(step, micro_batch):
                program.loss_of(module, inputs).backward()
        """
        seed, steps = torch.tensor(self.seed, dtype=torch.int64), torch.tensor(step, dtype=torch.int64)
        with drawing(Drawing(seed=seed, steps=steps, micro_batch=micro_batch)), EagerDraws(), sdpa_kernel(SDPBackend.MATH):
            yield

    def constants(self, micro_batches: int = 1) -> dict[str, Tensor]:
        """Values that the trace lifted out of the module's code, by GraphInput.name.  Raises as graph() does."""
        translated = self._translate(micro_batches)
        return {given.name: translated.constants[given.name] for given in translated.graph.inputs if given.kind is InputKind.CONSTANT}

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """The global batch of a step.

        Raises:
            InvalidProgram: ``data`` gives other shapes or dtypes than example_inputs; or there is no ``data``, and they have no values.
        """
        if self.data is None and any(t.is_meta for t in self.example_inputs):
            raise InvalidProgram("the example inputs have no values (they are on the meta device); give Program(data=...) to run it")
        if self.data is None:
            return self.example_inputs
        return self.tensors(self.data(step), f"data({step})")

    def tensors(self, batch: object, what: str = "the batch") -> tuple[Tensor, ...]:
        """The tensors of a global batch that is given as example_inputs are: what a session's step takes.

        Raises:
            InvalidProgram: the batch, which messages call ``what``, has another form, or other shapes or dtypes than example_inputs.
        """
        return self.form.like(self.example_inputs, batch, what)

    def micro_batch(self, batch: Sequence[Tensor], micro_batches: int, index: int) -> tuple[Tensor, ...]:
        """Slice ``index`` of a global batch, as the graph's batch inputs take it."""
        return self.batch_dims.sliced(batch, micro_batches, index)
