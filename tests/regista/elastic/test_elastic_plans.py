"""Plans for a range of hosts, and elastic runs that are refused before anything starts."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from command_line import Command
from elastic_launchers import MODEL, plan_for

import regista
import regista.hosts.nodes as hosts_nodes
from backend.checkpoint import owner
from backend.checkpoint.owner import Owner, lock, unlock
from backend.launch import Nodes, check_folder_of, nodes
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from regista.clusters import resolve_cluster
from regista.hosts import Saves, elastic_plans, hosts_of, run_share
from regista.programs import planned_program
from regista.update_options import UpdateOptions
from tests.regista.refusals.refusal import assert_refused


def test_every_number_of_hosts_has_a_plan_of_the_same_step_and_its_own_ranks() -> None:
    plan = plan_for(2, "zoo:mlp?batch=24&width=16&hidden=16&depth=2")
    plans = elastic_plans(plan, planned_program(plan), range(1, 5))
    assert plans[2] is plan
    assert [(plans[hosts].num_ranks, plans[hosts].cluster.num_nodes) for hosts in (1, 2, 3, 4)] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    for made in plans.values():
        assert (made.model, made.batch_size, made.micro_batches) == (plan.model, plan.batch_size, plan.micro_batches)
        assert made.options["graph"] == plan.options["graph"]


def test_a_plan_made_anew_keeps_what_its_update_was_asked_for() -> None:
    plan = regista.plan(
        MODEL, replace(resolve_cluster("local:1"), num_nodes=2, nic=resolve_cluster("local:1").node), bucket_bytes=1000, micro_batches=2,
        update=UpdateOptions(clip_norm=0.5),
    )  # fmt: skip
    made = elastic_plans(plan, planned_program(plan), range(1, 3))[1]
    assert (made.options["clip_norm"], made.options["bucket_bytes"], made.options["graph"]) == ("0.5", "1000", plan.options["graph"])


@pytest.mark.parametrize("text", ["2", "0:2", "2:2", "3:2", "1:", ":2", "1:2:3", "a:b", "1:9999999"])
def test_a_range_that_names_no_numbers_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="write MIN:MAX"):
        hosts_of(text)


def pinned(plan: Plan) -> Plan:
    return replace(plan, options={**plan.options, "pins": "input.0=S(0)"})


def without_nic(plan: Plan) -> Plan:
    return regista.plan(MODEL, "local:1", micro_batches=2)


@pytest.mark.parametrize(
    ("change", "hosts", "says"),
    [
        (lambda plan: plan, range(3, 5), "was made for 2 hosts, which --elastic 3:4 leaves out"),
        (pinned, range(1, 3), "has pinned layouts, which says nothing of other numbers of hosts"),
        (without_nic, range(1, 3), r"has no links between hosts \(\[links.nic\]\)"),
    ],
)
def test_a_plan_that_says_nothing_of_other_numbers_of_hosts_is_refused(change, hosts: range, says: str) -> None:  # type: ignore[no-untyped-def]
    plan = change(plan_for(2))
    with pytest.raises(Unsupported, match=says):
        elastic_plans(plan, planned_program(plan), hosts)


def test_a_range_that_the_model_cannot_meet_is_refused_with_the_number_and_the_reason() -> None:
    one = resolve_cluster("local:1")
    plan = regista.plan(MODEL, replace(one, num_nodes=2, nic=one.node), micro_batches=2)
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=12_000)))
    with pytest.raises(Unsupported, match="on 1 hosts of 1 devices this model cannot be trained"):
        elastic_plans(small, planned_program(small), range(1, 3))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--elastic", "1:2"], "--elastic 1:2 needs --rdzv HOST:PORT"),
        (["--elastic", "3:2", "--rdzv", "127.0.0.1:1"], "--elastic 3:2: write MIN:MAX, numbers of hosts with 1 <= MIN < MAX"),
        (["--elastic", "0:2", "--rdzv", "127.0.0.1:1"], "--elastic 0:2: write MIN:MAX, numbers of hosts with 1 <= MIN < MAX"),
        (["--elastic", "1:2", "--nnodes", "2", "--rdzv", "127.0.0.1:1"], "leave --nnodes out"),
        (["--elastic", "1:2", "--node-rank", "0", "--rdzv", "127.0.0.1:1"], "leave --node-rank out"),
        (["--elastic", "1:2", "--rdzv", "127.0.0.1:1"], "add --checkpoint DIR, which all hosts share"),
        (["--elastic", "3:4", "--rdzv", "127.0.0.1:1", "--checkpoint", "saves"], "was made for 2 hosts"),
        (["--elastic", "1:2", "--rdzv", "127.0.0.1:1", "--resume"], "give --checkpoint DIR, a folder that all hosts share, too"),
        (["--elastic", "1:2", "--performer", "threads"], "--elastic belongs to a run on real processes"),
    ],
)
def test_a_wrong_elastic_run_is_refused_before_anything_starts(
    words: list[str], says: str, command: Command, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTA_SECRET", "00" * 32)
    monkeypatch.chdir(tmp_path)
    save_plan(plan_for(2), str(tmp_path / "plan.json"))
    assert_refused(command, tmp_path, "run", tmp_path / "plan.json", *words, says=says)


class Begun(Exception):
    """Something was begun that a refusal should have come before."""


def begin_nothing(*_: object, **__: object) -> None:
    raise Begun


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[str]:
    """Options of an elastic run that nothing is wrong with; whoever meets other hosts, or sleeps, fails the test."""
    monkeypatch.setenv("REGISTA_SECRET", "00" * 32)
    monkeypatch.setattr(nodes, "meet", begin_nothing)
    monkeypatch.setattr(owner, "time", SimpleNamespace(sleep=begin_nothing, monotonic=time.monotonic))
    save_plan(plan_for(2), str(tmp_path / "plan.json"))
    return ["--elastic", "1:3", "--rdzv", "127.0.0.1:1", "--checkpoint", str(tmp_path / "saves")]


def zero3() -> Plan:
    one = resolve_cluster("local:1")
    return regista.plan(MODEL, replace(one, num_nodes=2, nic=one.node), micro_batches=2, zero=3)


def small() -> Plan:
    """Its devices hold half of the model with its batch, and not all of it."""
    plan = zero3()
    return replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=12_000)))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            lambda: plan_for(2),
            r"on 3 hosts the model has no use for 3 devices: of mesh 3, 3 divide neither the 4 samples of a micro-batch nor what is in the layers, "
            "so each of them would do the same; give --elastic a range without 3, or plan with a batch that 3 divides",
        ),
        (
            zero3,
            "on 3 hosts of 1 devices this model cannot be trained: ZeRO level 3 splits nothing on each of 3 devices, .* divide no dim of "
            r"blocks\.0\.up\.weight.*; give --elastic a range without 3, or plan without what cannot be met there",
        ),
        (
            small,
            "on 1 hosts .* cannot be trained: rank 0 needs 16.0 KiB .* but a device of local-1 has 11.7 KiB.*; give --elastic a range without 1",
        ),
    ],
    ids=["a batch that 3 do not divide", "ZeRO-3 of widths 8 and 16", "memory at the fewest"],
)
def test_the_command_line_refuses_a_range_that_the_model_cannot_meet(
    plan: Callable[[], Plan], says: str, command: Command, tmp_path: pathlib.Path, told: list[str]
) -> None:
    save_plan(plan(), str(tmp_path / "plan.json"))
    assert_refused(command, tmp_path, "run", tmp_path / "plan.json", *told, says=says)


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_folder_into_which_a_live_run_of_this_host_saves_is_refused_before_plans_are_made(
    command: Command, tmp_path: pathlib.Path, told: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan-1-hosts.json was left behind, and the refusal came 40 s later, after the hosts had met."""
    monkeypatch.setattr(hosts_nodes, "elastic_plans", begin_nothing)
    saves = tmp_path / "saves"
    saves.mkdir()
    held = lock(saves, owner=Owner.here("at 127.0.0.1:2"))
    try:
        says = rf"another run is saving into {saves} \(run at 127.0.0.1:2, started by process {os.getpid()} of host .*\); wait for its end, or give"
        assert_refused(command, tmp_path, "run", tmp_path / "plan.json", *told, *more, says=says)
    finally:
        unlock(saves, held)


