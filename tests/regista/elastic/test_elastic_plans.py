"""Plans for a range of hosts, and elastic runs that are refused before anything starts."""

from __future__ import annotations

import pathlib
from dataclasses import replace

import pytest
from command_line import Command
from elastic_launchers import MODEL, plan_for

import regista
from planner.ir.errors import Unsupported
from planner.ir.files import save_plan
from planner.ir.plan import Plan
from regista.clusters import resolve_cluster
from regista.hosts import elastic_plans, hosts_of
from regista.programs import planned_program
from regista.update_options import UpdateOptions
from tests.regista.refusals.refusal import assert_refused


def test_every_number_of_hosts_has_a_plan_of_the_same_step_and_its_own_ranks() -> None:
    plan = plan_for(2)
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
