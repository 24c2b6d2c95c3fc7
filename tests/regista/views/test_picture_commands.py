"""Pictures and exports from trace files, on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_line import TINY, commands

import regista.api as api
from planner.ir.errors import InvalidFile, InvalidTrace
from planner.ir.files import load_trace, save_trace
from planner.ir.traces.trace import check_trace
from simulator.analysis.category import Category
from simulator.analysis.curve import memory_curves
from tests.regista.views.view_cases import PLAN, RUN, SIM, svg_texts


def test_a_simulated_trace_file_gives_the_peak_of_its_simulation_again(tmp_path):
    plan = api.plan(TINY, "local:2", stages=2, micro_batches=4, cuts=["blocks.1"])
    save_trace(plan, api.simulate(plan, steps=2), str(tmp_path / "sim.json"))
    plan, trace = load_trace(str(tmp_path / "sim.json"))
    assert trace.message_s
    for rank, curve in memory_curves(plan, trace).items():
        assert max(curve.total_bytes) == trace.peak_bytes[str(rank)]
        assert max(curve.register_bytes) == trace.register_bytes[str(rank)]
        sizes = {owner.category for owner in curve.owners}
        assert {Category.PARAMETERS, Category.ACTIVATIONS} <= sizes


def test_a_trace_file_of_version_2_is_read_as_if_messages_took_no_time(tmp_path):
    path = tmp_path / "old.json"
    save_trace(PLAN, replace(SIM, message_s={"0->1": 0.1}), str(path))
    data = json.loads(path.read_text())
    assert data["version"] == 3
    del data["trace"]["message_s"]
    path.write_text(json.dumps(data | {"version": 2}))
    assert load_trace(str(path)) == (PLAN, SIM)
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidFile, match=r"missing fields \['message_s'\]"):
        load_trace(str(path))


@pytest.mark.parametrize("wrong", [{"0->7": 0.1}, {"0": 0.1}, {"0->1": -0.1}])
def test_message_times_that_cannot_be_are_refused(wrong: dict):
    with pytest.raises(InvalidTrace, match="law 6: a message"):
        check_trace(PLAN, replace(SIM, message_s=wrong))


def test_the_verbs_draw_and_export_what_their_options_say(capsys, tmp_path):
    command = commands(capsys)
    save_trace(PLAN, SIM, str(tmp_path / "sim.json"))
    save_trace(PLAN, RUN, str(tmp_path / "run.json"))
    assert command("gantt", tmp_path / "sim.json", "--streams", "-o", tmp_path / "streams.svg").code == 0
    assert "load" in svg_texts(tmp_path / "streams.svg")
    assert command("gantt", tmp_path / "sim.json", "--links", "-o", tmp_path / "devices.svg").code == 0
    assert "load" not in svg_texts(tmp_path / "devices.svg")
    refused = command("gantt", tmp_path / "sim.json", "--streams", "--memory", "-o", tmp_path / "no.svg")
    assert (refused.code, "leave out --streams" in refused.err) == (2, True)
    exported = command("export", tmp_path / "sim.json", "--format", "kineto", "-o", tmp_path / "profile", "--json")
    assert exported.json["files"] == [f"{tmp_path}/profile/rank{rank}.json" for rank in range(2)]
    refused = command("export", tmp_path / "sim.json", tmp_path / "run.json", "--format", "kineto", "-o", tmp_path / "two")
    assert (refused.code, "got 2 traces" in refused.err) == (2, True)
    assert not (tmp_path / "two").exists()
