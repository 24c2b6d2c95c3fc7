"""Batches follow from the step: every sample once per epoch, in an order of the seed, whatever was asked for before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import regista
from planner.ir.errors import InvalidProgram
from regista.training.batches import TrainData, batches_of

X, Y = torch.arange(22.0)[:, None], torch.arange(22)


def program(seed: int = 0) -> regista.Program:
    return regista.Program(nn.Linear(1, 3), (X[:4], Y[:4] % 3), loss=nn.functional.cross_entropy, seed=seed)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Draws from torch's generator, as augmentations do."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return X[number] + 0.25 * torch.rand(1), Y[number]


def samples(data: TrainData, steps: range, seed: int = 0, *, shuffle: bool = True) -> list[list[float]]:
    feed = batches_of(data, program(seed), shuffle=shuffle, what="train_data").feed
    assert callable(feed)
    return [feed(step)[0].flatten().tolist() for step in steps]


SHUFFLED = {
    "tensors": lambda: (X, Y),
    "dataset": lambda: TensorDataset(X, Y),
    "noisy": Noisy,
    "loader": lambda: DataLoader(TensorDataset(X, Y), 4, shuffle=True, drop_last=True),
    "noisy loader": lambda: DataLoader(Noisy(), 4, shuffle=True, drop_last=True, generator=torch.Generator()),
}


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_a_batch_follows_from_seed_and_step_alone(make: object) -> None:
    assert callable(make)
    whole = samples(make(), range(12))
    torch.manual_seed(99)  # nothing outside decides
    assert samples(make(), range(7, 12)) == whole[7:]
    feed = batches_of(make(), program(), shuffle=True, what="train_data").feed
    assert callable(feed)
    for step in (3, 3, 9, 4, 0, 11):  # a run asks more than once, and a run that resumes begins later
        assert feed(step)[0].flatten().tolist() == whole[step]
    assert samples(make(), range(12), seed=1) != whole


@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_each_sample_comes_once_per_epoch_and_each_epoch_has_its_order(make: object) -> None:
    assert callable(make)
    first, second = samples(make(), range(5)), samples(make(), range(5, 10))
    for epoch in (first, second):
        numbers = [int(value) for batch in epoch for value in batch]
        assert len(set(numbers)) == len(numbers) == 20
    assert first != second


def test_an_evaluation_goes_through_its_samples_in_order() -> None:
    assert samples((X, Y), range(2), shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches_of((X, Y), program(), shuffle=False, what="eval_data").rest == 2


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self):
        return iter(zip(X, Y % 3, strict=True))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((X[:3], Y[:3]), "has 3 samples and a batch has 4"),
        ((X, Y[:9]), "tensors of 9, 22 samples"),
        ((X,), "holds 1 tensors, the program has 2 inputs"),
        ([1, 2], "give tensors, a Dataset, a DataLoader"),
        (Endless(), "without a length.*give a DataLoader"),
        (DataLoader(TensorDataset(X, Y), 8), "batches of 8, the program's batch has 4"),
        (DataLoader(TensorDataset(X, Y), 4), "the last batch of train_data has 2 of 4 samples.*drop_last=True"),
    ],
)
def test_data_that_gives_no_batches_is_refused_by_name(data: TrainData, says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        batches_of(data, program(), shuffle=True, what="train_data")


def test_a_loader_that_ends_says_after_how_many_batches() -> None:
    feed = batches_of(DataLoader(Endless(), 4, drop_last=True), program(), shuffle=True, what="train_data").feed
    assert callable(feed)
    assert feed(4)[0].shape == (4, 1)
    with pytest.raises(InvalidProgram, match="train_data ends after 5 batches, step 5 needs one more"):
        feed(5)
