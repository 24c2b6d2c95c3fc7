"""The second process of the search over shapes: what it gives is what one process finds, and it is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from time import perf_counter, sleep

import pytest

from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import LogicalGraph
from planner.parallelism.bounding import Ahead, BoundKind, Closer, WholeBounds
from planner.parallelism.bounding.claims import Claims, Owner
from planner.parallelism.bounding.closer import closer_bounds
from planner.parallelism.bounds import ShapeBounds
from planner.parallelism.shape import Shape, shapes
from planner.parallelism.shape_search import RunnerUp, ShapeSearch
from regista.api import program_of
from regista.clusters import resolve_cluster

MODEL = "zoo:mlp?depth=2&width=32&hidden=64&batch=8"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@cache
def four() -> Cluster:
    return replace(resolve_cluster("p3.16xlarge:1"), devices_per_node=4)


def bounds() -> ShapeBounds:
    return ShapeBounds(program_of(MODEL).graph, 8, four(), ())


class Searched:
    """One search whose steps and whole-model bounds are made up; with ``forks`` a second process helps, unless it ``dies``."""

    def __init__(self, *, forks: bool, dies: bool = False, busy_s: float = 0.0) -> None:
        self._shares, self._first, self._forks, self._dies, self._busy_s = bounds(), os.getpid(), forks, dies, busy_s
        self.ahead: Ahead | None = None
        self.worked: list[Shape] = []
        self.processes: set[int] = set()

    def search(self) -> tuple[Shape, float, RunnerUp]:
        search = ShapeSearch(self._shares, self._work_out, bound_whole=self._whole, ahead=self._made)
        return search.two_best(shapes(8, four(), most_stages=2, micro_batches=4))

    def _made(self, shares: ShapeBounds, whole: WholeBounds, candidates: Sequence[Shape]) -> Ahead:
        self.ahead = Ahead(shares, whole, candidates, after_s=0.0, allowed=lambda: self._forks)
        return self.ahead

    def _work_out(self, shape: Shape, memory_binds: bool) -> tuple[float, float]:
        self.worked.append(shape)
        if self.ahead is not None and self.ahead.process is not None:
            self.processes.add(self.ahead.process)
        sleep(self._busy_s)
        return self._shares.of(shape).unlimited_s * (1.3 if shape.stages > 1 else 1.1), 0.0

    def _whole(self, shape: Shape, memory_binds: bool, kind: BoundKind) -> Iterator[float]:
        if self._dies and os.getpid() != self._first:
            os._exit(1)
        yield self._shares.of(shape).unlimited_s * 1.01
        yield self._shares.of(shape).unlimited_s * 1.05


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_with_a_second_process_the_shapes_and_the_bounds_are_those_of_one(dies: bool) -> None:
    alone, helped = Searched(forks=False), Searched(forks=True, dies=dies, busy_s=0.2)
    assert helped.search() == alone.search()
    assert helped.worked == alone.worked
    assert helped.ahead is not None and helped.ahead.num_taken > 0
    assert alone.ahead is not None and alone.ahead.num_taken == 0 and not alone.processes


class Late:
    """A second process that sends its only bound when it is asked for the second time."""

    def __init__(self, place: int, found: Closer) -> None:
        self._messages: list[tuple[int, Closer | bool]] = [(place, found), (place, True)]
        self._asked = 0

    def poll(self, seconds: float = 0.0) -> bool:
        self._asked += 1
        return self._asked > 1

    def recv(self) -> tuple[int, Closer | bool]:
        return self._messages.pop(0)


def test_who_waits_for_a_bound_works_out_the_next_one_that_nobody_has_begun() -> None:
    shares, asked, other = bounds(), Shape(1, 1, (4,)), Shape(1, 2, (4,))
    ahead = Ahead(shares, lambda *_: iter(()), [asked, other], after_s=0.0, allowed=lambda: False)
    queue = [(shares.roofline_s(shape), shape, BoundKind.ROOFLINE, False) for shape in (asked, other)]
    ahead.start(queue)
    ahead._claims = Claims(4 * len(BoundKind))
    ahead._claims.claim(ahead._place(asked, BoundKind.ROOFLINE), Owner.SECOND)
    ahead._second = 0, Late(ahead._place(asked, BoundKind.ROOFLINE), Closer(bound_s=3.0))  # type: ignore[assignment]
    assert list(ahead.closer(asked, BoundKind.ROOFLINE, False)) == [Closer(bound_s=3.0)]
    expected = list(closer_bounds(shares, lambda *_: iter(()), other, BoundKind.ROOFLINE, False))
    ahead.bounds = ShapeBounds(graph_of=_untraced, batch_size=8, cluster=four(), pins=())
    assert list(ahead.closer(other, BoundKind.ROOFLINE, False)) == expected
    assert ahead.num_taken == 1


def _untraced(micro_batches: int) -> LogicalGraph:
    raise AssertionError(f"a bound of {micro_batches} micro-batches was worked out again")


def test_the_second_process_goes_on_with_a_shape_whose_bound_it_is_told() -> None:
    """It lost every shape that the first one had begun, and at the end, with few shapes left, the first one bounded these alone."""
    shares, candidates = bounds(), [Shape(1, 1, (4,)), Shape(1, 2, (4,)), Shape(2, 4, (2,))]
    for shape in candidates:
        shares.roofline_s(shape)
    kind, after = BoundKind.UNLIMITED, BoundKind.WITHIN_MEMORY
    ahead = Ahead(shares, lambda *_: iter([5.0]), candidates, after_s=0.0, allowed=lambda: True)
    try:
        ahead.start([(shares.roofline_s(shape), shape, kind, False) for shape in candidates], bound_whole=True)
        mine = {shape: [*ahead.closer(shape, kind, False)] for shape in candidates}
        begun = [shape for shape in candidates if ahead._claims.owner(ahead._place(shape, kind)) is Owner.FIRST]
        for shape in candidates:
            ahead.tell(shape, after, mine[shape][-1])
        until_s = perf_counter() + 30.0
        while any(not ahead._ended.get(ahead._place(shape, after)) for shape in candidates) and perf_counter() < until_s:
            if ahead._second is not None and ahead._second[1].poll(0.05):
                ahead._note(ahead._second[1].recv())
        assert begun and all([found.bound_s for found in ahead._arrived[ahead._place(shape, after)]] == [5.0] for shape in candidates)
    finally:
        ahead.stop()


def test_the_second_process_stays_and_learns_which_shapes_have_come_into_the_queue() -> None:
    shares, (first, second, late) = bounds(), (Shape(1, 1, (4,)), Shape(1, 2, (4,)), Shape(2, 4, (2,)))
    entries = [(shares.roofline_s(shape), shape, BoundKind.WITHIN_MEMORY, False) for shape in (first, second, late)]
    ahead = Ahead(shares, lambda shape, *_: iter([float(shape.micro_batches)]), [first, second, late], after_s=0.0, allowed=lambda: True)
    try:
        ahead.start(entries[:2])
        process = ahead.process
        ahead.start(entries, renewed=True, bound_whole=True, without=first)
        assert ahead.process == process is not None
        taken = {shape: [*ahead.closer(shape, BoundKind.WITHIN_MEMORY, False)] for shape in (second, late) if _wait_for(ahead, shape)}
        assert {shape: [found.bound_s for found in bounds] for shape, bounds in taken.items()} == {second: [2.0], late: [4.0]}
        assert ahead.num_taken == 2
        assert ahead._claims.owner(ahead._place(first, BoundKind.END_STAGES)) is Owner.FIRST
    finally:
        ahead.close()


def _wait_for(ahead: Ahead, shape: Shape) -> bool:
    """Wait until the second process has begun with the shape."""
    until_s = perf_counter() + 30.0
    while ahead._claims.owner(ahead._place(shape, BoundKind.WITHIN_MEMORY)) is not Owner.SECOND and perf_counter() < until_s:
        sleep(0.01)
    return perf_counter() < until_s


def test_what_the_second_process_has_not_begun_when_it_is_needed_is_left_to_the_first() -> None:
    shares, busy, other = bounds(), Shape(1, 1, (4,)), Shape(1, 2, (4,))
    entries = [(shares.roofline_s(shape), shape, BoundKind.WITHIN_MEMORY, False) for shape in (busy, other)]
    made: list[int] = []  # in the second process

    def slowly(*_: object) -> Iterator[float]:
        sleep(1.0)
        yield 1.0

    def trace_there(size: int) -> bytes:
        made.append(size)
        return bytes(made) * 100_000  # more than a pipe holds

    ahead = Ahead(shares, slowly, [busy, other], after_s=0.0, allowed=lambda: True, trace_there=trace_there)
    try:
        ahead.start(entries, bound_whole=True)
        assert _wait_for(ahead, busy) or _wait_for(ahead, other)
        assert ahead.ask_for_trace(1) and ahead.trace(1) is None
        assert ahead.ask_for_trace(2)
        while ahead._claims.owner(ahead._place_of_trace(2)) is Owner.NOBODY:
            sleep(0.01)
        assert ahead.trace(2) == bytes([2]) * 100_000
    finally:
        ahead.close()


def test_no_process_is_left_after_the_search() -> None:
    helped = Searched(forks=True)
    helped.search()
    assert helped.processes
    for process in helped.processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_what_one_process_has_claimed_is_not_begun_by_the_other() -> None:
    claims = Claims(3)
    assert claims.claim(1, Owner.FIRST) and claims.claim(1, Owner.FIRST)
    assert not claims.claim(1, Owner.SECOND)
    assert claims.claim(2, Owner.SECOND) and not claims.claim(2, Owner.FIRST)


def test_the_second_process_traces_nothing() -> None:
    shares = bounds()
    shares.roofline_s(Shape(1, 1, (4,)))
    shares.trace_no_more()
    assert shares.graph_of(1) is not None
    with pytest.raises(Unsupported, match="not traced for 4 micro-batches"):
        shares.graph_of(4)


class Said:
    """A second process that has sent these messages so far."""

    def __init__(self, *messages: tuple[int, Closer | bool]) -> None:
        self.messages = list(messages)

    def poll(self, seconds: float = 0.0) -> bool:
        return bool(self.messages)

    def recv(self) -> tuple[int, Closer | bool]:
        return self.messages.pop(0)


def test_what_the_second_process_has_said_is_known_without_waiting_once_it_says_that_this_is_all() -> None:
    shares, asked, found = bounds(), Shape(1, 1, (4,)), Closer(bound_s=3.0)
    ahead = Ahead(shares, lambda *_: iter(()), [asked], after_s=0.0, allowed=lambda: False)
    assert ahead.known(asked, BoundKind.ROOFLINE) is None
    place = ahead._place(asked, BoundKind.ROOFLINE)
    second = Said((place, found))
    ahead._second = 0, second  # type: ignore[assignment]
    assert ahead.known(asked, BoundKind.ROOFLINE) is None
    second.messages.append((place, True))
    assert ahead.known(asked, BoundKind.ROOFLINE) == [found]
    assert ahead.known(asked, BoundKind.UNLIMITED) is None
