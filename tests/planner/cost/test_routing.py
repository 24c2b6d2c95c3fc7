"""Loads of experts: who is popular, what is chosen, what is kept, what the busiest rank has."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.routing import ExpertLoad, Popularity, Routing
from planner.cost.routing.loads import draw_loads
from planner.ir.errors import Unsupported

ZIPF = Routing(kind=Popularity.ZIPF, exponent=1.2)


def _one_by_one(shares: tuple[float, ...], top_k: int) -> list[float]:
    """The oracle: a token draws its experts one after the other from those left; every order of draws is counted."""
    chance = [0.0] * len(shares)
    for order in permutations(range(len(shares)), top_k):
        drawn, left = 1.0, 1.0
        for expert in order:
            drawn, left = drawn * shares[expert] / left, left - shares[expert]
        for expert in order:
            chance[expert] += drawn
    return chance


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (6, 3), (8, 2), (32, 2)])
def test_a_tokens_choice_is_that_of_draws_one_by_one_to_8_percent_and_the_most_popular_experts_to_6(experts: int, top_k: int) -> None:
    exact = _one_by_one(ZIPF.popularity(experts), top_k)
    assert ZIPF.choice(experts, top_k) == pytest.approx(exact, rel=0.08)
    assert ZIPF.choice(experts, top_k)[0] == pytest.approx(exact[0], rel=0.06)
    assert Routing().choice(experts, top_k) == pytest.approx([top_k / experts] * experts)


def test_popularity_is_zipfs_or_the_histograms_and_a_spelling_is_read_back() -> None:
    assert Routing.parse("zipf:1").popularity(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert Routing.parse("histogram:1,3,0").popularity(3) == pytest.approx([0.25, 0.75, 0])
    for text in ("uniform", "zipf:1.2", "histogram:1,3,0"):
        assert str(Routing.parse(text)) == text


@settings(max_examples=60, deadline=None)
@given(
    exponent=st.floats(0, 3),
    experts=st.integers(1, 12),
    more=st.integers(0, 60),
    top=st.integers(1, 12),
    factor=st.sampled_from([None, 0.5, 1.0, 1.25]),
)
def test_no_token_is_lost_but_those_above_the_capacity_and_none_visits_an_expert_twice(
    exponent: float, experts: int, more: int, top: int, factor: float | None
) -> None:
    top_k, tokens = min(top, experts), experts + more
    routing = Routing(kind=Popularity.ZIPF, exponent=exponent)
    loads = draw_loads(routing, num_experts=experts, tokens=tokens, top_k=top_k, capacity_factor=factor, draws=5)
    assert (loads.wanted.sum(axis=1) == tokens * top_k).all()
    assert loads.wanted.max() <= tokens
    room = math.inf if factor is None else math.ceil(factor * tokens * top_k / experts)
    assert (loads.kept == np.minimum(loads.wanted, room)).all()
    assert (loads.skew >= 1 - 1e-12).all()
    assert loads.skew.max() <= experts / top_k + 1e-12


def test_mean_loads_are_the_choice_and_the_histogram_says_whose() -> None:
    routing = Routing.parse("histogram:5,1,1,1")
    loads = draw_loads(routing, num_experts=4, tokens=400, top_k=1, draws=200)
    assert loads.wanted.mean(axis=0) == pytest.approx([250, 50, 50, 50], rel=0.03)
    assert np.median(loads.skew) == pytest.approx(2.5, rel=0.03)
    assert loads.of_ranks(2).mean(axis=0) == pytest.approx([1.5, 0.5], rel=0.03)
    assert (loads.of_ranks(1) == 1).all()


def test_the_popular_expert_of_zipf_lies_on_every_rank_alike() -> None:
    busiest = draw_loads(ZIPF, num_experts=8, tokens=800, top_k=1, draws=400).of_ranks(4).argmax(axis=1)
    assert np.bincount(busiest, minlength=4) == pytest.approx([100] * 4, rel=0.3)


def test_parts_of_experts_are_those_of_uneven_splits() -> None:
    """5 experts on 2 ranks: 3 and 2, over the even load of 3."""
    loads = draw_loads(Routing.parse("histogram:1,1,1,1,1"), num_experts=5, tokens=50_000, top_k=1)
    assert loads.of_ranks(2)[0] == pytest.approx([1, 2 / 3], rel=0.03)


def test_the_busiest_rank_of_a_quantile_grows_with_quantile_ranks_and_exponent_and_is_drawn_once_and_for_all() -> None:
    def busiest(exponent: float, quantile: float, ranks: int) -> float:
        return ExpertLoad(routing=Routing(kind=Popularity.ZIPF, exponent=exponent), top_k=2, quantile=quantile).busiest(16, 4096, ranks)

    assert 1 < busiest(1.2, 0.5, 4) < busiest(1.2, 0.9, 4) < busiest(1.2, 0.9, 8) < busiest(1.2, 0.9, 16)
    assert 1 <= busiest(0, 0.9, 8) < busiest(0.5, 0.9, 8) < busiest(1.2, 0.9, 8)
    first = ExpertLoad(routing=ZIPF, seed=1).draws(8, 100, draws=3)
    assert (first.wanted == ExpertLoad(routing=ZIPF, seed=1).draws(8, 100, draws=3).wanted).all()
    assert (first.wanted != ExpertLoad(routing=ZIPF, seed=2).draws(8, 100, draws=3).wanted).any()


def test_capacity_bounds_the_busiest_and_says_what_is_dropped() -> None:
    free, bounded = (ExpertLoad(routing=ZIPF, top_k=2, capacity_factor=factor) for factor in (None, 1.25))
    assert free.busiest(8, 4096, 8) > 2.5
    assert bounded.busiest(8, 4096, 8) == pytest.approx(1.25, rel=1e-3)
    assert free.dropped(8, 4096) == 0
    assert 0.2 < bounded.dropped(8, 4096) < 0.6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf", "'zipf' is unknown; write uniform"),
        ("zipf:-1", "exponent -1; it is between 0"),
        ("zipf:nan", "exponent nan"),
        ("zipf:inf", "exponent inf"),
        ("uniform:2", "'uniform:2' is unknown"),
        ("gauss:1", "'gauss:1' is unknown"),
        ("histogram:", "is unknown"),
        ("histogram:1,x", "is unknown"),
        ("histogram:1,-2", "holds -2"),
        ("histogram:1,nan", "holds nan"),
        ("histogram:0,0", "of 2 experts has 0 tokens in all"),
    ],
)
def test_a_routing_that_is_none_is_refused_with_its_numbers(text: str, message: str) -> None:
    with pytest.raises(Unsupported, match=message.replace("(", r"\(")):
        Routing.parse(text)


def test_numbers_that_do_not_fit_the_layer_are_refused() -> None:
    with pytest.raises(Unsupported, match="16 experts for 8 tokens; take at most"):
        draw_loads(Routing(), num_experts=16, tokens=8, top_k=1)
    with pytest.raises(Unsupported, match="histogram of 2 experts for a layer of 4"):
        draw_loads(Routing.parse("histogram:1,2"), num_experts=4, tokens=8, top_k=1)
    with pytest.raises(Unsupported, match="top 5 of 4 experts"):
        draw_loads(Routing(), num_experts=4, tokens=8, top_k=5)
    with pytest.raises(Unsupported, match="top 2 of 1 experts that tokens go to"):
        draw_loads(Routing.parse("histogram:1,0"), num_experts=2, tokens=8, top_k=2)
    with pytest.raises(Unsupported, match="capacity factor 0"):
        draw_loads(Routing(), num_experts=4, tokens=8, top_k=1, capacity_factor=0)
    with pytest.raises(Unsupported, match="4 experts on 8 ranks"):
        draw_loads(Routing(), num_experts=4, tokens=8, top_k=1).of_ranks(8)
    with pytest.raises(Unsupported, match="quantile 1; it is between 0 and 1"):
        ExpertLoad(routing=Routing(), quantile=1)


def test_a_record_is_read_back_and_one_that_lacks_a_part_is_refused() -> None:
    load = ExpertLoad(routing=ZIPF, top_k=2, capacity_factor=1.25, quantile=0.8)
    assert ExpertLoad.recorded(load.as_text()) == load
    assert ExpertLoad.recorded({"zero": "1"}) is None
    with pytest.raises(Unsupported, match="recorded without top_k; plan the model again"):
        ExpertLoad.recorded({"routing": "uniform"})
