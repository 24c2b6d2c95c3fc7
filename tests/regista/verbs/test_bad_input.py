"""The law of refusal: exit code 2, one message that says what, where and the way out, no traceback, no half-written file."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import CLUSTER, TINY, Command, commands, files_of
from stories import Story, TableCost, chain

from planner.cost import MeasuredCost, save_cost
from planner.ir.errors import RegistaError
from planner.ir.files import load_plan, load_trace, save_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Source
from regista import cli
from regista.verbs.planning.plan import plan_json
from simulator import simulate


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small plan, a pipeline, and traces of both, made once."""
    folder = tmp_path_factory.mktemp("made")
    paths = {name: folder / f"{name}.json" for name in ("plan", "pipe", "sim", "run", "pipesim")}
    for arguments in (
        ["plan", TINY, "--cluster", "local:2", "-o", paths["plan"]],
        ["plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "4", "-o", paths["pipe"]],
        ["simulate", paths["plan"], "-o", paths["sim"]],
        ["simulate", paths["pipe"], "-o", paths["pipesim"]],
        ["run", paths["plan"], "--performer", "reference", "--steps", "3", "-o", paths["run"]],
    ):
        assert cli.main([*map(str, arguments), "--json"]) == 0
    return paths


def refused(command: Command, folder: Path, *arguments: object, says: str = "") -> str:
    """Run twice, with and without --json, prove the law, and return the message."""
    before = files_of(folder)
    plain, machine = command(*arguments), command(*arguments, "--json")
    for ran in (plain, machine):
        assert ran.code == 2, ran
        # Warnings come first, then the one message.
        message = re.sub(r"^(warning: .*\n)*", "", ran.err)
        assert message.startswith("regista"), ran.err
        assert "Traceback" not in ran.err and 'File "' not in ran.err
    assert plain.out == ""
    assert set(machine.json) == {"error"}
    assert set(machine.json["error"]) == {"type", "message"}
    assert machine.json["error"]["message"] in machine.err
    assert files_of(folder) == before
    assert re.search(says, plain.err), plain.err
    return plain.err


def edited(path: Path, target: Path, edit: Any) -> Path:
    """A copy of a JSON file after ``edit(data)``."""
    data = json.loads(path.read_text())
    edit(data)
    target.write_text(json.dumps(data))
    return target


# Files that are no plan.


@pytest.mark.parametrize("verb", [["explain"], ["simulate"], ["run", "--performer", "reference"]], ids=lambda v: v[0])
def test_a_missing_plan_is_refused_with_the_command_that_writes_one(command: Command, tmp_path: Path, verb: list[str]):
    refused(command, tmp_path, *verb, tmp_path / "nope.json", says=r"nope\.json: no such file; 'regista plan ")


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
    refused(command, tmp_path, "explain", tmp_path / "plan.json", says=says)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_truncated_plan_is_refused(command: Command, made: dict[str, Path], tmp_path: Path, share: float):
    content = made["plan"].read_bytes()
    (tmp_path / "plan.json").write_bytes(content[: int(len(content) * share)])
    refused(command, tmp_path, "simulate", tmp_path / "plan.json", says="truncated")


def test_a_folder_is_no_plan(command: Command, tmp_path: Path):
    refused(command, tmp_path, "explain", tmp_path, says="Is a directory")


def test_another_schema_version_is_refused_with_both_versions(command: Command, made: dict[str, Path], tmp_path: Path):
    old = edited(made["plan"], tmp_path / "plan.json", lambda d: d.update(version=7))
    refused(command, tmp_path, "simulate", old, says="schema version 7, but this regista reads plan version 2; write the file anew")


def test_a_trace_is_no_plan_and_a_plan_is_no_trace(command: Command, made: dict[str, Path], tmp_path: Path):
    refused(command, tmp_path, "simulate", made["sim"], says="expected a regista plan file, found 'trace'; check the order")
    refused(command, tmp_path, "export", made["plan"], "-o", tmp_path / "x", says="expected a regista trace file, found 'plan'")
    refused(command, tmp_path, "simulate", made["plan"], "--cost", made["plan"], says="expected a regista cost file, found 'plan'")


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
    refused(command, tmp_path, "simulate", edited(made["plan"], tmp_path / "plan.json", edit), says=says)


def test_keyword_arguments_of_ops_cannot_smuggle_code_into_fragments(command: Command, made: dict[str, Path], tmp_path: Path):
    def edit(data: Any) -> None:
        op = first(data, "tasks", kind="forward")["body"]["ops"][0]
        op["kwargs"] = [["x=__import__('os').abort(), y", 1]]

    refused(command, tmp_path, "run", edited(made["plan"], tmp_path / "p.json", edit), "--performer", "reference", says="must be names")


def test_an_op_that_its_kernel_does_not_take_ends_the_run_with_task_and_rank(command: Command, made: dict[str, Path], tmp_path: Path):
    def edit(data: Any) -> None:
        first(data, "tasks", kind="forward")["body"]["ops"][0]["args"] = []

    bad = edited(made["plan"], tmp_path / "p.json", edit)
    refused(command, tmp_path, "run", bad, "--performer", "reference", says=r"rank \d failed in task s0\.fwd\.0: ")


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
    message = refused(command, tmp_path, "simulate", path, says=r"raise the quota of regst x from 1 to 2")
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
    message = refused(command, tmp_path, "simulate", bad, says="not live .* wait for each other for ever")
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

    refused(command, tmp_path, "simulate", edited(path, path, edit), says=r"waits for its turn after \S+ on stream s0\.axis0")


# Models.

MODELS = """
import dataclasses, torch
from torch import nn
from regista import Program

class Odd(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)

class Net(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.odd = Odd(f)

    def forward(self, x):
        return self.odd(self.inner(x))

def make(f, **more):
    return Program(Net(f), torch.randn(8, 8), **more)

def fft(): return make(lambda x: torch.fft.fft(x).abs().mean())
def distances(): return make(lambda x: torch.cdist(x, x).mean())
def vector(): return make(lambda x: x)
def pair(): return make(lambda x: (x.mean(), x.mean()))
def integer(): return make(lambda x: x.argmax())
def detached(): return make(lambda x: x.detach().mean())
def item(): return make(lambda x: x.mean() * float(x.sum()))
def poisson(): return make(lambda x: (x * torch.poisson(x.abs())).mean())
def shapes(): return make(lambda x: (x @ torch.ones(9, 9)).mean())
def raises(): raise KeyError("boom")
def exits(): raise SystemExit(3)
def number(): return 3
def wants(argument): return argument
def lion(): return make(lambda x: x.mean(), optimizer="lion")
"""


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("fft", "module 'odd' calls aten._fft_r2c.default: dtype 'torch.complex64' is not supported"),
        ("distances", r"op \S+ \(aten\._cdist_forward\.default, forward, module odd\) has no SBP rule"),
        ("vector", r"the loss must be a scalar but the module returned shape \(8, 8\); return the loss"),
        ("pair", "must return a scalar loss but returned a tuple"),
        ("integer", "the loss must be floating"),
        ("detached", "does not depend on any trainable parameter"),
        ("item", "module 'odd' lets a value decide"),
        ("poisson", "module 'odd' draws random numbers"),
        ("shapes", "tracing module 'odd' raised RuntimeError: a and b must have same reduction dim"),
        ("raises", r"m\.py:raises raised KeyError: 'boom'"),
        ("exits", r"m\.py:exits raised SystemExit: 3"),
        ("number", r"m\.py:number returned a int; it must return a planner\.frontend\.Program"),
        ("wants", "missing 1 required positional argument"),
        ("lion", "optimizer 'lion' is unknown"),
        ("nope", r"has no function 'nope'; it has .*distances"),
    ],
)
def test_a_model_that_cannot_be_planned_is_refused_by_op_module_or_factory(command: Command, tmp_path: Path, factory: str, says: str):
    (tmp_path / "m.py").write_text(MODELS)
    refused(command, tmp_path, "plan", f"{tmp_path}/m.py:{factory}", "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


@pytest.mark.parametrize(
    ("content", "says"),
    [("def f(:\n", "cannot be imported: SyntaxError"), ("import sys; sys.exit(0)\n", "SystemExit"), ("1 / 0\n", "ZeroDivisionError")],
)
def test_a_file_that_cannot_be_imported_is_refused(command: Command, tmp_path: Path, content: str, says: str):
    (tmp_path / "m.py").write_text(content)
    refused(command, tmp_path, "plan", f"{tmp_path}/m.py:f", "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nope.py:f", r"nope\.py does not exist; write zoo:"),
        ("nope.py", "names no factory"),
        ("nope.pt2", r"nope\.pt2 does not exist"),
        ("zoo:nope", "the zoo has no 'nope'; it has alexnet, .*convnet, .*gpt"),
        ("zoo:mlp?bad=1", "unexpected keyword argument 'bad'"),
        ("zoo:mlp?batch", "are not key=value pairs"),
        ("zoo:mlp?batch=8&batch=9", "give a key twice"),
        ("zoo:mlp?batch=0", "at least one sample"),
        ("zoo:mlp?batch=abc", r"raised TypeError: randn\(\) received"),
        ("zoo:gpt?heads=3", "3 heads do not divide a width of 256"),
        ("zoo:mlp?width=999999999999999", "raised RuntimeError"),
        ("", "'' is not a model"),
        ("plan.json", "is not a model; write zoo:"),
    ],
)
def test_a_name_that_is_no_model_is_refused_with_the_forms(command: Command, tmp_path: Path, model: str, says: str):
    refused(command, tmp_path, "plan", model, "--cluster", "local:2", "-o", tmp_path / "p.json", says=says)


