"""Types of tensors as torch's profilers write them: a list of shapes, and beside it a list of names of C++ types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.ir.errors import InvalidFile
from planner.ir.reading.parsing import parse_json
from planner.ir.tensor import DType, TensorType

__all__ = ["shapes_text", "tensor_types", "tensor_types_of_texts", "types_text"]

_NAMES: Mapping[DType, tuple[str, ...]] = {
    DType.FLOAT64: ("double",),
    DType.FLOAT32: ("float",),
    DType.FLOAT16: ("c10::Half",),
    DType.BFLOAT16: ("c10::BFloat16",),
    DType.INT64: ("long int", "long"),
    DType.INT32: ("int",),
    DType.INT16: ("short int", "short"),
    DType.INT8: ("signed char",),
    DType.UINT8: ("unsigned char",),
    DType.BOOL: ("bool",),
    DType.COMPLEX64: ("c10::complex<float>",),
    DType.COMPLEX128: ("c10::complex<double>",),
}
"""The first is what we write."""
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names}


def tensor_types(shapes: object, types: object) -> tuple[TensorType, ...]:
    """The tensors among an operator's arguments, in order; numbers, lists of tensors and types that Regista does not know are left out."""
    if not (isinstance(shapes, list) and isinstance(types, list)):
        return ()
    found = []
    for shape, name in zip(shapes, types, strict=False):
        dtype = _DTYPES.get(str(name).removeprefix("Tensor(").removesuffix(")"))
        if dtype is not None and isinstance(shape, list) and all(type(extent) is int and extent >= 0 for extent in shape):
            found.append(TensorType(tuple(shape), dtype))
    return tuple(found)


def tensor_types_of_texts(shapes: str, types: str) -> tuple[TensorType, ...]:
    """The same of a node of Chakra, whose lists are texts; () where they are no lists."""
    try:
        return tensor_types(parse_json(shapes or "[]"), parse_json(types.replace("'", '"') or "[]"))
    except InvalidFile:
        return ()


def shapes_text(tensors: Sequence[TensorType]) -> str:
    return str([list(tensor.shape) for tensor in tensors])


def types_text(tensors: Sequence[TensorType]) -> str:
    return str([f"Tensor({_NAMES[tensor.dtype][0]})" for tensor in tensors])
