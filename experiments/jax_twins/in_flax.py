"""GPT, ViT and an MLP-mixer in Flax NNX, with a step of optax AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

__all__ = ["MODELS", "batch_of", "step_of"]

WIDTH, HEADS, LAYERS, BATCH = 64, 4, 2, 8
TOKENS, VOCAB = 32, 128
IMAGE, PATCH, CLASSES = 16, 4, 16


class Attention(nnx.Module):
    def __init__(self, width: int, heads: int, causal: bool, rngs: nnx.Rngs) -> None:
        self.heads, self.causal = heads, causal
        self.q, self.v, self.proj = (nnx.Linear(width, width, rngs=rngs) for _ in range(3))
        self.k = nnx.Linear(width, width, use_bias=False, rngs=rngs)  # a softmax does not see it: its gradient would be rounding alone

    def __call__(self, x: Any) -> Any:
        batch, time, width = x.shape

        q, k, v = (of(x).reshape(batch, time, self.heads, width // self.heads) for of in (self.q, self.k, self.v))
        return self.proj(jax.nn.dot_product_attention(q, k, v, is_causal=self.causal).reshape(batch, time, width))


class Mlp(nnx.Module):
    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs, bias: bool = True) -> None:
        self.up, self.down = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, use_bias=bias, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(nnx.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, causal: bool, rngs: nnx.Rngs) -> None:
        self.ln_1, self.ln_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attn, self.mlp = Attention(width, heads, causal, rngs), Mlp(width, 4 * width, rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.wte, self.wpe = nnx.Embed(VOCAB, WIDTH, rngs=rngs), nnx.Embed(TOKENS, WIDTH, rngs=rngs)
        self.h = nnx.List([Block(WIDTH, HEADS, True, rngs) for _ in range(LAYERS)])
        self.ln_f, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, VOCAB, use_bias=False, rngs=rngs)

    def __call__(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(jnp.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class ViT(nnx.Module):
    """Patches by a convolution, the mean of all tokens into the head."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, WIDTH, (PATCH, PATCH), strides=(PATCH, PATCH), padding="VALID", rngs=rngs)
        self.positions = nnx.Param(jax.random.normal(rngs.params(), (1, (IMAGE // PATCH) ** 2, WIDTH)) * 0.02)
        self.h = nnx.List([Block(WIDTH, HEADS, False, rngs) for _ in range(LAYERS)])
        self.ln_f, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, WIDTH) + self.positions
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x).mean(axis=1))


class MixerBlock(nnx.Module):
    def __init__(self, tokens: int, width: int, rngs: nnx.Rngs) -> None:
        self.ln_1, self.ln_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.of_tokens = Mlp(tokens, 2 * tokens, rngs, bias=False)  # layer norms take a token's mean away: no gradient but rounding
        self.of_channels = Mlp(width, 4 * width, rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.of_tokens(self.ln_1(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.of_channels(self.ln_2(x))


class Mixer(nnx.Module):
    """An MLP-mixer on patches that were flattened."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        tokens = (IMAGE // PATCH) ** 2
        self.stem = nnx.Linear(3 * PATCH * PATCH, WIDTH, rngs=rngs)
        self.h = nnx.List([MixerBlock(tokens, WIDTH, rngs) for _ in range(LAYERS)])
        self.ln_f, self.head = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, patches: Any) -> Any:
        x = self.stem(patches)
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x).mean(axis=1))


def batch_of(name: str, seed: int = 0) -> tuple[Any, Any]:
    """Inputs and labels of a model; ViT's images have their channels last, as Flax convolves."""
    random = np.random.default_rng(seed)
    if name == "gpt":
        ids = random.integers(0, VOCAB, (BATCH, TOKENS + 1)).astype(np.int32)
        return ids[:, :-1].copy(), ids[:, 1:].copy()
    shape = (BATCH, IMAGE, IMAGE, 3) if name == "vit" else (BATCH, (IMAGE // PATCH) ** 2, 3 * PATCH * PATCH)
    return random.standard_normal(shape).astype(np.float32), random.integers(0, CLASSES, BATCH).astype(np.int32)


MODELS: dict[str, Callable[[nnx.Rngs], Any]] = {"gpt": GPT, "vit": ViT, "mixer": Mixer}


def step_of(name: str, tx: optax.GradientTransformation | None = None) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """(step, state, batch) of a model: step(state, batch) -> (state, loss), with AdamW unless told otherwise."""
    graph, parameters = nnx.split(MODELS[name](nnx.Rngs(0)))
    used = tx or optax.adamw(1e-3, eps=1e-6, weight_decay=0.01)

    def loss_of(given: Any, batch: Any) -> Any:
        inputs, labels = batch
        logits = nnx.merge(graph, given)(inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state: Any, batch: Any) -> Any:
        given, held = state
        loss, gradients = jax.value_and_grad(loss_of)(given, batch)
        updates, held = used.update(gradients, held, given)
        return (optax.apply_updates(given, updates), held), loss

    return step, (parameters, used.init(parameters)), batch_of(name)
