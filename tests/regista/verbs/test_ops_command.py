"""'regista ops' and 'regista clusters': what the tables and the JSON say is what the op set and the presets hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from command_line import Command, commands

from planner.cost.clusters import preset, preset_names
from planner.ir.cluster import Cluster
from planner.ir.text import decode
from planner.opset import known_targets
from regista.analysis.op_coverage import families
from regista.api import program_of

GPT = "zoo:gpt?layers=1&width=16&heads=2&vocab=32&batch=4&seq=4"

STRANGE = """
import torch
from torch import nn
from planner.frontend import Program

class Strange(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.matrix_exp(self.inner(x)).sum()

def strange():
    return Program(Strange(), (torch.randn(8, 4, 4),), loss=None, optimizer="sgd")
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture
def strange(tmp_path: Path) -> str:
    (tmp_path / "m.py").write_text(STRANGE)
    return f"{tmp_path / 'm.py'}:strange"


def test_every_target_with_a_rule_stands_in_exactly_one_family(command: Command) -> None:
    ran = command("ops", "--json")
    assert ran.code == 0
    listed = [target for targets in ran.json["families"].values() for target in targets]
    assert Counter(listed) == Counter(known_targets())
    assert ran.json["targets"] == len(listed)


def test_the_families_are_the_modules_that_their_targets_rules_stand_in() -> None:
    targets_of = families()
    assert "aten.mm.default" in targets_of["linalg"]
    assert "aten.view.default" in targets_of["view"]
    assert "rule" not in targets_of
    assert list(targets_of) == sorted(targets_of)


def test_the_table_of_families_names_each_with_its_number_of_targets(command: Command) -> None:
    ran = command("ops")
    assert ran.code == 0
    assert f"{len(known_targets())} targets have an SBP rule" in ran.out
    for family, targets in families().items():
        assert any(family in line and f" {len(targets)} " in line for line in ran.out.splitlines()), family


def test_a_models_targets_are_counted_over_its_whole_training_step(command: Command) -> None:
    ran = command("ops", "--model", GPT, "--json")
    assert ran.code == 0
    graph = program_of(GPT).graph(1)
    counts = Counter(op.target for op in graph.ops)
    assert ran.json["ops"] == len(graph.ops)
    assert {row["target"]: row["count"] for row in ran.json["targets"]} == counts
    assert all(sum(row["by_role"].values()) == row["count"] for row in ran.json["targets"])
    assert {role for row in ran.json["targets"] for role in row["by_role"]} == {"forward", "backward", "accumulate", "update"}
    assert ran.json["without_rule"] == {}


def test_the_table_of_a_model_cuts_no_target_short(command: Command) -> None:
    ran = command("ops", "--model", GPT)
    assert ran.code == 0
    for row in command("ops", "--model", GPT, "--json").json["targets"]:
        assert row["target"] in ran.out
    assert "0 without a rule" in ran.out


def test_an_op_without_a_rule_stands_first_with_the_lines_that_would_add_it(command: Command, strange: str) -> None:
    ran = command("ops", "--model", strange, "--json")
    assert ran.code == 0
    assert set(ran.json["without_rule"]) == {"aten.linalg_matrix_exp.default"}
    assert ran.json["targets"][0]["target"] == "aten.linalg_matrix_exp.default"
    assert [row["family"] is None for row in ran.json["targets"]] == [True] + [False] * (len(ran.json["targets"]) - 1)
    for target, way_out in ran.json["without_rule"].items():
        assert f'TABLE["{target}"] = OpSpec(rule=_rule)' in way_out
    shown = command("ops", "--model", strange).out
    assert "1 without a rule (whole inputs on every device)" in shown
    assert 'TABLE["aten.linalg_matrix_exp.default"] = OpSpec(rule=_rule)' in shown


def test_an_op_without_a_rule_is_one_warning_of_plan_and_a_refusal_when_strict(command: Command, strange: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    refused = command("plan", strange, "--cluster", "local:2", "--strict", "-o", plan)
    assert refused.code == 2 and "has no SBP rule" in refused.err and not plan.exists()
    ran = command("plan", strange, "--cluster", "local:2", "-o", plan)
    assert ran.code == 0
    (warning,) = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert "aten.linalg_matrix_exp.default (2)" in warning and "of its bytes" in warning


def test_every_core_operator_of_torch_has_a_rule_is_opened_performed_whole_or_refused_with_a_reason(command: Command) -> None:
    ran = command("ops", "--core", "--json")
    assert ran.code == 0
    how = {name: op["how"] for name, op in ran.json["operators"].items()}
    assert how["aten.mm.default"] == "rule"
    assert how["aten.native_group_norm.default"] == "opened"
    assert {name for name, op in ran.json["operators"].items() if op["reason"]} == {name for name in how if how[name] == "refused"}
    assert "torch.where" in ran.json["operators"]["aten.nonzero.default"]["reason"]
    assert f"has {len(how)} operators" in command("ops", "--core").out


def test_a_model_that_is_none_is_refused(command: Command) -> None:
    ran = command("ops", "--model", "zoo:nothing")
    assert ran.code == 2
    assert ran.err.startswith("regista ops: ")
    assert "nothing" in ran.err


def test_the_clusters_listed_are_the_presets_and_come_back_equal(command: Command) -> None:
    ran = command("clusters", "--json")
    assert ran.code == 0
    assert {name: decode(Cluster, data) for name, data in ran.json["clusters"].items()} == {name: preset(name) for name in preset_names()}
    shown = command("clusters").out
    assert all(name in shown and preset(name).device.kind in shown for name in preset_names())


def test_a_plan_can_be_made_for_a_preset_by_name(command: Command, tmp_path: Path) -> None:
    model = "zoo:mlp?batch=32&width=32&hidden=32&depth=1"
    ran = command("plan", model, "--cluster", "dgx-a100:2", "--mesh", "2x8", "-o", tmp_path / "p.json", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["cluster"] == "dgx-a100:2"
    assert ran.json["placements"]["s0"]["mesh"] == [2, 8]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--cluster", "dgx-b9000"],
            "no preset has that name; presets are a100-40gb-sxm, a100-80gb-sxm, a800-sxm, b200-sxm, b300-sxm, dgx-a100,",
        ),
        (["--cluster", "dgx-a100:x"], "'x' is not a number of nodes"),
        (["--cluster", "dgx-a100", "--mesh", "3x2"], "mesh 3x2 has 6 places, but each of 1 stages has 8 devices of dgx-a100"),
        (["--cluster", "dgx-a100", "--mesh", "2x2x2x1"], "has 4 axes; at most 3"),
    ],
)
def test_a_cluster_or_mesh_that_does_not_exist_is_refused_with_a_way_out(
    command: Command, tmp_path: Path, options: list[str], says: str
) -> None:
    ran = command("plan", "zoo:mlp", "-o", tmp_path / "p.json", *options)
    assert ran.code == 2
    assert says in ran.err
