"""NumPy files, one per batch input, samples along the first dim."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from backend.data.describe import Arrays
from backend.data.reader import OpenFile, runs
from backend.layout.sharding import torch_dtype
from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id
from planner.lower.data_actors.loading import RawTensor

__all__ = ["ArrayReader"]


class _Array:
    """One .npy file: its header, and where its numbers begin."""

    def __init__(self, path: str) -> None:
        self.file = OpenFile(path)
        try:
            with open(path, "rb") as stream:
                version = np.lib.format.read_magic(stream)
                read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, columns_first, self.dtype = read_header(stream)
                self.begin_bytes = stream.tell()
        except ValueError as error:
            raise InvalidFile(f"data file {path} is not a .npy file: {error}") from None
        try:
            self.kind = DType.parse(self.dtype.name)
        except RegistaError as error:
            raise InvalidFile(f"data file {path}: {error}") from None
        if not shape or (columns_first and len(shape) > 1) or self.dtype.byteorder == ">":
            header = f"shape {shape}, order {'F' if columns_first else 'C'}, dtype {self.dtype.str}"
            raise InvalidFile(f"data file {path} has {header}; samples lie along dim 0, in C order, little-endian")
        self.path, self.samples, self.shape = path, int(shape[0]), tuple(int(size) for size in shape[1:])
        self.sample_bytes = prod(self.shape) * self.dtype.itemsize
        wanted = self.begin_bytes + self.samples * self.sample_bytes
        if self.file.size_bytes < wanted:
            raise InvalidFile(f"data file {path} has {self.file.size_bytes} bytes, its header promises {wanted}; it was cut short")

    def read(self, samples: Sequence[int]) -> Tensor:
        rows = np.empty((len(samples), *self.shape), self.dtype)
        flat = rows.reshape(-1).view(np.uint8)
        for place, first, count in runs(samples):
            size = self.sample_bytes
            self.file.read_into(flat[place * size : (place + count) * size], self.begin_bytes + first * size)
        return torch.from_numpy(rows)


class ArrayReader:
    """See backend.data.reader.Reader."""

    def __init__(self, source: Arrays) -> None:
        self._arrays = [_Array(path) for path in source.paths]
        counts = {array.path: array.samples for array in self._arrays}
        if len(set(counts.values())) != 1 or not self._arrays[0].samples:
            raise InvalidFile(f"the files hold {counts} samples; all need the same number, at least 1")
        if source.to and len(source.to) != len(self._arrays):
            raise InvalidFile(f"{len(source.to)} dtypes to cast to for {len(self._arrays)} files; give one for each, or none")
        self.source = source
        self.num_samples = self._arrays[0].samples
        self.raw = tuple(RawTensor(name=f"array{n}", shape=a.shape, dtype=a.kind, inputs=(n,)) for n, a in enumerate(self._arrays))
        kinds = source.to or tuple(array.kind for array in self._arrays)
        self.made = tuple(TensorType(array.shape, kind) for array, kind in zip(self._arrays, kinds, strict=True))
        self.fingerprint = content_id(["arrays", [[list(a.shape), a.dtype.str, a.samples] for a in self._arrays], [k.value for k in kinds]])

    def read(self, samples: Sequence[int], raw: Sequence[int]) -> list[Tensor]:
        return [self._arrays[number].read(samples) for number in raw]

    def prepare(self, raw: dict[int, Tensor], inputs: Sequence[int]) -> list[Tensor]:
        return [raw[number].to(torch_dtype(self.made[number].dtype)) for number in inputs]
