"""Plan files that are none, that were edited against a law, or that dead-lock, are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command
from stories import Story

import backend
from planner.ir.errors import WorkerFailed
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Fragment, Plan
from regista.programs import planned_program
from tests.regista.refusals.refusal import assert_refused, edited


@pytest.mark.parametrize("verb", [["explain"], ["simulate"], ["run", "--performer", "reference"]], ids=lambda v: v[0])
def test_a_missing_plan_is_refused_with_the_command_that_writes_one(command: Command, tmp_path: Path, verb: list[str]):
    assert_refused(command, tmp_path, *verb, tmp_path / "nope.json", says=r"nope\.json: no such file; 'regista plan ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON .* empty, truncated or damaged"),
        (b"\x80\x81\xff\x00", "cannot be read as text"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[]", "expected a regista plan file"),
        (b"{}", "expected a regista plan file"),
        (b'"plan"', "expected a regista plan file"),
        (b"null", "expected a regista plan file"),
        (b'{"kind": "plan"}', "schema version None, but this regista reads plan version 2"),
        (b'{"kind": "plan", "version": 2}', "plan: expected an object"),
        (b'{"kind": "plan", "version": 2, "plan": NaN}', "NaN is not JSON"),
        (b'{"kind": "plan", "version": 2, "plan": 1e999}', "too large for a float"),
        (b'{"kind": "plan", "version": 2, "plan": ' + b"9" * 5000 + b"}", "does not fit into 64 bits"),
        (b'{"kind": "plan", "version": 2, "plan": ' + b"[" * 500 + b"]" * 500 + b"}", "nested deeper than"),
        (b'{"kind": "plan", "version": 2, "plan": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON|nested deeper"),
        (b'{"kind": "plan", "version": 2, "plan": "\\ud800"}', "cannot be read as text"),
    ],
)
def test_what_is_no_plan_is_refused(command: Command, tmp_path: Path, content: bytes, says: str):
    (tmp_path / "plan.json").write_bytes(content)
    assert_refused(command, tmp_path, "explain", tmp_path / "plan.json", says=says)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_truncated_plan_is_refused(command: Command, made: dict[str, Path], tmp_path: Path, share: float):
    content = made["plan"].read_bytes()
    (tmp_path / "plan.json").write_bytes(content[: int(len(content) * share)])
    assert_refused(command, tmp_path, "simulate", tmp_path / "plan.json", says="truncated")


def test_a_folder_is_no_plan(command: Command, tmp_path: Path):
    assert_refused(command, tmp_path, "explain", tmp_path, says="Is a directory")


def test_another_schema_version_is_refused_with_both_versions(command: Command, made: dict[str, Path], tmp_path: Path):
    old = edited(made["plan"], tmp_path / "plan.json", lambda d: d.update(version=7))
    assert_refused(command, tmp_path, "simulate", old, says="schema version 7, but this regista reads plan version 2; write the file anew")


def test_a_trace_is_no_plan_and_a_plan_is_no_trace(command: Command, made: dict[str, Path], tmp_path: Path):
    assert_refused(command, tmp_path, "simulate", made["sim"], says="expected a regista plan file, found 'trace'; check the order")
    assert_refused(command, tmp_path, "export", made["plan"], "-o", tmp_path / "x", says="expected a regista trace file, found 'plan'")
    assert_refused(command, tmp_path, "simulate", made["plan"], "--cost", made["plan"], says="expected a regista cost file, found 'plan'")


# Plans that were edited.


def first(data: Any, table: str, **fields: Any) -> Any:
    return next(row for row in data["plan"][table] if all(row[key] == value for key, value in fields.items()))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            lambda d: first(d, "regsts", kind="data").update(quota=0),
            r"regst \S+ has quota 0; an actor needs at least 1 block.*set quota >= 1",
        ),
        (lambda d: first(d, "regsts", kind="data").update(quota=-3), "has quota -3"),
        (lambda d: first(d, "regsts", kind="data").update(quota=2**62), "has quota 4611686018427387904; more than"),
        (lambda d: first(d, "regsts", kind="data").update(quota=1.0), r"plan\.regsts\[\d+\]\.quota: expected int, found 1\.0"),
        (lambda d: first(d, "regsts", kind="data").update(quota=True), "expected int, found true"),
        (lambda d: first(d, "regsts", kind="state").update(quota=2), "state regst .* has exactly 1 block"),
        (lambda d: first(d, "tasks", kind="forward").update(acts=-1), "acts -1 times per step; at least 1"),
        (lambda d: first(d, "tasks", kind="forward").update(acts=2**62), "acts per block|blocks per step|acts per step"),
        (lambda d: first(d, "tasks", kind="forward")["body"].update(flop=-5), "-5 flop"),
        (lambda d: first(d, "tasks", kind="forward")["body"].update(workspace_bytes=2**62), r"needs 4294967296\.0 GiB .* has "),
        (lambda d: first(d, "tasks", kind="forward").update(stream="nope"), "runs on stream nope, which its placement"),
        (lambda d: d["plan"]["placements"][0].update(mesh=[-1, -2]), "places for ranks"),
        (lambda d: d["plan"]["placements"][0].update(ranks=[0, 7]), "have gaps"),
        (lambda d: d["plan"]["streams"].append(d["plan"]["streams"][0] | {"id": "x", "placement": "y"}), "placement y, which the plan"),
        (lambda d: first(d, "regsts", kind="data")["tensors"][0].update(sbp="S(9)"), "cannot lie on mesh"),
        (lambda d: first(d, "regsts", kind="data")["tensors"][0].update(sbp="S(" + "9" * 5000 + ")"), "is not an SBP"),
        (lambda d: first(d, "regsts", kind="data")["tensors"][0].update(shape=[-4]), r"shape \(-4,\); extents are at least 0|cannot lie"),
        (lambda d: first(d, "regsts", kind="data")["tensors"][0].update(shape=[2**62] * 40, sbp="B"), "more than 2\\^"),
        (lambda d: d["plan"].update(tasks=[]), "no task|not a task"),
        (lambda d: d["plan"].update(surprise=1), "unknown fields \\['surprise'\\]"),
        (lambda d: d["plan"]["search"].update(objective_s={"float": "nan"}), "the search claims nan s"),
        (lambda d: d["plan"]["cluster"]["device"].update(memory_bytes=100), r"rank 0 needs .* KiB .* but a device of local-2 has 100 B"),
        (lambda d: d["plan"]["cluster"]["node"].update(bandwidth_bytes_per_s=-1), "bandwidth_GBps = -1e-09"),
    ],
)
def test_an_edited_plan_that_breaks_a_law_is_refused_by_that_law(
    command: Command, made: dict[str, Path], tmp_path: Path, edit: Any, says: str
):
    assert_refused(command, tmp_path, "simulate", edited(made["plan"], tmp_path / "plan.json", edit), says=says)


def test_keyword_arguments_of_ops_cannot_smuggle_code_into_fragments(command: Command, made: dict[str, Path], tmp_path: Path):
    def edit(data: Any) -> None:
        op = first(data, "tasks", kind="forward")["body"]["ops"][0]
        op["kwargs"] = [["x=__import__('os').abort(), y", 1]]

    assert_refused(
        command, tmp_path, "run", edited(made["plan"], tmp_path / "p.json", edit), "--performer", "reference", says="must be names"
    )


def test_an_op_that_the_program_does_not_have_is_refused_with_task_and_ranks(command: Command, made: dict[str, Path], tmp_path: Path):
    def edit(data: Any) -> None:
        first(data, "tasks", kind="forward")["body"]["ops"][0]["args"] = []

    bad = edited(made["plan"], tmp_path / "p.json", edit)
    says = r"task s0\.fwd\.0 on ranks 0 to 1, op n0 .* the program has no .* this plan does not compute its program"
    assert_refused(command, tmp_path, "run", bad, "--performer", "reference", says=says)
    assert_refused(command, tmp_path, "verify", bad, says=says)


def test_an_op_that_its_kernel_does_not_take_ends_a_performance_with_task_and_rank(made: dict[str, Path]):
    plan = load_plan(str(made["plan"]))
    program = planned_program(plan)
    (task,) = [task for task in plan.tasks if task.id == "s0.fwd.0"]
    assert isinstance(task.body, Fragment)
    (op, *ops) = task.body.ops
    worse = replace(task, body=replace(task.body, ops=(replace(op, args=()), *ops)))
    bad = replace(plan, tasks=tuple(worse if t is task else t for t in plan.tasks))
    with pytest.raises(WorkerFailed, match=r"rank \d failed in task s0\.fwd\.0: "):
        backend.perform(bad, program.initial_state(), program.batches(1), 1)


# Plans that dead-lock.


def shared(quota: int) -> Plan:
    """B adds up two blocks of x before D may read either, and D frees them: x needs two blocks.

    A --x--> B --y (2 acts per block)--> D
      `------x---------------------------^
    """
    story = Story()
    story.regst("x", "A", quota)
    story.regst("y", "B", 1)
    story.task("A", produces=["x"], acts=2)
    story.task("B", ["x"], {"y": 2}, acts=2)
    story.task("D", {"x": 1, "y": 2}, acts=2)
    return story.freeze(micro_batches=2)


def test_a_quota_that_dead_locks_is_refused_with_the_cycle_and_the_quota_to_raise(command: Command, tmp_path: Path):
    path = tmp_path / "plan.json"
    save_plan(shared(1), str(path))
    message = assert_refused(command, tmp_path, "simulate", path, says=r"raise the quota of regst x from 1 to 2")
    for actor in ("A waits until D frees a block of regst x", "D waits for data of regst y from B", "B waits for data of regst x from A"):
        assert actor in message
    edited(path, path, lambda d: first(d, "regsts", id="x").update(quota=2))
    assert command("simulate", path).code == 0


def test_an_edge_against_the_flow_is_refused_with_its_actors(command: Command, made: dict[str, Path], tmp_path: Path):
    def edit(data: Any) -> None:
        late, early = first(data, "tasks", kind="update"), first(data, "tasks", kind="forward")
        back = {"is": "Regst", "id": "back", "kind": "control", "placement": late["placement"], "producer": late["id"], "quota": 1}
        data["plan"]["regsts"].append(back | {"tensors": []})
        late["produces"].append({"is": "Port", "regst": "back", "acts_per_block": 1})
        early["consumes"].append({"is": "Port", "regst": "back", "acts_per_block": 1})

    bad = edited(made["plan"], tmp_path / "plan.json", edit)
    message = assert_refused(command, tmp_path, "simulate", bad, says="not live .* wait for each other for ever")
    assert "s0.fwd.0 waits for data of regst back from s0.upd" in message
    assert "no quota is on the cycle" in message


def test_collectives_ordered_against_the_data_are_refused_with_their_stream(command: Command, tmp_path: Path):
    path = tmp_path / "plan.json"
    pins = [x for name in ("blocks.0.up.weight=S(0)", "blocks.1.up.weight=S(0)", "input.*=B") for x in ("--pin", name)]
    assert command("plan", TINY, "--cluster", "local:2", *pins, "-o", path).code == 0

    def edit(data: Any) -> None:
        stream = max(data["plan"]["streams"], key=lambda s: len(s["order"]))
        assert len(stream["order"]) > 1
        stream["order"].reverse()

    assert_refused(command, tmp_path, "simulate", edited(path, path, edit), says=r"waits for its turn after \S+ on stream s0\.axis0")
