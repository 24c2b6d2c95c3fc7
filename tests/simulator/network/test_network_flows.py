"""Flows on shared links: exact small stories for each way of sharing, and the laws of a fair share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.errors import DeadLock, InvalidCluster, InvalidPlan
from simulator.network import Sharing, simulate_flows
from simulator.network.links import Flow, Link, Route
from simulator.network.sharing import max_min_rates

WIRE = Link(name="wire", bandwidth_bytes_per_s=100.0)


def over(*links: str, latency_s: float = 0.0) -> Route:
    return Route(links=links, latency_s=latency_s)


def flow(name: str, size_bytes: float, *after: str, route: Route | None = None, not_before_s: float = 0.0) -> Flow:
    return Flow(name=name, route=route or over("wire"), size_bytes=size_bytes, after=after, not_before_s=not_before_s)


# --- one link -----------------------------------------------------------------------------------------------------------


def test_a_flow_alone_takes_its_latency_and_its_bytes_over_the_narrowest_link():
    links = [WIRE, Link(name="narrow", bandwidth_bytes_per_s=25.0)]
    lone = flow("a", 100, route=over("wire", "narrow", latency_s=0.5), not_before_s=2.0)
    for sharing in Sharing:
        times = simulate_flows([lone], links, sharing).times["a"]
        assert (times.start_s, times.end_s) == (2.0, 6.5)


@pytest.mark.parametrize(
    ("sharing", "ends"),
    [
        (Sharing.NONE, (2.0, 2.0, 2.5)),
        (Sharing.FIFO, (2.0, 3.0, 4.5)),
        # a alone until 1 s (100 bytes left), a, b and c at 100/3 until a and b end at 4 s, c alone for its last 50 bytes
        (Sharing.MAX_MIN, (4.0, 4.0, 4.5)),
    ],
)
def test_three_flows_on_one_link_end_when_their_way_of_sharing_says(sharing, ends):
    flows = [flow("a", 200), flow("b", 100, not_before_s=1.0), flow("c", 150, not_before_s=1.0)]
    trace = simulate_flows(flows, [WIRE], sharing)
    assert [trace.times[name].end_s for name in "abc"] == pytest.approx(ends)


def test_a_flow_waits_for_all_flows_it_comes_after():
    trace = simulate_flows([flow("a", 100), flow("b", 300), flow("c", 100, "a", "b", route=over("wire", latency_s=0.25))], [WIRE])
    assert (trace.times["c"].start_s, trace.times["c"].end_s) == (4.0, 5.25)


def test_a_fifo_flow_waits_until_it_is_the_oldest_on_every_link_of_its_route():
    links = [Link(name=name, bandwidth_bytes_per_s=100.0) for name in ("x", "y")]
    flows = [flow("a", 100, route=over("x")), flow("b", 100, route=over("x", "y")), flow("c", 100, route=over("y"))]
    trace = simulate_flows(flows, links, Sharing.FIFO)
    assert [trace.times[name].end_s for name in "abc"] == [1.0, 2.0, 3.0]  # c stands behind b on y, although y is idle until 1 s


def test_a_fair_flow_gets_what_its_bottleneck_leaves():
    # a and b share x (50 each); b needs only 50 of y, so c has 100 of y's 150
    links = [Link(name="x", bandwidth_bytes_per_s=100.0), Link(name="y", bandwidth_bytes_per_s=150.0)]
    flows = [flow("a", 100, route=over("x")), flow("b", 100, route=over("x", "y")), flow("c", 200, route=over("y"))]
    trace = simulate_flows(flows, links)
    assert [trace.times[name].end_s for name in "abc"] == [2.0, 2.0, 2.0]
    assert trace.rate_on("y") == ((0.0, 2.0, 150.0),)
    assert (trace.carried_bytes("y"), trace.utilisation("x")) == (300, 1.0)


def test_an_empty_route_and_zero_bytes_take_only_the_latency():
    trace = simulate_flows([flow("a", 0), flow("b", 100, "a", route=over(latency_s=0.5))], [WIRE])
    assert (trace.times["a"].end_s, trace.times["b"].end_s) == (0.0, 0.5)


# --- laws ---------------------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Flow], list[Link]]:
    """Up to 8 flows over up to 4 links, some waiting for earlier ones."""
    links = [Link(name=f"l{i}", bandwidth_bytes_per_s=draw(st.integers(1, 40))) for i in range(draw(st.integers(1, 4)))]
    flows = []
    for number in range(draw(st.integers(1, 8))):
        names = draw(st.lists(st.sampled_from([link.name for link in links]), min_size=1, max_size=3, unique=True))
        after = draw(st.lists(st.sampled_from(range(number)), max_size=2, unique=True)) if number else []
        route = over(*names, latency_s=draw(st.integers(0, 4)) / 4)
        waits = [f"f{i}" for i in after]
        flows.append(flow(f"f{number}", draw(st.integers(0, 100)), *waits, route=route, not_before_s=draw(st.integers(0, 8)) / 2))
    return flows, links


def bottleneck_of(
    flow: str, rates: Mapping[str, float], uses: Mapping[str, Mapping[str, float]], bandwidth: Mapping[str, float], *, slack: float = 1e-9
) -> str | None:
    """A link of ``flow`` that is full and on which no flow is faster; None: the rates are not max-min fair.

    Args:
        slack: relative rounding granted to sums of rates.
    """
    for name in uses[flow]:
        on_it = {other: weights[name] for other, weights in uses.items() if name in weights}
        full = sum(rates[other] * weight for other, weight in on_it.items()) >= bandwidth[name] * (1 - slack)
        if full and rates[flow] >= max(rates[other] for other in on_it) * (1 - slack):
            return name
    return None


@given(networks(), st.data())
def test_max_min_gives_every_flow_a_bottleneck(network, data):
    flows, links = network
    uses = {f.name: {name: data.draw(st.sampled_from([0.25, 0.5, 1.0, 3.0])) for name in f.route.links} for f in flows}
    bandwidth = {link.name: link.bandwidth_bytes_per_s for link in links}
    rates = max_min_rates(uses, bandwidth)
    for name in bandwidth:
        assert sum(rates[f] * weights[name] for f, weights in uses.items() if name in weights) <= bandwidth[name] * (1 + 1e-9)
    assert all(bottleneck_of(name, rates, uses, bandwidth) for name in uses)


def test_rates_that_are_not_fair_have_a_flow_without_a_bottleneck():
    uses = {"a": {"x": 1.0}, "b": {"x": 1.0}}
    assert bottleneck_of("a", {"a": 40.0, "b": 60.0}, uses, {"x": 100.0}) is None
    assert bottleneck_of("b", {"a": 40.0, "b": 60.0}, uses, {"x": 100.0}) == "x"


@given(networks(), st.sampled_from(Sharing))
def test_every_flow_moves_all_its_bytes_after_what_it_waits_for(network, sharing):
    flows, links = network
    trace = simulate_flows(flows, links, sharing)
    for f in flows:
        times = trace.times[f.name]
        assert sum((until - begin) * rate for begin, until, rate in times.pieces) == pytest.approx(f.size_bytes)
        assert times.start_s == max([f.not_before_s, *(trace.times[name].end_s for name in f.after)])
        assert times.end_s >= times.start_s + f.route.latency_s


@given(networks(), st.sampled_from([Sharing.FIFO, Sharing.MAX_MIN]))
def test_no_link_carries_more_than_its_bandwidth_at_any_time(network, sharing):
    flows, links = network
    trace = simulate_flows(flows, links, sharing)
    for link in links:
        assert all(rate <= link.bandwidth_bytes_per_s * (1 + 1e-9) for *_, rate in trace.rate_on(link.name))


@given(networks())
def test_flows_that_share_no_link_do_not_know_each_other(network):
    flows, links = network
    far = [Link(name=f"far-{link.name}", bandwidth_bytes_per_s=link.bandwidth_bytes_per_s) for link in links]
    twins = [
        Flow(
            name=f"far-{f.name}",
            route=over(*(f"far-{name}" for name in f.route.links), latency_s=f.route.latency_s),
            size_bytes=f.size_bytes,
            after=tuple(f"far-{name}" for name in f.after),
            not_before_s=f.not_before_s,
        )
        for f in flows
    ]
    for sharing in Sharing:
        alone, both = simulate_flows(flows, links, sharing), simulate_flows([*flows, *twins], [*links, *far], sharing)
        assert all(both.times[f.name] == alone.times[f.name] == both.times[f"far-{f.name}"] for f in flows)


@given(networks())
def test_sharing_never_makes_a_flow_that_waits_for_nobody_faster(network):
    flows, links = network
    free = [Flow(name=f.name, route=f.route, size_bytes=f.size_bytes, not_before_s=f.not_before_s) for f in flows]
    alone = simulate_flows(free, links, Sharing.NONE)
    for sharing in (Sharing.FIFO, Sharing.MAX_MIN):
        shared = simulate_flows(free, links, sharing)
        assert all(shared.times[f.name].end_s >= alone.times[f.name].end_s * (1 - 1e-12) for f in free)


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_flows_that_wait_in_a_circle_are_named():
    with pytest.raises(DeadLock, match=r"3 flows never start.*b -> c -> b"):
        simulate_flows([flow("a", 1, "b"), flow("b", 1, "c"), flow("c", 1, "b")], [WIRE])


@pytest.mark.parametrize(
    ("flows", "message"),
    [
        ([flow("a", 1), flow("a", 1)], "two flows are called a"),
        ([flow("a", 1, route=over("rope"))], "passes link rope"),
        ([flow("a", 1, "z")], "waits for flow z"),
    ],
)
def test_flows_over_what_does_not_exist_are_refused(flows, message):
    with pytest.raises(InvalidPlan, match=message):
        simulate_flows(flows, [WIRE])


def test_a_flow_that_never_ends_is_refused():
    crawling = Link(name="crawling", bandwidth_bytes_per_s=1e-300)
    with pytest.raises(InvalidCluster, match="flow a ends after more seconds than a float can hold"):
        simulate_flows([flow("a", 1e300, route=over("crawling")), flow("b", 1, "a")], [WIRE, crawling])


def test_links_routes_and_flows_with_impossible_numbers_are_refused():
    with pytest.raises(InvalidCluster, match="bandwidth is finite and > 0"):
        Link(name="dead", bandwidth_bytes_per_s=0.0)
    with pytest.raises(InvalidCluster, match="latency is finite and >= 0"):
        over("wire", latency_s=-1.0)
    with pytest.raises(InvalidCluster, match="uses a link twice"):
        over("wire", "wire")
    with pytest.raises(InvalidPlan, match="size_bytes = -1"):
        flow("a", -1)
