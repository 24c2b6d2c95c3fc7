"""Operations of StableHLO, written by hand, do with torch what their definitions say; broadcasts are kept small until every element is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from planner.frontend.stablehlo.listing import Given, Listing, Operation
from planner.frontend.stablehlo.paths import module_paths, names_of_paths
from planner.frontend.stablehlo.performing import Value, perform
from planner.frontend.stablehlo.performing.perform import check_known
from planner.ir.errors import Unsupported
from planner.ir.tensor import DType, TensorType


def made(name: str, result: Tensor, *operands: Tensor | float, **attributes: object) -> Tensor:
    """One operation on operands, numbers as constants that fill the first tensor's shape."""
    types, inputs, operations = {}, {}, []
    shape = next((tuple(o.shape) for o in operands if isinstance(o, Tensor)), ())
    for number, operand in enumerate(operands):
        if isinstance(operand, Tensor):
            types[number], inputs[number] = TensorType(tuple(operand.shape), DType.parse(str(operand.dtype))), operand
        else:
            types[number] = TensorType(shape, DType.FLOAT32)
            operations.append(Operation(name="constant", operands=(), results=(number,), attributes={"value": operand}))
    last = len(operands)
    types[last] = TensorType(tuple(result.shape), DType.parse(str(result.dtype)))
    operations.append(Operation(name=name, operands=tuple(range(last)), results=(last,), attributes=attributes))  # type: ignore[arg-type]
    listing = Listing(inputs=tuple(Given(value=n, path="") for n in inputs), operations=tuple(operations), results=(last,), types=types)
    return perform(listing, inputs)[0]


def same(name: str, wanted: Tensor, *operands: Tensor | float, **attributes: object) -> None:
    torch.testing.assert_close(made(name, wanted, *operands, **attributes), wanted)


X = torch.arange(12.0).reshape(3, 4) - 5


def test_elementwise_operations_take_numbers_on_either_side() -> None:
    same("subtract", 2 - X, 2.0, X)
    same("divide", 2 / (X + 0.5), 2.0, X + 0.5)
    same("maximum", X.clamp(min=1), 1.0, X)
    same("compare", X > 2, 2.0, X, comparison_direction="LT")
    same("select", torch.where(X > 0, X, -1.0), X > 0, X, torch.full_like(X, -1.0))
    same("square", X * X, X)
    same("clamp", X.clamp(-1, 2), torch.tensor(-1.0), X, torch.tensor(2.0))


def test_whole_numbers_divide_towards_zero() -> None:
    numbers = torch.tensor([-7, 7])
    same("divide", torch.tensor([-3, 3]), numbers, torch.tensor([2, 2]))


def test_shapes() -> None:
    same("transpose", X.t(), X, permutation=(1, 0))
    same("broadcast_in_dim", X.reshape(3, 1, 4).expand(3, 2, 4), X, broadcast_dimensions=(0, 2))
    same("slice", X[1:3, 0:4:2], X, start_indices=(1, 0), limit_indices=(3, 4), strides=(1, 2))
    same("reverse", X.flip(0), X, dimensions=(0,))
    same("pad", torch.nn.functional.pad(X, [1, 0, 0, 2], value=1.5), X, 1.5, edge_padding_low=(0, 1), edge_padding_high=(2, 0))
    same("concatenate", torch.cat([X, X], 1), X, X, dimension=1)


def test_a_product_has_its_batch_dims_then_the_free_dims() -> None:
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 5, 3, 6)
    numbers = {
        "lhs_batching_dimensions": (0, 1),
        "rhs_batching_dimensions": (0, 2),
        "lhs_contracting_dimensions": (3,),
        "rhs_contracting_dimensions": (1,),
    }
    same("dot_general", torch.einsum("bhik,bkhj->bhij", a, b), a, b, dot_dimension_numbers=numbers)


def test_a_product_over_several_dims() -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(5, 4, 6)
    numbers = {
        "lhs_batching_dimensions": (),
        "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1, 2),
        "rhs_contracting_dimensions": (1, 0),
    }
    same("dot_general", torch.einsum("ikl,lkj->ij", a, b), a, b, dot_dimension_numbers=numbers)


