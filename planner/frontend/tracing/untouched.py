"""What tracing must leave as it was: the module's attributes and the process-wide switches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from planner.ir.errors import InvalidProgram

__all__ = ["as_in_make_fx", "device_neutral", "exporting", "untouched"]


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Attributes that forward assigns (a cache, the last activation) are put back: they would hold traced values.

    Raises:
        InvalidProgram: a tensor attribute was replaced.  It is state that no input of the graph holds.
    """
    before = {name: (child, dict(child.__dict__)) for name, child in module.named_modules()}
    plain = [value for _, attributes in before.values() for value in attributes.values() if _has_values(value)]
    kept = [(tensor, tensor._version, tensor.detach().clone()) for tensor in plain if isinstance(tensor, Tensor)]
    replaced: str | None = None
    try:
        yield
        replaced = next(
            (
                f"{name}.{key}".lstrip(".")
                for name, (child, attributes) in before.items()
                for key, value in attributes.items()
                if isinstance(value, Tensor) and child.__dict__.get(key) is not value
            ),
            None,
        )
    finally:
        for child, attributes in before.values():
            child.__dict__.clear()
            child.__dict__.update(attributes)
        for tensor, version, value in kept:
            if tensor._version != version:  # the tracer computes with constants for real, writes included
                tensor.detach().copy_(value)
    if replaced is not None:
        raise InvalidProgram(f"forward replaces the tensor attribute {replaced}; register it as a buffer, so that it is part of the state")


def _has_values(value: object) -> bool:
    return isinstance(value, Tensor) and not value.is_meta and not isinstance(value, torch._subclasses.FakeTensor)


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
