"""Sweeps: manifests, points, rows that survive an interruption, relations at the end, and one real run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, commands

from planner.ir.errors import InvalidFile, Unsupported
from regista.sweep import check, load_manifest, load_rows, sweep
from regista.sweep.columns import all_columns
from regista.sweep.manifest import Manifest, parse_manifest
from regista.sweep.measure import predict
from regista.sweep.papers import paper_points
from regista.sweep.point import plan_options
from regista.sweep.rows import Table

SMALL = """
claim = "two devices are quicker than one"
source = "tests"
expect = ["throughput[mesh == 2] > 1.2 * throughput[mesh == 1]"]

[model]
name = "zoo:mlp"
batch = 512
width = 256
hidden = 1024
depth = 1

[cluster]
name = "local:2"

[plan]
stages = 1

[[points]]
label = "one"
plan.mesh = "1"
cluster.set = { "topology.devices_per_node" = 1, "device.memory_GB" = 40 }
paper = { throughput_per_s = 100.0 }
[[points]]
label = "two"
plan.mesh = "2"
cluster.set = { "topology.devices_per_node" = 2, "device.memory_GB" = 40 }

[[figure]]
kind = "bar"
x = "label"
y = ["throughput", "paper"]
output = "small.svg"
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def written(folder: Path, text: str = SMALL, name: str = "small") -> Path:
    path = folder / "manifests" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines(folder: Path, name: str = "small") -> list[dict[str, str]]:
    with (folder / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_lists_give_the_full_product_with_the_last_one_fastest() -> None:
    data: dict[str, Any] = {"claim": "c", "source": "s", "cluster": {"name": "local:2"}, "model": {"name": "zoo:mlp", "batch": [8, 16]}}
    manifest = parse_manifest(data | {"plan": {"stages": 2, "micro_batches": [1, 2, 4]}}, "m", Path())
    assert [point.label for point in manifest.points][:3] == [
        "batch=8 micro_batches=1",
        "batch=8 micro_batches=2",
        "batch=8 micro_batches=4",
    ]
    assert len(manifest.points) == 6 and manifest.axes == ("batch", "micro_batches")


def test_a_points_id_is_of_what_is_asked_not_of_its_label_or_the_papers_numbers(tmp_path: Path) -> None:
    first = load_manifest(written(tmp_path)).points
    again = load_manifest(written(tmp_path, SMALL.replace('"one"', '"1 GPU"').replace("100.0", "90.0"))).points
    other = load_manifest(written(tmp_path, SMALL.replace("batch = 512", "batch = 256"))).points
    assert [p.point_id for p in first] == [p.point_id for p in again]
    assert not {p.point_id for p in first} & {p.point_id for p in other}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("stages = 1", "stage = 1", "did you mean stages"),
        ("depth = 1", "dept = 1", "did you mean depth"),
        ("expect =", "expects =", "did you mean expect"),
        ('claim = "two', 'claims = "two', "did you mean claim"),
        ("throughput[mesh == 2]", "troughput[mesh == 2]", "did you mean throughput"),
        ('y = ["throughput"', 'y = ["throughputs"', "did you mean throughput"),
        ('kind = "bar"', 'kind = "bars"', "did you mean bar"),
        ('output = "small.svg"', 'output = "../small.svg"', "without folder"),
        ('plan.mesh = "2"', 'plan.mesh = "2x"', "write the sizes"),
        ("throughput_per_s = 100.0", "throughput = 100.0", "must end with its unit"),
        ("throughput_per_s = 100.0", 'throughput_per_s = "100"', "a number is needed"),
        ('plan.mesh = "2"\ncluster.set = { "topology.devices_per_node" = 2', 'plan.mesh = "1"\ncluster.set = {"topology.devices_per_node"=1', "same"),
        ("stages = 1", "stages = [1, [2]]", "texts and numbers can be swept"),
        ("stages = 1", "stages = []", "no point"),
        ("stages = 1", f"stages = {[*range(1, 102)]}\nmicro_batches = {[*range(1, 101)]}", r"stages \(101\), micro_batches \(100\) is 10100 points"),
        ('source = "tests"', 'source = "tests"\nperformer = "gpu"', "choose from sim, run"),
        ("stages = 1", "stages = 1\n[run]\nruns = 0", "run.runs = 0: a whole number of at least 1"),
        ("[model]", "[model", "not a readable TOML file"),
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_is_refused_with_the_nearest_that_can(tmp_path: Path, before: str, after: str, says: str) -> None:
    assert before in SMALL
    with pytest.raises(InvalidFile, match=says):
        load_manifest(written(tmp_path, SMALL.replace(before, after)))


def test_an_s_on_an_axis_of_one_device_is_planned_as_b() -> None:
    data: dict[str, Any] = {"claim": "c", "source": "s", "cluster": {"name": "local:1"}, "model": {"name": "zoo:mlp", "batch": 8}}
    plan = {"mesh": ["1", "2"], "pins": "input.*=S(0)"}
    one, two = parse_manifest(data | {"plan": plan}, "m", Path()).points
    assert (plan_options(one)["pins"], plan_options(two)["pins"]) == (("input.*=B",), ("input.*=S(0)",))


def test_points_of_a_table_take_the_rows_numbers_and_leave_out_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("case,gpus,nodes,ms,who\nA,8,2,50,us\nB,16,2,OOM,us\nC,8,1,1,them\n")
    about = {"file": "t.csv", "where": {"who": "us"}, "label": "{case}", "columns": {"step_s": {"column": "ms", "scale": 1e-3}}}
    points = {"model.batch": "{gpus*32}", "cluster.set.topology.devices_per_node": "{gpus/nodes}", "plan.mesh": "{nodes}x{gpus/nodes}"}
    first, second = paper_points(about | {"points": points}, tmp_path)
    assert first == {
        "label": "A",
        "paper": {"step_s": 0.05},
        "model": {"batch": 256},
        "cluster": {"set": {"topology.devices_per_node": 4}},
        "plan": {"mesh": "2x4"},
    }
    assert second["paper"] == {}
    for wrong, says in (({"points": {"model.batch": "{gpu}"}}, "did you mean gpus"), ({"where": {"who": "you"}}, "no row")):
        with pytest.raises(InvalidFile, match=says):
            paper_points(about | wrong, tmp_path)
    with pytest.raises(InvalidFile, match="no whole number"):
        paper_points(about | {"where": {"case": "C"}, "points": {"model.batch": "{nodes/gpus}"}}, tmp_path)


def test_a_sweep_writes_one_row_per_point_its_figure_and_its_verdict(tmp_path: Path, command: Command) -> None:
    ran = command("sweep", written(tmp_path), "--json")
    assert ran.code == 0, ran.err
    (relation,) = ran.json["relations"]
    rows = lines(tmp_path)
    one, two = (float(row["sim_throughput_per_s"]) for row in rows)
    assert relation["held"] and two > 1.2 * one
    assert [(row["label"], row["phase"], row["status"]) for row in rows] == [("one", "predicted", "ok"), ("two", "predicted", "ok")]
    assert [row["paper_throughput_per_s"] for row in rows] == ["100", ""]
    assert all(row["plan_id"] and row["cost_id"] and row["point_id"] for row in rows)
    assert (tmp_path / "figures/small.svg").stat().st_size > 1000


def test_every_number_column_says_its_kind_and_its_unit(tmp_path: Path) -> None:
    points = load_manifest(written(tmp_path)).points
    fields = {"label", "point_id", "phase", "written_at", "plan_id", "cost_id", "torch", "status", "says", *points[0].fields}
    texts = {"theory_boxing", "theory_kept_blocks", "theory_layouts"}
    for name in set(all_columns(points)) - fields - texts:
        assert name.split("_")[0] in ("sim", "run", "theory", "paper", "error"), name
        assert name.endswith(("_s", "_bytes", "_flop", "_share", "_count")), name


def test_a_relation_that_breaks_makes_the_exit_code_1(tmp_path: Path, command: Command) -> None:
    ran = command("sweep", written(tmp_path, SMALL.replace("1.2 *", "3 *")), "--json")
    assert ran.code == 1 and ran.json["failed"] == 1 and not ran.json["relations"][0]["held"]


def test_a_failure_that_is_known_and_stays_is_no_error_and_one_that_is_gone_is(tmp_path: Path, command: Command) -> None:
    known = '[[broken]]\nrelation = "throughput[mesh == 2] > %d * throughput[mesh == 1]"\nwhy = "two are two"\n[[figure]]'
    text = SMALL.replace("[[figure]]", known, 1)
    assert command("sweep", written(tmp_path, text % 3)).code == 0
    assert command("sweep", written(tmp_path, text % 1)).code == 1


def test_an_interrupted_sweep_goes_on_without_its_half_written_line(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path)
    assert command("sweep", path).code == 0
    table = tmp_path / "results/small.csv"
    whole = table.read_text()
    first = whole.index("\n", whole.index("\n") + 1) + 1
    table.write_text(whole[: first + 40])
    assert command("sweep", path).code == 0
    rows = lines(tmp_path)
    assert [row["label"] for row in rows] == ["one", "two"]
    assert table.read_text()[:first] == whole[:first], "what was whole was not written again"


def test_a_point_that_is_known_is_not_performed_again(tmp_path: Path) -> None:
    manifest, path = load_manifest(written(tmp_path)), tmp_path / "t.csv"
    phases: list[str] = []
    for _ in range(2):
        sweep(manifest, path, on_row=lambda point, phase, columns: phases.append(phase))
    assert phases == ["predicted", "predicted", "known", "known"] and len(load_rows(path)) == 2


def test_rows_stay_when_the_manifest_gains_a_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    sweep(load_manifest(written(tmp_path)), path)
    before = load_rows(path)
    Table(path, [*all_columns(load_manifest(written(tmp_path)).points), "paper_step_s"]).close()
    assert [{k: v for k, v in row.items() if k != "paper_step_s"} for row in load_rows(path)] == before


def test_a_csv_that_is_no_sweeps_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidFile, match="no CSV of a sweep"):
        Table(path, ("point_id", "phase"))
    assert path.read_text() == "a,b\n1,2\n"


