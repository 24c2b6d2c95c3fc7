"""How an op may be performed on parts: from its rule (SEMANTICS 1.4) and its form follow, for given layouts of its operands, literals and results.

    mm (8, 4) (4, 6)     S(0), B        -->  mm (4, 4) (4, 6)  -> S(0)
    view (8, 4) -> (32)  S(0)           -->  view -> (16)      -> S(0)

The rules of planner.opset are the only trusted base here; each of their signatures is run on parts in the tests (SEMANTICS 1.6).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from planner.ir.graph import Arg, Op, Ref
from planner.ir.sbp import NdSbp, Sbp
from planner.ir.tensor import TensorType
from planner.opset import local_types, localize, signatures
from planner.validate.values.literals import Key, arguments_key
from planner.validate.values.numbers import OpForm

__all__ = ["LocalForms", "Results"]

Results = tuple[NdSbp | None, ...]
"""The layout of each result; None: nobody reads it."""

_Partial = tuple[Op, dict[str, TensorType], tuple[tuple[Sbp | None, ...], ...]]
"""An op that is local along some axes, with the types of its values and the layouts of its results there."""


class LocalForms:
    """Local forms of ops, worked out once per form, layouts and mesh."""

    def __init__(self) -> None:
        self._known: dict[Key, Mapping[Key, tuple[Results, ...]]] = {}

    def of(
        self, form: OpForm, places: tuple[int, ...], mesh: tuple[int, ...], layouts: tuple[NdSbp, ...]
    ) -> Mapping[Key, tuple[Results, ...]]:
        """Key of the local arguments (planner.validate.values.literals) -> the layouts of the results, each of which holds; empty: no rule fits.

        Args:
            places: per operand the number of its name.   layouts: of the operands.
        """
        key = form, places, mesh, layouts
        if key not in self._known:
            found: dict[Key, list[Results]] = defaultdict(list)
            for op, results in _local_forms(form, places, mesh, layouts):
                found[arguments_key(op, int)].append(results)
            self._known[key] = {arguments: tuple(dict.fromkeys(results)) for arguments, results in found.items()}
        return self._known[key]


def _local_forms(form: OpForm, places: tuple[int, ...], mesh: Sequence[int], layouts: Sequence[NdSbp]) -> Iterator[tuple[Op, Results]]:
    """The op on one device, axis by axis: ND signatures are products of 1-D ones (SEMANTICS 1.5)."""
    whole = _named(form, places)
    types = dict(zip(whole.inputs, form.inputs, strict=True))
    types |= {name: type_ for name, type_ in zip(whole.outputs, form.outputs, strict=True) if name is not None and type_ is not None}
    forms: list[_Partial] = [(whole, types, ((),) * len(whole.outputs))]
    for axis, parts in enumerate(mesh):
        wanted = tuple(layout[axis] for layout in layouts)
        forms = list(chain.from_iterable(_along_axis(partial, parts, wanted) for partial in forms))
    for op, _, results in forms:
        yield op, tuple(None if None in entries else NdSbp(tuple(e for e in entries if e is not None)) for entries in results)


def _along_axis(partial: _Partial, parts: int, wanted: tuple[Sbp, ...]) -> Iterator[_Partial]:
    op, types, results = partial
    for signature in signatures(op, types, parts):
        if signature.inputs != wanted:
            continue
        local = dict(types)
        for value, sbp in zip(op.inputs, wanted, strict=True):
            local[value] = types[value].with_shape(NdSbp((sbp,)).local_shape(types[value].shape, (parts,)))
        local |= local_types(op, signature, types, parts)
        along = tuple((*before, sbp) for before, sbp in zip(results, signature.outputs, strict=True))
        yield localize(op, signature, types, parts), local, along


def _named(form: OpForm, places: tuple[int, ...]) -> Op:
    """An op of the form whose operands are named by their places ("0", "1", ...)."""
    names = iter([str(place) for place in places])
    args = tuple(_with_operands(arg, names) for arg in form.op.args)
    kwargs = tuple((key, _with_operands(arg, names)) for key, arg in form.op.kwargs)
    outputs = tuple(None if type_ is None else f"result {place}" for place, type_ in enumerate(form.outputs))
    return Op(id=form.op.id, target=form.op.target, args=args, kwargs=kwargs, outputs=outputs, role=form.op.role, draw=form.op.draw)


def _with_operands(arg: Arg, names: Iterator[str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(next(names))
    return tuple(_with_operands(item, names) for item in arg) if isinstance(arg, tuple) else arg
