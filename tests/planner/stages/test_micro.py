"""Closed forms against the simulator's theory and against a replay of the schedules act by act; the choice against trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir.errors import Unsupported
from planner.stages.micro import (
    MicroBatches,
    choose_micro_batches,
    gpipe_s,
    interleaved_in_flight,
    interleaved_s,
    micro_batch_choices,
    one_f_one_b_s,
)
from simulator.theory import bubble_fraction, pipeline_step_s

Act = tuple[str, int, int]  # F or B, chunk, micro-batch
times = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def one_f_one_b(num_stages: int, m: int) -> list[list[Act]]:
    orders: list[list[Act]] = []
    for i in range(num_stages):
        warm = min(m, num_stages - 1 - i)
        steady = [act for n in range(m - warm) for act in (("F", i, warm + n), ("B", i, n))]
        orders.append([("F", i, n) for n in range(warm)] + steady + [("B", i, n) for n in range(m - warm, m)])
    return orders


def gpipe(num_stages: int, m: int) -> list[list[Act]]:
    return [[("F", i, n) for n in range(m)] + [("B", i, n) for n in range(m)] for i in range(num_stages)]


def interleaved(p: int, v: int, m: int) -> list[list[Act]]:
    """Megatron-LM's order: rounds of p micro-batches through the v chunks of a device."""
    orders: list[list[Act]] = []
    for i in range(p):
        forward = [("F", c * p + i, r * p + n) for r in range(m // p) for c in range(v) for n in range(p)]
        backward = [("B", c * p + i, r * p + n) for r in range(m // p) for c in reversed(range(v)) for n in range(p)]
        warm = min(m * v, 2 * (p - 1 - i) + (v - 1) * p)
        steady = [act for pair in zip(forward[warm:], backward, strict=False) for act in pair]
        orders.append(forward[:warm] + steady + backward[m * v - warm :])
    return orders


def replay_s(orders: list[list[Act]], forward_s: list[float], backward_s: list[float]) -> float:
    """When the last act ends, each device doing its acts in order, as soon as what they read is there; links are free."""
    last = len(forward_s) - 1
    done: dict[Act, float] = {}
    free, place = [0.0] * len(orders), [0] * len(orders)
    while any(at < len(order) for at, order in zip(place, orders, strict=True)):
        before = sum(place)
        for device, order in enumerate(orders):
            while place[device] < len(order):
                kind, chunk, n = order[place[device]]
                needs = ("F", chunk - 1, n) if kind == "F" else ("B", chunk + 1, n) if chunk < last else ("F", last, n)
                if chunk + (kind == "B") and needs not in done:
                    break
                start_s = max(free[device], done.get(needs, 0.0))
                free[device] = done[kind, chunk, n] = start_s + (forward_s if kind == "F" else backward_s)[chunk]
                place[device] += 1
        assert sum(place) > before, "the orders wait for each other"
    return max(done.values())


@given(st.integers(1, 6), st.integers(1, 20))
def test_equal_stages_take_the_time_of_theory(num_stages: int, m: int) -> None:
    theory_s = pytest.approx(pipeline_step_s(num_stages, m, 1.0, 2.0))
    assert one_f_one_b_s([3.0] * num_stages, m) == theory_s
    assert gpipe_s([1.0] * num_stages, [2.0] * num_stages, m) == theory_s
    assert interleaved_s([3.0] * num_stages, 1, m) == theory_s


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))
def test_interleaving_divides_the_bubble_by_the_chunks_per_device(p: int, v: int, rounds: int) -> None:
    m = p * rounds
    busy_s = 12.0 * m
    step = interleaved_s([12.0 / v] * (p * v), v, m)
    assert step - busy_s == pytest.approx(busy_s / (1 - bubble_fraction(p, m)) * bubble_fraction(p, m) / v)


@given(times, st.data(), st.integers(1, 9))
def test_gpipe_takes_exactly_the_closed_form(forward: list[int], data: st.DataObject, m: int) -> None:
    backward = data.draw(st.lists(st.integers(1, 9), min_size=len(forward), max_size=len(forward)))
    replayed = replay_s(gpipe(len(forward), m), list(map(float, forward)), list(map(float, backward)))
    assert gpipe_s(forward, backward, m) == pytest.approx(replayed)


@given(times, st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(1, 12))
@settings(max_examples=200)
def test_one_f_one_b_takes_no_longer_than_the_closed_form_where_backward_is_a_fixed_multiple(
    times_s: list[int], ratio: float, m: int
) -> None:
    backward = [ratio * t for t in times_s]
    replayed = replay_s(one_f_one_b(len(times_s), m), list(map(float, times_s)), backward)
    assert one_f_one_b_s([f + b for f, b in zip(times_s, backward, strict=True)], m) >= replayed * (1 - 1e-12)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4))
