"""Thousands of damaged plan files: each is simulated or refused in our own words; nothing else may happen.

    python -m experiments.fuzz_plans [--count 10000] [--first 0] [--keep FOLDER]

A file is damaged as data (values, edges, orders, counts), consistently (all acts times a number) or as text (cut, garbled, doubled).
Number n of a base plan is always damaged in the same way, so a finding is named by (base, n).  Counted are fates:

    simulated      loaded, verified and simulated; the trace keeps the six laws (SEMANTICS 5)
    <our error>    refused by planner.ir.errors, with a message
    FOUND          any other exception, a refusal without words, more acts than the plan says, or no end within DEADLINE_S of work
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import regista
from experiments.common.plan_damage import Text, damaged
from planner.cost import AnalyticCost
from planner.ir.errors import RegistaError
from planner.ir.files import load_plan, save_plan
from planner.ir.traces.trace import Act, check_trace
from simulator import simulate
from simulator.steady import check_live, steady_state

__all__ = ["Finding", "Text", "base_texts", "damaged", "deadline", "fate", "fuzz"]

DEADLINE_S = 60.0
"""Seconds of this process's own work.  A damaged file of these small plans is decided in milliseconds; a minute means that it never will be."""
MOST_ACTS = 100_000

TINY = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"
BASES: Mapping[str, Mapping[str, Any]] = {
    "data-parallel": {"cluster": "local:2"},
    "pipeline": {"cluster": "local:2", "stages": 2, "micro_batches": 4},
    "hybrid": {"cluster": "local:4", "stages": 2, "micro_batches": 2, "schedule": "gpipe"},
}


@dataclass(frozen=True)
class Finding:
    """A damaged file that was neither simulated nor refused."""

    base: str
    number: int
    what: str


class Endless(BaseException):
    """DEADLINE_S has passed; not an Exception, so that nothing on the way takes it for its own."""


def base_texts() -> dict[str, Text]:
    """Small plans as the planner writes them: two ranks data parallel, a pipeline, and both at once."""
    texts = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more devices than cores; nothing runs here
        for name, options in BASES.items():
            path = Path(folder) / "plan.json"
            save_plan(regista.plan(TINY, **options), str(path))
            texts[name] = path.read_bytes()
    return texts


def fate(text: Text, folder: Path) -> str:
    """What becomes of a file: 'simulated' or the name of our error.

    Raises:
        Exception: anything that is not ours, or a law of the trace that does not hold.
    """
    path = folder / "plan.json"
    path.write_bytes(text)
    try:
        plan = load_plan(str(path))
    except RegistaError as error:
        return _named(error)
    check_live(plan)  # a plan that loads is live, so this must not refuse
    try:
        cost = AnalyticCost(plan.cluster)
        allowed = 2 * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
        done = 0

        def count(_: Act) -> None:
            nonlocal done
            done += 1
            if done > allowed:
                raise AssertionError(f"more than the {allowed} acts that the plan says")

        trace = simulate(plan, cost, steps=2, max_acts=MOST_ACTS, on_act=count)
        period_s = steady_state(plan, cost).period_s
    except RegistaError as error:
        return _named(error)
    check_trace(plan, trace)
    assert period_s >= 0
    return "simulated"


def fuzz(texts: Mapping[str, Text], numbers: range, keep: Path | None = None) -> tuple[Counter[str], list[Finding]]:
    """The fates of damages ``numbers``, dealt to the base plans in turn.

    Args:
        keep: a folder for the files of findings.

    Returns:
        How often each fate was met, and the findings.
    """
    fates: Counter[str] = Counter()
    findings = []
    names = list(texts)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            base = names[number % len(names)]
            text = damaged(texts[base], number)
            try:
                with deadline(DEADLINE_S):
                    met = fate(text, Path(folder))
            except (Exception, Endless) as error:
                met = "FOUND"
                findings.append(Finding(base, number, f"{type(error).__name__}: {str(error)[:300]}"))
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{base}-{number}.json").write_bytes(text)
            fates[met] += 1
    return fates, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None)
    asked = parser.parse_args()
    begin = time.perf_counter()
    fates, findings = fuzz(base_texts(), range(asked.first, asked.first + asked.count), asked.keep)
    own_s = time.process_time()
    for met, times in fates.most_common():
        print(f"{times:>7}  {met}")
    print(
        f"{asked.count} files from number {asked.first} on in {time.perf_counter() - begin:.0f} s ({own_s:.0f} s of work); {len(findings)} findings"
    )
    for finding in findings[:50]:
        print(f"  {finding.base} {finding.number}: {finding.what}")
    raise SystemExit(1 if findings else 0)


def _named(error: RegistaError) -> str:
    if len(str(error)) < 20:
        raise AssertionError(f"a refusal without words: {error!r}")
    return type(error).__name__


@contextmanager
def deadline(limit_s: float) -> Iterator[None]:
    """Ends the body by Endless after ``limit_s`` seconds of this process's own work."""

    def stop(_: int, __: FrameType | None) -> None:
        raise Endless(f"no end within {limit_s:.0f} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    main()
