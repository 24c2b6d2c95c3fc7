"""A real process that refuses, and plans with random slips of the pen."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from command_line import files_of
from stories import TableCost

from planner.ir.errors import RegistaError
from planner.ir.files import load_plan
from regista.verbs.planning.plan import plan_json
from simulator import simulate


@pytest.mark.thorough
def test_a_real_process_refuses_with_code_2_one_line_and_no_traceback(tmp_path: Path):
    for arguments, says in (
        (["explain", "nope.json"], "no such file"),
        (["plan", "zoo:nope", "--cluster", "local:2", "-o", "p"], "the zoo has"),
    ):
        done = subprocess.run([sys.executable, "-m", "regista.cli", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert says in done.stderr
    assert files_of(tmp_path) == {}


@pytest.mark.thorough
def test_a_reader_that_goes_away_is_no_traceback(made: dict[str, Path]):
    for arguments, first in ((f"explain {made['plan']} --json", "{"), (f"simulate {made['plan']} --steps 2", "")):
        command = f"{sys.executable} -m regista.cli {arguments} | head -c {len(first)}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == (first, "")
        assert done.returncode in (0, 141)  # 0: all was written before the reader went


@pytest.mark.thorough
def test_output_that_takes_ascii_only_gets_escapes_and_no_traceback(made: dict[str, Path]):
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    named = made["plan"].with_name("plän.json")
    named.write_bytes(made["plan"].read_bytes()[:100])
    done = subprocess.run(
        [sys.executable, "-m", "regista.cli", "explain", str(named)], capture_output=True, env={**os.environ, **plain}, timeout=60
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr.isascii()
    assert b"not valid JSON" in done.stderr


# Fuzz.

ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "B", "S(0)", "S(7)", "P", "S(0),B", "\ud800", "state", "aten.mm.default"),
    *([], [1], [[]], {}, {"is": "Fragment"}, {"float": "nan"}, {"ref": "x"}),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys: list[Any] = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    return [(data, key) for key in keys] + [inner for key in keys for inner in places(data[key])]


def mutated(data: Any, rng: random.Random) -> Any:
    """The data after one or two slips of the pen."""
    data = deepcopy(data)
    for _ in range(rng.choice((1, 1, 2))):
        holder, key = rng.choice(places(data))
        old = holder[key]
        match rng.choice(("drop", "odd", "swap", "nudge", "nudge", "double")):
            case "drop":
                del holder[key]
            case "odd":
                holder[key] = deepcopy(rng.choice(ODD))
            case "swap":
                other, there = rng.choice(places(data))
                holder[key] = deepcopy(other[there])
            case "double" if isinstance(holder, list):
                holder.insert(key, deepcopy(old))
            case _ if isinstance(old, bool):
                holder[key] = not old
            case _ if isinstance(old, int | float):
                holder[key] = rng.choice((old + 1, old - 1, -old, old * 2, old * 10**6, old + 0.5))
            case _ if isinstance(old, str):
                holder[key] = rng.choice((old + "x", old[:-1], old.upper()))
    return data


def fate(path: Path) -> str:
    """What becomes of a plan file: loaded and simulated, or refused in our words; any other exception fails the test."""
    try:
        plan = load_plan(str(path))
        json.dumps(plan_json(plan))
        simulate(plan, TableCost(), steps=2)
    except RegistaError as error:
        return type(error).__name__ if str(error) else "a refusal without words"
    return "fine"


@pytest.mark.representatives("plan")
@pytest.mark.parametrize("name", ["plan", "pipe"])
def test_a_plan_with_any_slip_of_the_pen_is_refused_or_a_plan(made: dict[str, Path], tmp_path: Path, name: str):
    original = json.loads(made[name].read_text())
    path = tmp_path / "plan.json"
    fates = set()
    for seed in range(150):
        path.write_text(json.dumps(mutated(original, random.Random(seed))))
        try:
            fates.add(fate(path))
        except Exception as error:
            raise AssertionError(f"seed {seed} of {name}: {type(error).__name__}: {error}") from error
    assert fates >= {"fine", "InvalidFile", "InvalidPlan"}
    assert "a refusal without words" not in fates
