"""Which cores the workers of a host get."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.devices.cores import Waiting, bind, cores_here, share_of


@given(cores=st.lists(st.integers(0, 999), unique=True, max_size=64), ranks=st.integers(1, 70))
def test_shares_are_disjoint_neighbours_that_use_all_cores_and_differ_by_one_at_most(cores: list[int], ranks: int) -> None:
    shares = [share_of(cores, rank, ranks) for rank in range(ranks)]
    if ranks < 2 or len(cores) < ranks:
        assert not any(shares)
        return
    assert [core for share in shares for core in share] == cores
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_eight_cores_of_three_ranks() -> None:
    assert [share_of(range(8), rank, 3) for rank in range(3)] == [(0, 1), (2, 3, 4), (5, 6, 7)]


def test_cores_here_are_those_that_this_process_may_use() -> None:
    assert sorted(cores_here()) == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(("waiting", "ranks"), [(Waiting.SLEEP, 2), (Waiting.AUTO, 1), (Waiting.AUTO, 10_000)])
def test_nothing_is_bound_where_workers_sleep_and_where_there_is_no_core_for_each_of_several(waiting: Waiting, ranks: int) -> None:
    before = os.sched_getaffinity(0)
    assert bind(waiting, 0, ranks) == ()
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")
def test_a_thread_that_binds_itself_and_those_that_it_starts_stay_on_their_share() -> None:
    seen: list[set[int]] = []

    def started() -> None:
        seen.append(os.sched_getaffinity(0))

    def binds() -> None:
        share = bind(Waiting.AUTO, 1, 2)
        child = threading.Thread(target=started)
        child.start()
        child.join()
        seen.extend([os.sched_getaffinity(0), set(share)])

    before = os.sched_getaffinity(0)
    thread = threading.Thread(target=binds)
    thread.start()
    thread.join()
    assert seen[0] == seen[1] == seen[2] == set(share_of(cores_here(), 1, 2)) and os.sched_getaffinity(0) == before