def test_a_pt2_that_is_none_or_returns_no_loss_is_refused(command: Command, tmp_path: Path):
    import torch

    (tmp_path / "junk.pt2").write_bytes(b"junk")
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.randn(8, 4),)), tmp_path / "vector.pt2")
    goal = ("--cluster", "local:2", "-o", tmp_path / "p.json")
    refused(command, tmp_path, "plan", tmp_path / "junk.pt2", *goal, says="is not an exported program; write it with torch.export.save")
    refused(command, tmp_path, "plan", tmp_path / "vector.pt2", *goal, says="a .pt2 must return the loss, one scalar")


# Clusters.


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("memory_GB = 8.0", "memory_GB = -8.0", r"device\.memory_GB = -8; "),
        ("memory_GB = 8.0", "memory_GB = nan", r"\[device\] memory_GB = nan; a finite number"),
        ("memory_GB = 8.0", "memory_GB = 1e308", "memory_GB = 1e.308; a finite number below 1e.15"),
        ("memory_GB = 8.0", "memory_GB = true", "memory_GB = True; a number is needed"),
        ("memory_GB = 8.0", "", "memory_GB = None; a number is needed"),
        ("nodes = 1", "nodes = inf", "nodes = inf"),
        ("nodes = 1", "nodes = 1.5", "a whole number is needed"),
        ("nodes = 1", "nodes = 0", r"topology\.nodes = 0; a cluster needs at least 1"),
        ("nodes = 1", "nodes = 2", r"2 nodes but no \[links.nic\]"),
        ("nodes = 1", "nodes = 1000000000", "2000000000 devices; at most"),
        ("nodes = 1", "nodes = " + "9" * 5000, "not a readable TOML file"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 0", r"links\.node\.bandwidth_GBps = 0; .* > 0, or nothing ever arrives"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = -1.2", r"links\.node\.bandwidth_GBps = -1\.2"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 1e308", "bandwidth_GBps = 1e.308"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 5e-324", "bandwidth_GBps = "),
        (
            "bandwidth_GBps = 1.2",
            "bandwidth_Gbps = 1.2",
            r"\[links\.node\] has unknown keys \['bandwidth_Gbps'\]; known are \['bandwidth_GBps'",
        ),
        ("latency_us = 200.0", "latency_us = -1", "latency_us = -1; latencies must be finite and >= 0"),
        ("[topology]", "[topolog]", r"unknown keys \['topolog'\]; known are"),
        ("schema = 1", "schema = 2", "cluster schema 2, this regista reads 1"),
        ("schema = 1", "schema", "not a readable TOML file"),
    ],
)
def test_a_cluster_that_no_machine_can_be_is_refused_in_the_units_of_its_file(
    command: Command, tmp_path: Path, old: str, new: str, says: str
):
    assert old in CLUSTER
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER.replace(old, new, 1))
    refused(command, tmp_path, "plan", TINY, "--cluster", path, "-o", tmp_path / "p.json", says=says)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ("local:0", "local:0: a cluster needs at least 1 device"),
        ("local:-2", "local:-2: a cluster needs at least 1 device"),
        ("local:abc", "write local:N with N devices"),
        ("local:2000", "at most 1024"),
        ("nope.toml", r"no such cluster file; give a TOML file or local:N"),
        ("/", "not a readable TOML file"),
    ],
)
def test_a_name_that_is_no_cluster_is_refused(command: Command, tmp_path: Path, cluster: str, says: str):
    refused(command, tmp_path, "plan", TINY, "--cluster", cluster, "-o", tmp_path / "p.json", says=says)


