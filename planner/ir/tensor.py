"""Logical tensors: a shape and a dtype, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from planner.ir.errors import InvalidProgram

__all__ = ["DType", "TensorType"]


class DType(Enum):
    """Element types, named as torch names them."""

    __hash__ = object.__hash__  # asked for millions of times; the inherited one hashes the name

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @property
    def size_bytes(self) -> int:
        return _SIZE_BYTES[self]

    @property
    def is_floating(self) -> bool:
        return self in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_complex(self) -> bool:
        return self in (DType.COMPLEX64, DType.COMPLEX128)

    @staticmethod
    def parse(name: str) -> DType:
        """Raises InvalidProgram for a dtype that Regista does not know."""
        try:
            return DType(name.removeprefix("torch."))
        except ValueError:
            known = ", ".join(d.value for d in DType)
            raise InvalidProgram(f"dtype {name!r} is not supported; the known ones are {known}") from None


_SIZE_BYTES = {
    DType.FLOAT64: 8,
    DType.FLOAT32: 4,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.INT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.BOOL: 1,
    DType.COMPLEX64: 8,
    DType.COMPLEX128: 16,
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor (logical or local).

    >>> TensorType((2, 3), DType.FLOAT32).size_bytes
    24
    """

    shape: tuple[int, ...]
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.numel * self.dtype.size_bytes

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"
