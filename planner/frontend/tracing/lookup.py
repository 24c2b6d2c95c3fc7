"""Look-ups whose table may be cut along the dim that is looked up: the ops behind vocabulary parallelism.

A part of a table must know which slots of the whole it holds.  So each op takes ``slots``, the numbers of the table's slots along that dim:
``arange(extent)`` on the whole, and wherever the table is S(d), ``slots`` is cut with it, which costs nothing (a range is made where it is
needed).  Its first element is the part's offset; an index that lies in another part contributes 0, and the parts add up (SBP P(sum)).
Of a long dim only every ``step``-th slot is listed (``slots_of``): 8 bytes for each of 10^9 rows would outweigh the rows of a part.

    table       V = 8, width 2 on two devices, index [5, 1]
    rank 0      slots 0..3      5 -> 0 0      1 -> row 1
    rank 1      slots 4..7      5 -> row 5    1 -> 0 0          the sum of both is the look-up          [Shoeybi et al. 2019, section 3]

    regista.embedding            weight [V, D], index [*i]                  -> [*i, D]     rows of a table
    regista.embedding_backward   grad [*i, D], index [*i]                   -> [V, D]      its adjoint
    regista.pick                 x [.., V, ..], index [.., k, ..]           -> [.., k, ..] elements along one dim (torch.gather)
    regista.place                source [.., k, ..], index [.., k, ..]      -> [.., V, ..] its adjoint: 0 elsewhere, repeats add up

Two more take a whole table and an index that is as large as what it says: of tokens [G, T, M] that are picked whole, [G, k, 1].  torch wants it
widened to [G, k, M], and autograd keeps it for the backward pass: a view that costs nothing there, but a value of its own in a Plan.

    regista.take_along           x [G, T, M], index [G, k, 1]                         -> [G, k, M]   torch.gather of the widened index
    regista.add_along            x [G, T, M], index [G, k, 1], source [G, k, M]       -> [G, T, M]   torch.scatter_add of it

``extent`` is the whole V, whatever the part: a table that is whole takes torch's own kernel and no mask.  Nothing of the shape
[tokens, V, D] exists anywhere.  Together with the log softmax in algebra (decomp.py), ``pick`` and ``place`` are the vocabulary-parallel
cross-entropy: a maximum, a sum and the picked logit per token cross the network, never the logits.

The functions are the kernels; as custom ops of torch (``regista::pick``) they can be traced.

``embedding_rows`` stands in a trace where torch would make a sparse gradient (``nn.Embedding(sparse=True)``): the type is that of the table, and
no graph keeps it: planner.frontend.to_graph.sparse_tables takes its operands for the update, or makes it an ``embedding_backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd

import torch
from torch import Tensor
from torch.library import Library

__all__ = [
    "ADD_ALONG",
    "EMBEDDING_ROWS",
    "KERNELS",
    "TAKE_ALONG",
    "embedding",
    "embedding_backward",
    "mine_of",
    "pick",
    "place",
    "slots_of",
    "sparse_lookups",
]

EMBEDDING_ROWS = "regista.embedding_rows"
"""The target that stands for a sparse gradient."""
TAKE_ALONG, ADD_ALONG = "regista.take_along", "regista.add_along"

aten = torch.ops.aten

_ALL_LISTED = 1 << 16
# Parts come in such numbers: products of small primes.
_PARTS = 2**12 * 3**3 * 5**2 * 7 * 11 * 13


def slots_of(extent: int) -> tuple[Tensor, int]:
    """The slots to list of a dim, and the step between them; their number shares with ``extent`` every divisor that parts are likely to be.

    >>> slots_of(3)
    (tensor([0, 1, 2]), 1)
    """
    if extent <= _ALL_LISTED:
        return torch.arange(extent), 1
    step = extent // gcd(extent, _PARTS)
    return torch.arange(0, extent, step), step


def embedding(weight: Tensor, index: Tensor, slots: Tensor, extent: int) -> Tensor:
    """weight [v, D] (rows ``slots`` of ``extent``), index [*i] of whole row numbers -> [*i, D].

    Raises:
        IndexError: an index is outside the table.  Parts can say so on CPUs only; elsewhere asking would wait for the device.
    """
    if weight.shape[0] == extent:
        return aten.embedding.default(weight, index)  # type: ignore[no-any-return]
    mine, place_of = mine_of(index, slots, weight.shape[0], extent)
    return aten.embedding.default(weight, place_of).masked_fill_(~mine.unsqueeze(-1), 0)  # type: ignore[no-any-return]


def embedding_backward(grad: Tensor, index: Tensor, slots: Tensor, extent: int, padding_idx: int, step: int = 1) -> Tensor:
    """The weight's gradient [v, D] from grad [*i, D]; the row ``padding_idx`` (-1: none) gets nothing."""
    rows = slots.shape[0] * step
    if rows == extent:
        return aten.embedding_dense_backward.default(grad, index, extent, padding_idx, False)  # type: ignore[no-any-return]
    mine, place_of = mine_of(index, slots, rows, extent)
    # torch leaves out the indices that are its padding index: here also those of other parts
    taken = torch.where(mine & (index != padding_idx), place_of, -1)
    return aten.embedding_dense_backward.default(grad, taken, rows, -1, False)  # type: ignore[no-any-return]