def test_more_devices_than_cores_is_a_warning_not_a_refusal(command: Command, tmp_path: Path):
    model = "zoo:mlp?batch=64&width=64&hidden=64&depth=1"
    ran = command("plan", model, "--cluster", "local:64", "-o", tmp_path / "p.json", "--json")
    assert ran.code == 0
    assert re.match(r"warning: local:64 puts 64 devices on \d+ cores; .*no prediction is promised", ran.err)
    assert ran.json["num_ranks"] == 64


@pytest.mark.parametrize("bandwidth", ["1e-11", "1e14"])
def test_the_slowest_and_fastest_links_still_plan_and_simulate(command: Command, tmp_path: Path, bandwidth: str):
    (tmp_path / "c.toml").write_text(CLUSTER.replace("1.2", bandwidth))
    assert command("plan", TINY, "--cluster", tmp_path / "c.toml", "-o", tmp_path / "p.json").code == 0
    ran = command("simulate", tmp_path / "p.json", "--json")
    assert ran.code == 0
    assert ran.json["step_time_s"] > 0


def test_a_plan_too_large_for_its_devices_is_refused_with_the_numbers_and_a_way_out(command: Command, tmp_path: Path):
    (tmp_path / "c.toml").write_text(CLUSTER.replace("memory_GB = 8.0", "memory_GB = 1e-5"))
    refused(
        command, tmp_path, "plan", TINY, "--cluster", tmp_path / "c.toml", "-o", tmp_path / "p.json",
        says=r"rank 0 needs [\d.]+ KiB \(state [\d.]+ KiB, largest regst \S+: .*\) but a device of small has 9\.8 KiB .*; use more devices or stages",
    )  # fmt: skip


