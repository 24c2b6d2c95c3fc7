"""Files of StableHLO as Programs: MLIR as text or bytecode, or what jax.export serialised.

A file says which arrays are state and which are the batch:

    a step      (state ..., batch ...) -> (state ..., loss)     the first results have the types of the first inputs
    a loss      (params ..., batch ...) -> loss                 the inputs whose names begin alike, or the first argument of an export

It holds shapes and no values, and is made for one batch size: it is planned and simulated in one micro-batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from planner.frontend.program import Program
from planner.frontend.stablehlo.listing import Listing, listing_of_bytes, listing_of_text
from planner.frontend.stablehlo.module import Shapes
from planner.frontend.stablehlo.paths import root_of
from planner.frontend.stablehlo.performing.values import torch_dtype
from planner.frontend.stablehlo.program import Signature, loss_program
from planner.ir.errors import InvalidFile, InvalidProgram, Unsupported

__all__ = ["program_of_file"]

_LARGEST = 1 << 29
_FORMS = "write it with jax.jit(step).lower(state, batch).as_text(debug_info=True), or jax.export.export(...)(...).serialize()"


def program_of_file(path: Path) -> Program:
    """The Program of a file: of a step, with its update; of a loss, with SGD.

    Raises:
        InvalidFile: there is none, or it is no StableHLO.   Unsupported, InvalidProgram: what it holds, and the way out.
    """
    if not path.is_file():
        raise InvalidFile(f"{path} does not exist; {_FORMS}")
    if (size := path.stat().st_size) > _LARGEST:
        raise InvalidFile(f"{path} has {size} bytes, more than {_LARGEST}; give large arrays as arguments instead of constants")
    data = path.read_bytes()
    listing, num_first = _read(data, str(path))
    signature = _signature(listing, num_first, str(path))
    given = [_without_values(listing, number) for number in (entry.value for entry in listing.inputs)]
    num_state = len(signature.paths)
    made_for: Shapes = tuple(tuple(tensor.shape) for tensor in given[num_state:])

    def lowered(shapes: Shapes) -> Listing:
        if shapes != made_for:
            raise InvalidProgram(
                f"{path} is made for a batch of {_shown(made_for)}, not {_shown(shapes)}: plan it in one micro-batch, lower it at "
                "another batch size, or plan file.py:factory with regista.from_jax, which lowers the function at the sizes it needs"
            )
        return listing

    return loss_program(lowered, signature, values=given[:num_state], example=given[num_state:], name=path.stem)


def _read(data: bytes, name: str) -> tuple[Listing, int | None]:
    """The listing, and how many inputs the first argument has where an export says so."""
    if data.startswith(b"ML\xefR"):
        return listing_of_bytes(data, name), None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _from_export(data, name)
    if "\x00" in text:
        return _from_export(data, name)
    return listing_of_text(text, name), None


def _from_export(data: bytes, name: str) -> tuple[Listing, int | None]:
    try:
        from jax import export, tree_util
    except ImportError as error:
        raise Unsupported(f"{name} is an export of JAX, which JAX reads ({error}); install it: pip install 'regista[jax]'") from error
    try:
        exported: Any = export.deserialize(bytearray(data))
    except Exception as error:
        raise InvalidFile(f"{name} is neither StableHLO nor an export of this JAX ({type(error).__name__}); {_FORMS}") from error
    if any(not isinstance(extent, int) for aval in exported.in_avals for extent in aval.shape):
        raise Unsupported(
            f"{name} is exported with the dynamic shapes {', '.join(str(aval) for aval in exported.in_avals if not _static(aval))[:120]}; export it "
            "at one batch size, or plan file.py:factory with regista.from_jax"
        )
    args, _ = tree_util.tree_unflatten(exported.in_tree, exported.in_avals)
    if len(exported.module_kept_var_idx) != len(exported.in_avals):
        raise InvalidProgram(f"{name} leaves out arguments that nothing reads; export jax.jit(function, keep_unused=True)")
    return listing_of_bytes(exported.mlir_module_serialized, name), len(tree_util.tree_leaves(args[0])) if args else None


def _static(aval: Any) -> bool:
    return all(isinstance(extent, int) for extent in aval.shape)


def _signature(listing: Listing, num_first: int | None, name: str) -> Signature:
    types = [listing.types[entry.value] for entry in listing.inputs]
    made = [listing.types[value] for value in listing.results]
    if not made or made[-1].shape or not made[-1].dtype.is_floating:
        shown = ", ".join(map(str, made[-3:]))
        raise InvalidProgram(
            f"{name} returns {len(made)} arrays, the last of them {shown or 'none'}; the last must be the loss, one scalar"
        )
    paths = [entry.path for entry in listing.inputs]
    num_state = len(made) - 1
    if num_state and made[:-1] == types[:num_state] and num_state < len(types):
        named = [path or f"state[{place}]" for place, path in enumerate(paths[:num_state])]
        return Signature(paths=tuple(named), num_batch=len(types) - num_state, is_step=True)
    if num_state:
        raise InvalidProgram(
            f"{name} returns {num_state} arrays before the loss, of other types than its first inputs; return (new state, loss) for (state, batch)"
        )
    count = num_first
    if count is None:
        if not all(paths):
            raise InvalidProgram(f"{name} does not say which of its {len(types)} inputs are parameters: it has no names; {_FORMS}")
        count = next((place for place, path in enumerate(paths) if root_of(path) != root_of(paths[0])), len(paths))
    if not 0 < count < len(types):
        raise InvalidProgram(f"{name} has {count} parameters among {len(types)} inputs; lower loss(params, batch), two arguments")
    named = [path or f"params[{place}]" for place, path in enumerate(paths[:count])]
    return Signature(paths=tuple(named), num_batch=len(types) - count, is_step=False)


def _without_values(listing: Listing, number: int) -> Tensor:
    type_ = listing.types[number]
    return torch.empty(type_.shape, dtype=torch_dtype(type_), device="meta")


def _shown(shapes: Shapes) -> str:
    return " and ".join(str(list(shape)) for shape in shapes[:3])
