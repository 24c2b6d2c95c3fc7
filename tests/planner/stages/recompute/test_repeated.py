"""The choice for repeated blocks is held to all choices that treat equal blocks alike."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from planner.ir.errors import Unsupported
from planner.stages.recompute.choose import choose_recompute
from planner.stages.recompute.problem import ForwardOp, Keeping, SavingProblem
from planner.stages.recompute.repeated import _groups, choose_repeated


def repeated_problem(rng: random.Random, num_blocks: int) -> tuple[SavingProblem, dict[str, str]]:
    """Equal blocks in a row: each reads what the block before it ends with, whose result is kept."""
    num_ops = rng.randint(2, 4)
    template = [
        (
            sorted({rng.randrange(i + 1), i}) if rng.random() < 0.5 else [i],
            rng.choice((Keeping.CHOSEN, Keeping.CHOSEN, Keeping.AGAIN)) if i < num_ops - 1 else Keeping.KEPT,
            rng.choice((0.5, 1.0, rng.random())),
            rng.randint(1, 40),
            rng.random() < 0.6,
        )
        for i in range(num_ops)
    ]
    ops, size_bytes, read, block_of, enters = [], {}, set(), {}, "batch"
    for block in range(num_blocks):
        names = [enters, *(f"v{block}.{i}" for i in range(num_ops))]
        for i, (inputs, keeping, duration_s, size, is_read) in enumerate(template):
            value = names[i + 1]
            price_s = 0.0 if keeping is Keeping.AGAIN else duration_s
            op = ForwardOp(
                id=f"o{block}.{i}", inputs=tuple(names[n] for n in inputs), outputs=(value,), duration_s=price_s, keeping=keeping
            )
            ops.append(op)
            block_of[op.id], size_bytes[value] = f"h.{block}", size
            read |= {value} if is_read else set()
        enters = names[-1]
    return SavingProblem(ops=tuple(ops), size_bytes=size_bytes, read=frozenset(read)), block_of


def alike_outcomes(problem: SavingProblem, block_of: dict[str, str]) -> list[tuple[int, float]]:
    """(bytes, seconds) of every set that is the same for the blocks of a group."""
    alike = [
        [op.id for op in same]
        for group in _groups(problem, block_of)
        for same in zip(*group.blocks, strict=True)
        if same[0].keeping is Keeping.CHOSEN
    ]
    return [problem.outcome({op for same in chosen for op in same})[2:] for n in range(len(alike) + 1) for chosen in combinations(alike, n)]


@pytest.mark.parametrize("seed", range(12))
def test_no_set_that_is_the_same_for_the_blocks_of_a_group_computes_less_again(seed: int) -> None:
    problem, block_of = repeated_problem(random.Random(seed), 5)
    outcomes = alike_outcomes(problem, block_of)
    least, most = min(kept for kept, _ in outcomes), problem.most_bytes
    for limit_bytes in sorted({least, most, (least + most) // 2, (least + 3 * most) // 4}):
        choice = choose_repeated(problem, block_of, limit_bytes)
        assert choice.saved_bytes <= limit_bytes
        best_s = min(seconds for kept, seconds in outcomes if kept <= limit_bytes)
        assert choice.recomputed_s == pytest.approx(best_s, rel=1e-6, abs=1e-9)
        assert choice.bound_s <= best_s * (1 + 1e-6) + 1e-9
        assert choice.recomputed_s >= choose_recompute(problem, limit_bytes).bound_s
        assert problem.outcome(choice.again) == (choice.again, choice.kept, choice.saved_bytes, choice.recomputed_s)
    if least > 0:
        with pytest.raises(Unsupported, match=f"but {least:,} must be, however much is computed again"):
            choose_repeated(problem, block_of, least - 1)


def test_of_seven_equal_blocks_four_and_two_and_one_are_treated_alike_and_lie_apart() -> None:
    ops = [ForwardOp(id=f"o{i}", inputs=("batch",), outputs=(f"v{i}",), duration_s=1.0) for i in range(7)]
    problem = SavingProblem(ops=tuple(ops), size_bytes={f"v{i}": 10 for i in range(7)}, read=frozenset(f"v{i}" for i in range(7)))
    block_of = {op.id: f"h.{i}" for i, op in enumerate(ops)}
    again = {limit: choose_repeated(problem, block_of, limit).again for limit in range(0, 71, 10)}
    assert [len(again[limit]) for limit in range(0, 71, 10)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert (again[60], again[50], again[30]) == ({"o3"}, {"o1", "o5"}, {"o0", "o2", "o4", "o6"})


def test_what_a_block_needs_of_another_to_compute_again_is_kept_there_and_weighed() -> None:
    """x is read by no backward op; to compute y again, which saves 10 bytes, 8 of x have to be kept."""
    x = ForwardOp(id="a", inputs=("batch",), outputs=("x",), duration_s=1.0, keeping=Keeping.KEPT)
    y = ForwardOp(id="b", inputs=("x",), outputs=("y",), duration_s=1.0)
    problem = SavingProblem(ops=(x, y), size_bytes={"x": 8, "y": 10}, read=frozenset({"y"}))
    choice = choose_repeated(problem, {"a": "h.0", "b": "h.1"}, 9)
    assert (choice.kept, choice.saved_bytes) == ({"x"}, 8)
    with pytest.raises(Unsupported, match="but 8 must be"):
        choose_repeated(problem, {"a": "h.0", "b": "h.1"}, 7)
