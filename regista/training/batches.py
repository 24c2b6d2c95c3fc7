"""Global batches as a function of the step, from what people train on: tensors, a Dataset, a DataLoader, or a description.

    step -> epoch, place in it -> samples (an order drawn from seed and epoch) -> tensors in the order of the program's inputs

So a run that resumes at a step goes on with the samples that come next.  What a Dataset draws from torch's generator (augmentation) is drawn from
seed and step, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from backend.data import Source, open_source, parse_source
from planner.frontend import Program
from planner.ir.errors import InvalidProgram

__all__ = ["Batches", "TrainData", "batches_of"]

TrainData = Tensor | Sequence[Tensor] | Mapping[str, Tensor] | Dataset[Any] | DataLoader[Any] | Source | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """What regista.run takes as ``data``, and how much there is of it.

    feed: step -> tensors, or a description, whose readers serve the workers; None: the program's own data.
    per_epoch: whole batches of one epoch; None: no length is known.   rest: samples that fill no batch, and come in no step of an epoch.
    """

    feed: Callable[[int], tuple[Tensor, ...]] | Source | None
    per_epoch: int | None = None
    rest: int = 0


def batches_of(data: TrainData, program: Program, *, shuffle: bool, what: str) -> Batches:
    """The batches of ``data``, which messages call ``what``.

    Args:
        shuffle: the order of tensors and Datasets is drawn anew in each epoch; a DataLoader and a description say themselves.

    Raises:
        InvalidProgram: it has no length, fewer samples than a batch, or other tensors than the program's inputs.   InvalidFile: see parse_source.
    """
    size, seed = program.batch_size, program.seed
    if data is None:
        return Batches(feed=None)
    if isinstance(data, str | Source):
        source = parse_source(data) if isinstance(data, str) else data
        return _counted(source, open_source(source).num_samples, size, what)
    if isinstance(data, DataLoader):
        return _of_loader(data, program, what)
    if isinstance(data, Dataset):
        if isinstance(data, IterableDataset) or not isinstance(data, Sized):
            raise InvalidProgram(
                f"{what} is a {type(data).__name__} without a length, whose samples no step can ask for; give a DataLoader of it"
            )
        collected = _Collected(data, program, shuffle, seed, what)
        return _counted(collected, len(data), size, what)
    tensors = _whole_tensors(data, program, what)
    counts = {t.shape[dim] for t, dim in zip(tensors, program.batch_dims.dims, strict=True) if dim is not None}
    if len(counts) != 1:
        raise InvalidProgram(f"{what} holds tensors of {', '.join(map(str, sorted(counts)))} samples; give as many of each")
    (count,) = counts
    return _counted(_Sliced(tensors, program, shuffle, seed), count, size, what)


def _counted(feed: Callable[[int], tuple[Tensor, ...]] | Source, samples: int, size: int, what: str) -> Batches:
    if samples < size:
        raise InvalidProgram(f"{what} has {samples} samples and a batch has {size}; give more samples, or a smaller batch")
    return Batches(feed=feed, per_epoch=samples // size, rest=samples % size)


def _order(samples: int, size: int, shuffle: bool, seed: int, step: int) -> list[int]:
    """The numbers of the samples of a step."""
    epoch, place = divmod(step, samples // size)
    if not shuffle:
        return list(range(place * size, (place + 1) * size))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed((seed << 20) + epoch))
    return order[place * size : (place + 1) * size].tolist()


def _whole_tensors(data: object, program: Program, what: str) -> tuple[Tensor, ...]:
    given = (data,) if isinstance(data, Tensor) else tuple(data.values()) if isinstance(data, Mapping) else data
    if not isinstance(given, Sequence) or not all(isinstance(tensor, Tensor) for tensor in given):
        raise InvalidProgram(f"{what} is a {type(data).__name__}; give tensors, a Dataset, a DataLoader, or a description of data")
    if len(given) != len(program.example_inputs):
        raise InvalidProgram(f"{what} holds {len(given)} tensors, the program has {len(program.example_inputs)} inputs; give one for each")
    return tuple(given)


@dataclass(frozen=True, slots=True)
class _Sliced:
    """Tensors that hold all samples."""

    tensors: tuple[Tensor, ...]
    program: Program
    shuffle: bool
    seed: int

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        dims = self.program.batch_dims.dims
        samples = next(t.shape[dim] for t, dim in zip(self.tensors, dims, strict=True) if dim is not None)
        chosen = torch.tensor(_order(samples, self.program.batch_size, self.shuffle, self.seed, step))
        return tuple(t if dim is None else t.index_select(dim, chosen) for t, dim in zip(self.tensors, dims, strict=True))


@dataclass(frozen=True, slots=True)
class _Collected:
    """A Dataset whose samples are put together as a DataLoader does it."""

    dataset: Dataset[Any]
    program: Program
    shuffle: bool
    seed: int
    what: str

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        assert isinstance(self.dataset, Sized)
        numbers = _order(len(self.dataset), self.program.batch_size, self.shuffle, self.seed, step)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((self.seed << 20) + step)
            batch = default_collate([self.dataset[number] for number in numbers])
        return self.program.tensors(batch, f"a batch of {self.what}")


def _of_loader(loader: DataLoader[Any], program: Program, what: str) -> Batches:
    if loader.batch_size is not None and loader.batch_size != program.batch_size:
        raise InvalidProgram(
            f"{what} is a DataLoader with batches of {loader.batch_size}, the program's batch has {program.batch_size}; make them equal"
        )
    if isinstance(loader.dataset, IterableDataset) or not isinstance(loader.dataset, Sized):
        return Batches(feed=_Loaded(loader, program, what))
    samples, size = len(loader.dataset), program.batch_size
    rest = samples % size
    if rest and not loader.drop_last:
        raise InvalidProgram(
            f"the last batch of {what} has {rest} of {size} samples, and every step has as many; give DataLoader(..., drop_last=True)"
        )
    return _counted(_Loaded(loader, program, what), samples, size, what)


class _Loaded:
    """A DataLoader, begun anew in each epoch with torch's generator seeded by seed and epoch, and gone through in order.

    A step before the last one that was asked for, or in another epoch, goes through its epoch again; step 0, of which every run asks for the form,
    is kept.
    """

    def __init__(self, loader: DataLoader[Any], program: Program, what: str) -> None:
        self._loader, self._program, self._what = loader, program, what
        self._length: int | None = (
            len(loader) if isinstance(loader.dataset, Sized) and not isinstance(loader.dataset, IterableDataset) else None
        )
        self._epoch, self._next = -1, 0
        self._iterator: Iterator[object] = iter(())
        self._generator_state: Tensor | None = None
        self._kept: dict[int, tuple[Tensor, ...]] = {}

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        if step in self._kept:
            return self._kept[step]
        epoch, place = divmod(step, self._length) if self._length else (0, step)
        with torch.random.fork_rng(devices=[]):
            if epoch != self._epoch or place < self._next:
                self._begin(epoch)
            elif self._generator_state is not None:
                torch.set_rng_state(self._generator_state)
            while True:
                try:
                    batch = next(self._iterator)
                except StopIteration:
                    raise InvalidProgram(
                        f"{self._what} ends after {self._next} batches, step {step} needs one more; ask for fewer steps"
                    ) from None
                self._next += 1
                if self._next > place:
                    break
            self._generator_state = torch.get_rng_state()
        self._kept = {number: kept for number, kept in self._kept.items() if number == 0}
        self._kept[step] = self._program.tensors(batch, f"a batch of {self._what}")
        return self._kept[step]

    def _begin(self, epoch: int) -> None:
        seed = (self._program.seed << 20) + epoch
        torch.manual_seed(seed)
        for generator in (self._loader.generator, getattr(self._loader.sampler, "generator", None)):
            if generator is not None:
                generator.manual_seed(seed)
        self._iterator, self._epoch, self._next = iter(self._loader), epoch, 0
