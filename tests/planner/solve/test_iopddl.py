"""The contest's files: what is read is what is written there, damaged files are refused, and the command line solves them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.ir.errors import InvalidFile
from planner.solve.iopddl import FORBIDDEN, load_iopddl, save_choice
from regista.cli import main


def instance() -> dict[str, Any]:
    """Two nodes that overlap at time 3, and one that is never held: without a limit (1, 0, 0) is best at 3, within it (0, 0, 0) at 10."""
    return {
        "problem": {
            "name": "small",
            "nodes": {"intervals": [[0, 4], [3, 6], [2, 2]], "costs": [[5, 2], [0, 3, 9], [1]], "usages": [[1, 8], [4, 4, 1], [100]]},
            "edges": {"nodes": [[0, 1]], "costs": [[4, FORBIDDEN, 8, 0, 7, 6]]},
            "usage_limit": 9,
        }
    }


def test_instance_is_read_as_written(tmp_path: Path) -> None:
    for name, data in (("a.json", json.dumps(instance()).encode()), ("a.json.gz", gzip.compress(json.dumps(instance()).encode()))):
        (tmp_path / name).write_bytes(data)
        problem = load_iopddl(tmp_path / name)
        assert [c.tolist() for c in problem.costs] == [[5, 2], [0, 3, 9], [1]]
        assert problem.edges[0].matrix.tolist() == [[4, np.inf, 8], [0, 7, 6]]
        assert (problem.edges[0].u, problem.edges[0].v, problem.limit) == (0, 1, 9.0)
        # Half-open: at time 4 only the second is held; the third is never held.
        assert problem.peak([1, 0, 0]) == 12.0
        assert problem.peak([1, 2, 0]) == 9.0
        assert [(d.node, d.start, d.stop) for d in problem.demands] == [(0, 0, 4), (1, 3, 6)]


def test_edge_from_a_node_to_itself_is_a_cost(tmp_path: Path) -> None:
    data = instance()
    data["problem"]["edges"] = {"nodes": [[0, 0]], "costs": [[10, 99, 99, 20]]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    problem = load_iopddl(tmp_path / "a.json")
    assert problem.costs[0].tolist() == [15.0, 22.0]
    assert not problem.edges


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    data = instance()
    change(data["problem"])
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        (json.dumps(instance())[:-9], "truncated"),
        ("[]", "no object named 'problem'"),
        (broken(lambda p: p.pop("edges")), "no object named 'edges'"),
        (broken(lambda p: p["nodes"].pop("usages")), "no list named 'usages'"),
        (broken(lambda p: p["nodes"]["costs"].pop()), "3 intervals, 2 cost lists and 3 usage lists"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [])), "node 0 has 0 costs"),
        (broken(lambda p: p["nodes"]["usages"].__setitem__(1, [1, 2])), "node 1 has 3 costs and 2 usages"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [1, "2"])), "costs of node 0 are not a list of numbers"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [1, None])), "costs of node 0 are not a list of numbers"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [1, -2])), "negative"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [1, 2**60 - 2**59])), "2\\^53"),
        (broken(lambda p: p["nodes"]["intervals"].__setitem__(0, [1])), "interval of node 0"),
        (broken(lambda p: p["edges"]["nodes"].__setitem__(0, [0, 3])), "nodes are 0 to 2"),
        (broken(lambda p: p["edges"]["nodes"].__setitem__(0, [0, 1, 2])), "nodes of edge 0"),
        (broken(lambda p: p["edges"]["nodes"].__setitem__(0, [False, 1])), "nodes of edge 0"),
        (broken(lambda p: p["nodes"]["intervals"].__setitem__(0, [0, True])), "interval of node 0"),
        (broken(lambda p: p["nodes"]["costs"].__setitem__(0, [5, True])), "costs of node 0 are not a list of numbers"),
        (broken(lambda p: p["edges"]["costs"].__setitem__(0, [1, 2, 3])), "edge 0 has 3 costs; its nodes have 2 x 3 strategies"),
        (broken(lambda p: p["edges"]["costs"].append([])), "1 edges but 2 edge cost lists"),
        (broken(lambda p: p.__setitem__("usage_limit", "9")), "usage_limit is '9'"),
        (broken(lambda p: p.__setitem__("usage_limit", -1)), "usage_limit is -1"),
    ],
)
def test_malformed_instance_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InvalidFile, match=f"a.json.*: .*{message}"):
        load_iopddl(tmp_path / "a.json")


def test_truncated_gzip_and_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(instance()).encode())[:-20])
    with pytest.raises(InvalidFile, match="gzip data is truncated"):
        load_iopddl(tmp_path / "a.json.gz")
    with pytest.raises(InvalidFile, match="no such file"):
        load_iopddl(tmp_path / "b.json")
    with pytest.raises(InvalidFile, match="cannot be read"):
        load_iopddl(tmp_path)


def test_choice_file_is_a_list_of_strategies(tmp_path: Path) -> None:
    save_choice(tmp_path / "c.json", np.array([2, 0, 1]))
    assert json.loads((tmp_path / "c.json").read_text()) == [2, 0, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.thorough
def test_command_prints_the_figures_and_writes_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(instance()))
    out = tmp_path / "c.json"
    assert main(["iopddl", str(tmp_path / "a.json"), "--seconds", "600", "--json", "--out", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["objective", "lower_bound", "gap", "seconds"]
    assert (figures["objective"], figures["lower_bound"], figures["gap"]) == (10, 10, 0.0)
    assert isinstance(figures["objective"], int)
    choice = json.loads(out.read_text())
    problem = load_iopddl(tmp_path / "a.json")
    assert problem.objective(choice) == 10
    assert problem.feasible(choice)


def test_command_shows_objective_bound_and_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(instance()))
    assert main(["iopddl", str(tmp_path / "a.json"), "--seconds", "600"]) == 0
    shown = capsys.readouterr().out
    assert "objective    10" in shown
    assert "lower bound  10" in shown
    assert "optimal" in shown


def test_command_refuses_what_cannot_be_solved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = instance()
    data["problem"]["usage_limit"] = 1
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert main(["iopddl", str(tmp_path / "a.json")]) == 2
    assert "more than the limit 1" in capsys.readouterr().err
    assert main(["iopddl", str(tmp_path / "none.json")]) == 2
    assert main(["iopddl", str(tmp_path / "a.json"), "--out", str(tmp_path / "no" / "c.json")]) == 2
