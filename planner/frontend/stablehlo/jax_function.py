"""A JAX function as a Program: ``loss(params, batch) -> loss``, or a whole step ``step(state, batch) -> (state, loss)``.

The function is lowered by jax.jit to StableHLO anew for each batch size that a plan asks for, as a torch module is traced anew.  Of a step, the
loss is translated and differentiated by Regista, and its update is recognised (planner.frontend.stablehlo.step).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.frontend.optim import Optimizer
from planner.frontend.program import Program
from planner.frontend.stablehlo.listing import Listing, listing_of_text
from planner.frontend.stablehlo.module import Shapes
from planner.frontend.stablehlo.program import Signature, loss_program
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["from_jax"]


def from_jax(
    function: Callable[..., Any],
    state: Any,
    batch: Any,
    *,
    optimizer: Optimizer | str | None = None,
    name: str | None = None,
    data: Callable[[int], Any] | None = None,
    **options: Any,
) -> Program:
    """The Program of a JAX function.

    Args:
        function: ``loss(params, batch)``, which returns a scalar; or ``step(state, batch)``, which returns (new state, loss).  It is pure.
        state: the pytree of parameters, or of a step's whole state (parameters and optax state), with values or as jax.ShapeDtypeStruct.
        batch: the pytree of one global batch; its arrays are the inputs ``input.0``, ``input.1``, ... in the order of its leaves.
        optimizer: of a loss: as Program takes it.  A step says its own.
        data: step -> global batch, a pytree like ``batch``.
        options: further arguments of Program (batch_dim, clip_norm, precision, ...).

    Raises:
        Unsupported: jax is not installed, or the function holds what cannot be translated, with its line and the way out.
        InvalidProgram: it returns neither a scalar nor (state, loss).
    """
    jax = _jax()
    label = name or getattr(function, "__name__", "step").strip("<>")
    leaves, form = jax.tree_util.tree_flatten(batch)

    def abstract(value: Any) -> Any:
        return jax.ShapeDtypeStruct(
            np.shape(value), jax.dtypes.canonicalize_dtype(getattr(value, "dtype", None) or np.asarray(value).dtype)
        )

    state_types, batch_types = jax.tree.map(abstract, state), [abstract(leaf) for leaf in leaves]

    def lowered(shapes: Shapes) -> Listing:
        given = [jax.ShapeDtypeStruct(shape, leaf.dtype) for shape, leaf in zip(shapes, batch_types, strict=True)]
        text = jax.jit(function, keep_unused=True).lower(state_types, jax.tree_util.tree_unflatten(form, given)).as_text(debug_info=True)
        return listing_of_text(text, label)

    returned = jax.eval_shape(function, state_types, jax.tree_util.tree_unflatten(form, batch_types))
    paths = [f"state{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(state_types)]
    signature = Signature(paths=tuple(paths), num_batch=len(leaves), is_step=_is_step(jax, returned, state_types, label))
    return loss_program(
        lowered,
        signature,
        values=[tensor_of(leaf) for leaf in jax.tree_util.tree_leaves(state)],
        example=[tensor_of(leaf) for leaf in leaves],
        optimizer=optimizer,
        name=label,
        data=None if data is None else lambda step: tuple(tensor_of(leaf) for leaf in jax.tree_util.tree_leaves(data(step))),
        **options,
    )


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise Unsupported(f"from_jax needs JAX ({error}); install it: pip install 'regista[jax]'") from error
    return jax


def _is_step(jax: Any, returned: Any, state_types: Any, label: str) -> bool:
    """Whether the function is a step; else it is a loss."""
    leaves = jax.tree_util.tree_leaves(returned)
    if len(leaves) == 1 and leaves[0].shape == () and jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(returned)):
        return False
    if isinstance(returned, tuple) and len(returned) == 2:
        made, loss = returned
        same = jax.tree_util.tree_structure(made) == jax.tree_util.tree_structure(state_types)
        if same and getattr(loss, "shape", None) == ():
            types, wanted = ([(leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(tree)] for tree in (made, state_types))
            if types == wanted:
                return True
    shown = ", ".join(str(leaf) for leaf in leaves[:4])
    raise InvalidProgram(
        f"{label} returns {len(leaves)} arrays ({shown}{' ...' if len(leaves) > 4 else ''}); give loss(params, batch) -> scalar, "
        "or step(state, batch) -> (new state of the same structure, scalar loss)"
    )


def tensor_of(leaf: Any) -> Tensor:
    """An array of JAX or numpy as a tensor of its own; a jax.ShapeDtypeStruct as one without values."""
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    if not hasattr(leaf, "__array__") and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return torch.empty(tuple(leaf.shape), dtype=getattr(torch, str(np.dtype(leaf.dtype))), device="meta")
    array = np.asarray(leaf)
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16).copy()).view(torch.bfloat16)
    if array.dtype in (np.float64, np.int64) and not isinstance(leaf, np.ndarray):
        array = array.astype(np.float32 if array.dtype == np.float64 else np.int32) if np.isscalar(leaf) else array
    return torch.from_numpy(np.array(array, copy=True))
