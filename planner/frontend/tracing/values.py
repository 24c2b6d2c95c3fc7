"""Operators whose results' shapes, or whose Python results, depend on values: what users usually write instead."""

from __future__ import annotations

__all__ = ["usual_rewrite"]

_BY_EXPERT = "in a loop over experts use the module's own batched or grouped form (Hugging Face: experts_implementation='grouped_mm' or 'batched_mm')"
_REWRITES = {
    "nonzero": f"replace x[mask] and nonzero by torch.where(mask, x, 0) or a product with the mask; {_BY_EXPERT}",
    "masked_select": "replace it by torch.where(mask, x, 0), and divide by mask.sum() where a mean was taken",
    "unique": "count into bins of fixed number (scatter_add of ones), or make the set before the step and give it as an input",
    "bincount": "give the number of bins by adding ones: x.new_zeros(bins).scatter_add(0, index, ones)",
    "repeat_interleave": "give output_size and equal repeats, or gather with an index of fixed length",
    "_local_scalar_dense": "replace if, int() and item() on tensors by torch.where or a mask",
    "_assert": "take the check out of forward, or make it before the step",
}
_ANY = "replace if/int()/item()/nonzero on tensors by torch.where or a mask"


def usual_rewrite(text: str) -> str:
    """What to write instead of the operator that ``text`` names.

    >>> usual_rewrite("aten.masked_select.default")
    'replace it by torch.where(mask, x, 0), and divide by mask.sum() where a mean was taken'
    """
    return next((rewrite for name, rewrite in _REWRITES.items() if name in text), _ANY)
