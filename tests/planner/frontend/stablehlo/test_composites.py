"""Operations of StableHLO that together are one of torch's become that one, with JAX's values; what only looks alike stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")
nnx = pytest.importorskip("flax", reason="the extra 'jax' is not installed") and pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax", reason="the extra 'jax' is not installed")

import jax.numpy as jnp  # noqa: E402

from planner.frontend.stablehlo.listing import listing_of_text  # noqa: E402
from planner.frontend.stablehlo.performing import perform  # noqa: E402
from planner.frontend.stablehlo.step import simplified  # noqa: E402

pytestmark = pytest.mark.thorough
X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
VECTOR = np.random.default_rng(1).standard_normal(8).astype(np.float32)
NORM = nnx.LayerNorm(8, rngs=nnx.Rngs(0))
HEADS = np.random.default_rng(2).standard_normal((3, 2, 6, 4, 8)).astype(np.float32)


def operations(function: Callable[..., Any], *given: Any) -> list[str]:
    """Names of the simplified function's operations, whose results are proven to be JAX's."""
    text = jax.jit(function, keep_unused=True).lower(*given).as_text()
    made = simplified(listing_of_text(text, "function"))
    inputs = {entry.value: torch.from_numpy(np.array(value)) for entry, value in zip(made.inputs, given, strict=True)}
    np.testing.assert_allclose(perform(made, inputs)[0].numpy(), function(*given), rtol=2e-5, atol=2e-6)
    return [operation.name for operation in made.operations]


def normed(x: Any, scale: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * (jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale) + bias


FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), (X,), "gelu"),
    "gelu of tanh": (jax.nn.gelu, (X,), "gelu_tanh"),
    "silu": (jax.nn.silu, (X,), "silu"),
    "softmax": (jax.nn.softmax, (X,), "softmax"),
    "softmax over another dim": (lambda x: jax.nn.softmax(x, axis=1), (X,), "softmax"),
    "layer norm": (normed, (X, VECTOR, VECTOR), "layer_norm"),
    "layer norm of flax": (lambda x: NORM(x), (X,), "layer_norm"),
    "cross-entropy": (
        lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y),
        (X, np.arange(12, dtype=np.int32).reshape(2, 6) % 8),
        "cross_entropy",
    ),
    "embedding": (lambda table, ids: jnp.take(table, ids, axis=0), (X[0], np.array([[5, 0], [1, 1]], np.int32)), "gather"),
    "attention": (jax.nn.dot_product_attention, tuple(HEADS), "attention"),
    "causal attention": (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), tuple(HEADS), "attention"),
    "attention by hand": (
        lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.3, axis=-1) @ v,
        tuple(HEADS),
        "attention",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_one_operation_stands_for_many(name: str) -> None:
    function, given, wanted = FOUND[name]
    names = operations(function, *given)
    assert names.count(wanted) == 1
    assert not {"exponential", "rsqrt", "erfc", "tanh", "logistic", "select"} & set(names)


def test_what_only_looks_alike_stays_as_it_is() -> None:
    square = X[:, :, :6].copy()
    along_rows = operations(lambda x, b: normed(x, 1.0, 0.0) + b[:, None], square, VECTOR[:6])
    assert "layer_norm" not in along_rows or "add" in along_rows
    assert "softmax" not in operations(
        lambda x: jnp.exp(x - x.max(-1, keepdims=True)) / jnp.exp(x - x.max(-1, keepdims=True)).sum(1, keepdims=True), X
    )
    assert "gelu_tanh" not in operations(lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * (x + 0.05 * x**3))), X)


def test_a_mask_that_follows_from_the_data_keeps_attention_in_parts() -> None:
    def masked(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, mask=(q[:, :, :1, 0] > 0).swapaxes(1, 2)[:, None, :, :] | jnp.eye(6, dtype=bool))

    assert "attention" not in operations(masked, *HEADS)