def pick(x: Tensor, dim: int, index: Tensor, slots: Tensor, extent: int) -> Tensor:
    """torch.gather(x, dim, index), x holding ``slots`` of ``extent`` along dim; 0 where the element lies in another part."""
    if x.shape[dim] == extent:
        return torch.gather(x, dim, index)
    mine, place_of = mine_of(index, slots, x.shape[dim], extent)
    return torch.gather(x, dim, place_of).masked_fill_(~mine, 0)


def place(source: Tensor, dim: int, index: Tensor, slots: Tensor, extent: int, step: int = 1) -> Tensor:
    """Zeros with ``source`` added at ``index`` along dim, of which the result holds ``slots`` of ``extent``."""
    shape = _with_extent(source, dim, slots.shape[0] * step)
    if shape[dim] != extent:
        mine, index = mine_of(index, slots, shape[dim], extent)
        source = torch.where(mine, source, 0)
    return source.new_zeros(shape).scatter_add_(dim, index, source)


def take_along(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """torch.gather(x, dim, index) with the index widened to x in all other dims."""
    return torch.gather(x, dim, index.expand(_with_extent(x, dim, index.shape[dim])))


def add_along(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """torch.scatter_add(x, dim, index, source) with the index widened to the source."""
    return torch.scatter_add(x, dim, index.expand(source.shape), source)


def _with_extent(x: Tensor, dim: int, extent: int) -> list[int]:
    """The shape of ``x``, but of size ``extent`` in dim ``dim``."""
    shape = list(x.shape)
    shape[dim] = extent
    return shape


def mine_of(index: Tensor, slots: Tensor, count: int, extent: int) -> tuple[Tensor, Tensor]:
    """Which indices lie in this part of ``count`` slots, and where (0 for those that do not)."""
    if index.is_cpu and index.numel():
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= extent:
            raise IndexError(f"indices {low}..{high} do not fit a table of {extent} slots")
    shifted = index - slots[:1]  # not item(): an accelerator would wait
    mine = (shifted >= 0) & (shifted < count)
    return mine, torch.where(mine, shifted, 0)


def embedding_rows(grad: Tensor, index: Tensor, slots: Tensor, extent: int, padding_idx: int, step: int = 1) -> Tensor:
    """``embedding_backward``, marked as sparse; only traced."""
    return embedding_backward(grad, index, slots, extent, padding_idx, step)


@contextmanager
def sparse_lookups() -> Iterator[None]:
    """Inside, the gradient of ``F.embedding(..., sparse=True)`` is ``regista.embedding_rows`` instead of a sparse tensor.

    The operator is composite, so it is taken under autograd's key, as attention is.
    """
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("embedding_sparse_backward", _sparse_backward, "AutogradCPU")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _sparse_backward(grad: Tensor, index: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
    if scale_grad_by_freq:
        raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")  # as torch says
    slots, step = slots_of(rows)
    return torch.ops.regista.embedding_rows(grad, index, slots, rows, padding_idx, step)  # type: ignore[no-any-return]


KERNELS: dict[str, Callable[..., Tensor]] = {
    "regista.embedding": embedding,
    "regista.embedding_backward": embedding_backward,
    "regista.pick": pick,
    "regista.place": place,
    TAKE_ALONG: take_along,
    ADD_ALONG: add_along,
}
"""Target -> the function that performs it."""


def _embedding_type(weight: Tensor, index: Tensor, slots: Tensor, extent: int) -> Tensor:
    return weight.new_empty([*index.shape, weight.shape[1]])


def _embedding_backward_type(grad: Tensor, index: Tensor, slots: Tensor, extent: int, padding_idx: int, step: int = 1) -> Tensor:
    return grad.new_empty([slots.shape[0] * step, grad.shape[-1]])


def _pick_type(x: Tensor, dim: int, index: Tensor, slots: Tensor, extent: int) -> Tensor:
    return x.new_empty(index.shape)


def _place_type(source: Tensor, dim: int, index: Tensor, slots: Tensor, extent: int, step: int = 1) -> Tensor:
    return source.new_empty(_with_extent(source, dim, slots.shape[0] * step))


def _take_along_type(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.new_empty(_with_extent(x, dim, index.shape[dim]))


def _add_along_type(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return x.new_empty(x.shape)


for _function, _type in (
    (embedding, _embedding_type),
    (embedding_backward, _embedding_backward_type),
    (embedding_rows, _embedding_backward_type),
    (pick, _pick_type),
    (place, _place_type),
    (take_along, _take_along_type),
    (add_along, _add_along_type),
):
    torch.library.custom_op(f"regista::{_function.__name__}", _function, mutates_args=()).register_fake(_type)
