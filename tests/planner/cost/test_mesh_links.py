"""What a collective along a mesh axis pays when all lines of the axis are at work at once; and the meshes worth searching over."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.boxing import boxing_path
from planner.cost import AnalyticCost, axis_boxing_s, axis_link, boxing_s, meshes, parse_mesh, transfer_s
from planner.cost.mesh_links import hop_link, line_link
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing, Plan, TaskKind
from planner.ir.sbp import B, NdSbp, P, coordinates
from planner.ir.tensor import DType, TensorType
from planner.parallelism.make import PlanOptions, make_plan
from planner.search.layout_costs import LayoutCosts
from zoo import ZOO

RING = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
NODE = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=100e9)
NIC = LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=24e9)
RACK = LinkSpec(latency_s=1e-4, bandwidth_bytes_per_s=36e9)


def cluster_of(num_nodes: int, devices_per_node: int, nodes_per_rack: int | None = None) -> Cluster:
    return Cluster(
        name="made",
        source="tests",
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        device=DeviceSpec(kind="gpu", memory_bytes=10**12, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=1e12, act_overhead_s=1e-6),
        node=NODE,
        nic=NIC,
        nodes_per_rack=nodes_per_rack,
        rack=RACK if nodes_per_rack else None,
    )


def gbps(cluster: Cluster, mesh: tuple[int, ...], axis: int, collective: Collective = Collective.ALL_REDUCE) -> float:
    return axis_link(cluster, mesh, axis, collective).bandwidth_bytes_per_s / 1e9


# --- closed forms ------------------------------------------------------------------------------------------------------------


def test_an_axis_inside_a_node_has_the_devices_ports_to_itself() -> None:
    for mesh, axis in (((8,), 0), ((2, 4), 0), ((2, 4), 1), ((2, 2, 2), 1)):
        assert axis_link(cluster_of(1, 8), mesh, axis) == NODE


def test_one_ring_through_two_nodes_has_the_whole_nic_and_eight_rings_an_eighth_each() -> None:
    two = cluster_of(2, 8)
    assert gbps(two, (16,), 0) == 24
    assert gbps(two, (2, 8), 0) == 24 / 8
    assert gbps(two, (2, 8), 1) == 100


def test_a_ring_that_leaves_the_node_four_times_at_once_has_a_quarter_of_the_nic() -> None:
    """Mesh 4,4 on nodes of 8: a line of axis 0 has two devices in each node, and the four lines cross at once."""
    assert gbps(cluster_of(2, 8), (4, 4), 0) == 24 / 4


def test_racks_share_their_uplink_among_their_nodes() -> None:
    racks = cluster_of(4, 2, nodes_per_rack=2)
    assert gbps(racks, (4, 2), 0) == min(24 / 2, 36 / 2), "two rings, each leaving a rack once"
    assert gbps(racks, (2, 4), 0) == min(24 / 2, 36 / 4), "four rings between the two racks: the uplink is the narrow place"
    assert gbps(racks, (2, 2, 2), 1) == 24 / 2, "between the nodes of one rack nothing crosses the uplink"


def test_the_latency_is_that_of_the_outermost_link() -> None:
    racks = cluster_of(4, 2, nodes_per_rack=2)
    assert [axis_link(racks, (2, 2, 2), axis).latency_s for axis in range(3)] == [RACK.latency_s, NIC.latency_s, NODE.latency_s]


def test_an_all_to_all_through_two_nodes_sends_half_of_everything_out_of_the_node() -> None:
    """Each of 8 devices of a node sends 8/15 of its bytes to the other node; a ring sends them once."""
    two = cluster_of(2, 8)
    total = 10**9
    out_of_a_node = 8 * 8 * total / 16**2
    paid_s = axis_boxing_s(two, (16,), 0, Collective.ALL_TO_ALL, total, bucketed=True)
    assert paid_s == pytest.approx(out_of_a_node / NIC.bandwidth_bytes_per_s)
    assert gbps(two, (16,), 0, Collective.ALL_TO_ALL) < gbps(two, (16,), 0)


def test_between_two_devices_an_all_to_all_is_a_ring() -> None:
    for mesh, axis in (((2, 8), 0), ((8, 2), 1)):
        assert gbps(cluster_of(2, 8), mesh, axis, Collective.ALL_TO_ALL) == gbps(cluster_of(2, 8), mesh, axis)


def test_the_ports_of_the_devices_do_not_limit_what_only_crosses_nodes() -> None:
    slow = replace(cluster_of(4, 1), node=LinkSpec(latency_s=1.0, bandwidth_bytes_per_s=1.0))
    assert axis_link(slow, (4,), 0) == NIC


# --- against counting every flow ---------------------------------------------------------------------------------------------


def counted(cluster: Cluster, mesh: tuple[int, ...], axis: int, collective: Collective) -> float:
    """Bytes/s of one device, from all messages of one round of all lines on all stages, each port and uplink shared evenly."""
    size = prod(mesh)
    load: Counter[tuple[str, int]] = Counter()
    for stage in range(cluster.num_devices // size):
        at = {c: stage * size + i for i, c in enumerate(coordinates(mesh))}
        for c in at:
            line = [at[(*c[:axis], i, *c[axis + 1 :])] for i in range(mesh[axis])]
            here = at[c]
            to = [r for r in line if r != here] if collective is Collective.ALL_TO_ALL else [line[(c[axis] + 1) % len(line)]]
            for other in to:
                share = 1 / len(to)
                if cluster.node_of(here) == cluster.node_of(other):
                    load["port", here] = 1  # a port sends all of its device's bytes, one after another
                else:
                    load["nic", cluster.node_of(here)] += share  # type: ignore[assignment]
                if cluster.rack_of(here) != cluster.rack_of(other):
                    load["rack", cluster.rack_of(here)] += share  # type: ignore[assignment]
    bandwidth = {"port": NODE.bandwidth_bytes_per_s, "nic": NIC.bandwidth_bytes_per_s, "rack": RACK.bandwidth_bytes_per_s}
    return min(bandwidth[link] / crossing for (link, _), crossing in load.items())


@given(
    mesh=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3).map(tuple),
    devices_per_node=st.sampled_from([1, 2, 3, 4, 8]),
    num_nodes=st.sampled_from([1, 2, 4, 6, 9]),
    nodes_per_rack=st.sampled_from([None, 1, 2, 3]),
    collective=st.sampled_from([Collective.ALL_REDUCE, Collective.ALL_TO_ALL]),
    data=st.data(),
)
def test_an_axis_link_is_the_slowest_share_when_every_message_is_counted(
    mesh: tuple[int, ...], devices_per_node: int, num_nodes: int, nodes_per_rack: int | None, collective: Collective, data: st.DataObject
) -> None:
    cluster = cluster_of(num_nodes, devices_per_node, nodes_per_rack)
    axis = data.draw(st.integers(0, len(mesh) - 1))
    if cluster.num_devices % prod(mesh) or mesh[axis] == 1:
        return
    assert axis_link(cluster, mesh, axis, collective).bandwidth_bytes_per_s == pytest.approx(counted(cluster, mesh, axis, collective))


@given(extent=st.sampled_from([2, 3, 4, 8]), stride=st.sampled_from([1, 2, 4]), collective=st.sampled_from([*RING, Collective.ALL_TO_ALL]))
def test_a_line_of_ranks_has_the_link_of_its_axis(extent: int, stride: int, collective: Collective) -> None:
    cluster = cluster_of(12, 4, nodes_per_rack=3)
    for first in (0, stride - 1, extent * stride):
        line = tuple(range(first, first + extent * stride, stride))
        assert line_link(cluster, line, collective) == axis_link(cluster, (extent, stride), 0, collective)


def test_ranks_that_are_no_line_of_a_mesh_are_taken_to_be_alone() -> None:
    two = cluster_of(2, 4)
    assert line_link(two, (0, 1, 4)).bandwidth_bytes_per_s == 24e9
    assert line_link(two, (3, 4)).bandwidth_bytes_per_s == 24e9, "spaced by 1 but across the nodes: no line of a mesh begins at 3"
    assert line_link(two, (2, 0)) == NODE


@given(num_nodes=st.sampled_from([2, 4, 8]), lines=st.sampled_from([1, 2, 4, 8]), size=st.integers(1, 10**9))
def test_so_many_lines_through_a_nic_take_so_many_times_as_long_as_one(num_nodes: int, lines: int, size: int) -> None:
    alone_s = axis_boxing_s(cluster_of(num_nodes, 1), (num_nodes,), 0, Collective.ALL_REDUCE, size, bucketed=True)
    together_s = axis_boxing_s(cluster_of(num_nodes, lines), (num_nodes, lines), 0, Collective.ALL_REDUCE, size, bucketed=True)
    assert together_s == pytest.approx(lines * alone_s)


# --- stages --------------------------------------------------------------------------------------------------------------------


def test_eight_senders_of_a_node_share_its_nic_and_a_lone_one_has_it() -> None:
    two = cluster_of(2, 8)
    assert hop_link(two, range(8), range(8, 16)).bandwidth_bytes_per_s == 24e9 / 8
    assert hop_link(two, range(2), range(2, 4)) == NODE
    assert hop_link(two, (7,), (8,)) == NIC


def test_the_receivers_nic_is_shared_too() -> None:
    """Two senders on two nodes, both to node 2."""
    three = cluster_of(3, 2)
    assert hop_link(three, (1, 2), (4, 5)).bandwidth_bytes_per_s == 24e9 / 2


def test_stages_of_unequal_size_send_to_every_receiver_in_turn() -> None:
    two = cluster_of(2, 4)
    assert hop_link(two, (0, 1), (2, 3, 4, 5)).bandwidth_bytes_per_s == 24e9, "rank 0 to 2 inside, rank 1 to 4 across"


# --- one price for the search, for boxing paths and for the simulator ----------------------------------------------------------


def plan_on(cluster: Cluster, mesh: tuple[int, ...], stages: int = 1) -> Plan:
    graph = ZOO["mlp"](batch=64, width=64, hidden=128, depth=2).graph(2)
    pins = ("input.0=" + ",".join(["S(0)"] * len(mesh)), "target.0=" + ",".join(["S(0)"] * len(mesh)))[:1]
    return make_plan(
        graph, model="mlp", batch_size=64, cluster=cluster, options=PlanOptions(mesh=mesh, stages=stages, micro_batches=2, pins=pins)
    )


@pytest.mark.parametrize(("mesh", "stages"), [((2, 4), 1), ((4, 2), 1), ((8,), 1), ((2, 2), 2)])
def test_the_simulator_pays_for_a_boxing_what_the_search_and_the_paths_pay(mesh: tuple[int, ...], stages: int) -> None:
    cluster = cluster_of(2, 4)
    plan = plan_on(cluster, mesh, stages)
    layout_costs, cost = LayoutCosts(cluster, mesh), AnalyticCost(cluster)
    overhead_s = cluster.device.act_overhead_s
    seen = 0
    for task in plan.tasks:
        if not isinstance(task.body, Boxing):
            continue
        seen += 1
        collective, axis = task.body.collective, task.body.axis
        for rank in plan.ranks_of(task):
            paid_s = cost.act_s(plan, task, rank) - overhead_s
            line = plan.placement[task.placement].axis_ranks(axis, rank)
            total = sum(cost._axis_bytes(plan, task, i) for i in range(len(task.reads)))
            assert paid_s == pytest.approx(axis_boxing_s(cluster, mesh, axis, collective, total))
            assert paid_s == pytest.approx(boxing_s(cluster, collective, total, line))
        placed = [plan.regst[access.regst].tensors[access.index] for access in task.reads]
        logical = TensorType(placed[0].shape, placed[0].dtype)
        if len(placed) == 1 and layout_costs.boxing_steps(logical, task.body.src, task.body.dst) == (task.body,):
            # In the search a boxing also ends one act and begins another; ties cost it a nanosecond per step.
            assert layout_costs.boxing_s(logical, task.body.src, task.body.dst) == pytest.approx(paid_s + 2 * overhead_s, abs=1e-8)
    assert seen


@pytest.mark.parametrize(
    ("ranks", "unequal"),
    [((0, 1, 2, 3), False), ((4, 5, 6, 7), False), ((1, 2, 3, 4), True), ((0, 4, 1, 5), False), ((0, 1, 3, 4), True), ((7, 6, 5, 3), True)],
)
def test_acts_that_are_said_to_be_equal_take_equally_long_on_all_ranks(ranks: tuple[int, ...], unequal: bool) -> None:
    """Two nodes of four devices; where a stage's ranks lie otherwise than lowering lays them, one line of an axis may cross and another may not."""
    cluster, plan = cluster_of(2, 4), plan_on(cluster_of(1, 4), (2, 2))
    moved = replace(plan, cluster=cluster, placements=tuple(replace(stage, ranks=ranks) for stage in plan.placements))
    cost, seen = AnalyticCost(cluster), set()
    for task in moved.tasks:
        prices_s = {cost.act_s(moved, task, rank) for rank in moved.ranks_of(task)}
        assert not cost.equal_on_ranks(moved, task) or len(prices_s) == 1, task.id
        seen.add(len(prices_s) > 1)
    assert (True in seen) == unequal


