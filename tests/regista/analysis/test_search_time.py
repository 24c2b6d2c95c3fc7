"""'regista search-time' and the search options of 'regista plan': rows are continued, interrupts keep the best, bounds are honest."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from command_line import TINY, Command, commands, files_of

import regista.api as api
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.files import load_plan
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.shape import Shape, shapes
from planner.parallelism.shape_search import ShapeSearch
from planner.search import Method
from planner.search.methods import method
from planner.solve import Edge, Problem, solve_exactly, without_limit
from planner.solve.problem import Progress
from planner.solve.without_limit import Sizes
from regista.analysis.search_time import Row, load_rows, measure, points, save_rows
from regista.clusters import resolve_cluster

GPT = "zoo:gpt?width=16&heads=2&vocab=32&batch=4&seq=4"
DGX = resolve_cluster("dgx-a100:1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def tangled(nodes: int = 9, strategies: int = 6) -> Problem:
    """All nodes are joined to all, so elimination alone is too wide and message passing begins."""
    rng = np.random.default_rng(3)
    costs = tuple(rng.random(strategies) for _ in range(nodes))
    edges = tuple(Edge(u, v, rng.random((strategies, strategies))) for u in range(nodes) for v in range(u + 1, nodes))
    return Problem(tuple(map(str, range(nodes))), costs, edges)


# Interrupts.


def test_an_interrupted_search_returns_its_best_with_a_bound_below_the_optimum() -> None:
    problem = tangled()
    optimum = solve_exactly(problem).objective
    seen: list[Progress] = []

    def watch(known: Progress) -> None:
        seen.append(known)
        if known.objective < inf:
            raise KeyboardInterrupt

    solution = solve_exactly(problem, watch=watch)
    assert solution.objective == problem.objective(solution.choice) == pytest.approx(seen[-1].objective)
    assert solution.lower_bound <= optimum <= solution.objective
    assert solution.lower_bound < solution.objective
    assert solution.proof.startswith("interrupted")


def test_an_interrupt_before_any_choice_is_known_goes_on_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(without_limit.Dual, "sweep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_exactly(tangled(), watch=lambda known: None)


def test_with_nobody_looking_on_an_interrupt_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter(range(100))
    sweep = without_limit.Dual.sweep

    def second_is_interrupted(self: without_limit.Dual, *arguments: object) -> object:
        if next(rounds) == 1:
            raise KeyboardInterrupt
        return sweep(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(without_limit.Dual, "sweep", second_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve_exactly(tangled())


def test_progress_bounds_the_optimum_from_both_sides() -> None:
    seen: list[Progress] = []
    problem = tangled()
    optimum = solve_exactly(problem, watch=seen.append).objective
    assert seen
    assert all(known.lower_bound <= optimum * (1 + 1e-9) for known in seen)
    assert all(known.objective >= optimum * (1 - 1e-9) for known in seen)


def test_an_interrupt_with_no_plan_known_is_130_and_no_file(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("planner.search.assign"), "search", interrupted)
    ran = command("plan", TINY, "--cluster", "local:2", "--mesh", "2", "-o", tmp_path / "p.json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.endswith("regista plan: interrupted\n")
    assert files_of(tmp_path) == {}


def test_an_interrupt_with_a_plan_known_writes_it_with_its_gap(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when the status is drawn; here the first time that something is known."""
    seen: list[Progress] = []

    def interrupted(known: Progress) -> NoReturn:
        seen.append(known)
        raise KeyboardInterrupt

    monkeypatch.setattr("regista.verbs.planning.plan._search_text", interrupted)
    # Else there is nothing to wait for.
    monkeypatch.setattr(method, "solve_exactly", partial(solve_exactly, sizes=Sizes(narrow=1, wide=1)))
    ran = command("plan", f"{GPT}&layers=2", "--cluster", "dgx-a100:1", "--mesh", "2,4", "-o", tmp_path / "p.json")
    assert ran.code == 0, ran.err
    plan = load_plan(str(tmp_path / "p.json"))
    assert plan.search.lower_bound_s <= plan.search.objective_s
    assert plan.search.objective_s == pytest.approx(seen[0].objective, rel=1e-9)
    assert plan.search.lower_bound_s == pytest.approx(seen[0].lower_bound, rel=1e-9)
    assert ("search: not proven" in ran.out) == (plan.search.lower_bound_s < plan.search.objective_s)


# plan --method, --seconds


@pytest.mark.parametrize("method", ["exact", "o3", "o2", "greedy"])
def test_the_plan_says_which_method_made_it_and_none_is_better_than_exact(command: Command, tmp_path: Path, method: str) -> None:
    ran = command("plan", TINY, "--cluster", "local:2", "--mesh", "2", "--method", method, "-o", tmp_path / "p.json", "--json").json
    best = command("plan", TINY, "--cluster", "local:2", "--mesh", "2", "-o", tmp_path / "q.json", "--json").json["search"]
    assert ran["search"]["method"] == method
    assert ran["search"]["objective_s"] >= best["objective_s"] * (1 - 1e-9)
    assert ran["search"]["lower_bound_s"] <= best["objective_s"] * (1 + 1e-9)


def test_exhaustive_search_refuses_what_it_cannot_enumerate(command: Command, tmp_path: Path) -> None:
    ran = command("plan", TINY, "--cluster", "local:2", "--mesh", "2", "--method", "exhaustive", "-o", tmp_path / "p.json")
    assert ran.code == 2
    assert "combinations are too many to enumerate" in ran.err
    assert files_of(tmp_path) == {}


