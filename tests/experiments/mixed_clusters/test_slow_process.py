"""One of two processes at half speed: the run is that of equal processes, slower, and the cluster says so."""

from __future__ import annotations

from statistics import median

import pandas as pd
import pytest

from experiments.mixed_clusters.half_speed import slowed_workers
from experiments.mixed_clusters.slow_process import LAYERS, SPEED, TIMES, rows_of, summary, two_speeds
from planner.ir.plan import TaskKind
from planner.ir.traces.trace import Trace
from regista import api
from regista.clusters import resolve_cluster

MODEL = f"zoo:gpt?layers={LAYERS}&width=32&heads=4&vocab=64&seq=16&batch=8"

pytestmark = pytest.mark.processes


def test_the_second_kind_of_two_speeds_has_half_the_rates_of_the_first() -> None:
    machine = resolve_cluster("local:2")
    full, half = two_speeds(machine).parts
    assert full.device.rate_flop_per_s * SPEED == machine.device.rate_flop_per_s
    assert half.device.rate_flop_per_s * TIMES == full.device.rate_flop_per_s
    assert half.device.memory_bandwidth_bytes_per_s * TIMES == full.device.memory_bandwidth_bytes_per_s


def test_a_slow_worker_computes_the_same_numbers_and_only_its_rank_is_slower() -> None:
    plan = api.plan(MODEL, "local:2", stages=2, mesh=(1,), micro_batches=8)
    usual = api.run(plan, steps=3)
    with slowed_workers([1, 4]):
        slowed = api.run(plan, steps=3)
    assert slowed.losses == usual.losses

    def compute_s(trace: Trace, rank: int) -> float:
        return median(act.duration_s for act in trace.acts if act.rank == rank and plan.task[act.task].kind is TaskKind.BACKWARD)

    share = [compute_s(outcome.trace, 1) / compute_s(outcome.trace, 0) for outcome in (usual, slowed)]
    assert share[1] > share[0]


def test_a_turn_has_a_row_per_cut_and_the_fast_process_has_more_layers() -> None:
    table = pd.DataFrame(rows_of(MODEL, two_speeds(resolve_cluster("local:2")), 1))
    assert list(table.cut) == ["even", "by speed"]
    even, by_speed = ([int(count) for count in layers.split()] for layers in table.layers)
    assert even == [LAYERS // 2, LAYERS // 2] and by_speed[0] > by_speed[1] and sum(by_speed) == LAYERS
    assert (table[["sim_s", "run_s"]] > 0).all(axis=None)
    assert "times as fast" in summary(table)