def test_two_sweeps_cannot_write_one_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    first = Table(path, ("point_id", "phase"))
    with pytest.raises(InvalidFile, match="another sweep"):
        Table(path, ("point_id", "phase"))
    first.close()


def test_a_second_sweep_with_other_columns_leaves_the_file_of_the_first_alone(tmp_path: Path) -> None:
    """The second used to mend the header by a rename before it asked for the lock: the first went on writing into a file without a name."""
    path = tmp_path / "t.csv"
    first = Table(path, ("point_id", "phase"))
    with pytest.raises(InvalidFile, match="another sweep"):
        Table(path, ("point_id", "phase", "paper_step_s"))
    first.append({"point_id": "p", "phase": "predicted"})
    first.close()
    assert load_rows(path) == [{"point_id": "p", "phase": "predicted"}]


def test_a_point_that_does_not_fit_is_a_result_and_a_refused_one_is_an_error(tmp_path: Path) -> None:
    text = SMALL.replace('expect = ["throughput[mesh == 2] > 1.2 * throughput[mesh == 1]"]', "expect = ['status == \"OutOfMemory\"']")
    manifest, path = (
        load_manifest(written(tmp_path, text.replace('"device.memory_GB" = 40', '"device.memory_GB" = 1e-4'))),
        tmp_path / "t.csv",
    )
    sweep(manifest, path)
    checked = check(manifest, path)
    assert checked.failed == 0 and [row["status"] for row in checked.rows] == ["OutOfMemory", "OutOfMemory"]
    manifest, path = load_manifest(written(tmp_path, SMALL.replace("stages = 1", "stages = 3"))), tmp_path / "u.csv"
    sweep(manifest, path)
    assert len(check(manifest, path).refused) == 2 and check(manifest, path).failed == 3


