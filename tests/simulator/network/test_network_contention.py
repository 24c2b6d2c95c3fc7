"""Two all-reduces at once on one nic: exact times for each way of sharing (SEMANTICS has no such law; these are the stories of the experiment)."""

from __future__ import annotations

import pytest

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from simulator.network import Sharing, simulate_flows
from simulator.network.algorithms import ring_all_reduce
from simulator.network.collectives import collective_flows
from simulator.network.fabric import Machine
from simulator.network.flows import FlowTrace

# 2 nodes of 2 devices, nic 1 byte/s; ring A of ranks 0 and 2, ring B of ranks 1 and 3; a round of 4 bytes is 2 bytes, u = 2 s alone
NIC = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1.0)
NODE = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=100.0)


def machine(num_nodes: int = 2, per_node: int = 2) -> Machine:
    device = DeviceSpec(kind="gpu", memory_bytes=10**9, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=1e12)
    cluster = Cluster(name="c", source="", num_nodes=num_nodes, devices_per_node=per_node, device=device, node=NODE, nic=NIC)
    return Machine(cluster)


def two(sharing: Sharing, later_s: float = 0.0) -> tuple[float, float, FlowTrace]:
    fabric = machine()
    a = collective_flows(ring_all_reduce(2), fabric, 4, ranks=(0, 2), name="A")
    b = collective_flows(ring_all_reduce(2), fabric, 4, ranks=(1, 3), name="B", not_before_s=later_s)
    trace = simulate_flows((*a, *b), fabric.links, sharing)
    ends = [max(trace.times[flow.name].end_s for flow in flows) for flows in (a, b)]
    return ends[0], ends[1], trace


@pytest.mark.parametrize(
    ("sharing", "later_s", "a_end_s", "b_end_s"),
    [
        (Sharing.NONE, 0.0, 4.0, 4.0),  # as if alone
        (Sharing.FIFO, 0.0, 6.0, 8.0),  # A0 B0 A1 B1, 2 s each
        (Sharing.MAX_MIN, 0.0, 8.0, 8.0),  # each at half the nic
        (Sharing.NONE, 1.0, 4.0, 5.0),
        (Sharing.FIFO, 1.0, 6.0, 8.0),  # B0 waits for A0 until 2 s
        (Sharing.MAX_MIN, 1.0, 7.0, 8.0),  # A alone for 1 s; halves until A has its last 3 bytes at 7 s; B alone for its last byte
    ],
)
def test_two_all_reduces_on_one_nic_take_exactly(sharing, later_s, a_end_s, b_end_s):
    assert two(sharing, later_s)[:2] == (a_end_s, b_end_s)


@pytest.mark.parametrize("sharing", [Sharing.FIFO, Sharing.MAX_MIN])
def test_two_all_reduces_keep_the_nic_busy_to_the_end(sharing):
    trace = two(sharing)[2]
    assert trace.utilisation("nic:out:0") == trace.utilisation("nic:out:1") == pytest.approx(1.0)
