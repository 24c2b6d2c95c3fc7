"""What is kept under a budget of memory: ours beside torch's min-cut partitioner (kinds ``theory`` and ``run``, on one core).

    python -m experiments.recompute [--only gpt2] [--rounds N]     partition, perform, write results/recompute.csv, draw figures/recompute.png
    python -m experiments.recompute --redraw                       draw from the CSV

One step of a GPT and of a ResNet is traced by AOTAutograd; torch partitions it under budgets of 40 to 100 % (of what its minimum cut keeps), ours
may keep as many bytes as torch's partition does keep.  Prices of ops are measured one by one here, or torch's own default (flop, at least 1 per
op); both partitioners get the same.  again: what the backward pass computes again, in seconds or flop.   bytes: of the storages that the
forward pass hands on beside parameters and batch, as performed.
step_s: processor seconds of a step, the median of rounds in which now one, now the other comes first.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import pandas as pd
import torch
from matplotlib.figure import Figure

from experiments.recompute.joint import Halves, Joint, trace_joint
from planner.stages.recompute import choose_recompute
from regista.api import program_of

__all__ = ["draw", "main", "rows_of"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/recompute.csv", HERE / "figures/recompute.png"
MODELS = {
    "gpt2": "zoo:gpt2?layers=4&width=256&heads=8&vocab=1000&batch=4&seq=128",
    "resnet50": "zoo:resnet50?batch=4&image=64&layers=14&width=32",
}
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
_SOLVE_S = 30.0


def rows_of(model: str, spec: str, budgets: tuple[float, ...], rounds: int) -> list[dict[str, object]]:
    """A row per price and budget."""
    joint = trace_joint(program_of(spec))
    rows = []
    for prices, cost in {"measured": joint.measured_s(rounds), "flop": joint.flop()}.items():
        problem = joint.saving_problem(cost)
        for budget in budgets:
            theirs = joint.torch_halves(budget, None if prices == "flop" else cost)
            limit_bytes = joint.storage_bytes(theirs.kept)
            began = perf_counter()
            choice = choose_recompute(problem, limit_bytes, time_limit_s=_SOLVE_S)
            solve_s = perf_counter() - began
            ours = joint.halves(choice.kept)
            (torch_s, ours_s), (torch_bytes, ours_bytes) = _performed(joint, (theirs, ours), rounds if prices == "measured" else 1)
            row = {
                "kind": "run",
                "model": model,
                "prices": prices,
                "case": f"{model} {prices}",
                "budget": budget,
                "torch_bytes": torch_bytes,
                "ours_bytes": ours_bytes,
                "torch_again": joint.again_of(problem, theirs.kept),
                "ours_again": choice.recomputed_s,
                "bound_again": choice.bound_s,
                "all_again": sum(op.duration_s for op in problem.ops),
                "solve_s": round(solve_s, 3),
                "torch_step_s": round(torch_s, 5),
                "ours_step_s": round(ours_s, 5),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def _performed(joint: Joint, pair: tuple[Halves, Halves], rounds: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Median seconds of a step, and the bytes kept, of each of two; their losses and gradients must be equal."""
    taken: tuple[list[float], ...] = tuple([] for _ in pair)
    for number in range(rounds + 1):
        outcomes = [halves.step(joint.primals) for halves in (pair if number % 2 else pair[::-1])]
        outcomes = outcomes if number % 2 else outcomes[::-1]
        if number:  # the first round allocates
            for times, outcome in zip(taken, outcomes, strict=True):
                times.append(outcome.duration_s)
    for mine, other in zip(*(outcome.results for outcome in outcomes), strict=True):
        if not torch.equal(mine, other):
            raise AssertionError(f"the two partitions differ by {float((mine - other).abs().max())}, though they compute the same")
    return tuple(median(times) for times in taken), tuple(outcome.kept_bytes for outcome in outcomes)


def draw(table: pd.DataFrame) -> Figure:
    """Per model: what is computed again, and the step, over the bytes kept."""
    models = list(dict.fromkeys(table.model))
    figure = Figure(figsize=(9, 3.2 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), 3, squeeze=False)
    for line, model in zip(axes, models, strict=True):
        of_model = table[table.model == model]
        _panel(line[0], of_model[of_model.prices == "measured"], "again", f"{model}: computed again, ms (sum of ops)", 1e3)
        _panel(line[1], of_model[of_model.prices == "flop"], "again", f"{model}: computed again, Gflop (torch's count)", 1e-9)
        _panel(line[2], of_model[of_model.prices == "measured"], "step_s", f"{model}: step, ms (run)", 1e3)
    axes[0][0].legend()
    return figure


def _panel(axis: object, rows: pd.DataFrame, column: str, title: str, scale: float) -> None:
    axis.plot(rows.torch_bytes / 1e6, rows[f"torch_{column}"] * scale, marker="s", color="C1", label="torch's partitioner")  # type: ignore[attr-defined]
    axis.plot(rows.ours_bytes / 1e6, rows[f"ours_{column}"] * scale, marker="o", color="C0", label="ours")  # type: ignore[attr-defined]
    axis.set(xlabel="MB kept", title=title, ylim=(0, None))  # type: ignore[attr-defined]
    axis.title.set_size("small")  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--redraw", action="store_true")
    asked = parser.parse_args()
    if not asked.redraw:
        torch.set_num_threads(1)
        chosen: Mapping[str, str] = {asked.only: MODELS[asked.only]} if asked.only else MODELS
        rows = [row for model, spec in chosen.items() for row in rows_of(model, spec, BUDGETS, asked.rounds)]
        pd.DataFrame(rows).to_csv(CSV, index=False, lineterminator="\n")
    draw(pd.read_csv(CSV)).savefig(PICTURE, dpi=120)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
