"""The paper: what it names is there, what it says of the tables is what they hold, and it builds to a PDF of some pages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from measured_sweep import MANIFEST, measured_csv

from paper.build import ROOT, build, missing_names, named, own_runs, run_spreads, summary, verdicts
from planner.ir.errors import InvalidFile, Unsupported
from regista.sweep import load_manifest

TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "paper").glob("*.typ")))


def experiments(folder: Path, csv: str = "kind,x_s\nsim,1.5\nrun,1.0\n") -> Path:
    for name in ("results", "figures"):
        (folder / name).mkdir()
    (folder / "results/a.csv").write_text(csv)
    (folder / "figures/f.png").write_bytes(b"")
    return folder


def test_names_are_found_over_lines_and_in_every_call():
    names = named(
        '#let a = rows(\n  "a.csv", "x",\n  "y",\n)\n#picture("f.png", "make f")[..] #made("make b", "b.csv") #let c = rows("a.csv", "z")'
    )
    assert names.columns == {"a.csv": ("x", "y", "z"), "b.csv": ()}
    assert names.pictures == ("f.png",)


def test_every_figure_and_column_that_the_paper_names_exists():
    names = named(TEXT)
    assert len(names.pictures) >= 5
    assert sum(map(len, names.columns.values())) >= 40
    assert missing_names(TEXT, ROOT / "experiments") == []


def test_each_column_that_the_text_reads_was_named():
    """Typst tells of a wrong key only where a row is read; so a field that is read must stand in some rows(...)."""
    columns = {column for names in named(TEXT).columns.values() for column in names}
    known = columns | {"file", "quantity", "predicted", "given", "points", "median", "mean", "p90", "worst", "rank"}  # the summary's
    main = (ROOT / "paper/regista.typ").read_text(encoding="utf-8")
    read = set(re.findall(r"\b(?:r|h|row|far|slow|fast|first\(\))\.([A-Za-z_]\w*)\b(?!\()", main))
    assert read - known == set()


def test_a_missing_figure_file_or_column_is_told_by_name(tmp_path: Path):
    folder = experiments(tmp_path)
    text = 'rows("a.csv", "x_s", "y") rows("b.csv", "x") picture("g.png", "c") picture("f.png", "c")'
    assert missing_names(text, folder) == ["figures/g.png", "column y of results/a.csv", "results/b.csv"]


def test_a_table_that_may_lack_is_checked_where_it_is_there(tmp_path: Path):
    folder = experiments(tmp_path)
    assert missing_names('maybe-rows("none.csv", "x") maybe-picture("none.png", "c")', folder) == []
    assert missing_names('maybe-rows("a.csv", "y")', folder) == ["column y of results/a.csv"]
    assert missing_names('maybe-rows("b.csv", "x") rows("b.csv", "x")', folder) == ["results/b.csv"]


def test_every_caption_of_a_result_names_a_command():
    for part in re.findall(r"#picture\([^)]*\)", TEXT):
        assert re.search(r'"(python -m |make )[^"]+"', part), part
    main = (ROOT / "paper/regista.typ").read_text(encoding="utf-8")
    captions = re.findall(r"caption: \[(.*?)\],\n\)", main, flags=re.DOTALL)
    assert len(captions) >= 10
    assert all("#made(" in caption or "Module `" in caption for caption in captions)


def test_the_summary_is_of_the_rows(tmp_path: Path):
    (entry,) = summary(experiments(tmp_path))
    assert (entry["file"], entry["quantity"], entry["predicted"], entry["given"], entry["points"]) == ("a.csv", "x_s", "sim", "run", 1)
    assert entry["median"] == pytest.approx(0.5)
    assert entry["worst"] == pytest.approx(0.5)


def test_kinds_of_tasks_are_one_quantity_and_throughput_stands_back_behind_the_step(tmp_path: Path):
    names = ("step_s", "throughput_per_s", "forward_s", "backward_s")
    head = ",".join(f"sim_{name},run_{name}" for name in names)
    entries = summary(experiments(tmp_path, f"{head}\n2.0,1.0,1.0,2.0,3.0,1.0,4.0,1.0\n"))
    assert {(entry["quantity"], entry["points"], entry["worst"]) for entry in entries} == {
        ("step_s", 1, 1.0),
        ("time by kind of task", 2, 3.0),
    }


def test_every_reference_is_cited_and_every_citation_is_a_reference_or_a_label():
    keys = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper/references.bib").read_text(encoding="utf-8"), flags=re.MULTILINE))
    main = (ROOT / "paper/regista.typ").read_text(encoding="utf-8")
    cited = set(re.findall(r"(?<![\w.])@([a-z][\w-]*)", main))
    labels = set(re.findall(r"<([a-z][\w-]*)>", main))
    assert len(keys) >= 10
    assert keys - cited == set()
    assert cited - keys - labels == set()


def test_what_a_manifest_expects_is_held_broken_or_told_why_it_was_not_checked(tmp_path: Path):
    folder = experiments(tmp_path)
    (folder / "manifests").mkdir()
    (folder / "manifests/own.toml").write_text(MANIFEST)
    assert verdicts(folder, "own") == []
    manifest = load_manifest(folder / "manifests/own.toml")
    (folder / "results/own.csv").write_text(measured_csv(manifest, ((1.1, 1.0), (3.0, 2.9))))
    entries = verdicts(folder, "own")
    assert [(entry["held"], bool(entry["says"])) for entry in entries] == [(True, False), (False, False), (False, True)]
    assert (entries[1]["left"], entries[1]["right"]) == ("1", "2")


OWN_COLUMNS = (
    "point_id,phase,status,label,model,cluster,plan_id,torch,sim_step_s,run_step_s,run_noise_share,theory_register_bytes,run_register_bytes,"
    "error_register_bytes,run_process_base_bytes,run_process_peak_bytes,error_process_peak_share"
)
BUYER_COLUMNS = (
    "point_id,gpu,num_gpus,nic_Gbit_per_s,memory_GB,model,status,stages,mesh,micro_batches,recompute,zero,theory_objective_s,theory_bound_s,"
    "sim_step_s,sim_mfu,sim_peak_GB,sim_exposed_share,sim_days,second_stages,second_mesh,second_micro_batches,second_recompute,theory_price,sim_price"
)


def test_own_runs_are_summed_by_model_and_altogether(tmp_path: Path):
    folder = experiments(tmp_path)
    assert own_runs(folder) == [], "no table, no entries"
    rows = [
        "p,predicted,ok,a,zoo:gpt,local:2,x,2.13,9.0,,,,,,,,",
        "p,performed,ok,a,zoo:gpt,local:2,x,2.13,1.0,1.1,0.1,,,,,,",
        "q,performed,ok,b,zoo:gpt,local:2,y,2.13,1.5,1.2,-0.2,,,,,,",
        "r,performed,ok,c,zoo:mlp,local:2,z,2.13,0.5,0.4,,,,,,,",
    ]
    (folder / "results/own_gpt.csv").write_text("\n".join([OWN_COLUMNS, *rows]) + "\n")
    gpt, mlp, every = own_runs(folder)
    assert [(entry["model"], entry["points"]) for entry in (gpt, mlp, every)] == [("gpt", 2), ("mlp", 1), ("all", 3)]
    assert (gpt["worst"], every["median"]) == (pytest.approx(0.25), pytest.approx(0.25))
    assert gpt["p90"] == pytest.approx(1 / 11 + 0.9 * (0.25 - 1 / 11))
    assert (gpt["choice"], mlp["choice"], every["choice"]) == (0.0, None, 0.0)
    assert every["rank"] == pytest.approx(1.0) and gpt["rank"] is None


def test_spreads_are_of_measured_periods_alone(tmp_path: Path):
    folder = experiments(tmp_path)
    lines = ["register_bytes,kind,period_s", "100,run,1.0", "100,run,2.0", "100,run,", "100,sim,9.0", "200,sim,3.0"]
    (folder / "results/quotas_run.csv").write_text("\n".join(lines) + "\n")
    assert run_spreads(folder) == {"100": (pytest.approx(1.1), pytest.approx(1.9))}


@pytest.mark.parametrize(
    ("own", "buyer"),
    [
        (None, None),
        ([], []),
        (["p,predicted,ok,a,zoo:gpt,local:2,x,2.13,1.0,,,,,,,,", "q,performed,WorkerFailed,b,zoo:gpt,local:2,x,2.13,1.0,,,,,,,,"], None),
        (["p,performed,ok,a,zoo:gpt,local:2,x,2.13,1.0,1.5,,,,,,,"], ["p,h100,128,100,40,zoo:gpt3,OutOfMemory,,,,,,,,,,,,,,,,,,"]),
        (
            [
                "p,performed,ok,a,zoo:gpt,local:2,x,2.13,1.0,1.1,0.02,100,100,0,100,200,-0.25",
                "q,performed,ok,b,zoo:gpt,local:2,y,2.13,1.5,1.5,0.01,100,100,0,100,200,0.1",
                "r,performed,ok,c,zoo:mlp,local:2,z,2.13,0.5,0.6,0.05,100,100,8,100,200,0.0",
            ],
            [
                "p,a100,128,100,80,zoo:gpt3,ok,8,4x4,96,1,1,30.5,30.0,31.0,0.5,38,0.1,40.1,16,2x4,192,1,0.03,0.04",
                "q,a100,128,400,80,zoo:gpt3,ok,8,4x4,96,0,1,29.5,29.0,30.0,0.5,38,0.1,40.1,,,,,,",
            ],
        ),
    ],
    ids=["no tables", "no rows", "nothing was run", "one point each", "several"],
)
def test_sections_of_tables_that_may_lack_are_there_exactly_when_the_tables_have_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[str] | None, buyer: list[str] | None
):
    typst = pytest.importorskip("typst", reason="the typst wheel is not installed")
    for name in ("paper", "experiments/results", "experiments/figures", "experiments/manifests"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for file, head, rows in (("own_gpt", OWN_COLUMNS, own), ("buyer", BUYER_COLUMNS, buyer)):
        path = tmp_path / f"experiments/results/{file}.csv"
        path.unlink(missing_ok=True)
        if rows is not None:
            path.write_text("\n".join([head, *rows]) + "\n")
    monkeypatch.setattr("paper.build.ROOT", tmp_path)
    monkeypatch.setattr("paper.build.MAIN_FILE", str(tmp_path / "paper/regista.typ"))
    asked: list[dict[str, str]] = []
    compiled = typst.compile
    monkeypatch.setattr(typst, "compile", lambda *args, **kwargs: (asked.append(kwargs["sys_inputs"]), compiled(*args, **kwargs)))
    assert build(tmp_path / "p.pdf")[0].read_bytes().startswith(b"%PDF-")
    headings = typst.query(
        str(tmp_path / "paper/regista.typ"), "heading", field="body", root=str(tmp_path), ignore_system_fonts=True, sys_inputs=asked[0]
    )
    titles = {heading.get("text", "") for heading in json.loads(headings)}
    assert ("Own measurements" in titles) == bool(own and any("performed,ok" in row for row in own))
    assert ("What a buyer sees" in titles) == bool(buyer)
    assert "Introduction" in titles


def test_the_paper_builds_to_a_pdf_of_8_to_20_pages(tmp_path: Path):
    pytest.importorskip("typst", reason="the typst wheel is not installed (pip install -e '.[dev]')")
    (out,) = build(tmp_path / "new" / "regista.pdf")
    assert out.read_bytes().startswith(b"%PDF-")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["regista.pdf"]
    pictures = build(tmp_path / "regista.pdf", png=True)[1:]
    assert 8 <= len(pictures) <= 20


def test_without_the_wheel_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "typst", None)
    with pytest.raises(Unsupported, match="needs the typst wheel; install it with"):
        build(tmp_path / "x.pdf")


def test_a_text_that_names_what_is_not_there_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("typst", reason="the typst wheel is not installed")
    monkeypatch.setattr("paper.build.missing_names", lambda text, folder: ["figures/g.png"])
    with pytest.raises(InvalidFile, match=r"experiments/ does not have: figures/g\.png"):
        build(tmp_path / "x.pdf")
    assert list(tmp_path.iterdir()) == []
