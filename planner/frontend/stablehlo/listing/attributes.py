"""Attributes of MLIR as numbers, texts, tuples and arrays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from planner.frontend.stablehlo.listing.values import Attribute
from planner.ir.errors import Unsupported

__all__ = ["attributes_of"]

_FIELDS = {
    "dot": ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions", "rhs_contracting_dimensions"),
    "gather": (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
        "index_vector_dim",
    ),
    "scatter": (
        "update_window_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "scattered_dims_to_operand_dims",
        "index_vector_dim",
    ),
    "conv": (
        "input_batch_dimension",
        "input_feature_dimension",
        "input_spatial_dimensions",
        "kernel_input_feature_dimension",
        "kernel_output_feature_dimension",
        "kernel_spatial_dimensions",
        "output_batch_dimension",
        "output_feature_dimension",
        "output_spatial_dimensions",
    ),
}
_CLASSES = {
    "dot": "DotDimensionNumbers",
    "gather": "GatherDimensionNumbers",
    "scatter": "ScatterDimensionNumbers",
    "conv": "ConvDimensionNumbers",
}


def attributes_of(operation: Any) -> dict[str, Attribute]:
    """The attributes of an operation; of one with a body (reduce, scatter) also ``body``, the names of the operations in it.

    Raises:
        Unsupported: a constant has elements that numpy does not have.
    """
    found = {str(key): _plain(operation.attributes[key]) for key in operation.attributes}
    if len(operation.regions) and len(operation.regions[0].blocks):
        inner = [view.operation for view in operation.regions[0].blocks[0].operations]
        found["body"] = ",".join(str(each.name).partition(".")[2] for each in inner[:-1])
    return found


def _plain(attribute: Any) -> Attribute:
    from jaxlib.mlir import ir

    match attribute:
        case ir.DenseFPElementsAttr() | ir.DenseIntElementsAttr():
            return _elements(attribute)
        case ir.DenseI64ArrayAttr() | ir.DenseI32ArrayAttr() | ir.DenseBoolArrayAttr():
            return tuple(int(number) for number in attribute)
        case ir.BoolAttr():
            return bool(attribute.value)
        case ir.IntegerAttr():
            return int(attribute.value)
        case ir.FloatAttr():
            return float(attribute.value)
    return _of_stablehlo(str(attribute), attribute)


def _of_stablehlo(text: str, attribute: Any) -> Attribute:
    """Dimension numbers as a mapping; an enumeration (``#stablehlo<comparison_direction GT>``) as its last word; else the text."""
    from jaxlib.mlir.dialects import stablehlo

    kind = re.match(r"#stablehlo\.(dot|gather|scatter|conv)<", text)
    if kind is None:
        word = re.fullmatch(r"#stablehlo<\w+ (\w+)>", text)
        return word.group(1) if word else text
    numbers = getattr(stablehlo, _CLASSES[kind.group(1)])(attribute)
    return {field: _number_or_tuple(getattr(numbers, field)) for field in _FIELDS[kind.group(1)]}


def _number_or_tuple(value: Any) -> int | tuple[int, ...]:
    return int(value) if isinstance(value, int) else tuple(int(number) for number in value)


def _elements(attribute: Any) -> Attribute:
    """A constant's elements: one number where all are equal, else an array."""
    if attribute.is_splat:
        one = attribute.get_splat_value()
        return bool(one.value) if str(attribute.type.element_type) == "i1" else _plain(one)
    try:
        return np.array(attribute)
    except Exception as error:
        raise Unsupported(f"a constant of type {attribute.type} cannot be read ({error}); give it as an argument") from error
