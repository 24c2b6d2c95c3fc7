"""Collectives as rounds: who holds which chunk after each round, and what they take on an idle network against the closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import axis_boxing_s, meshes
from planner.cost.clusters import preset
from planner.cost.nccl import CollectiveModel
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.errors import InvalidCluster, InvalidPlan, Unsupported
from simulator.network import Sharing, simulate_collective, simulate_flows
from simulator.network.algorithms import (
    direct_all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from simulator.network.collectives import collective_flows
from simulator.network.fabric import FullMesh, Machine, Ports
from simulator.network.rounds import Landing, Move, Rounds, perform, states
from simulator.theory import (
    all_to_all_s,
    ring_all_reduce_s,
)

LINK = LinkSpec(latency_s=3e-6, bandwidth_bytes_per_s=2.5e10)
RANKS = st.integers(1, 24)
SIZES = st.integers(0, 10**9)


def machine(num_nodes: int, devices_per_node: int, **links: LinkSpec | int) -> Machine:
    device = DeviceSpec(kind="gpu", memory_bytes=10**9, rate_flop_per_s=1e12, memory_bandwidth_bytes_per_s=1e12)
    specs = {"node": LinkSpec(latency_s=2e-6, bandwidth_bytes_per_s=1e11), "nic": LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=1e10)}
    return Machine(Cluster(name="m", source="", num_nodes=num_nodes, devices_per_node=devices_per_node, device=device, **(specs | links)))


# --- movement of data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [ring_all_reduce, ring_reduce_scatter, ring_all_gather, direct_all_to_all])
@given(p=RANKS)
def test_any_number_of_ranks_ends_with_the_right_chunks(algorithm, p):
    perform(algorithm(p))


def test_a_ring_of_three_holds_after_each_round_what_the_picture_shows():
    rows = [" ".join("".join(map(str, sorted(held[c]))) for c in range(3)) for state in states(ring_all_reduce(3)) for held in state]
    assert rows == [
        *("0 0 0", "1 1 1", "2 2 2"),  # before
        *("0 02 0", "1 1 01", "12 2 2"),  # every rank passes the chunk before its own on
        *("012 02 0", "1 012 01", "12 2 012"),  # rank r has the sum of chunk r
        *("012 02 012", "012 012 01", "12 012 012"),
        *("012 012 012", "012 012 012", "012 012 012"),
    ]


@pytest.mark.parametrize(("landing", "held"), [(Landing.PUT, ([0], [0], [1])), (Landing.ADD, ([0], [0, 1], [1, 2]))])
def test_all_moves_of_a_round_read_what_was_there_before_it(landing, held):
    moves = (Move(0, 1, (0,), landing), Move(1, 2, (0,), landing))
    rounds = Rounds(name="pass on", collective=Collective.ALL_REDUCE, num_ranks=3, num_chunks=1, rounds=(moves,))
    *_, after = states(rounds)
    assert tuple(sorted(rank[0]) for rank in after) == held


@given(p=RANKS)
def test_each_rank_of_a_ring_sends_the_bytes_of_the_boxing_table(p):
    for algorithm in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        rounds = algorithm(p)
        for rank in range(p):
            assert rounds.sent_chunks(rank) / rounds.num_chunks == pytest.approx(sent_bytes(rounds.collective, 1.0, p))


@pytest.mark.parametrize("broken", ["lost", "twice", "unheld", "clash"])
def test_a_planted_wrong_algorithm_is_caught(broken):
    right = ring_all_reduce(4)
    rounds = [list(moves) for moves in right.rounds]
    if broken == "lost":
        del rounds[-1][2]
    elif broken == "twice":
        rounds[1][0] = rounds[0][0]
    elif broken == "unheld":
        right = replace(right, collective=Collective.ALL_GATHER)
    else:
        rounds[3] = [Move(0, 1, (0,), Landing.PUT), Move(2, 1, (0,), Landing.PUT)]
    message = {"lost": "holds chunk", "twice": "count twice", "unheld": "does not hold chunk", "clash": "written twice"}[broken]
    with pytest.raises(InvalidPlan, match=message):
        perform(replace(right, rounds=tuple(tuple(moves) for moves in rounds)))


def test_a_move_waits_for_the_earlier_moves_of_its_sender_and_of_its_receiver():
    # rank 3 has nothing to do before round 1, but its receiver is busy until 1 s; ranks 4 and 5 are not held back by anybody
    moves = (
        (Move(0, 1, (0,), Landing.PUT),),
        (Move(3, 1, (3,), Landing.PUT), Move(0, 2, (0,), Landing.PUT), Move(4, 5, (4,), Landing.PUT)),
    )
    rounds = Rounds(name="r", collective=Collective.ALL_GATHER, num_ranks=6, num_chunks=6, rounds=moves)
    wire = LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    times = simulate_collective(rounds, FullMesh(6, wire), 6).times
    assert [times[f"r/{name}"].start_s for name in ("0:0-1:0", "1:3-1:3", "1:0-2:0", "1:4-5:4")] == [0.0, 1.0, 1.0, 0.0]


# --- time on an idle network --------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(p=RANKS, size=SIZES, sharing=st.sampled_from(Sharing))
def test_a_ring_takes_its_closed_form(p, size, sharing):
    for fabric in (Ports(p, LINK), FullMesh(p, LINK)):
        assert simulate_collective(ring_all_reduce(p), fabric, size, sharing).end_s == pytest.approx(ring_all_reduce_s(size, p, LINK))


@settings(max_examples=20)
@given(p=RANKS, size=SIZES, sharing=st.sampled_from(Sharing))
def test_all_to_all_takes_its_closed_form(p, size, sharing):
    assert simulate_collective(direct_all_to_all(p), Ports(p, LINK), size, sharing).end_s == pytest.approx(all_to_all_s(size, p, LINK))


@pytest.mark.parametrize("mesh", meshes(16, 4))
@pytest.mark.parametrize("racks", [False, True])
def test_all_lines_of_a_mesh_axis_at_once_take_what_the_price_list_says(mesh, racks):
    """The price list divides a link among the rings that leave by it; max-min sharing of flows must find the same, from nothing but routes."""
    free = {"node": LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e11), "nic": LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e10)}
    extra = {"nodes_per_rack": 2, "rack": LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1.2e10)} if racks else {}
    fabric = machine(4, 4, **free, **extra)
    for axis, extent in enumerate(mesh):
        stride = 1
        for inner in mesh[axis + 1 :]:
            stride *= inner
        lines = [
            range(first + base, first + base + extent * stride, stride) for base in range(0, 16, extent * stride) for first in range(stride)
        ]
        flows = [
            flow
            for number, line in enumerate(lines)
            for flow in collective_flows(ring_all_reduce(extent), fabric, 1e9, ranks=list(line), name=f"line{number}")
        ]
        priced = axis_boxing_s(fabric.cluster, mesh, axis, Collective.ALL_REDUCE, 1e9)
        assert simulate_flows(flows, fabric.links).end_s == pytest.approx(priced)


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_collectives_on_ranks_that_are_not_there_are_refused():
    with pytest.raises(InvalidCluster, match="ranks 0 to 3"):
        collective_flows(ring_all_reduce(5), Ports(4, LINK), 8)
    with pytest.raises(InvalidPlan, match="needs 2 different ranks"):
        collective_flows(ring_all_reduce(2), Ports(4, LINK), 8, ranks=[1, 1])


@pytest.mark.parametrize("algorithm", [ring_all_reduce, ring_reduce_scatter, ring_all_gather, direct_all_to_all])
def test_a_collective_of_nobody_is_refused(algorithm):
    with pytest.raises(Unsupported, match="at least 1 rank"):
        algorithm(0)


def test_only_collectives_that_move_data_have_rounds():
    with pytest.raises(InvalidPlan, match="has no rounds"):
        perform(Rounds(name="none", collective=Collective.LOCAL, num_ranks=2, num_chunks=2, rounds=()))


@pytest.mark.parametrize("closed_form", [ring_all_reduce_s, all_to_all_s])
@pytest.mark.parametrize(("size", "p"), [(-1, 4), (1, 0)])
def test_closed_forms_of_impossible_groups_are_refused(closed_form, size, p):
    with pytest.raises(ValueError, match="at least 1 rank and 0 bytes"):
        closed_form(size, p, LINK)


# --- latency ------------------------------------------------------------------------------------------------------------


def test_a_collective_on_a_cluster_pays_its_latency_once_and_not_in_every_round():
    """Story: a preset's latency is fitted to whole collectives; charged per round, 8 bytes among 32 ranks took 4.8 ms, where 35 us are measured."""
    nic = LinkSpec(latency_s=77e-6, bandwidth_bytes_per_s=376e9)
    fabric = machine(4, 8, nic=nic)
    for rounds in (ring_all_reduce(32), ring_all_gather(32), direct_all_to_all(32)):
        assert simulate_collective(rounds, fabric, 8).end_s == pytest.approx(77e-6, rel=0.01)
    inside = collective_flows(ring_all_reduce(8), fabric, 8)
    assert simulate_flows(inside, fabric.links).end_s == pytest.approx(2e-6, rel=0.01), "within a node the node's"


@pytest.mark.thorough
def test_on_nccls_interconnect_every_step_of_a_ring_pays_the_latency_of_its_slowest_hop():
    fabric = Machine(preset("dgx-h100:4"))
    model = CollectiveModel.for_interconnect("h100-nvswitch")
    start_s, step_s = model.step_latencies_s(False)
    net_s = model.step_latencies_s(True)[1]
    assert simulate_collective(ring_all_reduce(32), fabric, 8).end_s == pytest.approx(start_s + 62 * net_s, rel=0.02)
    one = collective_flows(ring_all_reduce(8), fabric, 8)
    assert simulate_flows(one, fabric.links).end_s == pytest.approx(start_s + 14 * step_s, rel=0.01)
    assert 15e-6 < simulate_flows(one, fabric.links).end_s < 17e-6, "15.6 us are measured on 8 H100"
