"""Who performs an act: short ones stay on the thread that let them start, long ones never wait behind each other."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.acts.bookkeeper import BegunAct
from backend.worker.threads import MOST_SHORT, SHORT_NS, ActThreads
from planner.ir.actors.actor import Actor
from planner.ir.plan import Task, TaskKind

LONG_NS, QUICK_NS = 10 * SHORT_NS, SHORT_NS // 10


def actor(name: str, kind: TaskKind = TaskKind.FORWARD) -> Actor:
    task = Task(
        id=name, priority=0, kind=kind, placement="s0", stream=name, acts=1, consumes=(), produces=(), reads=(), writes=(), body=None
    )
    return Actor(task=task, rank=0, inputs={}, outputs={}, total_acts=1)


class Story:
    """Acts by name, what the end of each lets start, and on which thread each was performed."""

    def __init__(self, then: dict[str, list[str]], short: set[str], waits: frozenset[str] = frozenset()) -> None:
        self.then, self.done = then, list[tuple[str, str]]()
        self.ended = threading.Event()
        self.names = set(then) | {name for names in then.values() for name in names}
        self.actors = {name: actor(name, TaskKind.TRANSFER if name.startswith("send") else TaskKind.FORWARD) for name in self.names}
        self.threads = ActThreads(self._perform, lambda one: one.task.id in waits)
        for name in short:
            for _ in range(40):
                self.threads.took(self.actors[name], QUICK_NS)

    def acts(self, *names: str) -> list[BegunAct]:
        return [(self.actors[name], 0, 0) for name in names]

    def _perform(self, act: BegunAct) -> list[BegunAct] | None:
        name = act[0].task.id
        self.done.append((name, threading.current_thread().name))
        if len(self.done) == len(self.names):
            self.ended.set()
        return self.acts(*self.then.get(name, []))

    @property
    def here(self) -> list[str]:
        return [name for name, thread in self.done if thread == threading.current_thread().name]


def test_short_acts_come_first_sends_before_others_and_one_long_act_stays() -> None:
    story = Story({"a": ["long", "short", "send"]}, short={"a", "short", "send"})
    story.threads.work(story.acts("a"))
    assert story.here == ["a", "send", "short", "long"]


def test_of_several_long_acts_one_stays_and_the_others_are_performed_by_other_threads() -> None:
    story = Story({"a": ["long", "longer", "longest"]}, short={"a"})
    story.threads.start(2)
    story.threads.work(story.acts("a"))
    assert story.ended.wait(20)
    story.threads.stop()
    assert story.here == ["a", "long"]
    assert {name for name, _ in story.done} == story.names


def test_what_waits_for_others_is_never_short_however_quick_it_was() -> None:
    story = Story({"a": ["collective", "short"]}, short={"a", "collective", "short"}, waits=frozenset({"collective"}))
    assert not story.threads.is_short(story.actors["collective"])
    story.threads.work(story.acts("a"))
    assert story.here == ["a", "short", "collective"]


def test_of_a_long_act_that_waits_and_one_that_computes_the_latter_stays() -> None:
    for order in (["collective", "compute"], ["compute", "collective"]):
        story = Story({"a": order}, short={"a"}, waits=frozenset({"collective"}))
        story.threads.start(1)
        story.threads.work(story.acts("a"))
        assert story.ended.wait(20)
        story.threads.stop()
        assert story.here == ["a", "compute"]


def test_a_reader_of_a_socket_performs_only_short_acts_and_no_more_than_a_few_in_a_row() -> None:
    chain = [f"short{n}" for n in range(2 * MOST_SHORT)]
    story = Story({one: [other] for one, other in zip(chain, chain[1:], strict=False)} | {"short1": ["short2", "long"]}, short=set(chain))
    story.threads.start(2)
    story.threads.work(story.acts("short0"), long=False)
    assert story.ended.wait(20)
    story.threads.stop()
    assert story.here == chain[:MOST_SHORT]


def test_a_long_act_kept_for_later_goes_to_another_thread_when_short_ones_keep_coming() -> None:
    chain = [f"short{n}" for n in range(2 * MOST_SHORT)]
    story = Story({one: [other] for one, other in zip(chain, chain[1:], strict=False)} | {"short0": ["long", "short1"]}, short=set(chain))
    story.threads.start(1)
    story.threads.work(story.acts("short0"))
    assert story.ended.wait(20)
    story.threads.stop()
    assert story.here == chain


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(0, 2**30 - 1), st.booleans(), st.integers(1, 3))
@settings(deadline=None)
def test_every_act_is_performed_once_and_after_the_one_that_let_it_start(places: list[int], shorts: int, long: bool, count: int) -> None:
    names = [f"{n}" for n in range(len(places) + 1)]
    then: dict[str, list[str]] = {name: [] for name in names}
    for child, place in enumerate(places, start=1):
        then[names[max(0, child - 1 - place)]].append(names[child])
    story = Story(then, short={name for n, name in enumerate(names) if shorts >> n & 1})
    story.threads.start(count)
    story.threads.work(story.acts("0"), long=long)
    assert story.ended.wait(20)
    story.threads.stop()
    order = [name for name, _ in story.done]
    assert sorted(order) == sorted(names)
    assert all(order.index(name) < order.index(child) for name, children in then.items() for child in children)


@given(st.lists(st.sampled_from([QUICK_NS, LONG_NS]), min_size=1, max_size=60))
def test_an_act_counts_as_short_only_after_some_short_ones_and_one_that_was_held_up_changes_that_for_few(durations: list[int]) -> None:
    story = Story({"a": []}, short=set())
    one = story.actors["a"]
    assert not story.threads.is_short(one)
    for duration_ns in durations:
        story.threads.took(one, duration_ns)
    for _ in range(10):
        story.threads.took(one, QUICK_NS)
    assert story.threads.is_short(one)
    story.threads.took(one, 1000 * SHORT_NS)
    for _ in range(3):
        story.threads.took(one, QUICK_NS)
    assert story.threads.is_short(one)