def test_sums_and_maxima() -> None:
    same("reduce", X.sum((0, 1)), X, 0.0, dimensions=(0, 1), body="add")
    same("reduce", X.amax(1), X, float("-inf"), dimensions=(1,), body="maximum")
    with pytest.raises(Unsupported, match=r"begins at 1\.0, not at 0\.0"):
        same("reduce", X.sum(1), X, 1.0, dimensions=(1,), body="add")


def test_look_ups_of_rows_and_along_a_dim() -> None:
    rows = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "operand_batching_dims": (), "start_indices_batching_dims": ()}
    rows |= {"start_index_map": (0,), "index_vector_dim": 1}
    same("gather", X[[2, 0]], X, torch.tensor([[2], [0]]), dimension_numbers=rows, slice_sizes=(1, 4))
    along = {"offset_dims": (), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,), "start_indices_batching_dims": (0,)}
    along |= {"start_index_map": (1,), "index_vector_dim": 2}
    index = torch.tensor([[3, 1], [0, 0], [2, 3]])
    same("gather", torch.gather(X, 1, index), X, index.unsqueeze(2), dimension_numbers=along, slice_sizes=(1, 1))


def test_a_broadcast_is_no_tensor_of_its_size_until_all_is_needed() -> None:
    small = Value(torch.ones(1, 4), (1000, 4), torch.float32)
    wide = small.regrouped((1000, 1, 4))
    assert wide is not None and isinstance(wide.base, Tensor) and wide.base.shape == (1, 1, 4)
    assert wide.tensor().shape == (1000, 1, 4)
    assert small.regrouped((4, 1000)) is None


def test_an_unknown_operation_is_named_with_its_line() -> None:
    listing = Listing(
        inputs=(Given(value=0, path=""),),
        operations=(Operation(name="cholesky", operands=(0,), results=(1,), where=" in model.py:7"),),
        results=(1,),
        types=dict.fromkeys((0, 1), TensorType((2, 2), DType.FLOAT32)),
    )
    with pytest.raises(Unsupported, match=r"has cholesky in model.py:7, which has no translation"):
        check_known(listing, "step")


def test_names_leave_out_what_all_parameters_begin_with() -> None:
    paths = ["state[0]['h'][0]['mlp']['kernel'].value", "state[0]['h'][1]['mlp']['kernel'].value", "state[0]['head'].value"]
    assert names_of_paths(paths, paths) == ["h.0.mlp.kernel", "h.1.mlp.kernel", "head"]
    assert names_of_paths(["params['w']"], ["params['w']"]) == ["w"]
    nested = ["params['layers'][0]['w']", "params['layers'][1]['w']"]
    assert names_of_paths(nested, nested) == ["layers.0.w", "layers.1.w"]


def test_an_operation_belongs_to_the_module_of_its_parameter_or_to_what_encloses_the_last() -> None:
    vector, scalar = TensorType((4,), DType.FLOAT32), TensorType((), DType.FLOAT32)
    names = {0: "h.0.up.bias", 1: "head.bias"}
    operations = (
        Operation(name="negate", operands=(2,), results=(3,)),
        Operation(name="add", operands=(3, 0), results=(4,)),
        Operation(name="tanh", operands=(4,), results=(5,)),
        Operation(name="reshape", operands=(1,), results=(6,)),
        Operation(name="multiply", operands=(5, 6), results=(7,)),
        Operation(name="reduce", operands=(7,), results=(8,)),
    )
    listing = Listing(
        inputs=tuple(Given(value=n, path="") for n in range(3)),
        operations=operations,
        results=(8,),
        types={**dict.fromkeys(range(8), vector), 8: scalar},
    )
    assert module_paths(listing, names) == {3: "h.0.up", 4: "h.0.up", 5: "h.0", 6: "head", 7: "head", 8: ""}


def test_a_constant_is_an_array_or_one_number() -> None:
    listing = Listing(
        inputs=(),
        operations=(Operation(name="constant", operands=(), results=(0,), attributes={"value": np.arange(3, dtype=np.float32)}),),
        results=(0,),
        types={0: TensorType((3,), DType.FLOAT32)},
    )
    assert perform(listing, {})[0].tolist() == [0, 1, 2]
