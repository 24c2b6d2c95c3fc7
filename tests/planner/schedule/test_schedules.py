"""Schedules by hand: pictures, counts, memory and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.errors import DeadLock, InvalidPlan, Unsupported
from planner.schedule import PipelineSchedule, check_schedule
from planner.schedule.actions import Action, Pass
from planner.schedule.classic import gpipe, interleaved, one_f_one_b
from planner.schedule.in_flight import Schedule, in_flight, peak_in_flight
from planner.schedule.legality import peak_memory
from planner.schedule.timing import PassTimes, act_times, bubble_rate, makespan_s
from planner.schedule.zero_bubble import zb_h1, zb_h2

COUNTS = st.tuples(st.integers(1, 6), st.integers(1, 12))
UNIT = PassTimes.even(3, 1.0, 1.0, 1.0)


def picture(schedule: PipelineSchedule, times: PassTimes) -> list[str]:
    """One character per second: the kind of the pass that runs, '.' where the device waits."""
    rows = [["."] * round(makespan_s(schedule, times)) for _ in schedule.orders]
    for action, (start, end) in act_times(schedule, times).items():
        for second in range(round(start), round(end)):
            rows[schedule.device_of[action.stage]][second] = action.kind.value
    return ["".join(row) for row in rows]


def test_one_f_one_b_looks_as_drawn() -> None:
    quick = PassTimes.even(3, 1.0, 1.0, 0.0)
    assert picture(one_f_one_b(3, 4), quick) == [
        "FFF..BFB.B.B",
        ".FF.BFBFB.B.",
        "..FBFBFBFB..",
    ]


def test_gpipe_looks_as_drawn() -> None:
    quick = PassTimes.even(3, 1.0, 1.0, 0.0)
    assert picture(gpipe(3, 4), quick) == [
        "FFFF....BBBB",
        ".FFFF..BBBB.",
        "..FFFFBBBB..",
    ]


def test_zb_h1_looks_as_drawn() -> None:
    assert picture(zb_h1(3, 4), UNIT) == [
        "FFF..IWFIWIWIW",
        ".FF.IFIWFIWIWW",
        "..FIFIFIWFIWWW",
    ]


def test_zb_h2_leaves_no_bubble_when_all_passes_take_equal_time() -> None:
    schedule = zb_h2(4, 12)
    assert bubble_rate(schedule, PassTimes.even(4, 1.0, 1.0, 1.0)) == pytest.approx(0.0, abs=1e-12)


@given(COUNTS)
def test_every_schedule_by_hand_is_legal(counts: tuple[int, int]) -> None:
    p, m = counts
    for schedule in (gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), zb_h2(p, m)):
        check_schedule(schedule)
        assert (schedule.num_stages, schedule.micro_batches) == (p, m)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_every_interleaved_schedule_is_legal(p: int, rounds: int, v: int) -> None:
    schedule = interleaved(p, p * rounds, v)
    check_schedule(schedule)
    assert schedule.num_stages == p * v
    assert schedule.device_of == tuple(stage % p for stage in range(p * v))


@given(COUNTS)
def test_one_f_one_b_holds_p_minus_i_micro_batches_on_stage_i(counts: tuple[int, int]) -> None:
    p, m = counts
    assert peak_in_flight(one_f_one_b(p, m)) == tuple(min(m, p - i) for i in range(p))
    assert peak_in_flight(gpipe(p, m)) == (m,) * p


@given(COUNTS, st.floats(0.1, 1.0))
def test_h1_holds_at_most_p_activations_and_h2_at_most_twice_that(counts: tuple[int, int], weight_activation: float) -> None:
    p, m = counts
    assert max(peak_memory(zb_h1(p, m), weight_activation=weight_activation)) <= p + 1e-9
    assert max(peak_memory(zb_h2(p, m), weight_activation=weight_activation)) <= 2 * p - 1 + 1e-9


@given(COUNTS, st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_turns(counts: tuple[int, int], forward_s: float, backward_s: float) -> None:
    p, m = counts
    times = PassTimes.even(p, forward_s, backward_s / 2, backward_s / 2)
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        assert makespan_s(schedule, times) == pytest.approx((m + p - 1) * (forward_s + backward_s))
        assert bubble_rate(schedule, times) == pytest.approx((p - 1) / (m + p - 1))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 3.0))
def test_interleaving_divides_the_bubble_by_v(p: int, rounds: int, v: int, backward_s: float) -> None:
    m = p * rounds
    times = PassTimes.even(p * v, 1.0 / v, backward_s / 2 / v, backward_s / 2 / v)
    work_s = m * (1.0 + backward_s)
    assert makespan_s(interleaved(p, m, v), times) - work_s == pytest.approx((p - 1) * (1.0 + backward_s) / v)


@given(st.integers(2, 6), st.integers(2, 6), st.floats(0.5, 1.0), st.floats(0.5, 1.0))
def test_the_bubble_of_h1_is_p_minus_1_times_f_plus_b_minus_w(p: int, rounds: int, input_s: float, weight_s: float) -> None:
    """The closed form holds while no pass outlasts F, and with enough micro-batches to reach the steady state."""
    m = 2 * p * rounds
    weight_s = min(weight_s, input_s)
    times = PassTimes.even(p, 1.0, input_s, weight_s)
    cost_s = m * (1.0 + input_s + weight_s) / (1.0 - bubble_rate(zb_h1(p, m), times))
    assert cost_s - m * (1.0 + input_s + weight_s) == pytest.approx((p - 1) * (1.0 + input_s - weight_s))


@given(COUNTS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_slower_link_never_shortens_a_schedule(counts: tuple[int, int], comm_s: float, more_s: float) -> None:
    p, m = counts
    for schedule in (one_f_one_b(p, m), zb_h1(p, m), zb_h2(p, m)):
        quick, slow = (PassTimes.even(p, 1.0, 1.0, 0.5, c) for c in (comm_s, comm_s + more_s))
        assert makespan_s(schedule, slow) >= makespan_s(schedule, quick)


@given(COUNTS, st.data())
def test_no_act_begins_before_what_it_needs_has_ended(counts: tuple[int, int], data: st.DataObject) -> None:
    p, m = counts
    second = st.floats(0.1, 2.0)
    draw = lambda: tuple(data.draw(second) for _ in range(p))  # noqa: E731
    times = PassTimes(forward_s=draw(), backward_input_s=draw(), backward_weight_s=draw(), comm_s=data.draw(second))
    intervals = act_times(zb_h2(p, m), times)
    for stage in range(p):
        for k in range(m):
            f, i, w = (intervals[Action(stage, kind, k)] for kind in (Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT))
            assert f[1] <= i[0] + 1e-9 and i[1] <= w[0] + 1e-9
            if stage:
                assert intervals[Action(stage - 1, Pass.FORWARD, k)][1] + times.comm_s <= f[0] + 1e-9
                assert i[1] + times.comm_s <= intervals[Action(stage - 1, Pass.BACKWARD_INPUT, k)][0] + 1e-9


def test_a_circle_of_orders_is_refused_and_named() -> None:
    f, b = Pass.FORWARD, Pass.BACKWARD
    turned = PipelineSchedule("turned", ((Action(0, b, 0), Action(0, f, 0)), (Action(1, f, 0), Action(1, b, 0))))
    with pytest.raises(DeadLock, match="device 0 waits with 0B0 for 0F0"):
        check_schedule(turned)


def test_a_missing_weight_part_is_refused() -> None:
    f, i = Pass.FORWARD, Pass.BACKWARD_INPUT
    with pytest.raises(InvalidPlan, match="stage 0 performs 1 F, 0 B, 1 I, 0 W of micro-batch 0"):
        check_schedule(PipelineSchedule("half", ((Action(0, f, 0), Action(0, i, 0)),)))


def test_a_stage_on_two_devices_is_refused() -> None:
    f, b = Pass.FORWARD, Pass.BACKWARD
    with pytest.raises(InvalidPlan, match="stage 0 is performed by devices 0 and 1"):
        check_schedule(PipelineSchedule("torn", ((Action(0, f, 0),), (Action(0, b, 0),))))


def test_a_schedule_over_its_memory_limit_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="device 0 holds 8 of activations, more than the limit of 4"):
        check_schedule(gpipe(4, 8), 4)


def test_interleaving_refuses_rounds_of_unequal_size() -> None:
    with pytest.raises(Unsupported, match="7 micro-batches in 3 equal rounds"):
        interleaved(2, 7, 2)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zb_h1, zb_h2])
def test_a_count_below_one_is_refused(make: object) -> None:
    with pytest.raises(Unsupported, match="each is at least 1"):
        make(0, 4)  # type: ignore[operator]


def megatron_in_flight(stages: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    """Most micro-batches that each chunk holds at once (chunk j on device j mod p), counted along Megatron-LM's own order.

    Device i runs 2 (p-1-i) + (v-1) p forward passes, then one forward and one backward in turn; forward passes visit its chunks in rounds of
    p micro-batches, backward passes in the mirrored order.   Source: Narayanan et al. 2021, section 2.2.2.
    """
    peaks = [0] * (stages * virtual)
    passes = micro_batches * virtual
    for device in range(stages):
        held = [0] * virtual
        warm = min(passes, 2 * (stages - 1 - device) + (virtual - 1) * stages)
        for n in range(passes + warm):
            if n < passes:
                chunk = n // stages % virtual
                held[chunk] += 1
                place = chunk * stages + device
                peaks[place] = max(peaks[place], held[chunk])
            if n >= warm:
                held[virtual - 1 - (n - warm) // stages % virtual] -= 1
    return tuple(peaks)


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 4))
def test_interleaved_chunks_hold_what_megatrons_order_holds(p: int, v: int, rounds: int) -> None:
    assert peak_in_flight(interleaved(p, p * rounds, v)) == megatron_in_flight(p, v, p * rounds)


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 4))
def test_in_flight_of_a_placement_is_the_mean_over_its_stages_rounded_up(p: int, v: int, rounds: int) -> None:
    m = p * rounds
    order = interleaved(p, m, v)
    for stage in range(p):
        held = megatron_in_flight(p, v, m)[stage::p]
        mean = math.ceil(sum(held) / v)
        assert in_flight(Schedule.INTERLEAVED, stage, p, m, interleave=v) == mean
        assert in_flight(Schedule.GIVEN, stage, p, m, interleave=v, order=order) == mean
        assert in_flight(Schedule.GIVEN, stage, p, m, interleave=v) == m  # of an unknown order: all


@given(COUNTS)
def test_in_flight_of_a_schedule_by_name_is_that_of_its_order(counts: tuple[int, int]) -> None:
    p, m = counts
    for name, order in ((Schedule.GPIPE, gpipe), (Schedule.ONE_F_ONE_B, one_f_one_b), (Schedule.ZB_H1, zb_h1), (Schedule.ZB_H2, zb_h2)):
        assert max(in_flight(name, stage, p, m) for stage in range(p)) == max(peak_in_flight(order(p, m))), name
    assert in_flight(Schedule.ZB_AUTO, 0, p, m) == min(m, p)
    assert in_flight(Schedule.ZB_AUTO, 0, p, m, hold=1) == 1
