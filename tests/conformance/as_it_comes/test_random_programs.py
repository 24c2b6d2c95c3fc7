"""Random programs, planned at random, train as plain PyTorch does; ``python -m experiments.random_programs`` tries more."""

from __future__ import annotations

import pytest
import torch

from experiments.random_programs.compared import PROGRAMS, Status, compared
from experiments.random_programs.nets import random_net
from experiments.random_programs.sequences import random_sequence_model
from experiments.random_programs.states import random_model_with_state
from experiments.random_programs.trainings import random_training

SEEDS = range(16)

pytestmark = pytest.mark.filterwarnings("ignore")  # of search and of more ranks than cores: only results count here


@pytest.mark.representatives(*[f"{seed}-{program}" for program in PROGRAMS for seed in SEEDS[::4]])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_trains_as_in_torch(program: str, seed: int) -> None:
    case = compared(program, seed, "threads")
    assert case.status is not Status.WRONG, case


def test_a_seed_makes_the_same_program() -> None:
    first, second = random_net(7), random_net(7)
    assert first.names == second.names
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert random_sequence_model(7).names == random_sequence_model(7).names
    assert random_model_with_state(7).names == random_model_with_state(7).names
    assert random_training(7).names == random_training(7).names
    assert random_training(7).ways == random_training(7).ways


def test_no_two_of_the_first_models_have_the_same_parts() -> None:
    assert len({random_net(seed).names for seed in SEEDS}) == len(SEEDS)
    assert len({random_sequence_model(seed).names for seed in SEEDS}) == len(SEEDS)
    assert len({random_model_with_state(seed).names for seed in SEEDS}) == len(SEEDS)
