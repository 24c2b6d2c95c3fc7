"""The screen of ``plan``: what it says of plans whose ways are known, and that it stays one screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matrix import COMMITTED, read_plan
from rich.console import Console

from planner.ir.actors.peak import live_bytes
from planner.ir.actors.verify import device_bytes
from planner.ir.plan import Plan
from regista.analysis.answer import answer
from regista.trust.interval import objective_interval
from regista.verbs.fitting import LINES
from regista.verbs.screen import print_parts
from regista.views.tables.answer import show_answer

GOLDEN = Path(__file__).parent / "screens"

SPLITS = {
    ("gpt", "data2"): "data 2",
    ("gpt", "sequence2"): "tensor 2",
    ("gpt", "data2_tensor2"): "data 2 x tensor 2, ZeRO-1",
    ("gpt", "tensor2"): "data 2, ZeRO-3",  # so small a model's cheapest plan stores its weights as pinned, and gathers them
    ("gpt", "pipeline2"): "pipeline 2, schedule 1f1b",
    ("gpt", "gpipe2"): "pipeline 2, schedule gpipe",
    ("gpt", "pipeline2_data2"): "pipeline 2 x data 2, schedule 1f1b",
    ("gpt", "zero1"): "data 2, ZeRO-1",
    ("gpt", "zero2"): "data 2, ZeRO-2",
    ("gpt", "zero3"): "data 2, ZeRO-3",
    ("llama3", "context_gathered4"): "context 4",
    ("llama3", "context_heads2"): "context 2",
    ("llama3", "context_ring4"): "context 4",
    ("gpt", "recompute_pipeline2"): "pipeline 2, blocks computed again in the backward pass, schedule 1f1b",
}


def screen(plan: Plan, columns: int) -> str:
    console = Console(width=columns, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_parts(console, [show_answer(answer(plan), objective_interval(plan), "plan.json")])
    return console.export_text()


@pytest.mark.parametrize(("model", "way"), SPLITS)
def test_the_split_is_said_in_the_words_of_the_field(model: str, way: str) -> None:
    assert answer(read_plan(model, way, "fp32")).split_text == SPLITS[model, way]


@pytest.mark.parametrize("columns", [80, 160])
def test_the_screen_is_the_golden_one(columns: int, request: pytest.FixtureRequest) -> None:
    shown = screen(read_plan("gpt", "pipeline2_data2_tensor2", "fp32"), columns)
    text = "\n".join(line.rstrip() for line in shown.split("\n"))
    if request.config.getoption("--update-screens"):
        (GOLDEN / f"plan_{columns}.txt").write_text(text)
    assert text == (GOLDEN / f"plan_{columns}.txt").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "way", "dtype"), COMMITTED)
def test_every_committed_plan_has_one_screen(model: str, way: str, dtype: str) -> None:
    for columns in (80, 160):
        lines = screen(read_plan(model, way, dtype), columns).rstrip().split("\n")
        assert len(lines) <= LINES and max(map(len, lines)) <= columns


def test_memory_says_what_the_fullest_device_holds_and_for_what() -> None:
    plan = read_plan("gpt", "pipeline2", "fp32")
    found = answer(plan)
    assert found.total_bytes == max(device_bytes(plan).values()) == found.live_bytes
    assert found.fits and found.device_bytes == plan.cluster.device.memory_bytes


def test_a_plan_whose_blocks_are_more_than_a_device_holds_fits_by_what_is_held_at_once() -> None:
    plan = read_plan("gpt", "pipeline2", "fp32")
    live = max(live_bytes(plan).values())
    tight = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=live)))
    assert live < answer(tight).total_bytes
    assert answer(tight).live_bytes == live and answer(tight).fits
    assert "at once, of" in screen(tight, 160)


def test_every_parameter_is_in_one_row_and_bytes_are_whole() -> None:
    plan = read_plan("gpt", "data2_tensor2", "fp32")
    rows = answer(plan).patterns
    parameters = [state for state in plan.states if state.kind.value == "parameter"]
    assert sum(row.count for row in rows) == len(parameters)
    qkv = next(row for row in rows if "qkv" in row.name or "attn" in row.name)
    assert qkv.count == 2 and "tensor 2" in qkv.layout
