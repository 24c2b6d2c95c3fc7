"""The picture of a schedule: a row per device, its bubble, memory and links."""

from __future__ import annotations

import pytest
from stories import Story, TableCost, data_parallel, pipeline

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import Placement, Plan, TaskKind
from regista.analysis.chunks import chunk_of
from regista.views.pictures.gantt import COLOURS
from regista.views.pictures.panels import CATEGORY_COLOURS, link_rows, link_use
from regista.views.pictures.schedule_gantt import act_colour, bubble_share, schedule_gantt, shown_ranks
from regista.views.pictures.window import show_last
from simulator import simulate
from simulator.analysis.category import Category
from simulator.theory import bubble_fraction
from tests.regista.views.view_cases import PLAN, RUN, SIM, svg_texts


def test_the_schedule_has_one_row_per_device_with_its_bubble_and_its_micro_batches(tmp_path):
    plan = pipeline(3, 4)
    trace = simulate(plan, TableCost(default_s=1e-3))
    schedule_gantt(plan, [trace], tmp_path / "s.svg", steps=1)
    texts = svg_texts(tmp_path / "s.svg")
    assert [text for text in texts if text.startswith("rank ")] == ["rank 0", "rank 1", "rank 2"]
    window = show_last(plan, trace, 1)
    assert [text for text in texts if text.endswith("% bubble")] == [f"{bubble_share(plan, window, rank):.0%} bubble" for rank in range(3)]
    # Each of 3 stages shows each of 4 micro-batches once forward and once backward.
    assert all(texts.count(str(micro_batch)) >= 6 for micro_batch in range(4))
    assert {"forward", "backward", "update", "transfer", "bubble"} <= set(texts)
    assert not {category.value for category in Category} & set(texts)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 8)])
def test_the_bubble_of_the_last_step_is_that_of_the_closed_form(stages: int, micro_batches: int):
    plan = pipeline(stages, micro_batches, update=False)
    free = {"load": 0.0, **{f"{task}{i}": 0.0 for task in ("send", "back", "upd") for i in range(stages)}}
    trace = simulate(plan, TableCost(free), steps=1)
    for rank in range(stages):
        assert bubble_share(plan, show_last(plan, trace, 1), rank) == pytest.approx(bubble_fraction(stages, micro_batches))


def test_memory_and_links_stand_beneath_each_trace(tmp_path):
    schedule_gantt(PLAN, [RUN, SIM], tmp_path / "s.svg", steps=1, memory=True, links=True)
    texts = svg_texts(tmp_path / "s.svg")
    assert texts.index("predicted (sim)") < texts.index("measured (run)")
    assert texts.count("memory") == 2
    assert texts.count("rank 0") == texts.count("rank 1") == 4  # the row and its memory, in both panels
    assert len([text for text in texts if text.startswith("peak ")]) == 4
    assert [text for text in texts if text.startswith("rank 0  send0")] == ["rank 0  send0"] * 2
    assert {category.value for category in Category} <= set(texts)


def test_of_many_devices_the_fullest_have_a_memory_panel(tmp_path):
    plan = pipeline(10, 2)
    schedule_gantt(plan, [simulate(plan, TableCost(), steps=1)], tmp_path / "s.svg", steps=1, memory=True)
    texts = svg_texts(tmp_path / "s.svg")
    assert "memory of the 8 fullest of 10 devices" in texts
    assert [texts.count(f"rank {rank}") for rank in range(10)] == [2] * 8 + [1] * 2  # early stages keep more


def test_a_schedule_that_cannot_be_drawn_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(Mismatch, match="1 trace, or 1 simulated and 1 measured"):
        schedule_gantt(PLAN, [SIM, SIM], tmp_path / "g.png")
    with pytest.raises(Mismatch, match="steps = 0"):
        schedule_gantt(PLAN, [SIM], tmp_path / "g.png", steps=0)
    with pytest.raises(InvalidFile, match="name it"):
        schedule_gantt(PLAN, [SIM], tmp_path / "g", memory=True)
    assert list(tmp_path.iterdir()) == []


def test_too_many_devices_are_shown_by_one_of_each_placement():
    assert shown_ranks(data_parallel(32)) == tuple(range(32))
    assert shown_ranks(data_parallel(33)) == (0,)


def test_the_use_of_a_link_is_its_busy_share_of_each_bin():
    plan = pipeline(2, 2)
    trace = simulate(plan, TableCost({"send0": 0.5}), steps=1)
    window = show_last(plan, trace, 1)
    rows = link_rows(plan, window, (0, 1))
    assert rows == ((0, "send0"), (1, "back1"))
    use = link_use(plan, window, rows, window.length_s, bins=int(window.length_s / 0.25))
    for number, (rank, stream) in enumerate(rows):
        busy_s = sum(act.duration_s for act in trace.acts if (act.rank, act.task) == (rank, stream))
        assert use[number].sum() * 0.25 == pytest.approx(busy_s)
        assert set(use[number].round(9)) == {0.0, 1.0}  # these acts begin and end with a bin
    half = link_use(plan, window, rows, window.length_s, bins=1)
    assert half[0, 0] == pytest.approx(2 * 0.5 / window.length_s)


def test_every_category_has_a_colour_of_its_own_that_no_act_has():
    assert set(CATEGORY_COLOURS) == set(Category)
    assert len({*CATEGORY_COLOURS.values(), *COLOURS.values()}) == len(Category) + len(TaskKind)


def interleaved() -> Plan:
    """Four stages on two ranks, forward and backward: F0, F2 on rank 0, F1, F3 on rank 1."""
    story = Story(placements=[Placement(id=f"dev{rank}", ranks=(rank,), mesh=(1,)) for rank in range(2)])
    order = ["F0", "F1", "F2", "F3", "B3", "B2", "B1", "B0"]
    for number, name in enumerate(order):
        rank, kind = int(name[1]) % 2, TaskKind.FORWARD if name[0] == "F" else TaskKind.BACKWARD
        story.regst(f"out_{name}", name, placement=f"dev{rank}")
        inputs = [f"in_{name}" if int(order[number - 1][1]) % 2 != rank else f"out_{order[number - 1]}"] if number else []
        story.task(name, inputs, [f"out_{name}"], kind=kind, stream=f"compute{rank}", placement=f"dev{rank}")
        if number + 1 < len(order) and int(order[number + 1][1]) % 2 != rank:
            story.regst(f"in_{order[number + 1]}", f"send_{name}", placement=f"dev{1 - rank}")
            story.task(f"send_{name}", [f"out_{name}"], [f"in_{order[number + 1]}"], kind=TaskKind.TRANSFER, placement=f"dev{rank}")
    return story.freeze()


def test_the_second_chunk_of_a_device_has_a_lighter_shade_of_its_own(tmp_path):
    plan = interleaved()
    assert chunk_of(plan) == {"F0": 0, "F1": 0, "F2": 1, "F3": 1, "B3": 1, "B2": 1, "B1": 0, "B0": 0}
    assert set(chunk_of(pipeline(3, 2)).values()) == {0}
    shades = {act_colour(kind, chunk) for kind in TaskKind if kind.is_compute for chunk in (0, 1)}
    assert len(shades) == 2 * sum(kind.is_compute for kind in TaskKind)
    schedule_gantt(plan, [simulate(plan, TableCost(), steps=1)], tmp_path / "s.svg")
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        for chunk in (0, 1):
            assert act_colour(kind, chunk).lower() in (tmp_path / "s.svg").read_text()
