"""A model traced at a second size by a second process: the graph, what is known of it and the plan are those of one process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import sleep

import pytest
import torch

from planner.frontend import Program
from planner.frontend.traces import kept
from planner.ir.errors import InvalidProgram, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.parallelism import make
from planner.parallelism.bounding import Ahead, SecondTrace, TracedBeside
from planner.parallelism.bounding.claims import Owner
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.memory import KnownOfGraph, SearchMemory
from planner.search import build_model, find_layouts
from planner.search.bounds.scaled import scaled_graph
from planner.search.literals import Differs, other_factors, with_factors_of
from planner.search.strategies import StrategySets
from planner.stages import Staged, assign_stages, prepare
from planner.stages.recompute.asked import BLOCKS
from regista.api import program_of
from regista.clusters import resolve_cluster

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
MODEL = "zoo:gpt?layers=4&width=32&heads=2&vocab=64&batch=8&seq=16&optimizer=adamw"


class Traced:
    """The graphs of a program, with the sizes that were traced here, and what another process has traced."""

    def __init__(self) -> None:
        self.here: list[int] = []
        self.taken: dict[int, LogicalGraph] = {}
        self.program = program_of(MODEL)

    def __call__(self, micro_batches: int) -> LogicalGraph:
        if micro_batches in self.taken:
            return self.taken[micro_batches]
        if micro_batches not in self.here:
            self.here.append(micro_batches)
        return self.program.graph(micro_batches)


class Beside:
    """A second process that traces by ``graph``, and what is done meanwhile."""

    def __init__(self, graph: Callable[[int], LogicalGraph], meanwhile: Callable[[], None] = lambda: None) -> None:
        self.graph, self.meanwhile = graph, meanwhile
        self.taken: list[int] = []

    def has(self, micro_batches: int) -> bool:
        return False

    def beside_graph(self, micro_batches: int) -> bytes:
        return b""

    def take(self, micro_batches: int, graph: LogicalGraph, beside_graph: bytes) -> None:
        self.taken.append(micro_batches)
        if isinstance(self.graph, Traced):
            self.graph.taken[micro_batches] = graph


def beside(graph_of: Callable[[int], LogicalGraph], memory: SearchMemory, *, allowed: bool = True) -> TracedBeside:
    cluster = resolve_cluster("local:4")
    return TracedBeside(
        graph_of=graph_of,
        second=Beside(graph_of),
        known_of=lambda graph: memory.of_graph(graph, ("", BLOCKS), cluster),
        learn=lambda known: memory.learn(known, cluster),
        size=2,
        allowed=lambda: allowed,
    )


def test_the_graph_and_what_is_known_of_it_are_those_of_one_process() -> None:
    traced, memory, cluster = Traced(), SearchMemory(), resolve_cluster("local:4")
    two = beside(traced, memory)
    with two.started() as graph_of:
        graphs = {size: graph_of(size) for size in (1, 2, 4)}
        assert graph_of(2) is graphs[2]
    assert traced.here == [1, 4] and two.second.taken == [2]
    alone = program_of(MODEL)
    assert all(content_id(graph) == content_id(alone.graph(size)) for size, graph in graphs.items())
    known = SearchMemory().of_graph(alone.graph(2), ("", BLOCKS), cluster)
    assert memory.graph_id(graphs[2]) == content_id(alone.graph(2))
    assert memory.number(graphs[2]) == memory.number(alone.graph(2)) != memory.number(graphs[1])
    for asked, again in known.again.items():
        assert memory.again(graphs[2], asked, cluster) == again
        mine, theirs = memory.pieces(graphs[2], recompute=again.ops), known.pieces[again.ops]
        assert [(p.times, p.members, p.backward_reads, content_id(p.graph)) for p in mine] == [
            (p.times, p.members, p.backward_reads, content_id(p.graph)) for p in theirs
        ]


def test_what_the_first_process_has_traced_is_traced_by_no_other() -> None:
    program, memory = program_of(MODEL), SearchMemory()
    for _ in range(2):
        two = replace(beside(program.graph, memory), second=program.traces_beside())
        known = two.is_here(4)
        with two.started() as graph_of:
            assert (two._beside.process is None) is known
            first, other = graph_of(2), graph_of(4)
        assert program.graph(2) is first and program.graph(4) is other
    assert known and two.is_here(4) and not two.is_here(8)


@pytest.mark.parametrize("how", ["not allowed", "dies"])
def test_without_a_second_process_the_first_traces(how: str) -> None:
    first = os.getpid()

    class Dying(Traced):
        def __call__(self, micro_batches: int) -> LogicalGraph:
            if os.getpid() != first:
                os._exit(1)
            return super().__call__(micro_batches)

    traced = Dying()
    with beside(traced, SearchMemory(), allowed=how != "not allowed").started() as graph_of:
        assert content_id(graph_of(2)) == content_id(program_of(MODEL).graph(2))
    assert traced.here == [2]


def test_what_a_size_that_cannot_be_traced_raises_is_raised_here() -> None:
    def refused(micro_batches: int) -> LogicalGraph:
        raise Unsupported(f"no trace at {micro_batches}")

    with beside(refused, SearchMemory()).started() as graph_of, pytest.raises(Unsupported, match="no trace at 2"):
        graph_of(2)


def test_a_plan_is_the_same_whoever_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[KnownOfGraph] = []
    monkeypatch.setattr(make, "TracedBeside", partial(TracedBeside, allowed=lambda: True))
    learn = SearchMemory.learn
    monkeypatch.setattr(SearchMemory, "learn", lambda self, known, cluster: (learnt.append(known), learn(self, known, cluster)))
    options = PlanOptions(stages=None, micro_batches=None)
    tried: list[bool] = []
    program = program_of(MODEL)
    beside = Beside(program.traces_beside().graph, lambda: tried.append(True))
    plans = [
        search_plans(program.graph, model="gpt", batch_size=8, cluster=resolve_cluster("local:4"), options=options, second=second).plan
        for second in (None, beside)
    ]
    assert plans[0] == plans[1]
    assert len(learnt) == len(tried) == 1


def test_what_the_first_process_finds_wrong_meanwhile_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: batch dims that are refused while the second process traces."""
    monkeypatch.setattr(make, "TracedBeside", partial(TracedBeside, allowed=lambda: True))
    program = program_of(MODEL)

    def refused() -> None:
        raise InvalidProgram("input.0 may be no batch")

    options = PlanOptions(stages=None, micro_batches=None)
    second = Beside(program.traces_beside().graph, refused)
    with pytest.raises(InvalidProgram, match="may be no batch"):
        search_plans(program.graph, model="gpt", batch_size=8, cluster=resolve_cluster("local:4"), options=options, second=second)


