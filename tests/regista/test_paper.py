"""The paper: what it names is there, what it says of the tables is what they hold, and it builds to a PDF of some pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paper.build import ROOT, build, missing_names, named, summary
from planner.ir.errors import InvalidFile, Unsupported

TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "paper").glob("*.typ")))


def experiments(folder: Path, csv: str = "kind,x_s\nsim,1.5\nrun,1.0\n") -> Path:
    for name in ("results", "figures"):
        (folder / name).mkdir()
    (folder / "results/a.csv").write_text(csv)
    (folder / "figures/f.png").write_bytes(b"")
    return folder


def test_names_are_found_over_lines_and_in_every_call():
    found = named(
        '#let a = rows(\n  "a.csv", "x",\n  "y",\n)\n#picture("f.png", "make f")[..] #made("make b", "b.csv") #let c = rows("a.csv", "z")'
    )
    assert found.columns == {"a.csv": ("x", "y", "z"), "b.csv": ()}
    assert found.pictures == ("f.png",)


def test_every_figure_and_column_that_the_paper_names_exists():
    found = named(TEXT)
    assert len(found.pictures) >= 5
    assert sum(map(len, found.columns.values())) >= 40
    assert missing_names(TEXT, ROOT / "experiments") == []


def test_each_column_that_the_text_reads_was_named():
    """Typst tells of a wrong key only where a row is read; so a field that is read must stand in some rows(...)."""
    columns = {column for names in named(TEXT).columns.values() for column in names}
    known = columns | {"file", "quantity", "predicted", "given", "points", "median", "mean", "p90", "worst", "rank"}  # the summary's
    main = (ROOT / "paper/regista.typ").read_text(encoding="utf-8")
    read = set(re.findall(r"\b(?:r|h|row|far|first\(\))\.([a-z_]+[a-z0-9_]*)\b(?!\()", main))
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


def test_the_paper_builds_to_a_pdf_of_8_to_16_pages(tmp_path: Path):
    typst = pytest.importorskip("typst", reason="the typst wheel is not installed (pip install -e '.[dev]')")
    (out,) = build(tmp_path / "new" / "regista.pdf")
    assert out.read_bytes().startswith(b"%PDF-")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["regista.pdf"]
    pictures = build(tmp_path / "regista.pdf", png=True)[1:]
    assert 8 <= len(pictures) <= 16
    assert typst.__version__


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
