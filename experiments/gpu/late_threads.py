"""Random delays on real threads: ``python -m experiments.gpu.late_threads --runs 500 --seed 1``.

Every act of every rank starts late and ends late, by times drawn at random, and the interpreter lets threads change places up to 5,000 times as
often as by itself, so that acts, their ends and what they let start come in other orders each time.  Plans are those of
``experiments.gpu.late_streams``.  Expected: the numbers of the reference performer, which has one thread, to the last bit, and no hang.
Rows: results/late_threads.csv.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import backend.inprocess.perform as inprocess
from backend.devices.options import DEFAULT_DEVICE_OPTIONS
from backend.inprocess.engine import Engine
from backend.inprocess.rendezvous import JointAct
from backend.reference import perform as perform_alone
from experiments.gpu.late_streams import STEPS, WAYS, Counted, perform, planned, report, same
from planner.ir.errors import WorkerFailed

__all__ = ["RESULTS", "late_runs", "main"]

RESULTS = Path(__file__).parents[1] / "results" / "late_threads.csv"
LONGEST_S = (0.00005, 0.0002, 0.001)
SWITCH_S = (0.005, 0.00005, 0.000001)
"""Intervals at which the interpreter lets another thread go on; the first is its own."""


class _Delays:
    """Times drawn at random; half of them are none.   count, total_s: of the others."""

    def __init__(self, seed: int, longest_s: float) -> None:
        self._rng, self._longest_s = random.Random(seed), longest_s
        self.count, self.total_s = 0, 0.0

    def wait(self) -> None:
        delay_s = max(0.0, self._rng.uniform(-self._longest_s, self._longest_s))
        if delay_s:
            self.count, self.total_s = self.count + 1, self.total_s + delay_s
            time.sleep(delay_s)


def _late(delays: _Delays, engine: type[Engine]) -> type[Engine]:
    class LateEngine(engine):  # type: ignore[valid-type, misc]  # a class made of the one that is given
        def _do(self, joint: JointAct) -> None:
            delays.wait()
            super()._do(joint)
            delays.wait()

    return LateEngine


@contextmanager
def _delayed(delays: _Delays, switch_s: float) -> Iterator[None]:
    module: Any = inprocess
    engine, interval_s = module.Engine, sys.getswitchinterval()
    module.Engine = _late(delays, engine)
    sys.setswitchinterval(switch_s)
    try:
        yield
    finally:
        module.Engine = engine
        sys.setswitchinterval(interval_s)


def late_runs(runs: int, seed: int) -> list[Counted]:
    """``runs`` runs, spread over the Plans; the same seed draws the same delays, which threads take in the order in which they come."""
    rows: list[Counted] = []
    for number, (name, (ranks, options)) in enumerate(WAYS.items()):
        plan, source = planned(ranks, options)
        state = source.initial_state(plan.micro_batches)
        wanted = perform_alone(plan, state, source.batch, STEPS, gradients=True)
        here = runs // len(WAYS) + (number < runs % len(WAYS))
        choices = itertools.cycle(itertools.product(LONGEST_S, SWITCH_S))
        count = total_s = 0.0
        wrong = hung = 0
        for trial, (longest_s, switch_s) in zip(range(here), choices, strict=False):
            delays = _Delays(seed * 1_000_003 + number * 100_003 + trial, longest_s)
            try:
                with _delayed(delays, switch_s):
                    wrong += not same(perform(plan, source, {}, DEFAULT_DEVICE_OPTIONS), wanted)
            except WorkerFailed:
                hung += 1
            count, total_s = count + delays.count, total_s + delays.total_s
        rows.append(Counted(plan=name, ranks=ranks, runs=here, delays=int(count), delay_s=round(total_s, 3), wrong=wrong, hung=hung))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    begin_s = time.monotonic()
    torch.set_num_threads(1)
    return report(late_runs(args.runs, args.seed), args.out, begin_s)


if __name__ == "__main__":
    raise SystemExit(main())