def helped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on searches have a second process from their first bound on, and wait until it begins; gives the sizes that it is asked for."""
    asked: list[int] = []
    ask, trace = Ahead.ask_for_trace, Ahead.trace

    def trace_when_begun(self: Ahead, size: int) -> bytes | None:
        while self._claims.owner(self._place_of_trace(size)) is Owner.NOBODY and self.process is not None:
            sleep(0.01)
        return trace(self, size)

    monkeypatch.setattr(Ahead, "trace", trace_when_begun)
    monkeypatch.setattr(make, "TracedBeside", partial(TracedBeside, allowed=lambda: True))
    monkeypatch.setattr(make, "Ahead", partial(Ahead, after_s=0.0, allowed=lambda: True))
    monkeypatch.setattr(Ahead, "ask_for_trace", lambda self, size: ask(self, size) and (asked.append(size) or True))
    return asked


def searched(program: Program, second: SecondTrace | None) -> Plan:
    options, cluster = PlanOptions(stages=4, micro_batches=None), resolve_cluster("p3.16xlarge:1")
    return search_plans(program.graph, model="any", batch_size=program.batch_size, cluster=cluster, options=options, second=second).plan


def squares() -> Program:
    """A program whose graph has a factor that is no multiple of the size: one over the numbers of a micro-batch."""
    layers, rows = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(8)], torch.zeros(4096, 4096, device="meta")
    return Program(torch.nn.Sequential(*layers).to("meta"), (rows, rows), torch.nn.functional.mse_loss)


def tokens() -> Program:
    return program_of(MODEL.replace("batch=8", "batch=64").replace("width=32", "width=1024").replace("seq=16", "seq=256"))


@pytest.mark.parametrize("planted", ["scaled rightly", "scaled to another size"])
@pytest.mark.parametrize("made", [tokens, squares])
def test_the_plan_of_a_shape_that_the_second_process_traced_is_that_of_one_process(
    made: Callable[[], Program], planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, program, other = searched(made(), None), made(), made()
    asked = helped(monkeypatch)
    if planted == "scaled to another size":
        monkeypatch.setattr(ShapeBounds, "scaled_graph", lambda self, micro_batches: other.graph(2 * micro_batches))
    traced_here: list[int] = []
    capture = kept.capture
    monkeypatch.setattr(kept, "capture", lambda step, size: traced_here.append(size) or capture(step, size))
    assert searched(program, program.traces_beside()) == alone
    assert alone.micro_batches in asked
    if planted == "scaled rightly":
        assert not set(asked) & set(traced_here)


def test_what_the_second_process_hands_over_is_in_what_the_graph_differs_from_a_scaled_one() -> None:
    here = squares()
    scaled = scaled_graph(here.graph(1), here.graph(2), (4096, 2048), 1024)
    assert scaled is not None and content_id(scaled) != content_id(here.graph(4))
    for given, is_short in ((scaled, True), (None, False), (replace(scaled, ops=scaled.ops[:-1]), False)):
        there, first = squares(), squares()
        second, mine = (TracedBeside(p.graph, p.traces_beside(), lambda graph: None, lambda known: None, 2) for p in (there, first))
        made = second.trace_there(4, given)
        graph, graph_id = mine.received(4, made, scaled)
        assert graph is first.graph(4) and content_id(graph) == graph_id == content_id(here.graph(4))
        assert (first.tracer(4), first.has_loss(4), first.constants(4)) == (here.tracer(4), here.has_loss(4), here.constants(4))
        assert (len(made) < len(pickle.dumps(graph)) / 4) is is_short


def test_the_decisions_of_a_search_are_not_taken_for_a_graph_of_another_size() -> None:
    program, local = squares(), resolve_cluster("local:2")
    assert [op.target for op in other_factors(program.graph(4), program.graph(4)).values()] == []
    with pytest.raises(Differs):
        other_factors(program.graph(4), program.graph(2))
    staged = Staged(program.graph(2), {op.id: 0 for op in program.graph(2).ops}, 1)
    found = find_layouts(build_model(staged, (2,), local, (), 2))
    with pytest.raises(Differs):
        with_factors_of(program.graph(4), program.graph(2), found.model, found.assignment(), StrategySets((2,)))


class Mean(torch.nn.Module):
    """A block with a factor of its own, which the backward part needs, too."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(rows * (1.0 / rows.shape[0])) * rows


