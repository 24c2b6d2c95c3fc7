"""The choice of what is computed again is held to all choices on small random graphs, and to closed forms on chains."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from planner.ir.errors import Unsupported
from planner.stages.recompute import ForwardOp, Keeping, SavingProblem, choose_recompute


def random_problem(rng: random.Random, num_ops: int) -> SavingProblem:
    values, ops, size_bytes = ["batch", "weight"], [], {}
    for i in range(num_ops):
        outputs = tuple(f"v{i}.{j}" for j in range(rng.choice((1, 1, 1, 2))))
        keeping = rng.choice((Keeping.CHOSEN,) * 6 + (Keeping.KEPT, Keeping.AGAIN))
        duration_s = 0.0 if keeping is Keeping.AGAIN else rng.choice((0.0, 1e-4, 2e-3, rng.random()))
        inputs = tuple(rng.sample(values[-4:], rng.randint(1, min(2, len(values[-4:])))))
        ops.append(ForwardOp(id=f"o{i}", inputs=inputs, outputs=outputs, duration_s=duration_s, keeping=keeping))
        size_bytes |= {value: rng.choice((2**12, 2**20, 3 * 2**20, rng.randint(2**12, 2**22))) for value in outputs}
        values += outputs
    read = frozenset(v for v in size_bytes if rng.random() < 0.5)
    return SavingProblem(ops=tuple(ops), size_bytes=size_bytes, read=read)


def all_outcomes(problem: SavingProblem) -> list[tuple[int, float]]:
    """(bytes kept, seconds again) of every set of ops."""
    free = [op.id for op in problem.ops if op.keeping is Keeping.CHOSEN]
    return [problem.outcome(chosen)[2:] for n in range(len(free) + 1) for chosen in combinations(free, n)]


@pytest.mark.parametrize("seed", range(25))
def test_no_set_of_ops_within_the_limit_computes_less_again(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 9))
    outcomes = all_outcomes(problem)
    least, most = min(kept for kept, _ in outcomes), problem.most_bytes
    for limit_bytes in sorted({least, most, rng.choice(outcomes)[0], (least + most) // 2}):
        choice = choose_recompute(problem, limit_bytes)
        best_s = min(seconds for kept, seconds in outcomes if kept <= limit_bytes)
        assert choice.saved_bytes <= limit_bytes
        assert choice.recomputed_s == pytest.approx(best_s, rel=1e-6, abs=1e-9)
        assert choice.bound_s <= best_s * (1 + 1e-6) + 1e-9
        assert choice.gap <= 1e-4 or choice.recomputed_s < 1e-2
        assert problem.outcome(choice.again) == (choice.again, choice.kept, choice.saved_bytes, choice.recomputed_s)
    if least > 0:
        with pytest.raises(Unsupported, match=f"{least:,} must be"):
            choose_recompute(problem, least - 1)


def chain_of(num_ops: int, *, keeping: Keeping = Keeping.CHOSEN) -> SavingProblem:
    """op i reads v(i-1) and makes v(i), of 10 bytes in 1 s each; the backward pass reads all."""
    ops = tuple(
        ForwardOp(id=f"o{i}", inputs=(f"v{i - 1}",), outputs=(f"v{i}",), duration_s=1.0, keeping=keeping) for i in range(1, num_ops + 1)
    )
    return SavingProblem(
        ops=ops, size_bytes={f"v{i}": 10 for i in range(1, num_ops + 1)}, read=frozenset(f"v{i}" for i in range(1, num_ops + 1))
    )


def test_a_chain_repeats_one_op_for_each_value_that_does_not_fit() -> None:
    problem = chain_of(12)
    for kept in range(13):
        assert choose_recompute(problem, 10 * kept + 9).recomputed_s == 12 - kept


def test_nothing_is_repeated_where_all_fits() -> None:
    choice = choose_recompute(chain_of(5), 50)
    assert (choice.again, choice.saved_bytes, choice.recomputed_s, choice.gap) == (frozenset(), 50, 0.0, 0.0)


def test_what_must_be_kept_is_kept_or_the_limit_is_refused_with_the_least() -> None:
    with pytest.raises(Unsupported, match=r"at most 29 bytes may be kept .* but 30 must be"):
        choose_recompute(chain_of(3, keeping=Keeping.KEPT), 29)


def test_views_are_made_again_of_what_they_view() -> None:
    product = ForwardOp(id="mm", inputs=("x", "w"), outputs=("y",), duration_s=1.0)
    view = ForwardOp(id="t", inputs=("y",), outputs=("y.t",), duration_s=0.0, keeping=Keeping.AGAIN)
    problem = SavingProblem(ops=(product, view), size_bytes={"y": 8, "y.t": 8}, read=frozenset({"y", "y.t"}))
    assert problem.most_bytes == 8
    assert choose_recompute(problem, 8).kept == {"y"}


def test_the_cheapest_ops_are_chosen_beside_one_that_takes_a_billion_times_as_long() -> None:
    """They were not: prices were divided by the dearest op's, and what was left lay below the solver's tolerance."""
    dear = ForwardOp(id="mm", inputs=("x",), outputs=("y",), duration_s=1e9)
    cheap = [ForwardOp(id=f"o{i}", inputs=("y",), outputs=(f"v{i}",), duration_s=float(i)) for i in range(1, 9)]
    values = ["y", *(v for op in cheap for v in op.outputs)]
    problem = SavingProblem(ops=(dear, *cheap), size_bytes=dict.fromkeys(values, 10), read=frozenset(values))
    choice = choose_recompute(problem, 60)
    assert choice.again == {"o1", "o2", "o3"}
    assert choice.bound_s <= 6.0


def test_an_op_without_a_price_is_refused() -> None:
    op = ForwardOp(id="fft", inputs=("x",), outputs=("y",), duration_s=float("nan"))
    with pytest.raises(Unsupported, match="op fft takes nan s"):
        choose_recompute(SavingProblem(ops=(op,), size_bytes={"y": 8}, read=frozenset({"y"})), 0)


def test_the_certificate_says_what_it_covers_and_what_not() -> None:
    text = choose_recompute(chain_of(4), 25).certificate()
    assert "2 ops computed again, 2 s: the least possible" in text
    assert "20 kept; not the peak" in text
