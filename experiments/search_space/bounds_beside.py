"""Every bound that the planner has on a shape of a small instance, in seconds and in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from experiments.search_space.covered_space import Point, staged
from experiments.search_space.small_instances import Instance
from planner.ir.errors import OutOfMemory
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.kinds import least_step_s
from planner.parallelism.shape import Shape
from planner.schedule import Schedule, in_flight
from planner.search import build_model
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.search.bounds.end_stages import end_stage_bounds
from planner.search.bounds.pieces import stage_part
from planner.search.model import SearchModel
from planner.search.pins import parse_pins
from planner.solve.problem import NotFoundInTime
from planner.stages import Staged

__all__ = ["bounds_s", "bytes_bounds"]


def bounds_s(one: Instance, bounds: ShapeBounds, point: Point, limit_bytes: float) -> Iterator[float]:
    """Lower bounds on the step of a shape with the planner's own cut into stages, in seconds.

    They come from its ops, pieces, first and last stage, and whole model; where memory is limited, at several Lagrange multipliers.
    """
    shape, cluster = point.shape, one.cluster
    given = staged(one, point, cluster)
    flight = [in_flight(Schedule.ONE_F_ONE_B, s, shape.stages, shape.micro_batches) for s in range(shape.stages)]
    model = build_model(
        given, shape.mesh, cluster, parse_pins(one.options.pins), shape.micro_batches, limit_bytes=limit_bytes, in_flight=flight
    )
    prices: list[tuple[float, ...]] = [()]
    if limit_bytes < inf:
        prices = [(y,) * shape.stages for y in (0.0, 1e-12, 1e-9)]
        if not cluster.parts:
            with suppress(NotFoundInTime, OutOfMemory):
                prices.append(bounds.s_per_byte(shape, limit_bytes))
    for price in prices:
        with suppress(OutOfMemory):
            yield from whole_model_bounds(model, s_per_byte=price, memory_bytes=limit_bytes)
    if shape.stages > 1 and shape.micro_batches > 1 and not (cluster.parts or one.options.pins):
        yield from end_stage_bounds(given, partial(_model_of_stage, one, given, shape, flight, limit_bytes), limit_bytes)
    if cluster.parts:
        if not shape.recompute:
            yield least_step_s(one.program.graph(shape.micro_batches), cluster, shape)
        return
    share = bounds.of(shape)
    yield from (bounds.roofline_s(shape), bounds.forward_part_s(shape), bounds.largest_piece_s(shape), share.unlimited_s)
    with suppress(NotFoundInTime, OutOfMemory):
        yield share.bound_within(min(limit_bytes, 1e12))[0]


def _model_of_stage(one: Instance, given: Staged, shape: Shape, flight: Sequence[int], limit_bytes: float, stage: int) -> SearchModel:
    part, held = stage_part(given, stage), flight[stage : stage + 1]
    return build_model(part, shape.mesh, one.cluster, (), shape.micro_batches, limit_bytes=limit_bytes, in_flight=held)


def bytes_bounds(bounds: ShapeBounds, point: Point) -> Iterator[float]:
    """Lower bounds on what the fullest device of a shape holds."""
    if not bounds.cluster.parts:
        yield bounds.floor_bytes(point.shape)
        with suppress(NotFoundInTime):
            yield bounds.of(point.shape).least_bytes
