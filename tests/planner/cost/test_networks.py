"""What travels takes at least its share of the time on a network that may be faster, whatever travels, and no share is said of other clusters."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import axis_boxing_s, boxing_s, transfer_s
from planner.cost.networks import least_share
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective
from regista.clusters import resolve_cluster

TIMES = st.sampled_from([0.01, 0.3, 1.0, 1.7, 40.0])
MESHES = ((16,), (4, 4), (2, 8), (8, 2), (2, 2, 4))


def two_nodes(preset: str, racks: bool = False) -> Cluster:
    cluster = resolve_cluster(f"{preset}:2")
    return replace(cluster, nodes_per_rack=1, rack=LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=4e9)) if racks else cluster


def times(link: LinkSpec | None, rate: float, latency: float) -> LinkSpec | None:
    if link is None:
        return None
    return LinkSpec(latency_s=latency * link.latency_s, bandwidth_bytes_per_s=rate * link.bandwidth_bytes_per_s)


@given(
    st.sampled_from([("dgx-a100", False), ("dgx-a100", True), ("p3.16xlarge", False), ("p3.16xlarge", True), ("dgx-h100", False)]),
    st.lists(st.tuples(TIMES, TIMES), min_size=3, max_size=3),
    st.sampled_from(MESHES),
    st.sampled_from([kind for kind in Collective if kind is not Collective.LOCAL]),
    st.sampled_from([1.0, 3e4, 2.5e6, 7e8]),
    st.booleans(),
)
def test_no_collective_and_no_transfer_takes_less_than_the_least_share_of_its_time(
    given_cluster: tuple[str, bool],
    links: list[tuple[float, float]],
    mesh: tuple[int, ...],
    collective: Collective,
    size_bytes: float,
    bucketed: bool,
) -> None:
    other = two_nodes(*given_cluster)
    node, nic, rack = (times(link, *by) for link, by in zip((other.node, other.nic, other.rack), links, strict=True))
    assert node is not None
    cluster = replace(other, name="another", node=node, nic=nic, rack=rack)
    share = least_share(cluster, other)
    assert 0.0 < share <= 1.0
    assert (share == 1.0) is all(rate <= 1 and latency >= 1 for (rate, latency), link in zip(links, (node, nic, rack), strict=True) if link)
    ranks = tuple(range(prod(mesh)))
    half = ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]
    for here, there in [
        *((axis_boxing_s(c, mesh, axis, collective, size_bytes, bucketed=bucketed) for c in (cluster, other)) for axis in range(len(mesh))),
        (boxing_s(c, collective, size_bytes, ranks[::4], bucketed=bucketed) for c in (cluster, other)),
        (transfer_s(c, *half, size_bytes) for c in (cluster, other)),
    ]:
        assert here >= share * there * (1 - 1e-9)


def test_of_clusters_that_differ_in_more_than_links_no_share_is_said() -> None:
    cluster = two_nodes("dgx-a100")
    assert least_share(replace(cluster, source="elsewhere"), cluster) == 1.0
    for other in (
        replace(cluster, device=replace(cluster.device, memory_bytes=10**9)),
        replace(cluster, interconnect=None),
        replace(cluster, collective_times=2.0),
        replace(cluster, num_nodes=4),
        resolve_cluster("dgx-a100:1"),
        two_nodes("p3.16xlarge"),
    ):
        assert least_share(cluster, other) == least_share(other, cluster) == 0.0
    mixed = replace(cluster, parts=(cluster,))
    assert least_share(mixed, mixed) == 0.0


def test_a_lower_latency_counts_as_a_higher_rate_does() -> None:
    cluster = two_nodes("p3.16xlarge")
    assert cluster.nic is not None
    quick = replace(cluster, nic=replace(cluster.nic, latency_s=cluster.nic.latency_s / 4))
    assert least_share(quick, cluster) == pytest.approx(0.25)
    assert least_share(cluster, quick) == 1.0
