"""Live bytes over time: the curve's peak is the simulator's to the byte, and its owners and categories add up."""

from __future__ import annotations

from dataclasses import replace

import handmade
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import live_dags, prices
from stories import BLOCK_BYTES, Story, TableCost, chain, data_parallel, pipeline

from planner.ir.collective import Collective
from planner.ir.errors import InvalidTrace, Mismatch
from planner.ir.graph import InputKind
from planner.ir.plan import Access, Placement, Plan, RegstKind, State, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Source, Trace
from simulator import simulate
from simulator.analysis.category import Category, regst_bytes
from simulator.analysis.curve import memory_curves
from simulator.analysis.replay import message_times
from tests.tiers import examples


def simulated(plan: Plan, cost: CostModel, steps: int = 2) -> Trace:
    """A simulated trace that knows its messages, as 'regista simulate' writes it."""
    return replace(simulate(plan, cost, steps=steps), message_s=message_times(plan, cost.message_s))


def assert_peaks_agree(plan: Plan, trace: Trace) -> None:
    curves = memory_curves(plan, trace)
    assert {str(rank): max(curve.total_bytes) for rank, curve in curves.items()} == trace.peak_bytes
    assert {str(rank): max(curve.register_bytes) for rank, curve in curves.items()} == trace.register_bytes


# --- the peak is the simulator's --------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.data())
def test_the_peak_of_a_random_plan_is_that_of_the_simulation_to_the_byte(data: st.DataObject):
    plan = data.draw(live_dags())
    assert_peaks_agree(plan, simulated(plan, data.draw(prices(plan)), steps=3))


@settings(max_examples=examples(40))
@given(st.data())
def test_the_peak_of_a_pipeline_is_that_of_the_simulation_whatever_its_messages_cost(data: st.DataObject):
    plan = pipeline(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)), update=data.draw(st.booleans()))
    cost = replace(data.draw(prices(plan)), latency_s=data.draw(st.sampled_from([0.0, 0.25, 1.0, 7.0])))
    assert_peaks_agree(plan, simulated(plan, cost))


def two_rings() -> Plan:
    """Four ranks in a 2 x 2 mesh; one all-reduce on the first axis, whose ranks arrive at different times; a workspace beside it."""
    story = Story(placements=[Placement(id="dev", ranks=(0, 1, 2, 3), mesh=(2, 2))])
    story.regst("made", "work", 2)
    story.task("work", produces=["made"], workspace_bytes=5000)
    story.regst("sum", "reduce", 1)
    story.task("reduce", ["made"], ["sum"], collective=Collective.ALL_REDUCE)
    story.regst("note", "aside", 1)
    story.task("aside", ["made"], ["note"], workspace_bytes=70_000)
    story.regst("loss", "use", 1)
    story.task("use", ["sum", "note"], ["loss"], workspace_bytes=700)
    return story.freeze()


def test_a_block_of_a_collective_is_held_from_the_moment_its_rank_waits_for_the_others():
    plan = two_rings()
    # Ranks 0 and 1 come to the all-reduce at 1 and wait for 2 and 3 until 5; 'aside' is over by then on 0 and 1.
    cost = TableCost({("work", 2): 5.0, ("work", 3): 5.0})
    trace = simulated(plan, cost, steps=1)
    assert_peaks_agree(plan, trace)
    curve = memory_curves(plan, trace)[0]
    assert (curve.peak_s, curve.peak_bytes) == (1.0, 3 * BLOCK_BYTES + 70_000)
    assert [owner.id for owner in curve.owners] == ["aside", "made", "note", "sum"]


@settings(max_examples=examples(40))
@given(st.data())
def test_the_peak_of_ranks_that_meet_is_that_of_the_simulation_whoever_comes_last(data: st.DataObject):
    plan = two_rings()
    quarter = st.integers(0, 12).map(lambda n: n / 4)
    cost = TableCost({(task.id, rank): data.draw(quarter) for task in plan.tasks for rank in range(4)})
    assert_peaks_agree(plan, simulated(plan, cost))


