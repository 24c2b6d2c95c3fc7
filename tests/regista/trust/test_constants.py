"""Constants of clusters, their spreads, and the cluster at the bad end of all of them."""

from __future__ import annotations

import tomllib

import pytest

from planner.cost import op_s
from planner.cost.analytic import kernels_s
from planner.cost.clusters import preset, preset_names
from planner.cost.collective_times import axis_s
from planner.ir.cluster import cluster_toml, parse_cluster
from planner.ir.collective import Collective
from planner.ir.errors import InvalidCluster, Unsupported
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.tensor import DType
from regista.trust.constants import DEFAULT, constants_of, parse_spreads, pessimistic, search_cluster, spreads_text, with_constants


@pytest.mark.parametrize("name", preset_names())
def test_every_price_of_the_pessimistic_cluster_is_at_least_as_high(name: str) -> None:
    cluster = preset(name)
    bad = pessimistic(cluster, constants_of(cluster))
    assert bad.device.memory_bytes < cluster.device.memory_bytes
    if cluster.devices_per_node > 1:
        sizes = (1e3, 1e6, 1e9)
        mesh = (cluster.devices_per_node,)
        assert all(
            axis_s(bad, mesh, 0, Collective.ALL_REDUCE, size, False) > axis_s(cluster, mesh, 0, Collective.ALL_REDUCE, size, False)
            for size in sizes
        )
    if cluster.device.kernels:
        works = (KernelWork(kind=KernelKind.PASS, dtype=DType.BFLOAT16, shape=(), flop=10**9, size_bytes=10**9),)
        assert kernels_s(bad, works) > kernels_s(cluster, works)
    else:
        assert op_s(bad, 1e12, 1e9) > op_s(cluster, 1e12, 1e9)


@pytest.mark.parametrize("name", ["dlperf-v100", "h100-sxm"])
def test_a_constant_is_a_key_of_the_clusters_file(name: str) -> None:
    cluster = preset(name)
    for constant in constants_of(cluster):
        low, high = constant.ends
        changed = with_constants(cluster, {constant.key: high})
        (same,) = [other for other in constants_of(changed) if other.key == constant.key]
        assert low < constant.value < high == pytest.approx(same.value)
        assert constant.bad_end == (high if constant.more_is_worse else low)


def test_spreads_are_what_was_asked_for_then_what_is_known_then_the_default() -> None:
    own = {c.key: c for c in constants_of(preset("h100-sxm"), {"device.pass_times": 0.3})}
    assert own["device.pass_times"].spread == 0.3 and own["device.pass_times"].origin == "asked for"
    assert own["device.product_times"].origin == "90 % of left-out points" and own["device.product_times"].spread != DEFAULT
    assert own["device.act_overhead_us"].spread == DEFAULT
    assert {c.spread for c in constants_of(preset("h100-sxm"), {"": 0.2})} == {0.2}


def test_a_recorded_plan_finds_the_cluster_of_its_search_again() -> None:
    cluster = preset("dlperf-v100")
    constants = constants_of(cluster, {"links.nic.bandwidth_GBps": 0.5})
    assert search_cluster(cluster, spreads_text(constants)).nic == pessimistic(cluster, constants).nic
    assert search_cluster(cluster, "") is cluster


def test_stretched_times_survive_the_file_and_belong_to_tables() -> None:
    cluster = with_constants(preset("h100-sxm"), {"device.product_times": 1.5, "links.collective_times": 1.25})
    again = parse_cluster(tomllib.loads(cluster_toml(cluster)), "x", "x")
    assert (again.device.product_times, again.collective_times, again.device.pass_times) == (1.5, 1.25, 1.0)
    for key in ("device.product_times", "links.collective_times"):
        with pytest.raises(InvalidCluster, match=r"without (kernels|interconnect)"):
            with_constants(preset("tepdist-s1"), {key: 1.5})
    with pytest.raises(InvalidCluster, match=r"device\.pass_times = 0"):
        with_constants(preset("h100-sxm"), {"device.pass_times": 0.0})


@pytest.mark.parametrize("text", ["x", "a=", "links.nic=0", "a=-1", "20", "a=nan", "a=inf"])
def test_no_share_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="spread"):
        parse_spreads([text])
