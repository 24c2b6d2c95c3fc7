"""From measurements to prices: what an act is charged, and which plans a table can price."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_line import commands
from matrix import plan_for

from backend.measure.profile import Profile, Spread
from planner.cost import act_key, load_cost, save_cost
from planner.ir.errors import Mismatch
from planner.ir.files import save_plan
from planner.ir.plan import Plan, StreamKind, TaskKind
from planner.ir.traces.trace import Source, Trace
from regista import calibrate
from regista.calibrate import cost_of
from simulator import simulate


def spread(seconds: float) -> Spread:
    return Spread(min_s=seconds / 2, p10_s=seconds / 2, median_s=seconds, n=5)


def profile_of(plan: Plan, slowest_s: float = 2e-3, collective_s: float = 7e-3) -> Profile:
    """Every rank takes 1 ms alone, the slowest of a round 2 ms, and a collective 7 ms between computing."""
    collectives = [t.id for t in plan.tasks if plan.stream[t.stream].kind is StreamKind.COLLECTIVE]
    return Profile(
        mode="isolated",
        plan_id=plan.plan_id,
        tasks={t.id: {rank: spread(1e-3) for rank in plan.ranks_of(t)} for t in plan.tasks},
        rounds={t.id: (slowest_s / 2, slowest_s, 1.5 * slowest_s) for t in plan.tasks},
        in_training=dict.fromkeys(collectives, (collective_s / 2, collective_s, 1.5 * collective_s)),
        overheads={"message_remote": spread(3e-5), "act_gap": spread(5e-5)},
        trace=Trace(source=Source.RUN, performer="gloo", plan_id=plan.plan_id, steps=1, acts=()),
    )


def test_an_act_costs_what_its_slowest_rank_takes_and_a_collective_what_it_takes_between_computing() -> None:
    plan = plan_for("mlp", "data2")
    cost = cost_of(plan, profile_of(plan))
    for task in plan.tasks:
        collective = plan.stream[task.stream].kind is StreamKind.COLLECTIVE
        assert cost.act_s(plan, task, 0) == pytest.approx((7e-3 if collective else 2e-3) + 5e-5)
    assert cost.message_s(0, 1) == pytest.approx(3e-5)


def test_acts_that_do_the_same_cost_their_mean_and_a_stall_counts_ten_medians_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for("gpt", "tensor2")
    one, other = [task.id for task in plan.tasks if task.kind is TaskKind.BACKWARD][:2]
    monkeypatch.setattr(calibrate, "act_key", lambda plan, task: "same" if task.id in (one, other) else act_key(plan, task))
    rounds = {task.id: (1.0, 1.0, 1.0) for task in plan.tasks}
    rounds |= {one: (2.0, 1.0, 100.0), other: (4.0, 3.0, 100.0)}
    cost = cost_of(plan, replace(profile_of(plan), rounds=rounds, in_training={}))
    assert cost.acts["same"].price_s == pytest.approx((3.0 + 2.0 + 10 * 3.0) / 3), (
        "means of the rounds: 3, 2 and 100, of which 10 medians count"
    )


def test_a_table_prices_the_same_acts_under_other_quotas() -> None:
    plan = plan_for("mlp", "pipeline2")
    cost = cost_of(plan, profile_of(plan))
    other = plan.with_quotas({r.id: r.quota + 1 for r in plan.regsts if r.kind.value == "data"})
    assert other.plan_id != plan.plan_id
    assert [act_key(other, t) for t in other.tasks] == [act_key(plan, t) for t in plan.tasks]
    assert simulate(other, cost).acts


def test_a_table_refuses_acts_that_were_not_measured() -> None:
    measured, other = plan_for("mlp", "data2"), plan_for("gpt", "data2")
    cost = cost_of(measured, profile_of(measured))
    with pytest.raises(Mismatch, match=r"has no price for task .* measure this plan with 'regista calibrate"):
        simulate(other, cost)


def test_a_table_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = plan_for("mlp", "data2")
    cost = cost_of(plan, profile_of(plan))
    path = str(tmp_path_factory.mktemp("cost") / "cost.json")
    save_cost(cost, path)
    assert load_cost(path) == cost
    assert load_cost(path).id == cost.id


def test_a_table_carries_how_much_computing_slows_beside_communication(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = plan_for("mlp", "data2")
    cost = cost_of(plan, replace(profile_of(plan), compute_slowdown=1.75))
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    save_cost(cost, str(path))
    assert load_cost(str(path)).compute_slowdown == 1.75
    assert simulate(plan, cost, steps=2).about["compute_slowdown"] == "1.75"


def test_what_is_proved_of_constant_durations_says_that_it_leaves_contention_out(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_for("mlp", "data2")
    folder, command = tmp_path_factory.mktemp("cost"), commands(capsys)
    save_plan(plan, str(folder / "plan.json"))
    for slowdown, label in ((1.75, "a contention-free bound: with these prices computing takes 1.75 times as long"), (1.0, None)):
        save_cost(cost_of(plan, replace(profile_of(plan), compute_slowdown=slowdown)), str(folder / "cost.json"))
        asked = (folder / "plan.json", "--cost", folder / "cost.json")
        seen = " ".join(command("simulate", *asked).out.split()), " ".join(command("quotas", *asked, "--full-throughput").out.split())
        certificate = command("quotas", *asked, "--full-throughput", "--json").json["certificate"]
        cycle = command("simulate", *asked, "--json").json["critical_cycle"]["about"]
        for text in (*seen, certificate, cycle):
            assert (label in text) if label else ("contention" not in text)


def test_a_table_from_before_contention_was_measured_is_felt_as_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = plan_for("mlp", "data2")
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    save_cost(cost_of(plan, profile_of(plan)), str(path))
    data = json.loads(path.read_text())
    del data["cost"]["compute_slowdown"]
    path.write_text(json.dumps(data))
    assert load_cost(str(path)).compute_slowdown == 1.0
