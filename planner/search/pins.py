"""Pins: layouts of tensors that the user prescribes by name pattern; the search chooses all others.

h.*.mlp.c_fc.weight=S(1)      a parameter          input.0=S(0)        a batch input
*:exp_avg=S(0)                optimizer state      input.*=S(0),B      on a mesh of two axes
out:h.*=S(0)                  what these modules return (an activation)

In mixed precision a parameter's pin is that of its working copy, with which the step computes; the layout of its master is searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.graph import OUTPUT, LogicalGraph, Role
from planner.ir.sbp import Broadcast, NdSbp, Sbp

__all__ = ["Pin", "applicable", "parse_pins", "pinned_inputs", "pinned_outputs"]

_OUT = "out:"


@dataclass(frozen=True, slots=True)
class Pin:
    pattern: str
    sbp: NdSbp

    def __str__(self) -> str:
        return f"{self.pattern}={self.sbp}"


def parse_pins(texts: Iterable[str]) -> tuple[Pin, ...]:
    """Raises Unsupported for a text that is not PATTERN=SBP."""
    pins = []
    for text in texts:
        pattern, equals, sbp = text.partition("=")
        if not equals or not pattern:
            raise Unsupported(f"pin {text!r}: write PATTERN=SBP, for example 'h.*.mlp.c_fc.weight=S(0)' or 'input.0=S(0)'")
        try:
            pins.append(Pin(pattern, NdSbp.parse(sbp)))
        except InvalidPlan as error:
            raise Unsupported(f"pin {text!r}: {error}") from error
    return tuple(pins)


def applicable(pins: Sequence[Pin], graph: LogicalGraph) -> tuple[Pin, ...]:
    """The pins that name an input of a part of a graph, without pins of what modules return."""
    names = [i.name for i in graph.inputs]
    return tuple(pin for pin in pins if any(fnmatchcase(name, pin.pattern) for name in names))


def pinned_inputs(graph: LogicalGraph, pins: Sequence[Pin], mesh: tuple[int, ...]) -> Mapping[str, NdSbp]:
    """Value of each pinned graph input -> its NdSbp.

    Raises:
        Unsupported: a pin names no input, has another number of axes, splits unevenly, or contradicts another pin of the same tensor.
    """
    names = {i.value: i.name for i in graph.inputs}
    named = [(i.name, i.value) for i in graph.inputs if i.value not in graph.masters]
    named += [(names[i.copy_of], i.value) for i in graph.inputs if i.copy_of in names]
    return _resolve(graph, [pin for pin in pins if not pin.pattern.startswith(_OUT)], mesh, named, "parameter, state or input")


def pinned_outputs(graph: LogicalGraph, pins: Sequence[Pin], mesh: tuple[int, ...]) -> Mapping[str, NdSbp]:
    """Value that a module returns -> its NdSbp, for pins that begin with ``out:``.

    A module returns the result of its last forward op.

    Raises:
        Unsupported: as pinned_inputs.
    """
    last: dict[str, str] = {}
    for op in graph.ops:
        if op.role is not Role.FORWARD or op.outputs[0] is None or op.target == OUTPUT:
            continue
        parts = op.module.split(".") if op.module else []
        for depth in range(1, len(parts) + 1):
            last[_OUT + ".".join(parts[:depth])] = op.outputs[0]
    return _resolve(graph, [pin for pin in pins if pin.pattern.startswith(_OUT)], mesh, list(last.items()), "module")


def _resolve(
    graph: LogicalGraph,
    pins: Sequence[Pin],
    mesh: tuple[int, ...],
    entries: Sequence[tuple[str, str]],
    what: str,
) -> Mapping[str, NdSbp]:
    pinned: dict[str, tuple[Pin, NdSbp]] = {}
    for pin in pins:
        named = [(name, value) for name, value in entries if fnmatchcase(name, pin.pattern)]
        if not named:
            raise Unsupported(f"pin {pin} names no {what} of the model; names are like {', '.join(sorted(n for n, _ in entries)[:8])} ...")
        if len(pin.sbp) != len(mesh):
            raise Unsupported(
                f"pin {pin} has {len(pin.sbp)} entries, the mesh {'x'.join(map(str, mesh))} has {len(mesh)} axes; write one per axis"
            )
        if pin.sbp.has_partial:
            raise Unsupported(f"pin {pin}: only values can be pinned, not parts of a sum; use S(d) or B")
        for name, value in named:
            logical = graph.values[value]
            if name.endswith(":step"):
                continue  # the 0-d step counter of an optimizer is always whole
            if not pin.sbp.splits_evenly(logical.shape, mesh):
                raise Unsupported(
                    f"pin {pin}: {name} has shape {logical.shape}, which does not split evenly on mesh {'x'.join(map(str, mesh))}; "
                    f"choose another dim or narrow the pattern"
                )
            earlier = pinned.get(value)
            if earlier is not None and earlier[1] != pin.sbp:
                raise Unsupported(f"pins {earlier[0]} and {pin} contradict each other on {name}; keep one of them")
            pinned[value] = (pin, pin.sbp)
    # On an axis of one device a part is the whole, which strategies call B.
    whole: dict[int, Sbp] = {axis: Broadcast() for axis, parts in enumerate(mesh) if parts == 1}
    if whole:
        return {value: NdSbp(tuple(whole.get(axis, sbp[axis]) for axis in range(len(sbp)))) for value, (_, sbp) in pinned.items()}
    return {value: sbp for value, (_, sbp) in pinned.items()}