# Options.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pin", "foo"], "pin 'foo': write PATTERN=SBP"),
        (["--pin", "=S(0)"], "write PATTERN=SBP"),
        (["--pin", "head.weight=Q"], "'Q' is not an SBP; write S"),
        (["--pin", "head.weight=P"], "only values can be pinned"),
        (["--pin", "nothing=S(0)"], "names no parameter, state or input of the model; names are like"),
        (["--pin", "out:nothing=S(0)"], "names no module of the model"),
        (["--pin", "head.weight=S(0)", "--pin", "head.*=S(1)"], "contradict each other on head.weight|does not split evenly"),
        (["--pin", "head.weight=S(0),B"], "has 2 entries, the mesh 2 has 1 axes; write one per axis"),
        (["--pin", "head.weight=S(5)"], "does not split evenly"),
        (["--stages", "3"], "3 stages do not divide the 2 devices"),
        (["--stages", "0"], "--stages: 0: at least 1"),
        (["--stages", "two"], "--stages: invalid whole number or auto value: 'two'"),
        (["--stages", "2", "--cut", "nope"], "cut at module 'nope': .*modules are"),
        (["--cut", "head"], "1 cuts make 2 stages, but 1 stages were asked for"),
        (["--mesh", "2,2"], "mesh 2x2 has 4 places, but each of 1 stages has 2 devices"),
        (["--mesh", "0,2"], "mesh 0x2 has 0 places"),
        (["--mesh", "a"], "mesh 'a': write numbers joined by commas"),
        (["--micro-batches", "3"], r"3 micro-batches do not divide a batch of 8; choose one of \[1, 2, 4, 8\]"),
        (["--micro-batches", "0"], "--micro-batches: 0: at least 1"),
        (["--quota", "x"], "write PATTERN=N"),
        (["--quota", "*=²"], "write PATTERN=N"),
        (["--quota", "*=0"], r"quota \*=0: an actor needs at least 1 block"),
        (["--quota", "nomatch=2"], "no regst has such an id; ids are"),
        (["--bucket-mb", "nan"], "--bucket-mb: nan: a finite number above 0"),
        (["--schedule", "zigzag"], "choose from '1f1b', 'gpipe'"),
        (["--stage", "2"], "unrecognized arguments: --stage 2"),
    ],
)
def test_an_option_that_cannot_be_granted_is_refused_by_name(command: Command, tmp_path: Path, options: list[str], says: str):
    refused(command, tmp_path, "plan", TINY, "--cluster", "local:2", "-o", tmp_path / "p.json", *options, says=says)


