"""Damaged plan files are simulated or refused in our own words: no traceback, no endless loop, no act beyond the Plan.

REGISTA_FUZZ=10000 runs so many; the default is a share of them that fits the everyday run.  ``python -m experiments.fuzz_plans`` does the same.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from experiments import fuzz_plans
from experiments.fuzz_plans import Endless, Text, base_texts, damaged, fate, fuzz

COUNT = int(os.environ.get("REGISTA_FUZZ", "600"))


@pytest.fixture(scope="module")
def texts() -> dict[str, Text]:
    return base_texts()


@pytest.mark.thorough
@pytest.mark.timeout(0 if COUNT > 600 else 300)
def test_every_damaged_plan_is_simulated_or_refused_in_our_words(texts: dict[str, Text]):
    fates, findings = fuzz(texts, range(COUNT))
    assert not findings, findings[:5]
    # The damage reaches every gate: the reader, the structure, liveness; and some files survive it.
    assert set(fates) >= {"simulated", "InvalidFile", "InvalidPlan", "DeadLock"}
    assert fates["simulated"] >= COUNT // 20


def test_undamaged_plans_are_simulated(texts: dict[str, Text], tmp_path: Path):
    assert {name: fate(text, tmp_path) for name, text in texts.items()} == dict.fromkeys(texts, "simulated")


def test_a_damage_is_named_by_its_number(texts: dict[str, Text]):
    text = texts["pipeline"]
    some = [damaged(text, number) for number in range(40)]
    assert some == [damaged(text, number) for number in range(40)]
    assert len(set(some)) >= 38
    assert sum(one != text for one in some) >= 38


def test_a_traceback_an_endless_loop_and_an_act_too_many_would_all_be_found(texts: dict[str, Text], monkeypatch: pytest.MonkeyPatch):
    def plant(name: str, fault: object) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(fuzz_plans, name, fault)
            fates, findings = fuzz({"pipeline": texts["pipeline"]}, range(30))
            assert fates["FOUND"] == len(findings) > 0
            return findings[0].what

    def crash(*_: object, **__: object) -> None:
        raise KeyError("deep inside")

    def hang(*_: object, **__: object) -> None:
        while True:
            time.process_time()

    def too_many(plan: object, cost: object, *, on_act: object, **_: object) -> None:
        assert callable(on_act)
        for _act in range(10_000):
            on_act(None)

    assert plant("simulate", crash) == "KeyError: 'deep inside'"
    assert plant("simulate", too_many).startswith("AssertionError: more than the ")
    monkeypatch.setattr(fuzz_plans, "DEADLINE_S", 0.1)
    assert plant("simulate", hang) == "Endless: no end within 0 s"
    assert not issubclass(Endless, Exception)


def test_a_file_can_be_damaged_where_json_has_no_words_for_it(texts: dict[str, Text]):
    def is_json(text: Text) -> bool:
        try:
            json.loads(text)
        except ValueError:
            return False
        return True

    assert not all(is_json(damaged(texts["pipeline"], number)) for number in range(100))
