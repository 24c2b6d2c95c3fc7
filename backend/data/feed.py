"""Batches that the user's own Python makes: a function of the step, or anything that can be iterated over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from planner.ir.errors import InvalidProgram

__all__ = ["Feed", "python_feed"]

Feed = Callable[[int], tuple[Tensor, ...]]
"""Step -> the global batch's tensors, in the order of plan.batch_inputs."""


def python_feed(batches: Feed | Iterable[Sequence[Tensor]]) -> Feed:
    """A function of the step, which may be asked for any step and more than once.

    An iterator is asked once per step, in order, and what it gave is kept; a run asks for all its steps before it starts, so an endless
    iterator is fine.  Data that does not fit into memory wants a reader (open_source), or a Session, which takes batches one by one.

    Raises (when it is asked):
        InvalidProgram: the iterator ends too early.
    """
    if callable(batches):
        return batches
    rest: Iterator[Sequence[Tensor]] = iter(batches)
    batches_so_far: list[tuple[Tensor, ...]] = []

    def batch(step: int) -> tuple[Tensor, ...]:
        while len(batches_so_far) <= step:
            try:
                batches_so_far.append(tuple(next(rest)))
            except StopIteration:
                raise InvalidProgram(
                    f"the batches end after {len(batches_so_far)}, step {step} needs one more; give more or run fewer steps"
                ) from None
        return batches_so_far[step]

    return batch