def test_a_pin_that_cuts_unevenly_is_refused_with_the_shape(command: Command, tmp_path: Path):
    goal = ("--cluster", "local:2", "-o", tmp_path / "p.json", "--pin", "head.weight=S(0)")
    refused(command, tmp_path, "plan", TINY + "&classes=5", *goal, says=r"head.weight has shape \(5, 16\), which does not split evenly")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "arguments are required: VERB; 'regista --help'"),
        (["plan"], "arguments are required: MODEL, --cluster, -o/--out; 'regista plan --help'"),
        (["nope"], "invalid choice: 'nope'"),
        (["run", "p.json", "--steps", "0"], "--steps: 0: at least 1"),
        (["simulate", "p.json", "--steps", "-1"], "--steps: -1: at least 1"),
        (["simulate", "p.json", "--steps", "1.5"], "--steps: invalid whole number value"),
        (["demo", "--steps", "0"], "--steps: 0: at least 1"),
        (["gantt", "t.json", "--steps", "0", "-o", "g.png"], "--steps: 0: at least 1"),
        (["calibrate", "--rounds", "0", "-o", "c.toml"], "--rounds: 0: at least 1"),
        (["run", "p.json", "--timeout", "nan"], "--timeout: nan: a finite number above 0"),
        (["run", "p.json", "--performer", "nccl"], "choose from 'gloo', 'threads', 'reference'"),
    ],
)
def test_arguments_that_make_no_command_are_refused_in_one_line(command: Command, tmp_path: Path, arguments: list[str], says: str):
    message = refused(command, tmp_path, *arguments, says=says)
    assert message.count("\n") == 1


def test_an_option_without_meaning_here_is_refused_not_ignored(command: Command, made: dict[str, Path], tmp_path: Path):
    refused(command, tmp_path, "run", made["plan"], "--performer", "reference", "--timeout", "3", says="--timeout watches processes")
    refused(command, tmp_path, "calibrate", made["plan"], "--cluster", "local:2", "-o", tmp_path / "c", says="has no meaning beside a plan")


# Traces and costs that do not belong together.


def test_traces_of_different_plans_or_in_the_wrong_order_are_refused(command: Command, made: dict[str, Path], tmp_path: Path):
    refused(command, tmp_path, "compare", made["run"], made["sim"], says="wants a simulated and a measured trace, in this order; got 'run'")
    refused(command, tmp_path, "compare", made["sim"], made["sim"], says="got 'sim' and 'sim'")
    refused(command, tmp_path, "compare", made["pipesim"], made["run"], says="is of plan .*; simulate and run the same plan file")
    refused(command, tmp_path, "compare", made["sim"], made["run"], "--warmup", "3", says="leaves nothing of a trace of 3 steps")
    refused(command, tmp_path, "gantt", made["sim"], made["pipesim"], "-o", tmp_path / "g.png", says="traces are of different plans")
    refused(command, tmp_path, "gantt", made["sim"], made["sim"], "-o", tmp_path / "g.png", says="1 simulated and 1 measured")
    refused(command, tmp_path, "export", made["sim"], made["pipesim"], "-o", tmp_path / "e.json", says="traces are of different plans")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda t: t["acts"].pop(), "law 1: .* acted "),
        (lambda t: t["acts"][0].update(task="nope"), "law 6: act of nope"),
        (lambda t: t["acts"][0].update(number=-1), "law 1"),
        (lambda t: t["acts"][0].update(end_s={"float": "nan"}), "no finite times"),
        (lambda t: t.update(steps=2**62), "law 1"),
        (lambda t: t.update(steps=0), "has 0 steps"),
        (lambda t: t["peak_bytes"].update(x=1), r"peak bytes of ranks \['x'\]"),
        (lambda t: t.update(plan_id="0"), "holds a trace of plan 0 beside plan"),
    ],
)
def test_an_edited_trace_is_refused_by_the_law_it_breaks(command: Command, made: dict[str, Path], tmp_path: Path, edit: Any, says: str):
    bad = edited(made["sim"], tmp_path / "sim.json", lambda d: edit(d["trace"]))
    refused(command, tmp_path, "compare", bad, made["run"], says=says)