def test_equal_interleaved_chunks_take_exactly_the_closed_form(p: int, v: int, rounds: int) -> None:
    m, chunks = p * rounds, p * v
    orders = interleaved(p, v, m) if v > 1 else one_f_one_b(p, m)
    assert interleaved_s([3.0] * chunks, v, m) == pytest.approx(replay_s(orders, [1.0] * chunks, [2.0] * chunks))


@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 4))
def test_chunks_in_flight_are_those_of_the_order(p: int, v: int, rounds: int) -> None:
    held, peak = [0] * (p * v), [0] * (p * v)
    for order in interleaved(p, v, p * rounds):
        for kind, chunk, _ in order:
            held[chunk] += 1 if kind == "F" else -1
            peak[chunk] = max(peak[chunk], held[chunk])
    assert held == [0] * (p * v)
    assert interleaved_in_flight(p, v, p * rounds) == tuple(peak)


@given(st.integers(1, 200), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2))
def test_every_choice_slices_the_batch_evenly_and_none_is_missing(batch: int, stages: int, multiple: int, virtual: int) -> None:
    legal = {
        MicroBatches(m, batch // m)
        for m in range(1, batch + 1)
        if m * (batch // m) == batch and (batch // m) % multiple == 0 and (virtual == 1 or m % stages == 0)
    }
    if legal:
        assert set(micro_batch_choices(batch, stages, multiple, virtual)) == legal
    else:
        with pytest.raises(Unsupported, match="cannot be sliced evenly"):
            micro_batch_choices(batch, stages, multiple, virtual)


def price_s(choice: MicroBatches, p: int, overhead_s: float, largest: int) -> float | None:
    """A pipeline step whose acts have an overhead; sizes beyond ``largest`` do not fit."""
    if choice.samples > largest:
        return None
    return one_f_one_b_s([choice.samples * 1.0 + overhead_s] * p, choice.count)


@given(st.sampled_from([1, 12, 64, 96, 120]), st.integers(1, 8), st.floats(0, 10), st.integers(1, 128))
def test_the_chosen_micro_batches_are_the_best_of_all(batch: int, p: int, overhead_s: float, largest: int) -> None:
    choices = micro_batch_choices(batch)
    chosen = choose_micro_batches(
        choices,
        lambda c: price_s(c, p, overhead_s, largest),
        lambda c: pipeline_step_s(p, c.count, c.samples * 1.0, 0.0),
    )
    assert chosen.step_s == min(s for c in choices if (s := price_s(c, p, overhead_s, largest)) is not None)
    assert chosen.step_s == price_s(chosen.micro, p, overhead_s, largest)
    assert chosen.priced <= chosen.choices == len(choices)


@pytest.mark.parametrize(
    ("largest", "best", "priced"),
    [
        (64, MicroBatches(8, 8), [1, 2, 4, 8]),  # 16 samples take at least (4 + 3) 16 = 112 s, 8 samples take 110 s
        (2, MicroBatches(32, 2), [1, 2, 4]),  # 4 samples do not fit, so 8 are not asked for
    ],
)
def test_choices_that_cannot_be_better_or_cannot_fit_are_not_priced(largest: int, best: MicroBatches, priced: list[int]) -> None:
    asked: list[int] = []

    def counted(choice: MicroBatches) -> float | None:
        asked.append(choice.samples)
        return price_s(choice, 4, 2.0, largest)

    chosen = choose_micro_batches(micro_batch_choices(64), counted, lambda c: (c.count + 3) * c.samples * 1.0)
    assert chosen.micro == best
    assert asked == priced


def test_a_batch_that_never_fits_is_refused() -> None:
    with pytest.raises(Unsupported, match="none of 4 micro-batch sizes fits in memory, not even 1 samples"):
        choose_micro_batches(micro_batch_choices(8), lambda _: None)


@pytest.mark.parametrize(
    "call",
    [
        lambda: one_f_one_b_s([], 1),
        lambda: one_f_one_b_s([1.0], 0),
        lambda: interleaved_s([1.0] * 3, 2, 4),
        lambda: interleaved_s([1.0] * 4, 2, 3),
    ],
)
def test_counts_that_no_schedule_has_are_refused(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]
