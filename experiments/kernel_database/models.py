"""The kernels of NeuSight's float32 models, by simple arithmetic on shapes: what Hugging Face's eager attention launches, layer by layer.

Units of memory traffic: an activation is tokens x hidden, a score is batch x heads x tokens x tokens, a wide one is tokens x feed-forward.
Each line of ``_layer`` is one kernel of the forward pass, with the elements that it reads and writes, and those of its backward pass.  Fused
(torch.compile): the elementwise ops between two products are one pass over what comes in and goes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["MODELS", "Launch", "Model", "launches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """family: bert, gpt2 or opt, which differ in what stands around the products."""

    family: str
    layers: int
    hidden: int
    heads: int
    vocab: int


MODELS = {
    "bert_large": Model(family="bert", layers=24, hidden=1024, heads=16, vocab=30522),
    "gpt2_large": Model(family="gpt2", layers=36, hidden=1280, heads=20, vocab=50257),
    "gpt3_xl": Model(family="gpt2", layers=24, hidden=3072, heads=24, vocab=50257),
    "gpt3_27": Model(family="gpt2", layers=32, hidden=2560, heads=32, vocab=50257),
    "opt_13": Model(family="opt", layers=24, hidden=2048, heads=32, vocab=50272),
}
"""gpt3_xl: 24 heads of 128, and so 3,072 wide (2,048 in the GPT-3 paper's table, which its times rule out: they are those of 2.7 billion
parameters).  The Switch models' sizes are not published beside their times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel that is launched ``times`` times: a product (batch, m, n, k), or a pass over ``swept`` elements of four bytes."""

    times: int
    product: tuple[int, int, int, int] | None = None
    swept: float = 0.0


def launches(model: Model, batch: int, seq: int, *, train: bool, fused: bool) -> Iterator[Launch]:
    """All kernels of a forward pass, and of a backward pass where ``train``; without the loss' forward pass, which was not timed."""
    tokens, wide = batch * seq, 4 * model.hidden
    act, score = float(tokens * model.hidden), float(batch * model.heads * seq * seq)
    head_dim = model.hidden // model.heads
    linears = [(tokens, model.hidden, wide), (tokens, wide, model.hidden), (tokens, model.hidden, model.hidden)]
    linears += [(tokens, 3 * model.hidden, model.hidden)] if model.family == "gpt2" else 3 * [(tokens, model.hidden, model.hidden)]
    for m, n, k in linears:
        yield from _linear(m, n, k, model.layers, train)
    heads = batch * model.heads
    for m, n, k in ((seq, seq, head_dim), (seq, head_dim, seq)):
        yield Launch(times=model.layers, product=(heads, m, n, k))
        if train:
            yield Launch(times=model.layers, product=(heads, m, k, n))
            yield Launch(times=model.layers, product=(heads, k, n, m))
    for forward, backward in _layer(model.family, act, score, float(tokens * wide), train=train, fused=fused):
        yield Launch(times=model.layers, swept=forward)
        if train:
            yield Launch(times=model.layers, swept=backward)
    if model.family != "bert" or train:
        yield from _linear(tokens, model.vocab, model.hidden, 1, train)
        if train:
            yield Launch(times=3, swept=2.5 * tokens * model.vocab)


def _linear(m: int, n: int, k: int, times: int, train: bool) -> Iterator[Launch]:
    yield Launch(times=times, product=(1, m, n, k))
    if train:
        yield Launch(times=times, product=(1, m, k, n))
        yield Launch(times=times, product=(1, k, n, m))
        yield Launch(times=times, swept=m * n)  # the bias' gradient


def _layer(family: str, act: float, score: float, wide: float, *, train: bool, fused: bool) -> list[tuple[float, float]]:
    """(elements of the forward pass, of the backward pass) of each kernel that is no product."""
    norms = [(2 * act, 4 * act)] * 2
    copies = [(2 * act, 2 * act)] * 4  # queries, keys and values in the order of heads, and back
    if fused:
        activation = [(2 * wide, 3 * wide)]
        return [*[(3 * act, 4 * act)] * 2, *copies, (2 * score, 3 * score), *activation]
    adds = [(3 * act, 3 * act)] * 2
    drops = [(2.25 * act, 2.25 * act)] * 2 + [(2.25 * score, 2.25 * score)] if train else []
    shared = [*norms, *adds, *copies, *drops, (2 * score, 3 * score)]
    if family == "bert":  # scores / sqrt(d), + mask; GELU as one kernel
        return [*shared, (2 * score, 2 * score), (2 * score, 0.0), (2 * wide, 3 * wide)]
    if family == "opt":  # scaled queries, + mask, maximum with the least number; ReLU
        return [*shared, (2 * act, 2 * act), (2 * score, 0.0), (2 * score, 3 * score), (2 * wide, 3 * wide)]
    gelu = [(2 * wide, 3 * wide)] * 6 + [(3 * wide, 4 * wide)] * 2  # tanh's approximation, op by op
    return [*shared, (2 * score, 2 * score), (2 * score, 2 * score), *gelu]