@pytest.mark.thorough
def test_several_processes_fill_the_same_rows_as_one(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path))
    sweep(manifest, tmp_path / "one.csv")
    sweep(manifest, tmp_path / "two.csv", jobs=2)
    skip = {"written_at", "run_plan_s"}
    tables = [
        sorted(({k: v for k, v in row.items() if k not in skip} for row in load_rows(tmp_path / name)), key=lambda row: str(row["label"]))
        for name in ("one.csv", "two.csv")
    ]
    assert tables[0] == tables[1]


def test_only_a_part_is_performed_and_relations_wait_for_the_rest(tmp_path: Path, command: Command) -> None:
    path = written(tmp_path)
    ran = command("sweep", path, "--only", "mesh=2", "--json")
    assert ran.code == 0 and ran.json["pending"] == 1 and ran.json["relations"] == []
    assert [row["label"] for row in lines(tmp_path)] == ["two"]
    assert command("sweep", path, "--only", "one").code == 0
    assert command("sweep", path, "--only", "th*").code == 2
    assert command("sweep", path, "--redraw", "--json").json["relations"][0]["held"]


@pytest.mark.processes
def test_a_point_that_is_run_is_predicted_and_written_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SMALL.replace('source = "tests"', 'source = "tests"\nperformer = "run"').replace("expect = [", "expect = [] # [")
    text = text[: text.index("[[points]]")].replace("stages = 1", 'stages = 1\nmesh = "2"')
    manifest = load_manifest(written(tmp_path, text + "[run]\nsteps = 4\nrounds = 2\n"))
    path = tmp_path / "t.csv"
    seen: list[list[str]] = []
    from regista.sweep import work

    performed = work.perform

    def watched(point: Any, prediction: Any) -> Any:
        seen.append([str(row["phase"]) for row in load_rows(path)])
        return performed(point, prediction)

    monkeypatch.setattr(work, "perform", watched)
    sweep(manifest, path)
    predicted, measured = load_rows(path)
    assert seen == [["predicted"]] and measured["phase"] == "performed" and measured["status"] == "ok", measured.get("says")
    assert predicted["run_step_s"] is None and str(predicted["written_at"]) < str(measured["written_at"])
    assert predicted["sim_step_s"] == measured["sim_step_s"] and str(measured["cost_id"]).startswith("measured")
    sim, run, share = (measured[name] for name in ("sim_step_s", "run_step_s", "error_step_share"))
    assert isinstance(sim, float) and isinstance(run, float) and share == pytest.approx(sim / run - 1, abs=1e-8)
    again, noise = measured["run_again_step_s"], measured["run_noise_share"]
    assert isinstance(again, float) and noise == pytest.approx(again / run - 1, abs=1e-8)
    assert isinstance(measured["error_register_bytes"], float)
    assert isinstance(measured["run_process_peak_bytes"], float) and isinstance(measured["run_forward_s"], float)
    with pytest.raises(Unsupported, match="slow each other"):
        sweep(manifest, path, jobs=2)


