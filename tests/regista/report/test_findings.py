"""What the comparison of two traces finds: what-ifs, errors of acts, memory."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import TableCost, chain, data_parallel

from regista.report.findings import find
from regista.report.html import bytes_cell
from regista.report.whatif import TracePrices, what_if_changes
from simulator import simulate
from simulator.theory import chain_period_s
from tests.regista.report.report_cases import COST, PLAN, RUN, SIM


@pytest.mark.parametrize("plan", [PLAN, data_parallel(2), chain("ab", (2, 1), acts=2)], ids=["pipeline", "data", "chain"])
def test_the_first_what_if_is_the_prediction_itself(plan):
    sim = replace(simulate(plan, COST, steps=3), message_s={"0->1": COST.latency_s, "1->0": COST.latency_s})
    first = what_if_changes(plan, sim)[0]
    assert first.step_s == pytest.approx(sim.settled_step_s(plan), rel=1e-12)
    assert first.register_bytes == max(sim.register_bytes.values())


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 2))
def test_what_ifs_of_a_chain_take_the_closed_forms_period(times_s, quota):
    plan = chain("abc", quota, acts=2)  # a step of two acts holds whole turns of quotas 1 and 2
    rows = {
        row.what: row
        for row in what_if_changes(plan, simulate(plan, TableCost(dict(zip("abc", map(float, times_s), strict=True))), steps=40))
    }
    assert rows["as it is"].step_s == pytest.approx(2 * chain_period_s(times_s, (quota, quota)))
    assert rows["one block of every regst"].step_s == pytest.approx(2 * chain_period_s(times_s, (1, 1)))
    halved_s = [times_s[0], times_s[1] / 2, times_s[2] / 2]  # the first reads data, which is no work of the device
    assert rows["devices twice as fast"].step_s == pytest.approx(2 * chain_period_s(halved_s, (quota, quota)))
    if quota == 1:
        assert rows["one block more of every regst"].step_s == pytest.approx(2 * chain_period_s(times_s, (2, 2)))


@pytest.mark.parametrize(
    ("predicted", "counted", "shown"), [(8, 8, "0 B"), (1e8 + 8, 1e8, "+8 B"), (90, 100, "-10.0%"), (5, 0, "+5 B"), (2e8, 1e8, "+100.0%")]
)
def test_a_difference_of_bytes_is_never_shown_as_none(predicted, counted, shown):
    assert re.sub("<[^>]*>", "", bytes_cell(predicted, counted)) == shown


def test_prices_of_a_trace_are_its_acts_durations():
    prices = TracePrices.of(SIM, lambda task: 2.0 if task.id == "F0" else 1.0)
    for task in PLAN.tasks:
        for rank in PLAN.ranks_of(task):
            assert prices.act_s(PLAN, task, rank) == pytest.approx(COST.act_s(PLAN, task, rank) * (2 if task.id == "F0" else 1))


def test_a_change_that_does_not_fit_says_so_instead_of_a_step_time():
    limit = max(SIM.peak_bytes.values())
    device = replace(PLAN.cluster.device, memory_bytes=limit)
    plan = replace(PLAN, cluster=replace(PLAN.cluster, device=device))
    rows = {row.what: row for row in what_if_changes(plan, replace(simulate(plan, COST, steps=3)))}
    fuller = [row for row in rows.values() if row.step_s is None]
    assert fuller
    assert all("does not fit" in row.why_not for row in fuller)
    assert rows["as it is"].step_s is not None


def test_errors_of_acts_are_predicted_over_measured_after_the_warm_up():
    comparison = find(PLAN, SIM, RUN, warmup=2)
    assert {act.number // PLAN.task[act.task].acts for act in comparison.acts} == {2, 3, 4, 5}
    by_task = {act.task: act.error for act in comparison.acts}
    assert by_task["F0"] == pytest.approx(-0.5)
    assert by_task["F1"] == pytest.approx(0.0, abs=1e-9)


def test_memory_of_a_rank_is_the_traces_own_count():
    comparison = find(PLAN, SIM, RUN)
    assert {str(m.rank): m.held.predicted for m in comparison.memory} == SIM.register_bytes
    assert {str(m.rank): m.held.measured for m in comparison.memory} == RUN.register_bytes
    assert all(m.held.predicted <= m.peak_sim <= m.planned for m in comparison.memory)
