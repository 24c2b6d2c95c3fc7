"""What a notebook shows of a value: the facts of its screen, escaped, in the notebook's own colours, without any other file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import read_plan
from rich.markup import escape
from rich.table import Table

from planner.ir import display
from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace
from regista import Comparison, advise, compare, gantt, simulate
from regista.analysis.answer import answer
from regista.jobs.advice import Advice
from regista.notebook.html import MOST_ROWS, parts_html
from regista.trust.interval import objective_interval
from regista.views.tables.answer import show_facts

PLAN = read_plan("gpt", "pipeline2_data2", "fp32")

MEGATRON = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 50257 --pipeline-model-parallel-size 2 "
    "--micro-batch-size 1 --global-batch-size 32 --bf16"
)


class Reader(HTMLParser):
    """The texts of a page, in order; those of styles apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.style = ""
        self.tags: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"class"}, attrs

    def handle_data(self, data: str) -> None:
        if self.tags[-1] == "style" and not self.style:
            self.style = data
        else:
            self.texts.append(data)


@pytest.fixture(scope="module")
def values() -> dict[type, object]:
    sim = simulate(PLAN, steps=3)
    from dataclasses import replace

    from planner.ir.traces.trace import Source

    run = replace(sim, source=Source.RUN, performer="gloo", losses=(1.0, 0.5, 0.25))
    return {Plan: PLAN, Trace: run, Comparison: compare(PLAN, sim, run), Advice: advise(MEGATRON, "dgx-h100:1", tries=1, seconds=600)}


@pytest.mark.parametrize("kind", [Plan, Trace, Comparison, Advice])
def test_values_show_themselves_without_scripts_other_files_or_colours_of_their_own(kind: type, values: dict[type, object]) -> None:
    html = values[kind]._repr_html_()  # type: ignore[attr-defined]
    page = Reader(html)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in html and "url(" not in html
    assert set(re.findall(r"(?:color|background):([^;}]+)", page.style)) == {"inherit", "transparent"}
    assert len(html) < 20_000
    assert any(str(word) in " ".join(page.texts) for word in (PLAN.plan_id, "one change at a time", "better"))


def test_a_plan_shows_the_facts_of_its_screen() -> None:
    facts = show_facts(answer(PLAN), objective_interval(PLAN))
    texts = Reader(PLAN._repr_html_() or "").texts
    for column in facts.columns:
        for cell in column.cells:
            assert re.sub(r"\\(\[)", r"\1", str(cell)) in texts


def test_a_trace_tells_predicted_from_measured(values: dict[type, object]) -> None:
    assert "measured (run) by gloo" in " ".join(Reader(values[Trace]._repr_html_()).texts)  # type: ignore[attr-defined]
    assert "predicted (sim)" in " ".join(Reader(simulate(PLAN)._repr_html_() or "").texts)


@given(text=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40))
def test_every_text_is_escaped(text: str) -> None:
    table = Table("column", title=escape(text))
    table.add_row(escape(text))
    page = Reader(parts_html([table, text]))
    assert page.texts.count(text) >= 2 and set(page.tags) <= {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}


def test_rows_that_are_left_out_are_counted() -> None:
    table = Table("number")
    for number in range(MOST_ROWS + 5):
        table.add_row(str(number))
    assert "... and 5 more" in Reader(parts_html([table])).texts


def test_a_value_that_nobody_can_lay_out_is_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_WAYS", [])
    assert PLAN._repr_html_() is None


@pytest.mark.thorough
def test_a_gantt_is_a_png_in_place() -> None:
    assert gantt(PLAN, simulate(PLAN))._repr_png_().startswith(b"\x89PNG")