def test_boxing_and_kept_blocks_are_read_off_the_plan() -> None:
    data: dict[str, Any] = {"claim": "c", "source": "s", "cluster": {"name": "local:2"}}
    model = {"name": "zoo:mlp", "batch": 8, "width": 16, "hidden": 16, "depth": 2}
    pipeline = {"stages": 2, "mesh": "1", "micro_batches": 4}
    (point,) = parse_manifest(data | {"model": model, "plan": pipeline}, "m", Path()).points
    prediction = predict(point)
    assert not isinstance(prediction, dict)
    assert prediction.columns["theory_kept_blocks"] == "2 1"
    assert float(str(prediction.columns["theory_crossing_bytes"])) == 2 * 8 * 16 * 4, "a batch of activations there, as many gradients back"
    data_parallel = {"stages": 1, "mesh": "2", "pins": "input.*=S(0); *.weight=B; *.bias=B", "zero": 0}
    (point,) = parse_manifest(data | {"model": model, "plan": data_parallel}, "m", Path()).points
    prediction = predict(point)
    assert not isinstance(prediction, dict)
    assert "update: P->B all_reduce" in str(prediction.columns["theory_boxing"]) and prediction.columns["theory_layouts"] == "none is split"


def test_the_json_of_a_sweep_has_no_number_that_json_lacks(tmp_path: Path, command: Command) -> None:
    def lacking(name: str) -> None:
        pytest.fail(f"{name} is no number of JSON")

    assert json.loads(command("sweep", written(tmp_path), "--json").out, parse_constant=lacking)


def test_a_manifest_holds_values_only(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path))
    assert isinstance(manifest, Manifest)
    with pytest.raises(AttributeError):
        manifest.name = "other"  # type: ignore[misc]
