"""Pages of a folder and of a comparison, and the pictures in them."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_sweep import MANIFEST
from PIL import Image
from stories import chain

from planner.ir.errors import InvalidFile, Mismatch
from regista.cli import main
from regista.report import save_comparison, save_folder
from regista.report.pages.rows_page import save_rows_page
from regista.report.pictures import data_uri, shortened_svg, small_data_uri
from tests.regista.report.report_cases import CLAIMS, PIXEL, PLAN, RUN, SIM, SWEPT, checked, rows_of


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=9))
def test_a_shortened_drawing_moves_nothing_by_a_hundredth(places):
    text = f'<svg><!-- x --><g transform="scale(0.015625)"><path d="M {" L ".join(f"{p:.6f} {p:.6f}" for p in places)}"/></g></svg>'
    short = shortened_svg(text)
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", short[short.index(' d="') :])]
    assert numbers == pytest.approx([p for p in places for _ in (0, 1)], abs=0.0101)
    assert 'scale(0.015625)"' in short
    assert "<!--" not in short


def test_a_small_picture_is_narrow_and_never_longer_than_the_whole(tmp_path: Path):
    wide = Image.radial_gradient("L").resize((2000, 1000)).convert("RGBA")
    wide.save(tmp_path / "wide.png")
    small = small_data_uri(tmp_path / "wide.png")
    with Image.open(io.BytesIO(base64.b64decode(small.partition(",")[2]))) as image:
        assert image.size == (760, 380)
    assert len(small) < len(data_uri(tmp_path / "wide.png"))
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    assert small_data_uri(tmp_path / "pixel.png") == data_uri(tmp_path / "pixel.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InvalidFile, match=r"text\.png: is no picture"):
        small_data_uri(tmp_path / "text.png")


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_folder_becomes_an_index_whose_links_and_pictures_are_all_there(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    written = save_folder(folder, out)
    page = checked(out / "index.html")
    assert page.fetched == ["data:image/png;base64," + base64.b64encode(PIXEL).decode()]
    assert page.links
    assert all((out / link).is_file() for link in page.links)
    assert {path.name for path in out.iterdir()} == {"index.html", *written.comparisons, *written.tables}
    assert written.comparisons == (f"compare-{PLAN.plan_id}.html",)
    assert "&lt;helps&gt;" in (out / "index.html").read_text()
    for name in (*written.comparisons, *written.tables):
        checked(out / name)


def test_a_picture_of_two_claims_stands_once_and_the_second_points_to_it(folder: Path, tmp_path: Path):
    (folder / "claims.toml").write_text(CLAIMS.replace('"not run"', '"[the same picture](figures/f.png)"'))
    save_folder(folder, tmp_path / "out")
    page = checked(tmp_path / "out/index.html")
    text = (tmp_path / "out/index.html").read_text()
    assert len(page.fetched) == 1
    assert '<a href="r.html"><img id="picture-0"' in text
    assert '<a href="#picture-0">f.png</a>' in text
    assert checked(tmp_path / "out/r.html").fetched == [data_uri(folder / "figures/f.png")]


def test_a_measured_sweep_in_a_folder_gets_its_own_page_with_the_relations_of_its_manifest(folder: Path, tmp_path: Path):
    (folder / "results/m.csv").write_text("\n".join(SWEPT) + "\n")
    (folder / "manifests").mkdir()
    (folder / "manifests/m.toml").write_text(MANIFEST)
    assert "m.html" in save_folder(folder, tmp_path / "out").tables
    text = (tmp_path / "out/m.html").read_text()
    assert "<h1>m: predicted against measured</h1>" in text
    assert "<h2>Relations</h2>" in text
    assert "2 of the manifest&#39;s 2 points are not in the CSV" in text


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidFile, match=r"no CSV, no pair of traces"):
        save_folder(tmp_path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_page_shows_the_numbers_of_the_comparison_and_needs_no_other_file(tmp_path: Path):
    path = tmp_path / "p.html"
    saved = save_comparison(PLAN, SIM, RUN, path)
    checked(path)
    text = path.read_text()
    assert f"{saved.comparison.step_time_s.relative_error:+.1%}" in text
    for row in saved.changes:
        assert f"<td>{row.what}</td>" in text
    for heading in ("Times", "Memory", "Predicted above measured, and memory", "Errors of acts", "What if"):
        assert f"<h2>{heading}</h2>" in text


def test_text_of_a_plan_and_of_a_table_is_escaped(tmp_path: Path):
    plan = replace(PLAN, model="<script>alert(1)</script>")
    sim, run = (replace(trace, plan_id=plan.plan_id) for trace in (SIM, RUN))
    save_comparison(plan, sim, run, tmp_path / "p.html")
    save_rows_page(rows_of("<script>alert(1),b", "<script>alert(2),3"), tmp_path / "r.html")
    assert "<script>alert" not in (tmp_path / "p.html").read_text() + (tmp_path / "r.html").read_text()


def test_the_verb_writes_both_kinds_of_pages_and_refuses_the_rest(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sim, run = str(folder / "sim.json"), str(folder / "run.json")
    assert main(["report", sim, run, "--out", str(tmp_path / "p.html"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["comparison"]["plan_id"] == PLAN.plan_id
    assert data["what_if"][0]["sim_step_s"] == pytest.approx(data["comparison"]["step_time_s"]["predicted"])
    assert main(["report", str(folder), "--out", str(tmp_path / "pages")]) == 0
    assert "2 cards, and 2 pages beside it" in capsys.readouterr().out
    before = sorted(tmp_path.rglob("*"))
    for given_wrong in ([run, sim], [sim], [sim, run, sim], [sim, str(folder / "results/r.csv")]):
        assert main(["report", *given_wrong, "--out", str(tmp_path / "new.html")]) == 2
        assert "regista report: " in capsys.readouterr().err
    assert main(["report", sim, run, "--out", sim]) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_traces_of_two_plans_make_no_page(tmp_path: Path):
    with pytest.raises(Mismatch, match="trace is of plan"):
        save_comparison(chain("ab", 1, 1), SIM, RUN, tmp_path / "p.html")
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_sets_becomes_the_page_that_says_how_far_to_trust(folder: Path, tmp_path: Path):
    head = "set,quantity,device,predicted,given,left_out,published,points,mean_error,median_error,p90_error,worst_error,bias,level,inside,half_width"
    (folder / "results/trust.csv").write_text(
        f"{head},missing,command\n"
        "a <b>,seconds,all,sim,run,folds,12,10,0.1,0.05,0.2,0.3,0.01,0.9,0.7,0.25,2 refused: no reader,make a\n"
        "c,bytes,all,sim,run,folds,9,9,0.1,0.05,0.2,0.3,-0.01,0.9,,,,make c\n"
        "d,,,,,,,0,,,,,,,,,nobody has tried,\n"
    )
    save_folder(folder, tmp_path / "out")
    page = (tmp_path / "out/trust.html").read_text()
    assert '<a href="trust.html">How far to trust this</a>' in (tmp_path / "out/index.html").read_text()
    assert '<span class="bad">70%</span>' in page and "a &lt;b&gt;" in page
    assert "19 predictions" in page and "2 sets" in page
    assert "2 refused: no reader" in page and "nobody has tried" in page and "\N{PLUS-MINUS SIGN} 25%" in page
    checked(tmp_path / "out/trust.html")
