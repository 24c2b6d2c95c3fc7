"""From a module to an fx graph of one micro-batch: forward, loss and backward, on fake tensors (no memory, no values).

    parameters, buffers, micro-batch --> functional_call --> loss --> autograd.grad --> loss, gradients, new buffers

Functionalization runs between autograd and the tracer, so writes in place (also through views) arrive here as new values.
The optimizer is not traced: it is one op per parameter, and lower.py writes it behind the accumulations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.frontend.decomp import decomposition_table
from planner.frontend.stamp import Stamper
from planner.frontend.untouched import device_neutral, untouched
from planner.ir.errors import InvalidProgram, RegistaError

__all__ = ["Capture", "capture", "slice_micro_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The traced micro-batch.  Placeholders and outputs stand in the order of the names.

    trained: names of the parameters that have a gradient, in the order of the gradients.
    batch_dims: per batch input 0 or None.
    """

    module: fx.GraphModule
    fake_mode: FakeTensorMode
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    batch_dims: tuple[int | None, ...]
    trained: tuple[str, ...]


def slice_micro_batch(tensor: Tensor, batch_size: int, micro_batches: int, index: int) -> Tensor:
    """Slice ``index`` of a tensor whose dim 0 is the batch; any other tensor as it is."""
    if not tensor.ndim or tensor.shape[0] != batch_size:
        return tensor
    size = batch_size // micro_batches
    return tensor[index * size : (index + 1) * size]


def _scalar_loss(output: object, has_loss: bool) -> Tensor:
    source = "the loss callable" if has_loss else "the module"
    hint = "" if has_loss else "; return the loss from the module, or give Program(loss=...)"
    if not isinstance(output, Tensor):
        raise InvalidProgram(f"{source} must return a scalar loss but returned a {type(output).__name__}, not a tensor{hint}")
    if output.ndim:
        raise InvalidProgram(
            f"the loss must be a scalar but {source} returned shape {tuple(output.shape)}{hint or '; reduce it with mean() or sum()'}"
        )
    if not output.dtype.is_floating_point:
        raise InvalidProgram(f"the loss must be floating but {source} returned {output.dtype}{hint}")
    return output


class _Step(nn.Module):
    """Forward, loss and backward as one module, so that the module holds the traced parameters during all three.

    Checkpointed parts run again in backward, and a loss may reach into the module: both must see the traced values.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., object] | None,
        num_targets: int,
        parameters: Mapping[str, Tensor],
        stamper: Stamper,
        trained: list[str],
    ) -> None:
        super().__init__()
        self.module = module
        self._loss, self._num_targets = (loss,), num_targets  # in a tuple: a loss that is a module must not become a submodule
        self._trainable = [name for name, p in parameters.items() if p.requires_grad]
        self._names, self._stamper, self._trained = tuple(parameters), stamper, trained

    def forward(self, parameter_values: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
        if not self._trainable:
            raise InvalidProgram("the module has no trainable parameter; set requires_grad on at least one")
        (loss,), split = self._loss, len(inputs) - self._num_targets
        output = self.module(*inputs[:split])
        value = _scalar_loss(output if loss is None else loss(output, *inputs[split:]), loss is not None)
        wanted = {name: p for name, p in zip(self._names, parameter_values, strict=True) if name in self._trainable}
        if not value.requires_grad:
            raise InvalidProgram(_UNREACHED)
        self._stamper.watch(value)
        gradients = torch.autograd.grad(value, list(wanted.values()), allow_unused=True)
        found = {name: grad for name, grad in zip(wanted, gradients, strict=True) if grad is not None}
        if not found:
            raise InvalidProgram(_UNREACHED)
        self._trained.extend(found)
        return [value, *found.values()]


_UNREACHED = "the loss does not depend on any trainable parameter; look for no_grad() or detach() on its way"


def capture(
    module: nn.Module,
    batch: Sequence[Tensor],
    loss: Callable[..., object] | None,
    *,
    num_targets: int,
    batch_size: int,
    micro_batches: int,
) -> Capture:
    """Trace forward, loss and backward of one micro-batch.

    Args:
        batch: one global batch; only shapes and dtypes are used.
        loss: applied to the module's output and the last ``num_targets`` batch tensors; None when the module returns the loss.

    Raises:
        InvalidProgram: the step cannot be traced; the message names the module that raised.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    trained: list[str] = []
    stamper = Stamper(module, [p.requires_grad for p in parameters.values()])
    whole = _Step(module, loss, num_targets, parameters, stamper, trained)

    def step(parameter_values: list[Tensor], buffer_values: list[Tensor], inputs: list[Tensor]) -> tuple[list[Tensor], ...]:
        state = dict(zip(parameters, parameter_values, strict=True)) | dict(zip(buffers, buffer_values, strict=True))
        swapped = {f"module.{name}": value for name, value in state.items()}
        results = functional_call(whole, swapped, (parameter_values, inputs), tie_weights=True)
        # functional_call writes reassigned buffers back; parameters and inputs come along to see that nobody changed them
        return results, [swapped[f"module.{name}"] for name in buffers], [swapped[f"module.{name}"] for name in parameters], inputs

    def traced_step(*values: list[Tensor]) -> tuple[list[Tensor], ...]:
        stamper.attach()
        results: tuple[list[Tensor], ...] = dispatch_functionalize(step, FunctionalTensorMode())(*values)
        return results

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _quiet(), untouched(module), mode, torch.enable_grad():
            # fresh fakes from shape and dtype alone: any source device, or none (meta), gives the same graph
            arguments = (
                [torch.empty(p.shape, dtype=p.dtype).requires_grad_(p.requires_grad) for p in parameters.values()],
                [torch.empty(b.shape, dtype=b.dtype) for b in buffers.values()],
                [torch.empty(slice_micro_batch(t, batch_size, micro_batches, 0).shape, dtype=t.dtype) for t in batch],
            )
            with stamper, sdpa_kernel(SDPBackend.MATH), device_neutral():
                traced = make_fx(traced_step, decomposition_table=decomposition_table())(*arguments)
    except RegistaError:
        raise
    except Exception as error:
        raise _explained(error, stamper.module) from error
    return Capture(
        module=traced,
        fake_mode=mode,
        parameters=tuple(parameters),
        buffers=tuple(buffers),
        batch_dims=tuple(0 if t.ndim and t.shape[0] == batch_size else None for t in batch),
        trained=tuple(trained),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs the traceback of what it then raises; the raise is enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _explained(error: Exception, module: str) -> InvalidProgram:
    """The refusal for what torch raised while tracing."""
    where = f"module {module!r}" if module else "the root module or the loss"
    text = str(error).strip().split("\n")[0]
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException | GuardOnDataDependentSymNode):
        return InvalidProgram(
            f"{where} lets a value decide what is computed ({text}): a plan needs one fixed graph; "
            "replace if/int()/item()/nonzero on tensors by torch.where or a mask"
        )
    if "mutating a non-functional tensor" in text:
        return InvalidProgram(f"{where} writes in place into a tensor that is no buffer of the module; register it as a buffer")
    return InvalidProgram(
        f"tracing {where} raised {type(error).__name__}: {text}; the module must run on its example inputs at micro-batch size"
    )
