"""Types of tensors as torch's profilers write them: a list of shapes, and beside it a list of names of C++ types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.ir.errors import InvalidFile
from planner.ir.reading.parsing import parse_json
from planner.ir.tensor import DType, TensorType

__all__ = ["shapes_text", "tensor_type", "tensor_types", "tensor_types_of_texts", "types_text"]

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


def tensor_type(shape: object, name: object) -> TensorType | None:
    """None: a number, a list, or a type that Regista does not know."""
    dtype = _DTYPES.get(str(name).removeprefix("Tensor(").removesuffix(")"))
    if dtype is None or not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        return None
    return TensorType(tuple(shape), dtype)


def tensor_types(shapes: object, types: object) -> tuple[TensorType, ...]:
    """The tensors among an operator's arguments, in order; what is none is left out."""
    if not (isinstance(shapes, list) and isinstance(types, list)):
        return ()
    found = (tensor_type(shape, name) for shape, name in zip(shapes, types, strict=False))
    return tuple(tensor for tensor in found if tensor is not None)


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
