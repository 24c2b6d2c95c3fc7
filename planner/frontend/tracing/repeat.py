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

__all__ = ["Results", "first_difference", "fit_buffers", "refuse_other_next_step", "shown_changes"]

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

    def of(self, made: Results, known: Mapping[fx.Node, int] | None = None) -> dict[fx.Node, int]:
        """Numbers of a graph's nodes.   known: of placeholders that stand for what another graph computes."""
        numbers: dict[fx.Node, int] = dict(known or {})
        inputs = 0
        for node in made.graph.nodes:
            if node.op == "placeholder":
                key: Hashable = ("input", inputs)
                inputs += 1
                if node in numbers:
                    continue
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
    return _difference(first, second, (numbering := _Numbering()).of(first), numbering)


def _difference(
    first: Results,
    second: Results,
    of_first: Mapping[fx.Node, int],
    numbering: _Numbering,
    standing_for: Mapping[fx.Node, int] | None = None,
) -> tuple[bool, Line | None]:
    known = set(of_first.values())
    of_second = numbering.of(second, standing_for)
    if of_first[_last(first.graph)] == of_second[_last(second.graph)]:
        return False, None
    new = (node for node, number in of_second.items() if number not in known and node.op != "output")
    lines = (node.meta.get(LINE) for node in new)
    return True, next((line for line in lines if line is not None), None)


def fit_buffers(first: Results, buffers: Sequence[str], places: tuple[int, int], again: Callable[[Mapping[str, Tensor]], Results]) -> None:
    """Buffers to which forward gives another shape or dtype in its first step get the new one from the start, if the steps are alike.

    A table of positions that is made anew where it does not fit the input (ConViT's) has its size but after the first step.  Each step of a
    plan makes it anew, as the first does; so nothing but constants may enter it, and the next step, which reads what the first has left,
    must compute the same.

    Args:
        buffers: names, in the order of the graph's inputs and results.   places: of the first of them among the inputs, and the results.
        again: traces the next step, with these buffers.

    Raises:
        InvalidProgram: such a buffer depends on the step's inputs, or the next step is another one.
    """
    before = _placeholders(first.graph, places[0], len(buffers))
    after = list(_last(first.graph).args[0])[places[1] : places[1] + len(buffers)]  # type: ignore[arg-type]
    changed = {n: (old, new) for n, old, new in zip(buffers, before, after, strict=True) if _type(old) != _type(new)}
    if not changed:
        return
    name, (old, new) = next(iter(changed.items()))
    text = f"forward makes buffer {name} of {_shown_type(old)} one of {_shown_type(new)}"
    rewrite = "run the module once on a batch of this size before it is planned, so that its buffers have the sizes that they keep"
    if any(node.op == "placeholder" for _, made in changed.values() for node in _needed(made)):
        raise InvalidProgram(f"{text}, from the step's inputs: what a plan keeps has one shape and dtype for ever; {rewrite}")
    try:
        second = again({n: torch.empty_like(made.meta["val"], device="meta") for n, (_, made) in changed.items()})
    except Exception as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise InvalidProgram(f"{text}, and tracing the next step raised {cause}; {rewrite}") from error
    of_first = (numbering := _Numbering()).of(first)
    given = dict(zip(buffers, _placeholders(second.graph, places[0], len(buffers)), strict=True))
    differ, line = _difference(first, second, of_first, numbering, {given[n]: of_first[made] for n, (_, made) in changed.items()})
    if differ:
        where = f", and {shown_line(line)} computes with it" if line is not None else ""
        raise InvalidProgram(f"{text}{where}: the next step is another one, but a plan repeats the first for ever; {rewrite}")
    for old, made in changed.values():
        old.meta["val"] = made.meta["val"]


def _placeholders(graph: fx.Graph, first: int, count: int) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"][first : first + count]


def _needed(node: fx.Node) -> set[fx.Node]:
    """The node and all that it is computed from."""
    needed, waiting = {node}, [node]
    while waiting:
        fresh = [given for given in waiting.pop().all_input_nodes if given not in needed]
        needed.update(fresh)
        waiting.extend(fresh)
    return needed


def _type(node: fx.Node) -> tuple[torch.Size, torch.dtype]:
    return node.meta["val"].shape, node.meta["val"].dtype


def _shown_type(node: fx.Node) -> str:
    shape, dtype = _type(node)
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


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
