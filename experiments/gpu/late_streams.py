"""Random delays on streams without hardware: ``python -m experiments.gpu.late_streams --runs 10000 --seed 1``.

Every piece of work of every stream starts late, by a time drawn at random, so that streams overtake each other in ways that no GPU shows on
demand.  Each run performs a small Plan in one process, with another Plan, look-ahead, longest delay and choice of graphs than the one before.
Expected: losses, states and gradients are those of threads on CPUs to the last bit, and no run hangs.  Rows: results/late_streams.csv, one per
Plan and hundred runs or so, each written when it is done; a command that was ended goes on behind the last of them.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from backend.devices.device import Device
from backend.devices.fake import FakeStreamDevice
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.inprocess import run
from backend.run_folder.outcome import Outcome
from experiments.gpu.plans import roomy_cluster
from planner.frontend import Program
from planner.ir.errors import WorkerFailed
from planner.ir.plan import Plan
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

__all__ = ["HANG_S", "LONGEST_S", "STEPS", "WAYS", "Counted", "delayed_runs", "main", "perform", "planned", "report", "same"]

RESULTS = Path(__file__).parents[1] / "results" / "late_streams.csv"
WAYS: Mapping[str, tuple[int, PlanOptions]] = {
    "data parallel": (2, PlanOptions(mesh=(2,), micro_batches=2, pins=("input*=S(0)",))),
    "pipeline": (2, PlanOptions(stages=2, micro_batches=4)),
    "ZeRO-3": (2, PlanOptions(mesh=(2,), micro_batches=2, zero=3)),
    "pipeline of 2 x 2": (4, PlanOptions(stages=2, mesh=(2,), micro_batches=2, pins=("input*=S(0)",))),
}
LONGEST_S = (0.0001, 0.0005, 0.002)
STEPS = 4
FEW_STEPS = 2
"""Of a run with delays on streams: the end of one step and the beginning of the next one meet, and a run takes an eighth of a second."""
HANG_S = 30.0
_RUNS_PER_ROW = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Of some runs of one Plan: delays that were drawn, runs with a wrong number, runs that hung or failed."""

    plan: str
    ranks: int
    runs: int
    delays: int
    delay_s: float
    wrong: int
    hung: int


class _Drawn(random.Random):
    """Counts what it draws.   count, total_s: of delays."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.count, self.total_s = 0, 0.0

    def uniform(self, a: float, b: float) -> float:
        drawn = super().uniform(a, b)
        self.count, self.total_s = self.count + 1, self.total_s + drawn
        return drawn


@contextmanager
def _devices(ranks: int, delay_s: float, drawn: Sequence[random.Random]) -> Iterator[Mapping[int, Device]]:
    made = {rank: FakeStreamDevice(f"fake:{rank}", delay_s=delay_s, rng=drawn[rank]) for rank in range(ranks)}
    try:
        yield made
    finally:
        for device in made.values():
            device.close()


def planned(ranks: int, options: PlanOptions) -> tuple[Plan, Program]:
    """A small model on so many ranks."""
    source = ZOO["mlp"](batch=8)
    micro_batches = options.micro_batches or 1
    graph = source.graph(micro_batches)
    return make_plan(graph, model="mlp", batch_size=source.batch_size, cluster=roomy_cluster(ranks), options=options), source


def perform(plan: Plan, source: Program, devices: Mapping[int, Device], options: DeviceOptions, steps: int = STEPS) -> Outcome:
    """So many steps; a run that hangs ends after HANG_S."""
    state = source.initial_state(plan.micro_batches)
    return run(plan, state, source.batch, steps, gradients=True, devices=devices, options=options, timeout_s=HANG_S)


def same(one: Outcome, other: Outcome) -> bool:
    """Losses, states and gradients, to the last bit."""
    pairs = ((one.states, other.states), (one.gradients, other.gradients))
    return one.losses == other.losses and all(torch.equal(value, there[name]) for here, there in pairs for name, value in here.items())


def delayed_runs(runs: int, seed: int, begun: Sequence[Counted] = (), on_row: Callable[[Counted], None] | None = None) -> list[Counted]:
    """``runs`` runs, spread over the Plans; the same seed draws the same delays.

    Args:
        begun: rows of an earlier call with the same arguments, which is gone on with.   on_row: is told of each new row.
    """
    rows = list(begun)
    for number, (name, (ranks, options)) in enumerate(WAYS.items()):
        here = runs // len(WAYS) + (number < runs % len(WAYS))
        first = sum(row.runs for row in begun if row.plan == name)
        if first >= here:
            continue
        plan, source = planned(ranks, options)
        wanted = perform(plan, source, {}, DEFAULT_DEVICE_OPTIONS, FEW_STEPS)
        for begin in range(first, here, _RUNS_PER_ROW):
            row = _row(name, plan, source, wanted, range(begin, min(begin + _RUNS_PER_ROW, here)), seed * 1_000_003 + number * 100_003)
            rows.append(row)
            if on_row is not None:
                on_row(row)
    return rows


def _row(name: str, plan: Plan, source: Program, wanted: Outcome, trials: range, seed: int) -> Counted:
    """These runs of one Plan; the number of a run says its delays and its options."""
    choices = tuple(itertools.product(LONGEST_S, (1, 2, 8), (False, True)))
    ranks, wrong, hung, count, total_s = plan.num_ranks, 0, 0, 0, 0.0
    for trial in trials:
        longest_s, ahead, graphs = choices[trial % len(choices)]
        drawn = [_Drawn(seed + trial * 17 + rank) for rank in range(ranks)]
        with _devices(ranks, longest_s, drawn) as devices:
            try:
                wrong += not same(perform(plan, source, devices, DeviceOptions(ahead=ahead, graphs=graphs), FEW_STEPS), wanted)
            except WorkerFailed:
                hung += 1
        count, total_s = count + sum(each.count for each in drawn), total_s + sum(each.total_s for each in drawn)
    return Counted(plan=name, ranks=ranks, runs=len(trials), delays=count, delay_s=round(total_s, 3), wrong=wrong, hung=hung)


def report(rows: Sequence[Counted], out: Path, begin_s: float) -> int:
    """Write and print the rows; 1: some run had a wrong number, hung or failed."""
    table = pd.DataFrame([asdict(row) for row in rows])
    table.to_csv(out, index=False)
    print(table.to_string(index=False))
    runs, delays, wrong, hung = (sum(getattr(row, name) for row in rows) for name in ("runs", "delays", "wrong", "hung"))
    print(
        f"{runs} runs, {delays} delays in {time.monotonic() - begin_s:.0f} s: {wrong} runs with a wrong number, {hung} that hung or failed"
    )
    return 1 if wrong or hung else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--anew", action="store_true", help="forget the rows of --out; else go on behind them (give the same seed)")
    args = parser.parse_args(arguments)
    begin_s = time.monotonic()
    torch.set_num_threads(1)
    begun = [] if args.anew or not args.out.exists() else [Counted(**row) for row in pd.read_csv(args.out).to_dict("records")]
    rows = list(begun)

    def written(row: Counted) -> None:
        rows.append(row)
        pd.DataFrame([asdict(each) for each in rows]).to_csv(args.out, index=False)

    return report(delayed_runs(args.runs, args.seed, begun, written), args.out, begin_s)


if __name__ == "__main__":
    raise SystemExit(main())
