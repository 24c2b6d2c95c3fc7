"""Random ops: Philox's known answers, parts of a draw, and what a traced step says of its draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.frontend import Program
from planner.frontend.random.kernels import _starts, _words_by_torch, bernoulli, dropout, uniform, words
from planner.frontend.random.philox import philox
from planner.ir.graph import Effect, InputKind, LogicalGraph, Role
from planner.ir.text import canonical, decode, encode

ZERO = torch.zeros((), dtype=torch.int64)
SEED, STEPS = torch.tensor((7 << 32) + 12345), torch.tensor(3)


def word(value: int) -> Tensor:
    return torch.tensor(value)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]) -> None:
    """Salmon et al. 2011; the vectors are those of Random123's kat_vectors, philox4x32 with 10 rounds."""
    c0, c1, c2, c3 = map(word, counter)
    k0, k1 = map(word, key)
    assert tuple(int(w) for w in philox((c0, c1, c2, c3), (k0, k1))) == answer


def test_the_compiled_loop_and_torchs_arithmetic_give_the_same_words() -> None:
    for shape, micro_batch in (((6, 5, 7), 2), ((1031,), 0), ((), 1), ((0, 3), 0)):
        whole = words(SEED, STEPS, shape, shape, (), 11, micro_batch)
        starts, length = _starts(shape, shape, (), micro_batch)
        assert torch.equal(whole.reshape(-1), _words_by_torch(SEED, STEPS, starts, length, 11))


def test_words_far_behind_the_first_four_billion_blocks_have_a_counter_of_their_own() -> None:
    shape = (1 << 18, 1 << 18)
    drawn = words(SEED, STEPS, (1, 4), shape, ((1 << 18) - 1, 0), 0, 0)
    block = (((1 << 18) - 1) << 18) // 4
    counter = (word(block & 0xFFFFFFFF), word(block >> 32), word(0), STEPS)
    assert [int(w) for w in drawn[0]] == [int(w) for w in philox(counter, (SEED & 0xFFFFFFFF, SEED >> 32))]


def test_any_part_of_a_draw_is_that_part_of_the_whole() -> None:
    rng = random.Random(0)
    for _ in range(60):
        whole = tuple(rng.randint(1, 7) for _ in range(rng.randint(1, 4)))
        offsets = tuple(rng.randrange(extent) for extent in whole)
        shape = tuple(rng.randint(1, extent - offset) for extent, offset in zip(whole, offsets, strict=True))
        box = tuple(slice(o, o + s) for o, s in zip(offsets, shape, strict=True))
        everything = words(SEED, STEPS, whole, whole, (), 5, 3)
        assert torch.equal(words(SEED, STEPS, shape, whole, offsets, 5, 3), everything[box])
        x = torch.randn(whole)
        dropped = dropout(x, SEED, STEPS, 0.5, 0.5, whole, (), 5, 3)
        assert torch.equal(dropout(x[box], SEED, STEPS, 0.5, 0.5, whole, offsets, 5, 3), dropped[box])


def test_micro_batches_draw_the_rows_of_the_whole_batch() -> None:
    batch = words(SEED, STEPS, (12, 5), (12, 5), (), 1, 0)
    for m in (2, 3, 4):
        slices = [words(SEED, STEPS, (12 // m, 5), (12 // m, 5), (), 1, index) for index in range(m)]
        assert torch.equal(torch.cat(slices), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dropout_keeps_by_the_words_and_divides_as_torch_does(dtype: torch.dtype) -> None:
    x = torch.randn(33, 9).to(dtype)
    kept = bernoulli(SEED, STEPS, x.shape, dtype, 0.9, x.shape, (), 2)
    assert torch.equal(dropout(x, SEED, STEPS, 0.9, 0.9, x.shape, (), 2), x * kept.div(0.9))
    out = torch.empty_like(x).t().contiguous().t()
    assert torch.equal(dropout(x, SEED, STEPS, 0.9, 0.9, x.shape, (), 2, out=out), x * kept.div(0.9))
    drawn = uniform(SEED, STEPS, x.shape, dtype, x.shape, (), 2)
    assert drawn.dtype is dtype and bool((drawn >= 0).all()) and bool((drawn < 1).all())


def test_what_is_never_or_always_kept() -> None:
    x = torch.randn(64)
    assert torch.equal(dropout(x, SEED, STEPS, 1.0, 1.0, (64,), (), 0), x)
    assert torch.equal(dropout(x, SEED, STEPS, 0.0, 0.0, (64,), (), 0), x * 0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.drop(torch.relu(self.up(x)))))


def program(module: nn.Module | None = None, seed: int = 1) -> Program:
    torch.manual_seed(0)
    return Program(module or Net(), (torch.randn(8, 8), torch.randn(8, 8)), nn.functional.mse_loss, seed=seed)


def draws(graph: LogicalGraph) -> list[tuple[str, Role, int | None]]:
    return [(op.target, op.role, op.draw) for op in graph.ops if op.effect is Effect.RANDOM]


def test_dropout_is_one_op_each_way_and_keeps_no_mask() -> None:
    graph = program().graph()
    assert draws(graph) == [
        ("regista.dropout", Role.FORWARD, 0),
        ("regista.dropout", Role.FORWARD, 1),
        ("regista.dropout", Role.BACKWARD, 1),
        ("regista.dropout", Role.BACKWARD, 0),
    ]
    state = [given for given in graph.inputs if given.kind is InputKind.RANDOM]
    assert [given.name for given in state] == ["random:seed", "random:steps"]
    assert graph.updates["random:steps"] == "updated:random:steps" and "random:seed" not in graph.updates


def test_a_module_without_random_ops_has_no_random_state_and_no_effect_in_its_text() -> None:
    made = program(Net().eval())
    graph = made.graph()
    assert not draws(graph) and not any(given.kind is InputKind.RANDOM for given in graph.inputs)
    assert "draw" not in canonical(graph.ops[0])


def test_an_ops_draw_survives_its_file() -> None:
    op = next(op for op in program().graph().ops if op.effect is Effect.RANDOM)
    assert decode(type(op), encode(op)) == op


def test_plain_pytorch_draws_the_graphs_numbers_and_leaves_torchs_generator_alone() -> None:
    made = program()
    before = torch.get_rng_state()
    x = made.example_inputs[0]
    with made.drawing(step=3):
        y = made.module(x)
    assert torch.equal(torch.get_rng_state(), before)
    steps = torch.tensor(3)
    hidden = dropout(torch.relu(made.module.up(x)).detach(), torch.tensor(1), steps, 0.9, 0.9, (8, 16), (), 0)
    assert torch.equal(y, dropout(made.module.down(hidden).detach(), torch.tensor(1), steps, 0.9, 0.9, (8, 8), (), 1))
    with made.drawing(step=4):
        assert not torch.equal(made.module(x), y)


def test_the_seed_is_the_programs() -> None:
    assert program(seed=4).initial_state()["random:seed"] == 4
    assert int(program(seed=4).initial_state()["random:steps"]) == 0


def test_words_are_uniform_and_uncorrelated_between_neighbours() -> None:
    drawn = words(SEED, STEPS, (1 << 18,), (1 << 18,), (), 0, 0).numpy().astype(np.float64) / 2**32
    n = drawn.size
    assert abs(drawn.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    assert abs(drawn.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / n)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(n)
