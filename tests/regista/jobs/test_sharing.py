"""Acts of a job's Plan share the ports of their ranks, and collectives beside computing take its multiprocessors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir.plan import Plan
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import message_bytes
from regista.jobs.predict import job_plan, simulated_s
from regista.jobs.prices import Prices
from regista.jobs.sharing import port_shares, shared_ports
from regista.jobs.timing import JobCost, job_cost, reductions
from regista.jobs.work import chunks_of
from simulator.compiled import compile_plan, times
from simulator.game import by_simpy


def job(machine: str = "h100", **layout: object) -> Job:
    """A layer per chunk, whose messages are long beside their passes: wide, and of short sequences."""
    at = Layout(**({"pp": 4, "tp": 8, "dp": 2, "micro_batch": 8, "global_batch": 128} | layout))  # type: ignore[arg-type]
    model = replace(family("llama3-8b"), layers=4 * at.vp, hidden=8192, seq=1024)
    running = Running(distributed_optimizer=True, overlap_grad=True, overlap_param=True, overlap_p2p=True)
    return Job(name="", machine=machine, devices=at.devices, model=model, layout=at, running=running)


def priced(of: Job) -> tuple[Prices, Plan, JobCost]:
    machine = load_machine(of.machine)
    prices, plan = Prices(machine=machine, running=of.running, devices=of.devices), job_plan(of, machine)
    return prices, plan, job_cost(of, prices, plan)


def test_a_message_takes_the_share_of_both_ports_that_its_bytes_say():
    of = job()
    prices, plan, cost = priced(of)
    shares = port_shares(of, prices, plan, cost)
    assert message_bytes(of) == 8 * 1024 * 8192 * 2
    share = message_bytes(of) / (50e9 * cost.seconds["send.1"])
    assert 0.7 < share < 1 and shares["send.1", (1,)] == {"out:1": pytest.approx(share), "in:2": pytest.approx(share)}
    assert shares["return.1", (1,)] == {"out:1": pytest.approx(share), "in:0": pytest.approx(share)}
    # A ring over two devices of two nodes: each sends half of the gradients; no pass sends over the network.
    reduced = shares["reduce.2", (2,)]
    assert set(reduced) == {"out:2", "in:2"} and 0.3 < reduced["out:2"] < 1
    assert ("forward.1", (1,)) not in shares


def test_a_ring_over_nodes_brings_each_network_port_a_part_of_what_its_node_sends():
    """16 devices of two nodes: each node sends 15/16 of the gradients, over eight ports."""
    of = job(tp=1, dp=16, micro_batch=2, global_batch=256)
    prices, plan, cost = priced(of)
    (reduced,) = reductions(of, chunks_of(of)[1])
    whole_s = prices.meeting_s(reduced.collective, reduced.total_bytes, reduced.group)
    share = port_shares(of, prices, plan, cost)["reduce.1", (1,)]["out:1"]
    assert share == pytest.approx(15 / 16 * reduced.total_bytes / 8 / (50e9 * whole_s))


def test_inside_a_domain_messages_are_on_the_ports_of_the_node():
    """8 x 2 devices apart is within GB200's 64, so the network's collectives of no other act share their port."""
    of = job("gb200")
    prices, plan, cost = priced(of)
    shares = port_shares(of, prices, plan, cost)
    assert shares["send.0", (0,)]["out:0"] == pytest.approx(message_bytes(of) / (900e9 * cost.seconds["send.0"]))
    passes = shares["forward.0", (0,)]["out:0"]  # two all-reduces over 8 devices, each sends 2 x 7/8 of it
    assert passes == pytest.approx(2 * 2 * 7 / 8 * message_bytes(of) / (900e9 * cost.seconds["forward.0"]))


@pytest.mark.parametrize("layout", [{}, {"vp": 2}, {"tp": 1, "dp": 16, "micro_batch": 2, "global_batch": 256}])
def test_both_engines_play_the_same_shared_step_and_it_is_no_shorter_than_a_step_alone(layout: dict[str, int]):
    of = job(**layout)
    prices, plan, cost = priced(of)
    contention = shared_ports(of, prices, plan, cost)
    assert contention is not None
    step_s = simulated_s(of, prices, plan)
    assert step_s == max(act.end_s for act in by_simpy(plan, cost, 1, contention).acts)
    assert step_s >= times(compile_plan(plan, cost, sizes=False), steps=1).makespan_s


def test_messages_that_arrive_at_once_make_the_step_longer():
    of = job(vp=2)
    prices, plan, cost = priced(of)
    assert simulated_s(of, prices, plan) > 1.001 * times(compile_plan(plan, cost, sizes=False), steps=1).makespan_s


def test_a_job_without_stages_shares_nothing():
    of = job(pp=1)
    assert shared_ports(of, *priced(of)) is None


def test_a_collective_beside_a_pass_takes_its_multiprocessors():
    """16 of the H100's 132, of the seconds in which both go on."""
    prices, _, _ = priced(job())
    assert prices.beside_s(3.0, 2.0, 16) == prices.beside_s(2.0, 3.0, 16) == pytest.approx(3 + 2 * 16 / 132)
    of = job(micro_batch=1, global_batch=16)
    of = replace(of, model=replace(of.model, seq=32768))
    beside_s, behind_s = (
        job_cost(each, *priced(each)[:2]).seconds["reduce.0"] for each in (of, replace(of, running=Running(distributed_optimizer=True)))
    )
    assert beside_s == pytest.approx(behind_s * (1 / 8 + 7 / 8 * 16 / 132))
