"""The certified plan of random small problems against every choice of every shape: stages, meshes, micro-batches, recomputation, layouts."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
import torch
from least_step import least_step_s
from torch import nn

from planner.frontend.program import Program
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.shape import shapes
from planner.search import build_model
from planner.search.bounds.bottleneck import whole_model_bounds
from planner.stages import assign_stages, prepare
from regista.clusters import resolve_cluster

_GAP = 0.01
"""What the search over shapes leaves unproven."""


def instance(seed: int) -> tuple[Program, int, Cluster]:
    rng = random.Random(seed)
    widths = [rng.choice((4, 64, 1024)) for _ in range(rng.choice((2, 3)))]
    layers = [nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:], strict=False)]
    batch = rng.choice((2, 4))
    cluster = replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=2)
    link = replace(cluster.node, latency_s=cluster.node.latency_s * rng.choice((0.01, 1.0)))
    return (
        Program(nn.Sequential(*layers), (torch.zeros(batch, widths[0]),), lambda y: y.square().mean()),
        batch,
        replace(cluster, node=link),
    )


@pytest.mark.representatives("1-2")
@pytest.mark.parametrize(("first", "count"), [(1, 2), *((first, 20) for first in range(3, 203, 20))])
def test_no_choice_of_any_shape_beats_the_bound_and_the_plan_is_the_best_within_the_gap(first: int, count: int) -> None:
    for seed in range(first, first + count):
        program, batch, cluster = instance(seed)
        options = PlanOptions(stages=None, micro_batches=None)
        plan = search_plans(program.graph, model="net", batch_size=batch, cluster=cluster, options=options).plan
        bounds = ShapeBounds(program.graph, batch, cluster, ())
        steps = []
        for shape in shapes(batch, cluster, most_stages=2):
            graph = program.graph(shape.micro_batches)
            for recompute in (False, True):
                try:
                    staged = prepare(graph, assign_stages(graph, shape.stages), shape.stages, recompute=recompute)
                except Unsupported:
                    continue
                model = build_model(staged, shape.mesh, cluster, (), shape.micro_batches)
                step_s = least_step_s(model)
                assert step_s is not None, (seed, shape)
                steps.append(step_s)
                same = replace(shape, recompute=recompute)
                *_, whole_s = whole_model_bounds(model, s_per_byte=(), memory_bytes=inf)
                pieces_s = bounds.largest_piece_s(same), bounds.of(same).unlimited_s, bounds.of(same).bound_within(1e12)[0]
                for bound_s in (bounds.roofline_s(same), *pieces_s, whole_s):
                    assert bound_s <= step_s * (1 + 1e-9), (seed, shape)
        assert plan.search.lower_bound_s <= min(steps) * (1 + 1e-9), seed
        assert min(steps) <= plan.search.objective_s * (1 + 1e-9), seed
        assert plan.search.objective_s * (1 - _GAP) <= min(steps) * (1 + 1e-9), seed


@pytest.mark.parametrize("seed", range(1, 5))
def test_at_any_multipliers_no_choice_within_memory_beats_the_bound_of_the_whole_model(seed: int) -> None:
    program, _, cluster = instance(seed)
    graph = program.graph(2)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    model = build_model(staged, (1,), cluster, (), 2, limit_bytes=1e30, in_flight=(2, 1))
    rng = random.Random(seed)
    choices = [[rng.randrange(len(costs)) for costs in model.problem.costs] for _ in range(200)]
    allowed = [choice for choice in choices if model.problem.objective(choice) < inf]
    assert allowed
    for choice in allowed:
        memory_bytes = model.problem.peak(choice)
        multipliers = [rng.choice((0.0, 1e-12, 1e-9, 1e-6)) for _ in range(2)]
        *_, bound_s = whole_model_bounds(model, s_per_byte=multipliers, memory_bytes=memory_bytes)
        assert bound_s <= model.step_s(choice) * (1 + 1e-9), (multipliers, memory_bytes)