def test_without_its_message_times_a_trace_is_read_as_if_messages_took_none():
    plan, cost = pipeline(2, 4), TableCost(latency_s=0.5)
    blind = memory_curves(plan, simulate(plan, cost))
    assert {str(rank): curve.peak_bytes for rank, curve in blind.items()} != simulate(plan, cost).peak_bytes


# --- what the curve says ----------------------------------------------------------------------------------------------


def test_the_levels_of_a_chain_are_written_out():
    plan = chain("ab", (2, 1), acts=2)
    curve = memory_curves(plan, simulated(plan, TableCost({"a": 1.0, "b": 2.0}), steps=1))[0]
    # a writes two blocks, b reads the first from 1 to 3 and the second from 3 to 5; b's own block is recycled at once.
    assert [(t, n // BLOCK_BYTES) for t, n in zip(curve.times_s, curve.total_bytes, strict=True)] == [
        *[(0, 0), (0, 1), (1, 2), (1, 3), (3, 2), (3, 1), (3, 2), (5, 1), (5, 0)],
    ]
    assert (curve.peak_s, curve.peak_bytes) == (1, 3 * BLOCK_BYTES)
    assert [(owner.id, owner.blocks) for owner in curve.owners] == [("Regst_a", 2), ("Regst_b", 1)]


def labelled(plan: Plan) -> Plan:
    """The story's pipeline with names for its state: w0 a parameter, w1 an optimizer's."""
    kinds = (InputKind.PARAMETER, InputKind.OPTIMIZER_STATE)
    return replace(plan, states=tuple(State(name=f"w{i}", kind=kind, regst=f"w{i}", index=0) for i, kind in enumerate(kinds)))


def test_every_regst_of_a_pipeline_stands_under_its_category():
    sizes = regst_bytes(labelled(pipeline(2, 4)))
    categories = {regst: [category.value for category in parts] for regst, parts in sizes.items()}
    assert categories == {
        "batch": ["registers"],  # read by the forward part only
        "w0": ["parameters"],
        "keep0": ["activations"],
        "grad0": ["gradients"],
        "out0": ["registers"],
        "act1": ["registers"],
        "w1": ["optimizer"],
        "keep1": ["activations"],
        "grad1": ["gradients"],
        "dout1": ["registers"],
        "dact0": ["registers"],
    }


def test_what_a_split_backward_pass_keeps_for_its_weight_part_counts_as_activations():
    story = Story()
    for name, producer in (("kept", "F"), ("slope", "B"), ("grad", "W")):
        story.regst(name, producer, 2)
    story.regst("w", "upd", kind=RegstKind.STATE)
    story.task("F", ["w"], ["kept"])
    story.task("B", ["kept"], ["slope"], kind=TaskKind.BACKWARD)
    story.task("W", ["kept", "slope"], ["grad"], kind=TaskKind.WEIGHT)
    story.task("upd", ["grad"], ["w"], kind=TaskKind.UPDATE)
    categories = {regst: [category.value for category in parts] for regst, parts in regst_bytes(story.freeze()).items()}
    assert categories == {"kept": ["activations"], "slope": ["activations"], "grad": ["gradients"], "w": ["parameters"]}


def test_a_gradient_is_one_before_and_after_its_all_reduce():
    sizes = regst_bytes(data_parallel(2))
    assert [set(sizes[regst]) for regst in ("grad", "sum", "kept")] == [{Category.GRADIENTS}, {Category.GRADIENTS}, {Category.ACTIVATIONS}]


def test_what_the_plan_names_a_gradient_is_one():
    plan = replace(chain("ab", 1, 1), gradients={"w": Access(name="g", regst="Regst_b", index=0)})
    assert regst_bytes(plan)["Regst_b"] == {Category.GRADIENTS: BLOCK_BYTES}
    assert regst_bytes(plan)["Regst_a"] == {Category.REGISTERS: BLOCK_BYTES}


@settings(max_examples=examples(40))
@given(st.data())
def test_owners_add_up_to_the_peak_and_categories_to_the_owners(data: st.DataObject):
    plan = labelled(pipeline(data.draw(st.integers(2, 4)), data.draw(st.integers(1, 6))))
    for curve in memory_curves(plan, simulated(plan, data.draw(prices(plan)))).values():
        assert sum(owner.size_bytes for owner in curve.owners) == curve.peak_bytes == max(curve.total_bytes)
        for category, levels in curve.levels_bytes.items():
            assert levels[curve.peak_at] == sum(owner.size_bytes for owner in curve.owners if owner.category is category)
        assert list(curve.owners) == sorted(curve.owners, key=lambda owner: -owner.size_bytes)


def test_stage_i_of_p_keeps_p_minus_i_activations_at_its_peak():
    plan = pipeline(4, 8)
    curves = memory_curves(plan, simulated(plan, TableCost({f"B{i}": 2.0 for i in range(4)})))
    assert [max(curves[i].levels_bytes[Category.ACTIVATIONS]) // BLOCK_BYTES for i in range(4)] == [4, 3, 2, 1]


def test_state_is_held_all_the_time_and_everything_else_goes():
    plan = pipeline(2, 3)
    for curve in memory_curves(plan, simulated(plan, TableCost())).values():
        assert set(curve.levels_bytes[Category.PARAMETERS]) == {BLOCK_BYTES}
        assert curve.total_bytes[-1] == BLOCK_BYTES
        assert list(curve.times_s) == sorted(curve.times_s)


def test_a_measured_trace_has_a_curve_on_its_own_clock():
    plan = pipeline(2, 4)
    run = replace(simulate(plan, TableCost()), source=Source.RUN, message_s={})
    late = replace(run, acts=tuple(replace(a, ready_s=a.ready_s + 9, start_s=a.start_s + 9, end_s=a.end_s + 9) for a in run.acts))
    before, after = memory_curves(plan, run)[0], memory_curves(plan, late)[0]
    assert after.times_s == tuple(time_s + 9 for time_s in before.times_s)
    assert after.levels_bytes == before.levels_bytes


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_ranks_and_plans_that_do_not_fit_are_refused():
    plan, other = pipeline(2, 4), pipeline(2, 3)
    with pytest.raises(Mismatch, match=r"ranks \[5\] is asked for; the plan has ranks 0 \.\. 1"):
        memory_curves(plan, simulate(plan, TableCost()), ranks=[0, 5])
    with pytest.raises(Mismatch, match="the sim trace is of plan"):
        memory_curves(other, simulate(plan, TableCost()))


def test_an_act_that_begins_before_its_input_is_refused():
    plan = chain("ab", 1, acts=1)
    first, second = simulate(plan, TableCost(), steps=1).acts
    early = replace(simulate(plan, TableCost(), steps=1), acts=(first, replace(second, ready_s=0.5, start_s=0.5)))
    with pytest.raises(InvalidTrace, match=r"b act 0 on rank 0 begins at 0\.5\d* s, before its inputs"):
        memory_curves(plan, early)


def test_state_regsts_of_a_chain_without_acts_of_their_own_are_parameters():
    story = Story()
    story.regst("w", None, kind=RegstKind.STATE)
    story.regst("out", "use", 1)
    story.task("use", {"w": 1}, ["out"])
    plan = story.freeze()
    assert regst_bytes(plan)["w"] == {Category.PARAMETERS: BLOCK_BYTES}
    assert_peaks_agree(plan, simulated(plan, TableCost(), steps=1))


def test_a_block_that_several_ranks_send_to_is_live_from_the_first_of_them_on() -> None:
    plan = handmade.pipeline(3, width=2)
    trace = simulate(plan, TableCost({("forward.0", 1): 5.0}), steps=1)
    starts_s = sorted(act.start_s for act in trace.acts if act.task == "send.h" and act.number == 0)
    assert starts_s == [2.0, 6.0]
    curve = memory_curves(plan, trace, [2])[2]
    state_bytes, block_bytes = (plan.block_bytes(plan.regst[regst]) for regst in ("w2.state", "h@s1"))
    levels = {time_s: level for time_s, level in zip(curve.times_s, curve.total_bytes, strict=True) if time_s <= 6.0}
    assert levels == {0.0: state_bytes, 2.0: state_bytes + block_bytes}