def test_a_transfer_pays_for_the_nic_that_all_senders_share() -> None:
    cluster = cluster_of(2, 4)
    plan = plan_on(cluster, (4,), stages=2)
    transfer = next(task for task in plan.tasks if task.kind is TaskKind.TRANSFER)
    target = plan.regst[transfer.produces[0].regst]
    expected_s = NIC.latency_s + 4 * plan.block_bytes(target) / NIC.bandwidth_bytes_per_s
    assert transfer_s(cluster, range(4), range(4, 8), plan.block_bytes(target)) == pytest.approx(expected_s)
    assert AnalyticCost(cluster).act_s(plan, transfer, 0) == pytest.approx(expected_s + cluster.device.act_overhead_s)


@given(parts=st.sampled_from([2, 4, 8]), size=st.integers(0, 10**9), collective=st.sampled_from([*RING, Collective.ALL_TO_ALL]))
def test_on_one_node_a_boxing_costs_alpha_and_sent_bytes_over_beta(parts: int, size: int, collective: Collective) -> None:
    paid_s = axis_boxing_s(cluster_of(1, 8), (8 // parts, parts), 1, collective, size)
    assert paid_s == pytest.approx(NODE.latency_s + sent_bytes(collective, size, parts) / NODE.bandwidth_bytes_per_s)


def test_what_needs_no_communication_costs_nothing() -> None:
    assert axis_boxing_s(cluster_of(2, 8), (2, 8), 0, Collective.LOCAL, 10**9) == 0
    assert axis_boxing_s(cluster_of(2, 8), (1, 16), 0, Collective.ALL_REDUCE, 10**9) == 0


def test_an_all_reduce_over_two_levels_reduces_inside_the_nodes_before_it_crosses() -> None:
    """P,P -> B,B on 2 nodes of 4: reduce-scatter inside, all-reduce of a quarter across, all-gather inside (SEMANTICS 2.1)."""
    cluster, mesh = cluster_of(2, 4), (2, 4)
    big = TensorType((1024, 4096), DType.FLOAT32)
    src, dst = NdSbp((P, P)), NdSbp((B, B))
    path, cost_s = boxing_path(big, mesh, src, dst, lambda collective, total, axis: axis_boxing_s(cluster, mesh, axis, collective, total))
    assert [(step.collective, step.axis) for step in path] == [
        (Collective.REDUCE_SCATTER, 1),
        (Collective.ALL_REDUCE, 0),
        (Collective.ALL_GATHER, 1),
    ]
    axis_by_axis = sum(axis_boxing_s(cluster, mesh, axis, Collective.ALL_REDUCE, big.size_bytes) for axis in (0, 1))
    one_ring = axis_boxing_s(cluster, (8,), 0, Collective.ALL_REDUCE, big.size_bytes)
    assert cost_s < one_ring < axis_by_axis


# --- meshes --------------------------------------------------------------------------------------------------------------------


def test_the_meshes_of_two_nodes_of_eight() -> None:
    assert meshes(16, 8) == ((16,), (2, 8), (4, 4), (8, 2), (2, 4, 2), (4, 2, 2))
    assert meshes(16, 8, max_axes=1) == ((16,),)


def test_the_meshes_within_a_node_are_listed_once_up_to_the_order_of_their_axes() -> None:
    assert meshes(8, 8) == ((8,), (4, 2), (2, 2, 2))
    assert meshes(1, 8) == ((1,),)


def test_on_nodes_of_one_device_every_axis_may_cross() -> None:
    assert meshes(8, 1) == ((8,), (2, 4), (4, 2), (2, 2, 2))


@given(num_devices=st.integers(1, 128), devices_per_node=st.sampled_from([1, 2, 4, 6, 8]), max_axes=st.integers(1, 3))
def test_a_mesh_to_search_has_every_device_once_and_its_lines_are_alike(num_devices: int, devices_per_node: int, max_axes: int) -> None:
    searched = meshes(num_devices, devices_per_node, max_axes)
    assert searched[0] == (num_devices,)
    assert len(set(searched)) == len(searched)
    assert list(searched) == sorted(searched, key=lambda mesh: (len(mesh), mesh))
    for mesh in searched[1:]:
        assert prod(mesh) == num_devices
        assert 1 not in mesh
        assert len(mesh) <= max_axes
        blocks = [prod(mesh[axis:]) for axis in range(1, len(mesh))]
        assert all(devices_per_node % block == 0 or block % devices_per_node == 0 for block in blocks)


@given(num_nodes=st.sampled_from([1, 2, 3, 4, 6]), devices_per_node=st.sampled_from([2, 4, 8]))
def test_every_two_axis_mesh_with_an_inner_axis_in_the_node_is_searched(num_nodes: int, devices_per_node: int) -> None:
    total = num_nodes * devices_per_node
    searched = {mesh for mesh in meshes(total, devices_per_node) if len(mesh) == 2}
    inner = [extent for extent in range(2, devices_per_node + 1) if devices_per_node % extent == 0 and total // extent > 1]
    for outer, extent in ((total // extent, extent) for extent in inner):
        assert (outer, extent) in searched or (total <= devices_per_node and (extent, outer) in searched)
    assert len(searched) <= len(inner)


def test_a_thousand_devices_have_few_meshes() -> None:
    assert len(meshes(1024, 8)) == 24


@pytest.mark.parametrize(("text", "mesh"), [("4,8", (4, 8)), ("4x8", (4, 8)), ("8", (8,)), ("2x2X2", (2, 2, 2)), ("2, 4", (2, 4))])
def test_a_mesh_is_written_with_commas_or_crosses(text: str, mesh: tuple[int, ...]) -> None:
    assert parse_mesh(text) == mesh


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write numbers joined by commas"),
        ("a", "write numbers joined by commas, for example 2,2 or 2x2"),
        ("2,", "write numbers joined by commas"),
        ("2;2", "write numbers joined by commas"),
        ("²", "write numbers joined by commas"),
        ("2,2,2,2", "has 4 axes; at most 3 are supported, join some of them"),
    ],
)
def test_what_is_no_mesh_is_refused(text: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        parse_mesh(text)


@pytest.mark.parametrize(("mesh", "stages"), [((3, 2), 1), ((4, 4), 1), ((2, 4), 2), ((0, 8), 1)])
def test_a_mesh_that_is_not_the_devices_of_a_stage_is_refused_with_both_numbers(mesh: tuple[int, ...], stages: int) -> None:
    text = "x".join(map(str, mesh))
    with pytest.raises(Unsupported, match=rf"mesh {text} has {prod(mesh)} places, but each of {stages} stages has {8 // stages} devices"):
        plan_on(cluster_of(2, 4), mesh, stages)


def test_no_mesh_of_nothing() -> None:
    for arguments in product((0, 4), (0, 8), (0, 3)):
        if 0 in arguments:
            with pytest.raises(Unsupported, match="all three are at least 1"):
                meshes(*arguments)
