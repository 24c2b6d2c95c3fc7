"""Batches that do not divide: how many samples are added, and what a Plan records of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from math import lcm

from torch import Tensor

from backend.data.feed import Feed
from planner.frontend import Program
from planner.frontend.padding import PaddedProgram
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan
from planner.ir.sbp import NdSbp, Split
from planner.search.pins import parse_pins
from regista.padded.text import SAMPLES, padding_text

__all__ = ["as_padded", "divided", "padded", "padded_feed", "recorded_samples", "refuse_described_data"]


def divided(
    program: Program,
    cluster: Cluster,
    *,
    micro_batches: int | None,
    stages: int | None,
    mesh: Sequence[int] | None,
    pins: Iterable[str],
    zero: int | None,
) -> Program:
    """The program, padded where what was asked for does not divide its batch.

    Micro-batches are padded to the same size, and each of them to a multiple of the parts that pins cut its samples into; ZeRO without such a
    pin is data parallelism over all devices of a stage, where its mesh has one axis and each device gets a sample of its own.
    """
    samples, count = program.batch_size, micro_batches or 1
    if micro_batches is None or not 1 <= count <= samples:
        return program
    part = -(-samples // count)
    axes = tuple(mesh) if mesh is not None else (cluster.num_devices // stages,) if stages and stages > 0 else ()
    cut = [_parts(pin.sbp, dim, axes) for pin in parse_pins(tuple(pins)) for dim in _batch_dims(program, pin.pattern)]
    by_zero = bool(zero) and not cut and len(axes) == 1 and part >= axes[0]
    if by_zero:
        cut = list(axes)
    parts = lcm(*cut)
    size = count * parts * -(-part // parts)
    if size == samples:
        return program
    padded_program = PaddedProgram(program, size)
    if by_zero and samples % count == 0:
        try:
            padded_program.graph(count)
        except Unsupported as refused:
            warnings.warn(
                f"the batch of {samples} stays whole or is cut as the search likes, since padding is refused: {refused}", stacklevel=3
            )
            return program
    return padded_program


def _batch_dims(program: Program, pattern: str) -> list[int]:
    return [dim for number, dim in enumerate(program.batch_dims.dims) if dim is not None and fnmatchcase(f"input.{number}", pattern)]


def _parts(sbp: NdSbp, dim: int, mesh: tuple[int, ...]) -> int:
    """Into how many parts the layout cuts the dim."""
    parts = 1
    for entry, extent in zip(sbp.entries, mesh, strict=False):
        parts *= max(extent, 1) if entry == Split(dim) else 1
    return parts


def recorded_samples(program: Program) -> dict[str, str]:
    """What a Plan's options say of the padding; nothing where there is none."""
    return {SAMPLES: str(program.padding.samples)} if isinstance(program, PaddedProgram) else {}


def as_padded(plan: Plan, program: Program) -> Program:
    """The program on the batch of the Plan: padded as when it was planned."""
    if plan.options.get(SAMPLES) != str(program.batch_size) or isinstance(program, PaddedProgram):
        return program
    return PaddedProgram(program, plan.batch_size)


def padded(program: Program) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
    """What makes a batch as the Plan takes it of one as the user has it."""
    return program.padding.batch if isinstance(program, PaddedProgram) else tuple


def padded_feed(program: Program, feed: Feed) -> Feed:
    """Batches by step as the Plan takes them, of those as the user has them."""
    of_plan = padded(program)
    return (lambda step: of_plan(feed(step))) if isinstance(program, PaddedProgram) else feed


def refuse_described_data(plan: Plan) -> None:
    """Raises Unsupported: a reader would have to leave out the samples that padding adds."""
    if SAMPLES in plan.options:
        raise Unsupported(
            f"a description of data serves whole batches, and the plan has {padding_text(plan)}; choose micro-batches and devices that divide it, "
            "or give the batches as a function of the step"
        )