def test_a_cost_table_of_another_plan_or_half_of_one_is_refused(command: Command, made: dict[str, Path], tmp_path: Path):
    cost = tmp_path / "cost.json"
    save_cost(MeasuredCost(plan_id="feedfeedfeedfeed", acts={}, message_latency_s=0.0, act_overhead_s=0.0), str(cost))
    goal = ("simulate", made["plan"], "--cost", cost)
    refused(
        command,
        tmp_path,
        *goal,
        says=r"measured for plan feedfeedfeedfeed\) has no price for task .*; measure this plan with 'regista calib",
    )
    cost.write_bytes(cost.read_bytes()[:-20])
    refused(command, tmp_path, *goal, says="truncated")
    refused(
        command, tmp_path, "simulate", made["plan"], "--cost", tmp_path / "no", says="no such file; 'regista calibrate PLAN -o FILE' writes"
    )


# Outputs.


@pytest.mark.parametrize("verb", ["plan", "simulate", "run", "compare", "gantt", "export", "calibrate"])
@pytest.mark.parametrize("where", ["folder", "missing", "inside a file", "device", "no space for files"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    command: Command, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, where: str
):
    (tmp_path / "file").write_text("")
    places = {
        "folder": (tmp_path, "it is a folder; give the name of a file"),
        "missing": (tmp_path / "no" / "x.png", "No such file or directory; give a path in an existing, writable folder"),
        "inside a file": (tmp_path / "file" / "x.png", "Not a directory"),
        "device": (Path("/dev/null"), "not a regular file"),
        # Even root cannot make files there.
        "no space for files": (Path("/proc/x.png"), "give a path in an existing, writable folder"),
    }
    for work in (
        "regista.api.plan",
        "regista.calibrate.calibrate_machine",
        "regista.verbs.running.run.load_plan",
        "regista.verbs.showing.compare.load_trace",
        "regista.verbs.showing.simulate.load_plan",
        "regista.verbs.showing.traces.load_trace",
    ):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("the work was begun"))
    arguments = {
        "plan": [TINY, "--cluster", "local:2"],
        "simulate": [made["plan"]],
        "run": [made["plan"]],
        "compare": [made["sim"], made["run"]],
        "gantt": [made["sim"]],
        "export": [made["sim"]],
        "calibrate": [],
    }[verb]
    path, says = places[where]
    refused(command, tmp_path, verb, *arguments, "-o", path, says=says)


def test_an_output_never_replaces_an_input_or_another_output(command: Command, made: dict[str, Path], tmp_path: Path):
    plan = tmp_path / "plan.json"
    plan.write_bytes(made["plan"].read_bytes())
    (tmp_path / "link").symlink_to(plan)
    for name in (plan, tmp_path / "." / "plan.json", tmp_path / "link"):
        refused(command, tmp_path, "simulate", plan, "-o", name, says="the same command reads or writes that file")
    one = tmp_path / "one.png"
    refused(command, tmp_path, "compare", made["sim"], made["run"], "-o", one, "--gantt", one, says="reads or writes that file")


def test_a_picture_of_unknown_format_is_refused_before_anything_is_written(command: Command, made: dict[str, Path], tmp_path: Path):
    goal = ("compare", made["sim"], made["run"], "-o", tmp_path / "c.json", "--gantt", tmp_path / "g.xyz")
    refused(command, tmp_path, *goal, says="format 'xyz' is not among .*; name it .png or .svg")
    refused(command, tmp_path, "gantt", made["sim"], "-o", tmp_path / "g", says="without suffix")


def test_demo_refuses_its_folder_and_model_before_it_measures(command: Command, tmp_path: Path):
    (tmp_path / "file").write_text("")
    refused(command, tmp_path, "demo", "--out", tmp_path / "file", says="cannot make folder")
    (tmp_path / "out").mkdir()
    refused(command, tmp_path, "demo", "--out", tmp_path / "out", "--model", "zoo:nope", says="the zoo has no 'nope'")


