"""Refusals of what torch raises while a step is traced; of operators whose results depend on values, what users usually write instead."""

from __future__ import annotations

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from planner.frontend.tracing.checks.draws import DrawDecides
from planner.frontend.tracing.source import raising_line, shown_line
from planner.ir.errors import InvalidProgram

__all__ = ["explained", "first_line", "is_of_values", "usual_rewrite"]

_BY_EXPERT = "in a loop over experts use the module's own batched or grouped form (Hugging Face: experts_implementation='grouped_mm' or 'batched_mm')"
_REWRITES = {
    "nonzero": "replace x[mask] and nonzero by torch.where(mask, x, 0) or a product with the mask; what the mask is made of may be a buffer, where "
    f"no batch changes it (the edges of a graph); {_BY_EXPERT}",
    "masked_select": "replace it by torch.where(mask, x, 0), and divide by mask.sum() where a mean was taken",
    "unique": "count into bins of fixed number (scatter_add of ones), or make the set before the step and give it as an input",
    "bincount": "give the number of bins by adding ones: x.new_zeros(bins).scatter_add(0, index, ones)",
    "repeat_interleave": "give output_size and equal repeats, or gather with an index of fixed length",
    "_local_scalar_dense": "replace if, int() and item() on tensors by torch.where or a mask (assert, and an if that only raises, may stay); "
    "values that no batch changes, as sizes of images, may come from torch.tensor([...]) in forward or from a buffer",
    "a random number": "set the probability that it is compared with to 0 (Hugging Face: layerdrop, encoder_layerdrop, decoder_layerdrop)",
    "_assert": "take the check out of forward, or make it before the step",
}
_ANY = "replace if/int()/item()/nonzero on tensors by torch.where or a mask"


def usual_rewrite(text: str) -> str:
    """What to write instead of the operator that ``text`` names.

    >>> usual_rewrite("aten.masked_select.default")
    'replace it by torch.where(mask, x, 0), and divide by mask.sum() where a mean was taken'
    """
    return next((rewrite for name, rewrite in _REWRITES.items() if name in text), _ANY)


def first_line(error: BaseException, *, kind: bool = True) -> str:
    """Of what an error says.   kind: its class in front."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if kind else text


def is_of_values(error: BaseException | None) -> bool:
    """Whether torch, or the tracer, raised it because a value decides a shape or what is computed."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # late: half a second, and no worker traces

    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException | GuardOnDataDependentSymNode | DrawDecides)


def explained(error: Exception, module: str) -> InvalidProgram:
    """The refusal for what torch raised while tracing ``module``, a path ('': the root)."""
    where = f"module {module!r}" if module else "the root module or the loss"
    text = first_line(error, kind=False)
    line = raising_line(error)
    at = f" at {shown_line(line)}" if line is not None else ""
    if is_of_values(error):
        return InvalidProgram(
            f"{where} lets a value decide what is computed{at} ({text}): a plan needs one fixed graph; {usual_rewrite(text)}"
        )
    if "mutating a non-functional tensor" in text:
        return InvalidProgram(f"{where} writes in place{at} into a tensor that is no buffer of the module; register it as a buffer")
    return InvalidProgram(f"tracing {where} raised {first_line(error)}{at}; the module must run on its example inputs at micro-batch size")
