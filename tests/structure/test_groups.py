"""Tests that need the machine for themselves are performed one after the other, by one of pytest's processes."""

from __future__ import annotations

import pytest


def check_group(request: pytest.FixtureRequest, group: str) -> None:
    """pytest-xdist writes a test's group behind its name; with a pytest that it does not know, it goes on without groups and without a word."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith(f"@{group}"), (
            "pytest-xdist keeps no groups with this pytest; make test installs one that it knows"
        )


@pytest.mark.processes
def test_a_test_of_processes_is_in_their_group(request: pytest.FixtureRequest) -> None:
    check_group(request, "processes")


@pytest.fixture(scope="module")
def made_once() -> object:
    return object()


def test_a_test_with_a_fixture_of_its_file_is_in_the_group_of_the_file(request: pytest.FixtureRequest, made_once: object) -> None:
    check_group(request, "tests/structure/test_groups.py")
