"""'regista diff' and 'regista whatif': nothing differs from itself, what differs is named, old decisions are priced on the new cluster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command, commands, files_of

import regista.api as api
from planner.ir.cluster import Cluster, LinkSpec, parse_cluster
from planner.ir.errors import InvalidCluster, Unsupported
from planner.ir.files import load_plan
from planner.ir.plan import Plan
from planner.ir.units import GB
from regista.analysis.budget import Use, holdings
from regista.analysis.diff import diff, fold
from regista.analysis.planned import retrace
from regista.analysis.whatif import changed_cluster, whatif
from regista.clusters import local_cluster, resolve_cluster
from regista.update_options import UpdateOptions

BIG = "zoo:mlp?batch=64&width=256&hidden=256&depth=2"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return api.plan(BIG, fast(local_cluster(2)))


def fast(cluster: Cluster) -> Cluster:
    """Links on which splitting pays."""
    return replace(cluster, node=LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e12), device=replace(cluster.device, act_overhead_s=0.0))


@pytest.fixture
def file(command: Command, tmp_path: Path) -> Path:
    assert command("plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json").code == 0
    return tmp_path / "p.json"


# whatif


@pytest.mark.parametrize(
    ("asked", "recorded"),
    [
        ({"attention": "eager"}, {"attention"}),
        ({"precision": "bf16-mixed", "update": UpdateOptions(clip_norm=1.0), "context": "gathered"}, {"precision", "clip_norm", "context"}),
    ],
    ids=["attention", "precision, clipping, context"],
)
def test_what_was_asked_of_the_program_stays_asked_on_the_changed_cluster(asked: dict[str, Any], recorded: set[str]) -> None:
    before = api.plan(TINY, local_cluster(2), mesh=(2,), **asked)
    after = whatif(before, ["cluster.links.node.bandwidth_GBps=0.1"]).plan
    assert {option: after.options.get(option) for option in recorded} == {option: before.options[option] for option in recorded}
    assert retrace(after).options == retrace(before).options  # and the program that it names is still the one of its graph


# diff


def test_a_plan_does_not_differ_from_itself(plan: Plan, command: Command, file: Path) -> None:
    difference = diff(plan, plan)
    assert difference.is_empty
    assert difference.note == ""
    assert command("diff", file, file).out == f"nothing differs: both are plan {load_plan(str(file)).plan_id}\n"
    document = command("diff", file, file, "--json").json
    assert document["same"] is True
    assert [document[part] for part in ("facts", "layouts", "ops", "communication", "quotas", "memory")] == [[], [], [], {}, [], []]


def test_two_plans_of_one_step_differ_in_what_was_pinned(plan: Plan) -> None:
    other = api.plan(BIG, plan.cluster, pins=["blocks.*.up.weight=S(1)"])
    difference = diff(plan, other)
    facts = {change.what: (change.a, change.b) for change in difference.facts}
    assert facts["option pins"] == ("", "blocks.*.up.weight=S(1)")
    assert facts["objective_s"] == (plan.search.objective_s, other.search.objective_s)
    layouts = {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states}
    weights = [change for change in difference.layouts if change.what.endswith("up.weight")]
    assert sum(change.count for change in weights) == 2
    assert all((change.a, change.b) == (layouts["blocks.0.up.weight"], "S(1)") for change in weights)
    mine, theirs = retrace(plan), retrace(other)
    changed = sum(
        (mine.model.ops[op][1][mine.choice[node]].inputs, mine.model.ops[op][1][mine.choice[node]].outputs)
        != (theirs.model.ops[op][1][theirs.choice[node]].inputs, theirs.model.ops[op][1][theirs.choice[node]].outputs)
        for op, (node, _) in mine.model.ops.items()
    )
    assert 0 < sum(change.count for change in difference.ops) == changed
    assert difference.note == ""


def test_differences_turn_about_with_the_plans(plan: Plan) -> None:
    other = api.plan(BIG, plan.cluster, pins=["input.*=B"])
    there, back = diff(plan, other), diff(other, plan)
    assert {(c.what, c.a, c.b) for c in there.layouts} == {(c.what, c.b, c.a) for c in back.layouts}
    assert {(c.what, c.a, c.b, c.count) for c in there.ops} == {(c.what, c.b, c.a, c.count) for c in back.ops}
    assert {kind: pair[::-1] for kind, pair in there.traffic.items()} == dict(back.traffic)


def test_quotas_and_memory_that_differ_are_listed(plan: Plan) -> None:
    crossing = api.plan(TINY, "local:2", stages=2, mesh=(1,), micro_batches=4)
    wider = api.plan(TINY, "local:2", stages=2, mesh=(1,), micro_batches=4, quotas={"s0-s1.*": 4})
    difference = diff(crossing, wider)
    assert difference.quotas
    assert all(change.what.startswith("s0-s1.") and change.b == 4 for change in difference.quotas)
    sizes = {change.what: (change.a, change.b) for change in difference.memory}
    assert sizes["total"] == (holdings(crossing)[0].total_bytes, holdings(wider)[0].total_bytes)
    assert difference.layouts == difference.ops == ()


def test_plans_of_different_steps_say_that_their_ops_are_not_compared(plan: Plan) -> None:
    difference = diff(plan, api.plan(TINY, "local:2"))
    assert difference.ops == ()
    assert difference.note == "the plans are of different steps, so their ops are not compared"


@pytest.mark.parametrize(
    ("name", "folded"),
    [("h.11.mlp.c_fc.weight", "h.*.mlp.c_fc.weight"), ("conv1.weight", "conv1.weight"), ("h.0.1.b", "h.*.*.b"), ("7", "*")],
)
def test_whole_numbers_between_dots_stand_for_layers(name: str, folded: str) -> None:
    assert fold(name) == folded


# whatif


def test_a_value_set_to_what_it_is_gives_the_same_plan(plan: Plan) -> None:
    outcome = whatif(plan, [f"cluster.links.node.bandwidth_GBps={plan.cluster.node.bandwidth_bytes_per_s / GB!r}"])
    assert outcome.plan.plan_id == plan.plan_id
    assert outcome.difference.is_empty
    assert outcome.old_s == pytest.approx(plan.search.objective_s, rel=1e-9)


def test_on_a_slower_link_the_old_decisions_cost_more_than_the_new_ones(plan: Plan) -> None:
    outcome = whatif(plan, ["cluster.links.node.bandwidth_GBps=0.01", "cluster.links.node.latency_us=500"])
    assert outcome.old_s is not None
    assert outcome.plan.search.objective_s < outcome.old_s
    assert outcome.old_s > plan.search.objective_s
    assert outcome.plan.cluster.node == LinkSpec(latency_s=500 * 1e-6, bandwidth_bytes_per_s=0.01 * GB)
    facts = {change.what: (change.a, change.b) for change in outcome.difference.facts}
    assert facts["cluster.node.bandwidth_bytes_per_s"] == (1e12, 0.01 * GB)
    assert set(outcome.seconds) == {"trace", "price", "search"}


def test_old_decisions_cost_on_the_new_cluster_what_a_plan_that_is_pinned_to_them_costs(plan: Plan) -> None:
    """Another way to the same number: plan anew with every state and input pinned; what is left open can only be cheaper."""
    sets = ["cluster.links.node.bandwidth_GBps=1"]
    outcome = whatif(plan, sets)
    stored = [f"{s.name}={plan.regst[s.regst].tensors[s.index].sbp}" for s in plan.states]
    pinned = api.plan(BIG, changed_cluster(plan.cluster, sets), mesh=(2,), pins=stored)
    assert outcome.old_s is not None
    assert outcome.plan.search.objective_s <= pinned.search.objective_s * (1 + 1e-9)
    assert pinned.search.objective_s <= outcome.old_s * (1 + 1e-9)


def test_prices_of_the_same_cluster_are_the_same_problem(plan: Plan) -> None:
    retraced = retrace(plan)
    again = retraced.model_on(plan.cluster)
    assert again.problem.names == retraced.model.problem.names
    assert again.step_s(retraced.choice) == retraced.model.step_s(retraced.choice)


def test_what_is_not_named_stays_the_very_same_number() -> None:
    """2**33 bytes are 8.589934592 GB, and back through text a byte could be lost."""
    cluster = replace(resolve_cluster("dgx-a100:2"), name="odd")
    odd = replace(cluster, device=replace(cluster.device, memory_bytes=2**33 + 1, act_overhead_s=1e-6 / 3))
    changed = changed_cluster(odd, ["cluster.links.nic.bandwidth_GBps=50"])
    assert changed.nic == LinkSpec(latency_s=odd.nic.latency_s, bandwidth_bytes_per_s=50 * GB) if odd.nic else False
    assert replace(changed, nic=odd.nic, source=odd.source) == odd
    assert changed.source.endswith("changed: cluster.links.nic.bandwidth_GBps=50")
    assert changed_cluster(odd, ['cluster.name="odd"']) is odd


def test_a_whole_link_can_be_added_but_not_half_of_one() -> None:
    cluster = local_cluster(2)
    both = ["cluster.links.nic.latency_us=10", "cluster.links.nic.bandwidth_GBps=5"]
    assert changed_cluster(cluster, both).nic == LinkSpec(latency_s=10 * 1e-6, bandwidth_bytes_per_s=5 * GB)
    with pytest.raises(InvalidCluster, match=r"\[links.nic\] bandwidth_GBps = None; a number is needed"):
        changed_cluster(cluster, both[:1])


def test_with_other_devices_no_decision_carries_over(plan: Plan) -> None:
    outcome = whatif(plan, ["cluster.topology.devices_per_node=4"])
    assert outcome.old_s is None
    assert outcome.plan.num_ranks == 4
    two_axes = api.plan(TINY, resolve_cluster("dgx-a100:1"), mesh=(2, 4))
    with pytest.raises(Unsupported, match="has mesh 2x4 for 8 devices, the changed cluster has 16; use 'regista plan "):
        whatif(two_axes, ["cluster.topology.nodes=2"])


def test_the_new_plan_is_written_and_is_the_one_that_plan_makes(command: Command, file: Path, tmp_path: Path) -> None:
    document = command("whatif", file, "--set", "cluster.device.memory_GB=2", "-o", tmp_path / "q.json", "--json").json
    assert document["plan_id"] == load_plan(str(tmp_path / "q.json")).plan_id
    assert document["old_fits"] is True
    assert document["old_objective_s"] == pytest.approx(document["objective_s"], rel=1e-9)
    assert [change["what"] for change in document["difference"]["facts"]] == ["cluster.source", "cluster.device.memory_bytes"]
    assert document["difference"]["memory"] == [
        {"what": "device", "a": holdings(load_plan(str(file)))[0].device_bytes, "b": 2 * GB, "count": 1}
    ]
    shown = command("whatif", file, "--set", "cluster.device.memory_GB=2").out
    assert "old decisions, new cluster" in shown
    assert set(Use) == set(holdings(load_plan(str(file)))[0].uses)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "cluster.links.nicc.bandwidth_GBps=5",
            r"\[links\] has unknown keys \['nicc'\]; known are \['collective_times', 'interconnect', 'nic', 'node', 'rack'\]",
        ),
        ("cluster.device.memory=3", r"\[device\] has unknown keys \['memory'\]; known are .*'memory_GB'"),
        ("cluster.colour=3", r"unknown keys \['colour'\]; known are "),
        (
            "links.node.bandwidth_GBps=4",
            "write cluster.SECTION.KEY=VALUE as in the cluster's TOML; this .*cluster.links.node.bandwidth_GBps",
        ),
        ("cluster.device.memory_GB", "write cluster.SECTION.KEY=VALUE"),
        ("cluster..memory_GB=4", "write cluster.SECTION.KEY=VALUE"),
        ("cluster.device.memory_GB=fast", "'fast' is no TOML value"),
        ("cluster.device.memory_GB=1\nschema=3", "is no TOML value"),
        ('cluster.device.memory_GB="8"', "memory_GB = '8'; a number is needed"),
        ("cluster.device.memory_GB=-1", "memory and rates must be finite and > 0"),
        ("cluster.device.memory_GB=nan", "a finite number"),
        ("cluster.device=3", "device is a section, set one of its keys; this cluster has "),
        ("cluster.name.short=3", "name is a value, not a section"),
        ("cluster.topology.nodes=1.5", "a whole number is needed"),
        ("cluster.topology.nodes=2", r"no \[links.nic\]; say how the nodes are connected"),
        ("cluster.device.memory_GB=0.000001", "a device|no shape fits|no layout fits"),
    ],
)
def test_a_key_or_value_that_no_cluster_has_is_refused(command: Command, file: Path, tmp_path: Path, text: str, says: str) -> None:
    before = files_of(tmp_path)
    for extra in ([], ["--json"]):
        ran = command("whatif", file, "--set", text, "-o", tmp_path / "new.json", *extra)
        assert ran.code == 2
        assert "Traceback" not in ran.err
        assert re.search(says, ran.err, re.DOTALL), ran.err
    assert files_of(tmp_path) == before


def test_nothing_to_change_is_refused(command: Command, file: Path, plan: Plan) -> None:
    assert "required: --set" in command("whatif", file).err
    with pytest.raises(Unsupported, match="nothing to change"):
        whatif(plan, [])


def test_a_cluster_is_checked_as_its_file_is() -> None:
    with pytest.raises(InvalidCluster, match=r"here: section \[device\] is missing"):
        parse_cluster({"schema": 1}, "here", "name")


def test_a_rate_that_prices_nothing_is_refused_where_kernels_have_tables() -> None:
    cluster = resolve_cluster("h100-sxm")
    with pytest.raises(
        Unsupported, match="kernels of h100-sxm are priced by their tables, so the rates of the cluster's file change nothing"
    ):
        changed_cluster(cluster, ["cluster.device.compute_GFLOPs=1000"])
    assert changed_cluster(cluster, ['cluster.device.kernels="h200-sxm"']).device.kernels == "h200-sxm"
    priced_by_rates = changed_cluster(cluster, ['cluster.device.kernels=""', "cluster.device.compute_GFLOPs=1000"])
    assert (priced_by_rates.device.kernels, priced_by_rates.device.rate_flop_per_s) == ("", 1e12)
