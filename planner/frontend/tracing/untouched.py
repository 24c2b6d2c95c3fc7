"""What tracing must leave as it was: all that the module reaches, generators of random numbers, and the process-wide switches."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor
from torch._higher_order_ops.effects import _register_effectful_op
from torch._library.effects import EffectType
from torch._ops import OpOverload
from torch._subclasses.fake_impls import _deregister_op_impl, register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor

from planner.frontend.tracing.reachable import Snapshot
from planner.frontend.tracing.source import line_that_changes, shown_line
from planner.ir.errors import InvalidProgram, RegistaError

__all__ = [
    "as_in_make_fx",
    "device_neutral",
    "exporting",
    "quiet",
    "untouched",
    "wide_grouped_products",
    "without_checks",
    "without_data_writes",
    "without_reentrance",
]


@contextmanager
def untouched(roots: Mapping[str, object], again: Callable[[], object] | None = None) -> Iterator[Snapshot]:
    """What the roots reach, and the generators of random numbers, are afterwards the very same objects with the same contents.

    Args:
        again: does once more what is done inside, to see which line of the user's draws.

    Raises:
        InvalidProgram: Python's or numpy's random numbers were drawn.  A plan would repeat what was drawn while tracing.  It replaces any other
            refusal from inside, which another draw might not bring about (all layers left out, say).
    """
    snapshot, generators = Snapshot(roots), _generators()

    def restore() -> None:
        snapshot.restore()
        _set_generators(generators)

    other: RegistaError | None = None
    try:
        try:
            yield snapshot
        except RegistaError as error:
            other = error
        drawn = next((name for name, state in _generators().items() if name != "torch" and state != generators[name]), None)
    finally:
        restore()
    if drawn is None:
        if other is not None:
            raise other
        return
    try:
        line = None if again is None else line_that_changes(lambda: _generators()[drawn], again)
    finally:
        restore()
    raise InvalidProgram(
        f"forward draws from {drawn}, Python's own generator{f', at {shown_line(line)}' if line is not None else ''}: a plan would repeat for ever "
        "what it drew while it was traced; draw with torch and let a tensor choose (a layer that is dropped now and then: "
        "x = torch.where(torch.rand(()) < rate, x, layer(x))), or set the rate to 0"
    ) from other


def _generators() -> dict[str, object]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    numbers = np.asarray(keys, dtype=np.uint32).tobytes()
    return {"random": random.getstate(), "numpy.random": (kind, numbers, *rest), "torch": bytes(torch.random.get_rng_state().numpy())}


def _set_generators(states: Mapping[str, object]) -> None:
    if _generators() == states:
        return
    kind, numbers, *rest = cast(tuple[str, bytes, int, int, float], states["numpy.random"])
    random.setstate(cast(tuple[object, ...], states["random"]))
    np.random.set_state(cast(Any, (kind, np.frombuffer(numbers, dtype=np.uint32), *rest)))
    torch.random.set_rng_state(torch.frombuffer(bytearray(cast(bytes, states["torch"])), dtype=torch.uint8))


@contextmanager
def device_neutral() -> Iterator[None]:
    """Without oneDNN: its fused kernels (an LSTM in one op) exist on CPUs only."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def wide_grouped_products() -> Iterator[None]:
    """torch's description of grouped products knows bfloat16 alone, its kernels float32 too: there, results are typed as bfloat16's are."""
    op = torch.ops.aten._grouped_mm.default

    def typed(mode: FakeTensorMode, func: OpOverload, *args: object, **kwargs: object) -> object:
        wanted = next(a.dtype for a in args if isinstance(a, Tensor))
        if wanted is torch.bfloat16:
            return NotImplemented
        with mode:
            narrow = [a.to(torch.bfloat16) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            made: Tensor = func(*narrow, **kwargs)
            return torch.empty_strided(made.shape, made.stride(), dtype=wanted)

    register_op_impl(op)(typed)
    try:
        yield
    finally:
        _deregister_op_impl(op)


@contextmanager
def without_checks() -> Iterator[None]:
    """Checks of values that raise (a matrix without inverse) have no effect in a graph: make_fx would order them by tokens, which it lacks here."""
    check = "aten::_linalg_check_errors"
    _register_effectful_op(check, None)
    try:
        yield
    finally:
        _register_effectful_op(check, EffectType.ORDERED)


@contextmanager
def without_data_writes() -> Iterator[None]:
    """``tensor.data = value`` is refused: make_fx would not see it; but not its own value, as module.to(dtype) gives it that changes nothing.

    Raises (when it is done) InvalidProgram.
    """

    def refuse(tensor: Tensor, value: Tensor) -> None:
        if value is tensor:
            return
        raise InvalidProgram("forward sets .data of a tensor, which cannot be traced here; write in place instead: tensor.copy_(value)")

    FunctionalTensor.data = property(Tensor.data.__get__, refuse)  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        del FunctionalTensor.data


@contextmanager
def quiet() -> Iterator[None]:
    """torch logs the traceback of what it then raises; the raise is enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


@contextmanager
def exporting() -> Iterator[None]:
    """torch.compiler.is_exporting() says yes, as under torch.export: a module that asks (masks of Hugging Face do) lets no value decide."""
    before = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = before


@contextmanager
def as_in_make_fx() -> Iterator[None]:
    """The process-wide switches that modules ask for, set as make_fx sets them."""
    tracing = torch.fx._symbolic_trace._is_fx_tracing_flag
    cached, fast = torch.is_autocast_cache_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch.fx._symbolic_trace._is_fx_tracing_flag = True
    torch.set_autocast_cache_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.fx._symbolic_trace._is_fx_tracing_flag = tracing
        torch.set_autocast_cache_enabled(cached)
        torch.backends.mha.set_fastpath_enabled(fast)


class _NotReentrant:
    """Takes the place of torch's CheckpointFunction, which calls backward() inside of backward: that cannot be traced."""

    @staticmethod
    def apply(function: Callable[..., object], preserve_rng_state: bool, *args: object) -> object:
        if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            with torch.no_grad():  # as torch has it: no operand needs a gradient, so nothing that is computed has one
                return function(*args)
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


@contextmanager
def without_reentrance() -> Iterator[None]:
    """What ``checkpoint(..., use_reentrant=True)`` computes again, it computes without reentrance: the same values, draws and gradients."""
    before = torch_checkpoint.CheckpointFunction
    torch_checkpoint.CheckpointFunction = _NotReentrant  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch_checkpoint.CheckpointFunction = before  # type: ignore[misc]
