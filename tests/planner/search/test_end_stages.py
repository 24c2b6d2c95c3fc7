"""Bounds from the first and the last stage: no plan is quicker, stages that are alike are searched once, and the whole model says no less."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from matrix import roomy_cluster

from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph
from planner.schedule import Schedule, in_flight
from planner.search import build_model, find_layouts
from planner.search.bounds import end_stages
from planner.search.bounds.end_stages import end_stage_bounds
from planner.search.bounds.pieces import stage_part, stages_alike
from planner.search.model import SearchModel
from planner.stages import Staged, assign_stages, prepare
from zoo import ZOO

MICRO, STAGES = 8, 4


@cache
def graph(layers: int = 8) -> LogicalGraph:
    sizes = {"layers": layers, "width": 64, "heads": 4, "vocab": 128, "batch": 16, "seq": 32, "optimizer": "sgd"}
    return ZOO["gpt"](**sizes).graph(MICRO)


def staged(layers: int = 8, stages: int = STAGES) -> Staged:
    return prepare(graph(layers), assign_stages(graph(layers), stages), stages)


def flights(stages: int) -> list[int]:
    return [in_flight(Schedule.ONE_F_ONE_B, stage, stages, MICRO) for stage in range(stages)]


def whole(given: Staged, mesh: tuple[int, ...], cluster: Cluster, limit_bytes: float) -> SearchModel:
    return build_model(given, mesh, cluster, (), MICRO, limit_bytes=limit_bytes, in_flight=flights(given.num_stages))


def model_of(given: Staged, mesh: tuple[int, ...], cluster: Cluster, limit_bytes: float, stage: int) -> SearchModel:
    held = flights(given.num_stages)[stage : stage + 1]
    return build_model(stage_part(given, stage), mesh, cluster, (), MICRO, limit_bytes=limit_bytes, in_flight=held)


@cache
def held_bytes(mesh: tuple[int, ...]) -> float:
    """What the quickest plan holds where nothing is limited."""
    cluster = roomy_cluster(STAGES * int(np.prod(mesh)))
    return find_layouts(whole(staged(), mesh, cluster, 1e30), limit_bytes=1e30, memory_bytes=1e30).assignment().held_bytes


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("room", [2.0, 0.9, 0.8])
def test_no_plan_within_memory_is_quicker_and_the_bound_is_near_the_best(mesh: tuple[int, ...], room: float) -> None:
    cluster, given, limit = roomy_cluster(STAGES * int(np.prod(mesh))), staged(), room * held_bytes(mesh)
    best = find_layouts(whole(given, mesh, cluster, limit), limit_bytes=limit, memory_bytes=limit).assignment()
    found = list(end_stage_bounds(given, partial(model_of, given, mesh, cluster, limit), limit))
    assert found == sorted(found)
    assert 0.8 * best.lower_bound_s <= found[-1] <= best.objective_s * (1 + 1e-9)


def test_a_stage_by_itself_takes_and_holds_no_more_than_in_any_plan_of_the_whole() -> None:
    given, cluster = staged(), roomy_cluster(8)
    model = whole(given, (2,), cluster, 1e30)
    parts = {stage: model_of(given, (2,), cluster, 1e30, stage) for stage in range(STAGES)}
    names = {stage: {name: node for node, name in enumerate(part.problem.names)} for stage, part in parts.items()}
    rng = np.random.default_rng(7)
    for _ in range(20):
        choice = np.array([rng.integers(len(costs)) for costs in model.problem.costs])
        micro_s, once_s = model.stage_s(choice)
        held = model.problem.held(choice, 2 * STAGES).reshape(STAGES, 2)
        for stage, part in parts.items():
            taken = np.zeros(len(part.problem.names), dtype=np.int64)
            for (node, menu), (mine, _) in ((model.ops[op], part.ops[op]) for op in part.ops):
                assert len(menu) == len(part.problem.costs[mine])
                taken[mine] = choice[node]
            for value, (mine, _) in part.states.items():
                taken[mine] = choice[model.states[value][0]]
            for (value, _), (mine, layouts) in part.deliveries.items():
                node, whole_layouts = model.deliveries[value, stage]
                assert len(layouts) == len(whole_layouts)
                taken[mine] = choice[node]
            assert len(names[stage]) == len(part.ops) + len(part.states) + len(part.deliveries) + 1  # and the user's loss
            own_micro_s, own_once_s = part.stage_s(taken)
            own = part.problem.held(taken, 2)
            assert own_micro_s[0] <= micro_s[stage] * (1 + 1e-9) or not np.isfinite(micro_s[stage])
            assert own_once_s[0] <= once_s[stage] * (1 + 1e-9) or not np.isfinite(once_s[stage])
            assert (own <= held[stage] * (1 + 1e-9)).all()


def test_stages_between_the_ends_are_alike_where_equally_many_layers_lie_on_them() -> None:
    assert stages_alike(staged(8), range(1, STAGES - 1)) == [[1, 2]]
    assert stages_alike(staged(8), range(STAGES)) == [[0], [1, 2], [3]]
    uneven = prepare(graph(7), assign_stages(graph(7), STAGES, cuts=("h.1", "h.3", "h.5")), STAGES)
    assert stages_alike(uneven, range(1, STAGES)) == [[1, 2], [3]]


def test_a_stage_that_is_counted_as_quick_as_another_one_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: all stages are said to be alike, and the slowest is taken for all of them."""
    cluster, given = roomy_cluster(8), prepare(graph(7), assign_stages(graph(7), STAGES, cuts=("h.1", "h.2", "h.6")), STAGES)
    best = find_layouts(whole(given, (2,), cluster, 1e30), limit_bytes=1e30, memory_bytes=1e30).assignment()
    models = partial(model_of, given, (2,), cluster, 1e30)
    assert max(end_stage_bounds(given, models, 1e30)) <= best.objective_s
    monkeypatch.setattr(end_stages, "stages_alike", lambda staged, stages: [[*stages] * 4])
    assert max(end_stage_bounds(given, models, 1e30)) > best.objective_s
