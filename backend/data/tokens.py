"""A flat file of token numbers: sample i is a window of seq + 1 tokens, whose last token is the next sample's first.

tokens   t0 t1 t2 t3 t4 t5 t6 ...     seq = 3:   sample 0: t0 t1 t2 -> t1 t2 t3      sample 1: t3 t4 t5 -> t4 t5 t6
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backend.data.describe import Tokens
from backend.data.reader import OpenFile, runs
from planner.ir.errors import InvalidFile
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id
from planner.lower.data_actors.loading import RawTensor

__all__ = ["TokenReader"]

# Unsigned numbers travel as the signed ones of the same bits, which every torch can hold; the mask gives them back.
_STORED: dict[str, tuple[DType, str, int]] = {
    "uint16": (DType.INT16, "<i2", 0xFFFF),
    "uint32": (DType.INT32, "<i4", 0xFFFFFFFF),
    "int32": (DType.INT32, "<i4", -1),
    "int64": (DType.INT64, "<i8", -1),
}


class TokenReader:
    """See backend.data.reader.Reader; inputs and targets are int64 [seq]."""

    def __init__(self, source: Tokens) -> None:
        if source.dtype not in _STORED:
            raise InvalidFile(f"tokens of dtype {source.dtype!r} are not read; choose from {', '.join(_STORED)}")
        if source.seq < 1:
            raise InvalidFile(f"seq = {source.seq}; a sample has at least 1 token")
        stored, self._numpy, self._mask = _STORED[source.dtype]
        self._file = OpenFile(source.path)
        tokens, rest = divmod(self._file.size_bytes, stored.size_bytes)
        if rest:
            raise InvalidFile(
                f"data file {source.path} has {self._file.size_bytes} bytes, which is no multiple of the {stored.size_bytes} of a {source.dtype}; "
                f"say the dtype that it was written in"
            )
        self.num_samples = (tokens - 1) // source.seq if tokens else 0
        if self.num_samples < 1:
            raise InvalidFile(f"data file {source.path} has {tokens} tokens; one sample of seq = {source.seq} needs {source.seq + 1}")
        self.source = source
        self.raw: tuple[RawTensor, ...] = (RawTensor(name="tokens", shape=(source.seq + 1,), dtype=stored, inputs=(0, 1)),)
        self.made: tuple[TensorType, ...] = (TensorType((source.seq,), DType.INT64),) * 2
        self.fingerprint = content_id(["tokens", source.seq, source.dtype, self._file.size_bytes])

    def read(self, samples: Sequence[int], raw: Sequence[int]) -> list[Tensor]:
        seq, kind = self.source.seq, np.dtype(self._numpy)
        window = np.empty((len(samples), seq + 1), kind)
        for place, first, count in runs(samples):
            tokens = np.empty(count * seq + 1, kind)
            self._file.read_into(tokens.view(np.uint8), first * seq * kind.itemsize)
            for row in range(count):
                window[place + row] = tokens[row * seq : (row + 1) * seq + 1]
        return [torch.from_numpy(window) for _ in raw]

    def prepare(self, raw: dict[int, Tensor], inputs: Sequence[int]) -> list[Tensor]:
        tokens = raw[0].to(torch.int64)
        if self._mask >= 0:
            tokens &= self._mask
        vocab = self.source.vocab
        if vocab and tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab):
            outside = int(tokens.max()) if int(tokens.max()) >= vocab else int(tokens.min())
            raise InvalidFile(
                f"data file {self.source.path} holds token {outside}, the vocabulary has 0 .. {vocab - 1}; is it {self.source.dtype}?"
            )
        return [tokens[:, number : number + self.source.seq] for number in inputs]