def test_a_method_or_time_that_is_none_is_refused() -> None:
    with pytest.raises(Unsupported, match="search method 'best' is not known; choose from exhaustive, greedy, o2, o3, exact"):
        api.plan(TINY, "local:2", method="best")
    with pytest.raises(Unsupported, match="give a number above 0"):
        api.plan(TINY, "local:2", seconds=0.0)


# search-time


def test_rows_that_are_known_are_not_measured_again(tmp_path: Path) -> None:
    wanted = points([GPT], [1, 2], ["exact", "greedy"], DGX, (8,), 10.0)
    rows = tuple(measure(wanted, (), DGX))
    assert [(r.point.layers, r.point.method) for r in rows] == [(1, "exact"), (1, "greedy"), (2, "exact"), (2, "greedy")]
    save_rows(rows, tmp_path / "t.csv")
    assert load_rows(tmp_path / "t.csv") == rows
    assert list(measure(wanted, rows, DGX)) == []
    assert [row.point for row in measure(wanted, rows[:3], DGX)] == [rows[3].point]
    by = {(r.point.layers, r.point.method): r for r in rows}
    assert by[2, "exact"].nodes > by[1, "exact"].nodes
    assert all(row.search_s > 0 for row in rows)
    assert all(cost(by[n, "greedy"]) >= cost(by[n, "exact"]) for n in (1, 2))
    assert by[1, "exact"].outcome == "proven"


def cost(row: Row) -> float:
    assert row.objective_s is not None
    return row.objective_s


def test_a_method_that_overran_its_limit_is_not_asked_about_larger_models() -> None:
    wanted = points([GPT], [1, 2, 3], ["greedy"], DGX, (8,), 1e-9)
    rows = tuple(measure(wanted, (), DGX))
    assert [row.point.layers for row in rows] == [1]
    assert list(measure(wanted, rows, DGX)) == []


def test_a_method_that_finds_nothing_leaves_a_row_that_says_why(tmp_path: Path) -> None:
    wanted = points([GPT], [1], [Method.EXHAUSTIVE.value], DGX, (8,), 10.0)
    (row,) = measure(wanted, (), DGX)
    assert row.objective_s is None
    assert "too many to enumerate" in row.outcome
    save_rows((row,), tmp_path / "t.csv")
    assert load_rows(tmp_path / "t.csv") == (row,)


def test_the_picture_and_its_table_are_made_and_continued(command: Command, tmp_path: Path) -> None:
    arguments = ("search-time", "--models", GPT, "--methods", "exact,greedy", "--mesh", "8", "-o", tmp_path / "t.png", "--json")
    first = command(*arguments, "--layers", "1").json
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    both = command(*arguments, "--layers", "1,2").json
    assert both["rows"][:2] == first["rows"]
    assert len(load_rows(tmp_path / "t.csv")) == len(both["rows"]) == 4
    assert sorted(files_of(tmp_path)) == ["t.csv", "t.png"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "exact,best"], "search methods best are not known; choose from"),
        (["--models", "m.py:f"], "models are zoo:NAME with a key 'layers'"),
        (["--layers", "0"], "at least 1 is needed"),
        (["--layers", "one"], "invalid list of whole numbers value"),
        (["--mesh", "4,4"], "mesh 4x4 needs 16 devices, dgx-a100:1 has 8|mesh 4x4 needs 16 devices, dgx-a100 has 8"),
        (["--csv", "x.png"], "the same command reads or writes that file"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = command("search-time", "-o", "x.png", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert re.search(says, ran.err), ran.err
    assert files_of(tmp_path) == {}


def test_a_table_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidFile, match="not a table of search times"):
        load_rows(tmp_path / "t.csv")


def test_progress_over_shapes_bounds_the_best_of_them_from_below() -> None:
    best = api.plan(f"{GPT}&layers=1", DGX)
    seen: list[tuple[str, float, float]] = []

    def on_shape(shape: str, best_s: float, bound_s: float) -> None:
        seen.append((shape, best_s, bound_s))

    whole = api.plan(f"{GPT}&layers=1", DGX, on_shape=on_shape)
    assert whole.plan_id == best.plan_id
    assert seen[-1][1] == pytest.approx(best.search.objective_s)
    assert all(bound_s <= best.search.objective_s * (1 + 1e-9) for _, _, bound_s in seen)


def test_an_interrupt_between_shapes_takes_the_best_so_far_and_before_any_goes_on_to_the_caller() -> None:
    graph = api.program_of(f"{GPT}&layers=1").graph(1)
    worked: list[Shape] = []

    def second_is_interrupted(shape: Shape, _: bool) -> tuple[float, float]:
        if worked:
            raise KeyboardInterrupt
        worked.append(shape)
        return 1e9, 1.0  # so much that every other shape is worth a look

    best, bound_s = ShapeSearch(ShapeBounds(lambda _: graph, 4, DGX, ()), second_is_interrupted).best(
        shapes(4, DGX, stages=1, micro_batches=1)
    )
    assert [best] == worked
    assert 0 < bound_s < 1e9
    with pytest.raises(KeyboardInterrupt):
        ShapeSearch(ShapeBounds(lambda _: graph, 4, DGX, ()), second_is_interrupted).best(shapes(4, DGX, stages=1, micro_batches=1))