def test_a_link_is_written_through_and_a_failed_write_leaves_the_old_file(
    command: Command, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        refused(command, tmp_path, "simulate", made["plan"], "-o", tmp_path / "link.json", says="No space left on device")
    assert command("simulate", made["plan"], "-o", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    load_trace(str(tmp_path / "real.json"))


# Training that diverges is no bad input.


def test_a_loss_that_is_nan_warns_is_null_in_json_and_survives_the_file(command: Command, tmp_path: Path):
    plan = chain("ab", 1, 1)
    trace = replace(
        simulate(plan, TableCost(), steps=4), source=Source.RUN, performer="story", losses=(1.0, float("inf"), float("nan"), 2.0)
    )
    save_trace(plan, trace, str(tmp_path / "run.json"))
    assert repr(load_trace(str(tmp_path / "run.json"))[1].losses) == "(1.0, inf, nan, 2.0)"
    (tmp_path / "m.py").write_text(
        MODELS + "from regista import SGD\ndef wild(): return make(lambda x: (x ** 2).mean(), optimizer=SGD(lr=1e18))\n"
    )
    assert command("plan", f"{tmp_path}/m.py:wild", "--cluster", "local:1", "-o", tmp_path / "p.json").code == 0
    ran = command("run", tmp_path / "p.json", "--performer", "reference", "--steps", "5", "--json")
    assert ran.code == 0
    assert re.match(r"warning: the loss is (inf|nan) from step \d on; lower the learning rate\n$", ran.err)
    assert None in ran.json["losses"]


# A real process.


@pytest.mark.thorough
def test_a_real_process_refuses_with_code_2_one_line_and_no_traceback(tmp_path: Path):
    for arguments, says in (
        (["explain", "nope.json"], "no such file"),
        (["plan", "zoo:nope", "--cluster", "local:2", "-o", "p"], "the zoo has"),
    ):
        done = subprocess.run([sys.executable, "-m", "regista.cli", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert says in done.stderr
    assert files_of(tmp_path) == {}


@pytest.mark.thorough
def test_a_reader_that_goes_away_is_no_traceback(made: dict[str, Path]):
    command = f"{sys.executable} -m regista.cli explain {made['plan']} --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{", "")


# Fuzz.

ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "B", "S(0)", "S(7)", "P", "S(0),B", "\ud800", "state", "aten.mm.default"),
    *([], [1], [[]], {}, {"is": "Fragment"}, {"float": "nan"}, {"ref": "x"}),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys: list[Any] = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [(data, key) for key in keys] + [inner for key in keys for inner in places(data[key])]


def mutated(data: Any, rng: random.Random) -> Any:
    """The data after one or two slips of the pen."""
    data = deepcopy(data)
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places(data))
        old = holder[key]
        match rng.choice(("drop", "odd", "swap", "nudge", "nudge", "double")):
            case "drop":
                del holder[key]
            case "odd":
                holder[key] = deepcopy(rng.choice(ODD))
            case "swap":
                other, there = rng.choice(places(data))
                holder[key] = deepcopy(other[there])
            case "double" if isinstance(holder, list):
                holder.insert(key, deepcopy(old))
            case _ if isinstance(old, bool):
                holder[key] = not old
            case _ if isinstance(old, int | float):
                holder[key] = rng.choice((old + 1, old - 1, -old, old * 2, old * 10**6, old + 0.5))
            case _ if isinstance(old, str):
                holder[key] = rng.choice((old + "x", old[:-1], old.upper()))
    return data


def fate(path: Path) -> str:
    """What becomes of a plan file: loaded and simulated, or refused in our words; any other exception fails the test."""
    try:
        plan = load_plan(str(path))
        json.dumps(plan_json(plan))
        simulate(plan, TableCost(), steps=2)
    except RegistaError as error:
        return type(error).__name__ if str(error) else "a refusal without words"
    return "fine"


@pytest.mark.representatives("plan")
@pytest.mark.parametrize("name", ["plan", "pipe"])
def test_a_plan_with_any_slip_of_the_pen_is_refused_or_a_plan(made: dict[str, Path], tmp_path: Path, name: str):
    original = json.loads(made[name].read_text())
    path = tmp_path / "plan.json"
    fates = set()
    for seed in range(150):
        path.write_text(json.dumps(mutated(original, random.Random(seed))))
        try:
            fates.add(fate(path))
        except Exception as error:
            raise AssertionError(f"seed {seed} of {name}: {type(error).__name__}: {error}") from error
    assert fates >= {"fine", "InvalidFile", "InvalidPlan"}
    assert "a refusal without words" not in fates
