"""What is kept under a budget of memory: ours beside torch's partitioner, on the committed rows and on a small step."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from experiments.recompute.joint import trace_joint
from planner.stages.recompute import choose_recompute
from zoo import ZOO

ROWS = Path(__file__).parents[3] / "experiments/results/recompute.csv"


def test_no_committed_row_keeps_more_or_computes_more_again_than_torch() -> None:
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["model"], row["prices"]) for row in rows} == {(m, p) for m in ("gpt2", "resnet50") for p in ("measured", "flop")}
    for row in rows:
        assert int(row["ours_bytes"]) <= int(row["torch_bytes"])
        assert float(row["bound_again"]) <= float(row["ours_again"]) * (1 + 1e-9)
        assert float(row["ours_again"]) <= float(row["torch_again"]) * (1 + 1e-9)


@pytest.mark.thorough
def test_both_partitions_of_a_small_step_give_equal_gradients_and_keep_what_they_say() -> None:
    joint = trace_joint(ZOO["gpt2"](layers=1, width=32, heads=2, vocab=64, batch=2, seq=16))
    cost = joint.flop()
    problem = joint.saving_problem(cost)
    theirs = joint.torch_halves(0.5, None)
    limit_bytes = joint.storage_bytes(theirs.kept)
    choice = choose_recompute(problem, limit_bytes)
    ours = joint.halves(choice.kept)
    assert choice.recomputed_s <= joint.again_of(problem, theirs.kept)
    assert joint.again_of(problem, ours.kept) == choice.recomputed_s
    mine, other = ours.step(joint.primals), theirs.step(joint.primals)
    assert mine.kept_bytes == choice.saved_bytes <= limit_bytes == other.kept_bytes
    assert all(torch.equal(a, b) for a, b in zip(mine.results, other.results, strict=True))