@pytest.mark.parametrize("recompute", [False, True])
def test_factors_of_the_traced_graph_are_put_where_the_passes_would_put_them(recompute: bool) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), Mean()) for _ in range(2)]
    rows = torch.zeros(64, 64, device="meta")
    program = Program(torch.nn.Sequential(*layers).to("meta"), (rows, rows), torch.nn.functional.mse_loss)
    traced, scaled = program.graph(4), scaled_graph(program.graph(1), program.graph(2), (64, 32), 16)
    assert scaled is not None
    searched, wanted = (prepare(graph, assign_stages(graph, 2), 2, recompute=recompute) for graph in (scaled, traced))
    found = find_layouts(build_model(searched, (2,), resolve_cluster("local:4"), (), 4))
    model, laid = with_factors_of(traced, scaled, found.model, found.assignment(), StrategySets((2,)))
    staged, built = model.staged, build_model(wanted, (2,), resolve_cluster("local:4"), (), 4)
    assert built.has_choices_of(model)
    assert model.decode(found.choice, "", 0.0, 0.0).ops == built.decode(found.choice, "", 0.0, 0.0).ops == laid.ops
    changed = {op.id for op, other in zip(staged.graph.ops, searched.graph.ops, strict=True) if op != other}
    assert staged == wanted and changed and any("~" in op_id for op_id in changed) is recompute
    assert all(laid.ops[op.id].op.args == op.args for op in staged.graph.ops if op.id in changed)
