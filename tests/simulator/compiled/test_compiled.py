"""The compiled engine gives what SimPy gives, event for event, on random Plans; and folding equal ranks changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import handmade
import pytest
from command_line import commands
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_plans import dags, is_live, live_dags, meshed, prices
from stories import BLOCK_BYTES, Story, TableCost, chain, data_parallel, pipeline, tensor

import regista
from planner.ir.actors.verify import verify_structure
from planner.ir.collective import Collective
from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan, Unsupported
from planner.ir.files import save_plan
from planner.ir.plan import Placement, Plan, RegstKind, TaskKind
from planner.ir.sbp import NdSbp
from planner.ir.text import canonical
from planner.ir.traces.trace import Trace, check_trace
from simulator import Engine, simulate
from simulator.compiled import CompiledPlan, compile_plan, times, trace
from simulator.compiled.arrays import KernelResult
from simulator.compiled.event_kernel import play_events
from simulator.compiled.recurrence_kernel import play_recurrence
from tests.tiers import examples

RATES = (1, 2, 4)


class Felt(TableCost):
    """Prices of a machine on which computing feels the communication beside it."""

    compute_slowdown = 1.5


@st.composite
def costs(draw: st.DrawFn, plan: Plan) -> TableCost:
    """Durations of each task in quarters, some ranks slower, and a latency; or in thirds, whose sums are rounded."""
    unit = draw(st.sampled_from([0.25, 1 / 3]))
    times_s: dict[str | tuple[str, int], float] = {task.id: draw(st.integers(0, 8)) * unit for task in plan.tasks}
    for task in draw(st.lists(st.sampled_from(plan.tasks), max_size=2)):
        times_s[task.id, draw(st.sampled_from(plan.ranks_of(task)))] = draw(st.integers(0, 12)) * unit
    return TableCost(times_s, latency_s=draw(st.sampled_from([0.0, 0.0, 0.1, 2.5])))


def outcome(run: Callable[[], Trace]) -> str:
    """Everything of a trace but who made it, to the last bit; or the error."""
    try:
        return canonical(replace(run(), about={}))
    except DeadLock as error:
        return str(error)


def assert_engines_agree(plan: Plan, cost: TableCost, steps: int) -> str:
    """Assert that SimPy and the compiled engine, folded or not, give one outcome; returns it."""
    expected = outcome(lambda: simulate(plan, cost, steps=steps, engine=Engine.SIMPY))
    for fold in (False, True):
        assert outcome(lambda: simulate(plan, cost, steps=steps, engine=Engine.COMPILED, fold=fold)) == expected  # noqa: B023
    return expected


# --- event for event --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_on_dags_with_rates_state_and_shared_streams_both_engines_give_one_trace(data: st.DataObject):
    plan = data.draw(live_dags(fixed_order=data.draw(st.booleans())))
    assert_engines_agree(plan, data.draw(prices(plan)), data.draw(st.integers(1, 3)))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_on_stages_of_several_ranks_with_collectives_both_engines_give_one_trace_folded_or_not(data: st.DataObject):
    plan = data.draw(meshed())
    assume(is_live(plan))
    assert_engines_agree(plan, data.draw(costs(plan)), data.draw(st.integers(1, 2)))


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_on_pipelines_and_data_parallel_steps_both_engines_give_one_trace(data: st.DataObject):
    plan = data.draw(st.sampled_from([pipeline(1, 3), pipeline(2, 4), pipeline(4, 3), data_parallel(2), data_parallel(5)]))
    assert_engines_agree(plan, data.draw(costs(plan)), 3)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_on_chains_of_any_quotas_both_engines_give_one_trace(data: st.DataObject):
    names = "abcdef"[: data.draw(st.integers(2, 6))]
    plan = chain(names, data.draw(st.lists(st.integers(1, 4), min_size=len(names), max_size=len(names))), data.draw(st.integers(1, 8)))
    assert_engines_agree(plan, data.draw(costs(plan)), 2)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_with_an_actor_that_reads_what_it_writes_both_engines_give_one_trace(data: st.DataObject):
    acts, story = data.draw(st.sampled_from([1, 2, 3, 6])), Story()
    story.regst("w", "update", data.draw(st.integers(2, 3)), kind=RegstKind.STATE)
    story.regst("y", "forward", data.draw(st.integers(1, 3)))
    story.task("forward", {"w": 6}, {"y": 6 // acts}, acts=6)
    story.task("update", {"y": 1, "w": acts}, {"w": acts}, acts=acts, kind=TaskKind.UPDATE)
    plan = story.freeze(micro_batches=6)
    assert "not live" not in assert_engines_agree(plan, data.draw(costs(plan)), 3)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_on_plans_that_are_really_performed_both_engines_give_one_trace(data: st.DataObject):
    plan = data.draw(st.sampled_from([handmade.data_parallel(3), handmade.pipeline(3, 2, 1), handmade.pipeline(4, 2, 2)]))
    assert_engines_agree(plan, data.draw(costs(plan)), 2)


@settings(max_examples=examples(60), deadline=None)
@given(dags())
def test_both_engines_dead_lock_on_the_same_plans_with_the_same_words(plan: Plan):
    assert_engines_agree(plan, TableCost(), 1)


def test_a_collective_that_never_completes_is_told_in_the_words_of_simpy():
    story = Story(placements=[Placement(id="dev", ranks=(0, 1), mesh=(2,))])
    for name in ("x", "y"):
        story.regst(name, f"make_{name}")
        story.regst(f"sum_{name}", f"reduce_{name}")
        story.task(f"make_{name}", produces=[name], kind=TaskKind.SOURCE)
        story.task(f"reduce_{name}", [name], [f"sum_{name}"], collective=Collective.ALL_REDUCE, stream="comm")
    cost = TableCost({("make_x", 0): 1.0, ("make_y", 0): 2.0, ("make_x", 1): 2.0, ("make_y", 1): 1.0})
    assert "reduce_x act 0: ranks [0] wait, ranks [1] never come" in assert_engines_agree(story.freeze(), cost, 1)


def test_the_random_plans_hold_what_they_are_to_test():
    """Live ones, several ranks, folded and not, collectives, streams that choose, transfers whose receivers hear from unlike senders."""
    seen: dict[str, int] = defaultdict(int)

    @settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def look(data: st.DataObject) -> None:
        plan = data.draw(meshed())
        verify_structure(plan)
        seen["live"] += is_live(plan)
        compiled = compile_plan(plan, data.draw(costs(plan)))
        if is_live(plan):
            check_trace(plan, trace(compiled, steps=2))
        seen["ranks"] += plan.num_ranks > 1
        seen["folded"] += compiled.ranks.num_classes < plan.num_ranks
        seen["rank by rank"] += compiled.ranks.num_classes == plan.num_ranks > 1
        seen["meetings"] += len(compiled.tables.group_first) > 1
        seen["free order"] += bool(compiled.free)
        seen["several senders"] += any(len({message.src for message in messages}) > 1 for messages in compiled.ranks.messages.values())

    look()
    assert len(seen) == 7 and all(seen.values()), dict(seen)


# --- times only -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_times_are_the_ends_of_the_steps_of_the_trace(data: st.DataObject):
    plan = data.draw(st.one_of(meshed(), live_dags(), live_dags(fixed_order=True)))
    cost, steps = data.draw(costs(plan)), data.draw(st.integers(1, 3))
    compiled = compile_plan(plan, cost, sizes=data.draw(st.booleans()))
    try:
        expected = simulate(plan, cost, steps=steps, engine=Engine.SIMPY)
    except DeadLock:
        with pytest.raises(DeadLock, match="is not live"):
            times(compiled, steps=steps)
        return
    compiled_times = times(compiled, steps=steps)
    assert compiled_times.step_ends_s == expected.step_ends_s(plan)
    assert compiled_times.makespan_s == max(act.end_s for act in expected.acts)
    assert compiled_times.num_acts == len(expected.acts)


@st.composite
def fixed(draw: st.DrawFn) -> tuple[Plan, TableCost]:
    """A live Plan whose streams all have orders: those in which SimPy fired the first step."""
    plan = draw(st.one_of(meshed(), live_dags()))
    cost = draw(costs(plan))
    try:
        acts = simulate(plan, cost, steps=1, engine=Engine.SIMPY).acts
    except DeadLock:
        assume(False)
        raise
    fired: dict[str, list[str]] = defaultdict(list)
    for act in acts:
        if act.rank == plan.ranks_of(plan.task[act.task])[0]:
            fired[plan.task[act.task].stream].append(act.task)
    ordered = replace(plan, streams=tuple(replace(s, order=tuple(fired[s.id])) for s in plan.streams))
    assume(is_live(ordered))  # acts of no duration stand in Plan order at their instant, which may not be the order they fired in
    return ordered, cost


def events_and_recurrence(compiled: CompiledPlan, steps: int) -> tuple[KernelResult, KernelResult]:
    return (
        play_events(compiled.tables, steps, compiled.ranks.num_classes, full=True),
        play_recurrence(compiled, steps, full=True),
    )


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fixed(), st.integers(1, 3), st.booleans())
def test_with_fixed_orders_the_recurrence_gives_every_ready_start_and_end_of_the_events(
    case: tuple[Plan, TableCost], steps: int, fold: bool
):
    compiled = compile_plan(*case, fold=fold)
    events, recurrence = events_and_recurrence(compiled, steps)
    assert events.complete
    assert recurrence.complete
    assert events.ready_s.tolist() == recurrence.ready_s.tolist()
    assert events.start_s.tolist() == recurrence.start_s.tolist()
    assert events.end_s.tolist() == recurrence.end_s.tolist()


def test_the_recurrence_refuses_a_stream_that_chooses_for_itself():
    compiled = compile_plan(pipeline(2, 3), TableCost())
    with pytest.raises(Unsupported, match="2 streams of this plan have several tasks and no order, compute0 among them"):
        play_recurrence(compiled, 1, full=False)
    assert times(compiled, steps=1).kernel == "events"


def test_an_order_that_contradicts_the_edges_dead_locks_in_both_kernels():
    story = Story()
    story.regst("x", "first")
    story.regst("y", "second")
    story.task("first", produces=["x"], kind=TaskKind.SOURCE, stream="s")
    story.task("second", ["x"], ["y"], stream="s")
    story.order("s", "second", "first")
    events, recurrence = events_and_recurrence(compile_plan(story.freeze(), TableCost()), 1)
    assert (events.complete, recurrence.complete) == (False, False)


def test_step_s_is_the_mean_after_the_first_step():
    plan = chain("ab", 1, 1)  # a period of 2, the first step takes 2 as well, the pipeline is 1 ahead
    compiled_times = times(compile_plan(plan, TableCost({"a": 1.0, "b": 3.0})), steps=4)
    assert compiled_times.step_ends_s == (4.0, 8.0, 12.0, 16.0)
    assert (compiled_times.makespan_s, compiled_times.step_s) == (16.0, 4.0)
    assert times(compile_plan(plan, TableCost({"a": 1.0, "b": 3.0})), steps=1).step_s == 4.0


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_other_quotas_without_compiling_again_are_those_of_the_changed_plan(data: st.DataObject):
    plan = data.draw(st.one_of(meshed(), live_dags()))
    cost = data.draw(costs(plan))
    quotas = {r.id: data.draw(st.integers(1, 4)) for r in plan.regsts if r.kind is not RegstKind.STATE}
    changed = compile_plan(plan, cost).with_quotas(quotas)
    assert changed.plan.plan_id == plan.with_quotas(quotas).plan_id
    assert outcome(lambda: trace(changed, steps=2)) == outcome(lambda: trace(compile_plan(plan.with_quotas(quotas), cost), steps=2))


# --- folding ----------------------------------------------------------------------------------------------------------


def test_equal_ranks_are_one_class_and_a_slow_one_splits_only_whom_it_meets():
    story = Story(placements=[Placement(id="a", ranks=(0, 1, 2, 3), mesh=(4,)), Placement(id="b", ranks=(4, 5, 6, 7), mesh=(4,))])
    split = tensor("made", 1, NdSbp.parse("S(0)"))
    story.regst("made", "make", placement="a")
    story.regst("sent", "send", placement="b")
    story.regsts[:] = [replace(r, tensors=(split,)) for r in story.regsts]
    story.task("make", produces=["made"], kind=TaskKind.SOURCE, placement="a")
    story.task("send", ["made"], ["sent"], kind=TaskKind.TRANSFER, placement="a")
    story.task("use", ["sent"], placement="b")
    plan = story.freeze()
    assert compile_plan(plan, TableCost()).ranks.of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert compile_plan(plan, TableCost({("make", 2): 5.0})).ranks.of == (0, 0, 1, 0, 2, 2, 3, 2)
    assert compile_plan(plan, TableCost(), fold=False).ranks.of == tuple(range(8))


def test_a_folded_trace_has_every_rank():
    trace = simulate(data_parallel(4), TableCost(), steps=1, engine=Engine.COMPILED)
    assert trace.about["simulated_ranks"] == "1 of 4"
    assert sorted({act.rank for act in trace.acts}) == [0, 1, 2, 3]
    assert sorted(trace.peak_bytes) == ["0", "1", "2", "3"]


# --- which engine, and refusals ---------------------------------------------------------------------------------------


def test_the_trace_says_which_engine_played_and_auto_takes_simpy_for_small_games():
    plan = chain("ab", 1, 50)
    engine = {e: simulate(plan, TableCost(), steps=1, engine=e).about["engine"].split()[0] for e in Engine}
    assert engine == {Engine.AUTO: "simpy", Engine.SIMPY: "simpy", Engine.COMPILED: "compiled,"}
    assert simulate(plan, TableCost(), steps=250).about["engine"].startswith("compiled")


def test_where_auto_cannot_take_the_compiled_engine_it_says_why_once(caplog: pytest.LogCaptureFixture):
    plan = chain("ab", 1, 50)
    huge = replace(plan, regsts=tuple(replace(r, tensors=(replace(r.tensors[0], shape=(2**60,)),)) for r in plan.regsts))
    trace = simulate(huge, TableCost(), steps=201)
    assert trace.about["engine"].startswith("simpy") and "2^60" in trace.about["not_compiled"]
    felt = simulate(plan, Felt(), steps=201)
    assert felt.about["engine"].startswith("compiled") and "not_compiled" not in felt.about
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    # what was asked for, or is quicker, is no falling back
    for engine, steps in ((Engine.AUTO, 200), (Engine.SIMPY, 201), (Engine.AUTO, 250)):
        assert "not_compiled" not in simulate(plan, TableCost(), steps=steps, engine=engine).about
    assert "not_compiled" not in simulate(plan, Felt(), steps=200).about
    assert len(caplog.records) == 1


def test_the_command_line_picks_the_engine_and_both_write_one_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    command = commands(capsys)
    save_plan(handmade.data_parallel(2), str(tmp_path / "plan.json"))
    document_of = {name: command("simulate", tmp_path / "plan.json", "--engine", name, "--json").json for name in ("simpy", "compiled")}
    assert [document_of[name].pop("about")["engine"].split()[0].strip(",") for name in document_of] == list(document_of)
    assert document_of["simpy"] == document_of["compiled"]
    with pytest.raises(Unsupported, match="engine 'numba' is not known; choose from auto, simpy, compiled"):
        regista.simulate(handmade.data_parallel(2), engine="numba")


def test_what_the_compiled_engine_cannot_do_it_refuses_and_auto_leaves_to_simpy():
    plan = chain("ab", 1, 2)
    with pytest.raises(Unsupported, match="leave out factor and on_act"):
        simulate(plan, TableCost(), factor=lambda task, rank, act: 2.0, engine=Engine.COMPILED)
    huge = replace(plan, regsts=tuple(replace(r, tensors=(replace(r.tensors[0], shape=(2**60,)),)) for r in plan.regsts), micro_batches=1)
    with pytest.raises(Unsupported, match=r"more than the compiled engine can count \(2\^60\); use engine simpy"):
        simulate(huge, TableCost(), engine=Engine.COMPILED)
    assert simulate(huge, TableCost(), steps=6000).about["engine"].startswith("simpy")
    with pytest.raises(Unsupported, match="compiled without sizes"):
        trace(compile_plan(plan, TableCost(), sizes=False))
    with pytest.raises(Unsupported, match=r"268435458 firings, more than 268435456"):
        times(compile_plan(chain("ab", 1, 1), TableCost()), steps=2**27 + 1)


def test_impossible_wishes_are_refused_in_the_words_of_simpy():
    plan = chain("ab", 1, 2)
    with pytest.raises(InvalidPlan, match="steps = 0"):
        times(compile_plan(plan, TableCost()), steps=0)
    with pytest.raises(InvalidCluster, match=r"an act of b on rank 0 takes -1\.0 s"):
        compile_plan(plan, TableCost({"b": -1.0}))
    with pytest.raises(InvalidCluster, match="a message from rank 0 to rank 1 takes nan s"):
        compile_plan(pipeline(2, 2), TableCost(latency_s=float("nan")))
    with pytest.raises(InvalidPlan, match="quota 0 for regst Regst_a"):
        compile_plan(plan, TableCost()).with_quotas({"Regst_a": 0})
    with pytest.raises(InvalidPlan, match="regst nobody"):
        compile_plan(plan, TableCost()).with_quotas({"nobody": 2})
    with pytest.raises(Unsupported, match="more than the compiled engine can count"):
        compile_plan(plan, TableCost()).with_quotas({"Regst_a": 2**50})


def test_workspace_and_blocks_of_both_engines_peak_together():
    story = Story()
    story.regst("out", "work", 1)
    story.regst("end", "rest", 1)
    story.task("work", produces=["out"], stream="s", workspace_bytes=5000)
    story.task("rest", ["out"], ["end"], stream="s", workspace_bytes=100)
    assert simulate(story.freeze(), TableCost(), steps=1, engine=Engine.COMPILED).peak_bytes == {"0": 5000 + BLOCK_BYTES}
