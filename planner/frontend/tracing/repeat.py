"""Is the next step the same as this one?  A plan repeats one step for ever; a module whose Python changes while it runs may not.

    trace 1 --> what did forward change? --nothing--> the same for ever
                                         '--something--> trace 2 in the changed state, and one far on: the same graph, or a refusal

So only a module that changes something is traced again.  A change that no traced op depends on (a count of calls, the last activation kept
for a look) is told once: a run performs the graph and leaves the attribute as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from planner.frontend.tracing.reachable import ABSENT, Change, Snapshot
from planner.frontend.tracing.source import Line, raising_line, shown_line
from planner.frontend.tracing.stamp import LINE
from planner.ir.errors import InvalidProgram

__all__ = ["Results", "first_difference", "refuse_other_next_step", "shown_changes"]

_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A traced graph as far as it is compared: what it names, and the tensors behind get_attr."""

    graph: fx.Graph
    constants: Mapping[str, Tensor]
    trained: tuple[str, ...]


class _Numbering:
    """Gives equal computations equal numbers, whichever graph they stand in and in whichever order."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}

    def of(self, made: Results) -> dict[fx.Node, int]:
        numbers: dict[fx.Node, int] = {}
        inputs = 0
        for node in made.graph.nodes:
            if node.op == "placeholder":
                key: Hashable = ("input", inputs)
                inputs += 1
            elif node.op == "get_attr":
                key = ("constant", _content(made.constants[str(node.target)]))
            elif node.op == "call_function":
                named = tuple((name, _key(arg, numbers)) for name, arg in sorted(node.kwargs.items()))
                key = (node.target, _key(node.args, numbers), named)
            else:
                key = ("results", made.trained, _key(node.args, numbers))
            numbers[node] = self._number.setdefault(key, len(self._number))
        return numbers


def _key(arg: object, numbers: Mapping[fx.Node, int]) -> Hashable:
    if isinstance(arg, fx.Node):
        return ("node", numbers[arg])
    if isinstance(arg, list | tuple):
        return tuple(_key(item, numbers) for item in arg)
    return type(arg).__name__, repr(arg)  # 1, 1.0 and True are equal, but not the same; nan is the same as itself


def _content(tensor: Tensor) -> Hashable:
    if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
        return id(tensor)
    data = tensor.detach().cpu().contiguous().reshape(-1)
    return tuple(tensor.shape), str(tensor.dtype), data.resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes()


def first_difference(first: Results, second: Results) -> tuple[bool, Line | None]:
    """Whether the graphs differ, and the user's line of the first op of the second that the first does not have (None: unknown)."""
    numbering = _Numbering()
    known = set((of_first := numbering.of(first)).values())
    of_second = numbering.of(second)
    if of_first[_last(first.graph)] == of_second[_last(second.graph)]:
        return False, None
    new = (node for node, number in of_second.items() if number not in known and node.op != "output")
    lines = (node.meta.get(LINE) for node in new)
    return True, next((line for line in lines if line is not None), None)


def _last(graph: fx.Graph) -> fx.Node:
    (*_, last) = graph.nodes
    assert isinstance(last, fx.Node)
    return last


def shown_changes(changes: Sequence[Change]) -> str:
    """``calls (0, then 1), h.0.seen[2] (nothing, then a tensor)``, and how many more."""
    shown = ", ".join(f"{c.path} ({_shown(c.before)}, then {_shown(c.now)})" for c in changes[:_MOST_SHOWN])
    return shown + (f" and {len(changes) - _MOST_SHOWN} more" if len(changes) > _MOST_SHOWN else "")


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    if isinstance(value, bool | int | float) or value is None or value is ABSENT:
        return str(value)
    if isinstance(value, str):
        return value[:40]
    return f"a {type(value).__name__}"


def refuse_other_next_step(first: Results, snapshot: Snapshot, again: Callable[[], Results]) -> str:
    """Trace the next step where the first one changed something, and compare.

    Args:
        snapshot: taken before the first trace.   again: traces once more, as things stand.

    Returns:
        What changed without a traced op depending on it, in words; empty: nothing.

    Raises:
        InvalidProgram: the next step is another one; with what changed, and the user's line that computes with it.
    """
    changes = [change for change in snapshot.changes() if change.path.rpartition(".")[2].partition("[")[0] not in _DERIVED]
    if not changes:
        return ""
    if lasting := [change for change in changes if change.lasting]:
        raise _refusal(lasting, None, "tracing moved it on, and it cannot be put back")
    _compare(first, again, changes)
    for far in _FAR:
        numbers = [change for change in changes if _is_number(change)]
        for change in numbers:
            assert change.write is not None
            change.write(change.before + (change.now - change.before) * far)  # type: ignore[operator]
        if numbers:
            _compare(first, again, changes)
    told = [change for change in changes if not any(part in change.path for part in _BOOK_KEEPING)]
    return shown_changes(told)


_BOOK_KEEPING = ("_hooks",)
# What torch's recurrent layers make anew whenever their parameters are others, as they are in each trace.
_DERIVED = frozenset({"_flat_weights", "_flat_weight_refs"})
# A multiple of all numbers up to 16 and of 10 000, and the number before it: "every k-th step" is met by one of them.
_FAR = (3_603_600_000, 3_603_599_999)


def _is_number(change: Change) -> bool:
    return change.write is not None and type(change.now) in (int, float) and type(change.before) is type(change.now)


def _compare(first: Results, again: Callable[[], Results], changes: Sequence[Change]) -> None:
    try:
        second = again()
    except Exception as error:
        cause = error.__cause__ or error
        raise _refusal(changes, raising_line(cause), f"tracing the next step raised {str(cause).strip().splitlines()[0]}") from error
    differ, line = first_difference(first, second)
    if differ:
        raise _refusal(changes, line)


def _refusal(changes: Sequence[Change], line: Line | None, cause: str = "") -> InvalidProgram:
    where = f", and {shown_line(line)} computes with it" if line is not None else ""
    why = f" ({cause})" if cause else ""
    return InvalidProgram(
        f"forward changes {shown_changes(changes)}{where}{why}: the next step is another one, but a plan repeats the first for ever; "
        "make it a buffer (register_buffer) and compute with tensors, so that it is part of the state, or take it out of forward"
    )
