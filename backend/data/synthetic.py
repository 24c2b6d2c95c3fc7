"""Data that is drawn: sample i is a function of (seed, i), so every rank draws its own part.

read: the samples' numbers, after waiting as long as asked.   prepare: one counter-based generator per sample [Salmon et al. 2011, Philox].
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backend.data.describe import Synthetic
from backend.layout.sharding import torch_dtype
from planner.ir.errors import InvalidFile
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id, encode
from planner.lower.data_actors.loading import RawTensor

__all__ = ["SyntheticReader"]


class SyntheticReader:
    """See backend.data.reader.Reader."""

    def __init__(self, source: Synthetic) -> None:
        if source.samples < 1 or not source.tensors:
            raise InvalidFile(f"synthetic data of {source.samples} samples and {len(source.tensors)} tensors; both are at least 1")
        for tensor in source.tensors:
            if not tensor.dtype.is_floating and (tensor.high < 1 or tensor.high != int(tensor.high)):
                raise InvalidFile(
                    f"synthetic {tensor.dtype.value} has the range {tensor.high:g}; integers need a whole one, as in int64[]:10"
                )
        self.source = source
        self.num_samples = source.samples
        self.made = tuple(TensorType(tensor.shape, tensor.dtype) for tensor in source.tensors)
        self.raw: tuple[RawTensor, ...] = (RawTensor(name="sample", shape=(), dtype=DType.INT64, inputs=tuple(range(len(self.made)))),)
        self.fingerprint = content_id(["synthetic", encode(source.tensors), source.samples, source.order.seed])

    def read(self, samples: Sequence[int], raw: Sequence[int]) -> list[Tensor]:
        if self.source.wait_s:
            time.sleep(self.source.wait_s)
        return [torch.tensor(list(samples), dtype=torch.int64) for _ in raw]

    def prepare(self, raw: dict[int, Tensor], inputs: Sequence[int]) -> list[Tensor]:
        return [torch.stack([self._drawn(sample, number) for sample in raw[0].tolist()]) for number in inputs]

    def _drawn(self, sample: int, number: int) -> Tensor:
        wanted = self.source.tensors[number]
        generator = np.random.Generator(np.random.Philox(key=[self.source.order.seed, sample], counter=[0, 0, 0, number]))
        if not wanted.dtype.is_floating:
            numbers = generator.integers(0, int(wanted.high), wanted.shape)
            return torch.from_numpy(np.asarray(numbers)).to(torch_dtype(wanted.dtype))
        reals = generator.random(wanted.shape) * wanted.high if wanted.high else generator.standard_normal(wanted.shape)
        return torch.from_numpy(np.asarray(reals)).to(torch_dtype(wanted.dtype))
