"""The chain of loading actors: what it looks like, what it costs in time, how far ahead its quotas let it run, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import handmade
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import TableCost

from planner.cost import AnalyticCost
from planner.cost.analytic import COPY_BYTES_PER_S, DISK_BYTES_PER_S, PREPARE_BYTES_PER_S
from planner.ir.errors import InvalidPlan, OutOfMemory
from planner.ir.plan import Placement, Plan, StreamKind, TaskKind
from planner.ir.sbp import B, NdSbp, S, coordinates
from planner.ir.tensor import DType
from planner.ir.traces.trace import Trace, check_trace
from planner.lower.data_actors.loading import RawTensor, _rows_sbp, with_loading
from simulator import simulate
from simulator.steady import steady_state

X = (RawTensor(name="x", shape=(20,), dtype=DType.UINT8, inputs=(0,)),)


def chain(plan: Plan) -> list[tuple[str, str, str, list[str], list[str]]]:
    loading = [task for task in plan.tasks if task.kind.is_loading]
    return [(t.id, t.kind.value, t.stream, [p.regst for p in t.consumes], [p.regst for p in t.produces]) for t in loading]


def test_the_chain_is_the_one_that_is_drawn() -> None:
    plan = with_loading(handmade.data_parallel(2, 2), X, copy=True)
    assert chain(plan) == [
        ("load", "source", "all.disk", [], ["load.raw"]),
        ("load.prepare", "prepare", "all.prepare", ["load.raw"], ["load.prepared"]),
        ("load.copy", "copy", "all.copy", ["load.prepared"], ["x"]),
    ]
    kinds = {stream.id: stream.kind for stream in plan.streams}
    assert (kinds["all.disk"], kinds["all.prepare"], kinds["all.copy"]) == (StreamKind.DISK, StreamKind.HOST, StreamKind.COPY)
    assert plan.regst["x"].producer == "load.copy"
    assert [tensor.sbp for tensor in plan.regst["load.raw"].tensors] == [NdSbp.parse("S(0)")]
    assert plan.regst["load.raw"].tensors[0].shape == (handmade.SAMPLES, 20)
    assert plan.regst["load.prepared"].tensors == plan.regst["x"].tensors


def test_without_raw_data_nothing_is_prepared_and_on_a_cpu_nothing_is_copied() -> None:
    assert chain(with_loading(handmade.data_parallel(2, 2))) == [("load", "source", "all.disk", [], ["x"])]


def test_a_stream_that_no_task_is_left_on_goes() -> None:
    plan = with_loading(handmade.pipeline(3), X)
    assert "host" not in plan.stream
    assert "host.1" in plan.stream


def test_streams_of_the_chain_stand_among_the_others_by_name() -> None:
    plan = with_loading(handmade.data_parallel(2, 2), X, copy=True)
    names = [stream.id for stream in plan.streams]
    assert {"all.copy", "all.disk", "all.prepare"} < set(names)
    assert names == sorted(names)


@pytest.mark.parametrize("load_quota", [1, 2, 3])
def test_compute_keeps_what_it_holds_and_the_loader_gets_the_rest(load_quota: int) -> None:
    chained = with_loading(handmade.pipeline(micro_batches=4, quota=2), X, load_quota=load_quota)
    assert chained.regst["load.raw"].quota == load_quota
    assert chained.regst["x"].quota == 2 + load_quota - 1, "two micro-batches wait on stage 0 for their backward pass"


def tensors_split(layout: str) -> Plan:
    """Stage 0 of a pipeline two ranks wide, with x laid out so."""
    plan = handmade.pipeline(2, width=2)
    x = plan.regst["x"]
    placed = replace(x.tensors[0], sbp=NdSbp.parse(layout))
    return replace(plan, regsts=tuple(replace(r, tensors=(placed,)) if r.id == "x" else r for r in plan.regsts))


@pytest.mark.parametrize(("layout", "raw"), [("S(0)", "S(0)"), ("B", "B"), ("S(1)", "B")])
def test_ranks_that_share_samples_read_the_same_rows_and_others_only_theirs(layout: str, raw: str) -> None:
    plan = with_loading(tensors_split(layout), X)
    assert str(plan.regst["load.raw"].tensors[0].sbp) == raw


@given(data=st.data(), mesh=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_raw_rows_hold_the_rows_of_everything_that_is_made_of_them(data: st.DataObject, mesh: list[int]) -> None:
    """Any layouts of any number of tensors, on any mesh; 30 rows and 30 columns divide unevenly among up to 27 ranks."""
    entry = st.sampled_from([B, S(0), S(1)])
    layouts = data.draw(st.lists(st.tuples(*(entry for _ in mesh)).map(NdSbp), min_size=1, max_size=3))
    placement = Placement(id="all", ranks=tuple(range(prod(mesh))), mesh=tuple(mesh))
    rows = _rows_sbp(placement, [(layout, 0) for layout in layouts])
    for coordinate in coordinates(mesh):
        (begin, length), _ = rows.region((30, 30), mesh, coordinate)
        for layout in layouts:
            (first, count), _ = layout.region((30, 30), mesh, coordinate)
            assert begin <= first and first + count <= begin + length
    if len(set(layouts)) == 1:
        assert all((a == S(0)) == (b == S(0)) for a, b in zip(rows.entries, layouts[0].entries, strict=True)), "no row too many"


def period_s(plan: Plan, times_s: dict[str, float]) -> float:
    """Of the last of many steps (sim), which is what the steady state says (theory)."""
    cost = TableCost(dict(times_s), default_s=0.0)
    trace = simulate(plan, cost, steps=12)
    check_trace(plan, trace)
    step_s = trace.step_times_s(plan)[-1]
    assert step_s == pytest.approx(steady_state(plan, cost).period_s)
    return step_s


@pytest.mark.thorough
def test_with_quota_1_loading_and_computing_take_turns() -> None:
    plan = with_loading(handmade.data_parallel(1, 1), load_quota=1)
    assert period_s(plan, {"load": 5.0, "forward": 2.0, "backward": 4.0}) == pytest.approx(5.0 + 2.0 + 4.0)


@pytest.mark.parametrize("load_s", [1.0, 6.0, 9.0])
def test_with_quota_2_a_step_takes_the_longer_of_loading_and_computing(load_s: float) -> None:
    plan = with_loading(handmade.data_parallel(1, 1), load_quota=2)
    assert period_s(plan, {"load": load_s, "forward": 2.0, "backward": 4.0}) == pytest.approx(max(load_s, 2.0 + 4.0))


def test_in_a_chain_a_step_takes_the_longest_of_its_actors() -> None:
    plan = with_loading(handmade.data_parallel(1, 1), X, load_quota=2, copy=True)
    assert period_s(plan, {"load": 5.0, "load.prepare": 6.0, "load.copy": 3.0, "forward": 1.0, "backward": 2.0}) == pytest.approx(6.0)


def ahead(plan: Plan, trace: Trace, rank: int) -> int:
    """The most micro-batches that SOURCE has begun and backward has not ended."""
    begun = [(act.start_s, 1) for act in trace.acts if act.task == "load" and act.rank == rank]
    ended = [(act.end_s, -1) for act in trace.acts if act.task == "backward" and act.rank == rank]
    now = most = 0
    for _, change in sorted(begun + ended):
        now += change
        most = max(most, now)
    return most


@given(
    load_quota=st.integers(1, 4),
    micro_batches=st.integers(1, 3),
    copy=st.booleans(),
    times=st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5),
)
def test_quotas_bound_how_far_the_loader_runs_ahead(load_quota: int, micro_batches: int, copy: bool, times: list[float]) -> None:
    plan = with_loading(handmade.data_parallel(2, micro_batches), X, load_quota=load_quota, copy=copy)
    names = ("load", "load.prepare", "load.copy", "forward", "backward")
    trace = simulate(plan, TableCost(dict(zip(names, times, strict=True)), default_s=0.5), steps=4)
    check_trace(plan, trace)
    blocks = sum(plan.regst[r].quota for r in ("load.raw", "load.prepared", "x") if r in plan.regst)
    assert max(ahead(plan, trace, rank) for rank in (0, 1)) <= blocks


def test_the_bound_is_reached_when_computing_is_slow() -> None:
    plan = with_loading(handmade.data_parallel(1, 1), X, load_quota=3)
    trace = simulate(plan, TableCost({"backward": 100.0}, default_s=0.01), steps=12)
    assert ahead(plan, trace, 0) == plan.regst["load.raw"].quota + plan.regst["x"].quota


def test_analytic_prices_are_bytes_over_the_stated_rates() -> None:
    plan = handmade.data_parallel(1, 1)
    plan = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, kind="cuda", act_overhead_s=1e-5)))
    cost, chained = AnalyticCost(plan.cluster), with_loading(plan, X)
    raw, x = (chained.block_bytes(chained.regst[r]) for r in ("load.raw", "x"))
    assert cost.act_s(plan, plan.task["load"], 0) == 1e-5
    assert cost.act_s(chained, chained.task["load"], 0) == pytest.approx(1e-5 + raw / DISK_BYTES_PER_S)
    assert cost.act_s(chained, chained.task["load.prepare"], 0) == pytest.approx(1e-5 + x / PREPARE_BYTES_PER_S)
    assert cost.act_s(chained, chained.task["load.copy"], 0) == pytest.approx(1e-5 + x / COPY_BYTES_PER_S)


def test_a_chain_of_a_chain_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="already; give the plan that it was made from"):
        with_loading(with_loading(handmade.data_parallel(1, 1), X), X)


def test_a_quota_of_0_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="load_quota = 0"):
        with_loading(handmade.data_parallel(1, 1), load_quota=0)


def test_a_reader_without_an_input_is_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"nothing for batch inputs \['input.0'\]"):
        with_loading(handmade.data_parallel(1, 1), (replace(X[0], inputs=(1,)),))


def test_an_input_that_is_not_sliced_is_refused() -> None:
    plan = handmade.data_parallel(1, 1)
    whole = replace(plan, batch_inputs=tuple(replace(entry, batch_dim=None) for entry in plan.batch_inputs))
    with pytest.raises(InvalidPlan, match="not sliced by micro-batches"):
        with_loading(whole, X)


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfMemory):
        with_loading(handmade.data_parallel(1, 1), (replace(X[0], shape=(10**9,)),))


def test_a_plan_without_a_source_is_refused() -> None:
    plan = handmade.data_parallel(1, 1)
    with pytest.raises(InvalidPlan, match="no source task"):
        with_loading(replace(plan, tasks=tuple(t for t in plan.tasks if t.kind is not TaskKind.SOURCE)))