def test_a_launcher_joins_the_run_of_its_own_rendezvous_that_is_under_way(tmp_path: pathlib.Path) -> None:
    """And writes nothing before host 0 begins to perform a plan."""
    saves = tmp_path / "saves"
    (saves / "step-00000100").mkdir(parents=True)
    at = Nodes(count=2, least=1, rendezvous="127.0.0.1:1", secret=bytes(32))
    held = lock(saves, owner=Owner.here(at.run_name))
    check_folder_of(at, saves, resume=False)
    with pytest.raises(InvalidFile, match="another run is saving into"):
        check_folder_of(replace(at, least=2), saves, resume=False)
    unlock(saves, held)
    with pytest.raises(InvalidFile, match="holds 1 checkpoints, the newest of step 100; resume from it"):
        check_folder_of(replace(at, least=2), saves, resume=False)
    check_folder_of(replace(at, least=2), saves, resume=True)


def test_nothing_is_written_before_the_hosts_have_met(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "meet", begin_nothing)
    at = Nodes(count=2, least=1, rendezvous="127.0.0.1:1", secret=bytes(32))
    with pytest.raises(Begun):
        run_share(plan_for(2), at, steps=1, timeout_s=1.0, saves=Saves(folder=str(tmp_path / "saves")))
    assert list(tmp_path.iterdir()) == []
