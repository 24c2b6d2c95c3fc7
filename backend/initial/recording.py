"""What a module's own code does to its parameters when it is built, noted without memory and without random numbers.

The module is built on the meta device (shapes only) under a dispatch mode that sees every op:

    factories (zeros, randn, ...)          a recipe begins
    x.normal_(), x.mul_(0.5), x.fill_(0)   a step more, on the box of the parameter that the view ``x`` shows
    x * 0.5, x.clone(), x.to(dtype)        a recipe of its own, from that of x
    anything without chance in it          is computed for real (masks, tables of positions): a fixed tensor
    anything else                          cannot be drawn in parts: refused, if a parameter or buffer holds it in the end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from backend.initial.recipe import Arithmetic, Cast, Change, Distribution, Draw, Fill, Normal, Recipe, Step, TruncatedNormal, Uniform
from backend.initial.values import Box, numel_of, overlap, whole_box
from planner.ir.errors import RegistaError, Unsupported
from planner.ir.tensor import DType

__all__ = ["Recorded", "record"]

_IS_META = Tensor.is_meta.__get__  # type: ignore[attr-defined]
_GIVEN = (torch.tensor, torch.as_tensor)

MOST_FIXED = 1 << 26
"""Elements of one fixed tensor; a larger one is not made in passing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    recipes: Mapping[str, Recipe]
    fixed: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor lies in its storage.  A reference to the tensor itself would keep ``module.to`` from swapping it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> _Layout:
        return _Layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return self.stride == tuple(math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))


@dataclass(slots=True)
class _Noted:
    """What is known about a storage.  ``base``: of the tensor that made it.  One of: steps (``why`` empty, ``value`` None), value, why."""

    base: _Layout
    steps: list[Step] = field(default_factory=list)
    value: Tensor | None = None
    why: str = ""
    dtype: torch.dtype | None = None  # before the first step

    @property
    def by_chance(self) -> bool:
        return bool(self.why) or any(isinstance(step, Draw) for step in self.steps)

    @property
    def is_filled(self) -> bool:
        """Draws and fills reach every element: one of them the whole, or several disjoint boxes."""
        left = self.base.numel
        reached: list[Box] = []
        for step in self.steps:
            if not isinstance(step, Draw | Fill):
                continue
            if step.where is None:
                return True
            if all(overlap(step.where, box) is None for box in reached):
                left -= numel_of(step.where)
                reached.append(step.where)
        return left == 0


_FILLS: Mapping[str, float] = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
_CHANGES: Mapping[str, Arithmetic] = {op.value: op for op in Arithmetic} | {
    "subtract": Arithmetic.SUB,
    "multiply": Arithmetic.MUL,
    "divide": Arithmetic.DIV,
    "clamp_min": Arithmetic.CLAMP,
    "clamp_max": Arithmetic.CLAMP,
}


def record(build: Callable[[], nn.Module]) -> Recorded:
    """Build the module without memory and say how each parameter and buffer gets its values.

    Raises:
        Unsupported: naming the parameter and the op, or what the building code asked of a tensor that has no values yet.
    """
    recorder = _Recorder()
    with torch.random.fork_rng(devices=[]), torch.device("meta"), recorder, _NotToldMeta(), _inits_seen_by(recorder):
        try:
            module = build()
        except RegistaError:
            raise
        except Exception as error:
            text = str(error).strip().split("\n")[0]
            raise Unsupported(
                f"the module cannot be built without values ({type(error).__name__}: {text}); its initialisation reads what it has drawn. "
                f"Give its values instead: --init module, or --init weights:FILE"
            ) from error
        if not isinstance(module, nn.Module):
            raise Unsupported(f"the factory of the module returned a {type(module).__name__}; it must return an nn.Module")
    return recorder.told(module)


class _NotToldMeta(TorchFunctionMode):
    """Functions of torch.nn.init do nothing on the meta device, without a word (orthogonal_), so nobody is told that this is one.

    And torch.tensor(data) hands its data over before any op can be seen.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == _IS_META:  # another object at each look
            return False
        if func in _GIVEN and kwargs.get("device") in (None, torch.device("meta"), "meta"):
            return func(*args, **(kwargs | {"device": "cpu"})).to("meta")
        return func(*args, **kwargs)


@contextmanager
def _inits_seen_by(recorder: _Recorder) -> Iterator[None]:
    """trunc_normal_ draws until all samples lie inside (torch 2.13) or by an inverse function that rounds by position: note it as a whole."""
    from torch.nn import init

    original = init._no_grad_trunc_normal_

    def noted(tensor: Tensor, mean: float, std: float, a: float, b: float, generator: object = None) -> Tensor:
        recorder.draw(tensor, TruncatedNormal(mean=float(mean), std=float(std), low=float(a), high=float(b)))
        return tensor

    init._no_grad_trunc_normal_ = noted
    try:
        yield
    finally:
        init._no_grad_trunc_normal_ = original


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes: dict[int, _Noted] = {}
        self._kept: list[object] = []  # storages by whose address the notes are found
        self._draws = 0

    # What the module's code does.

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            self._changed(func, name.removesuffix("_"), args, kwargs)
        else:
            self._made(func, name, args, kwargs, result)
        return result

    def draw(self, tensor: Tensor, distribution: Distribution) -> None:
        self._draws += 1
        self._step(tensor, Draw(distribution=distribution, key=str(self._draws)), "a draw")

    def _note(self, tensor: Tensor) -> _Noted:
        """Of the storage; a real tensor, made outside or before, is a fixed value."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._notes:
            self._kept.append(storage)
            fake = _has_no_values(tensor)
            self._notes[key] = _Noted(
                _Layout.of(tensor), value=None if fake else tensor.detach(), why="" if not fake else "an unknown origin"
            )
        return self._notes[key]

    def _begin(self, tensor: Tensor, noted: _Noted) -> None:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        self._notes[storage._cdata] = noted

    def _changed(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        written = [a for a, spec in zip(args, func._schema.arguments, strict=False) if isinstance(a, Tensor) and _is_written(spec)]
        written += [kwargs[spec.name] for spec in func._schema.arguments if spec.name in kwargs and _is_written(spec)]
        if len(written) == 1 and _has_no_values(written[0]):
            target = written[0]
            if (distribution := _distribution(name, args[1:], kwargs)) is not None:
                return self.draw(target, distribution)
            number = _number(args[1]) if name == "fill" else 0.0 if name == "zero" else None
            if number is not None:
                return self._step(target, Fill(value=number), name)
            change = _change(name, args[1:], kwargs)
            if change is not None and self._note(target).value is None and target.is_floating_point():
                return self._step(target, change, name)
            if name == "copy" and isinstance(args[1], Tensor) and self._copied(target, args[1]):
                return None
        return self._for_real(func, name, args, kwargs, written)

    def _made(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        for out in tree_flatten(result)[0]:
            if not _has_no_values(out) or out.untyped_storage()._cdata in self._notes:
                continue  # a view of what is known
            value = _FILLS.get(name, _number(args[1]) if name in ("full", "full_like") else None)
            if name == "new_full":
                value = _number(args[2])
            if name in _EMPTY:
                self._begin(out, _Noted(_Layout.of(out), dtype=out.dtype))
            elif value is not None:
                self._begin(out, _Noted(_Layout.of(out), steps=[Fill(value=value)], dtype=out.dtype))
            elif (distribution := _factory(name, args, kwargs)) is not None:
                self._begin(out, _Noted(_Layout.of(out), dtype=out.dtype))
                self.draw(out, distribution)
            elif not self._derived(name, args, kwargs, out):
                self._for_real(func, name, args, kwargs, [])
                return self._results(func, name, args, kwargs, result)
        return None

    def _derived(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> bool:
        """A recipe from the recipe of the one tensor argument, which is taken whole."""
        if not args or not _has_no_values(args[0]) or any(isinstance(a, Tensor) for a in tree_flatten((args[1:], kwargs))[0]):
            return False
        source = self._note(args[0])
        step: Step | None = None
        if name == "_to_copy":
            step = Cast(dtype=DType.parse(str(out.dtype)))
        elif name != "clone" and out.dtype == args[0].dtype and out.is_floating_point():
            step = _change(name, args[1:], kwargs)
            if step is None:
                return False
        elif name != "clone":
            return False
        if source.value is not None or source.why or not source.is_filled or not _covers(args[0], source):
            return False
        self._begin(out, _Noted(_Layout.of(out), steps=[*source.steps, *([step] if step is not None else [])], dtype=source.dtype))
        return True

    def _copied(self, target: Tensor, source: Tensor) -> bool:
        """target.copy_(source), both taken whole; otherwise nothing is noted."""
        held, given = self._note(target), self._note(source)
        if not given.by_chance and _covers(target, held) and given.base.numel <= MOST_FIXED:
            with torch.device("cpu"), torch.no_grad():
                held.value = self._real(source).to(target.dtype).expand(target.shape).contiguous().clone()
            held.steps, held.why = [], ""
            return True
        simple = given.value is None and not given.why and given.is_filled and target.shape == source.shape
        if not simple or not _covers(target, held) or not _covers(source, given):
            return False
        cast = [Cast(dtype=DType.parse(str(target.dtype)))] if target.dtype != source.dtype else []
        held.steps, held.value, held.why, held.dtype = [*given.steps, *cast], None, "", given.dtype
        return True

    # Steps and real values.

    def _step(self, target: Tensor, step: Draw | Fill | Change, what: str) -> None:
        noted = self._note(target)
        whole = _covers(target, noted)
        if whole and not isinstance(step, Change):
            noted.steps, noted.value, noted.why, noted.dtype = [step], None, "", target.dtype
            return
        if noted.why:
            return
        if noted.value is not None:
            if isinstance(step, Draw):
                noted.why = f"{what} into a part of a computed tensor"
            else:  # a fill of a part
                with torch.device("cpu"), torch.no_grad():
                    _real_view(target, noted.value).fill_(step.value if isinstance(step, Fill) else math.nan)
            return
        where = None if whole else _box_of(target, noted.base)
        if where is None and not whole:
            noted.why = f"{what} on a view that is no box of it"
        else:
            noted.steps.append(replace(step, where=where))

    def _for_real(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[Tensor]) -> None:
        """In-place ops outside the language of recipes: carried out where no chance is in them."""
        if not written:
            return
        problem = self._problem(func, name, args, kwargs)
        if not problem:
            with torch.device("cpu"), torch.no_grad():
                func(*tree_map(self._real, args), **tree_map(self._real, kwargs))
            return
        for target in written:
            self._note(target).why, self._note(target).value = problem, None

    def _results(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """The same for ops that return something new."""
        outs = tree_flatten(result)[0]
        problem = self._problem(func, name, args, kwargs)
        large = [out for out in outs if isinstance(out, Tensor) and out.numel() > MOST_FIXED]
        if not problem and large:
            problem = f"{name}, which makes {large[0].numel()} elements at once (more than {MOST_FIXED})"
        values: Sequence[Any] = [None] * len(outs)
        if not problem:
            with torch.device("cpu"), torch.no_grad():
                values = tree_flatten(func(*tree_map(self._real, args), **tree_map(self._real, kwargs)))[0]
        for out, value in zip(outs, values, strict=True):
            if _has_no_values(out):
                self._begin(out, _Noted(_Layout.of(out), value=value, why=problem))

    def _problem(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Why the op cannot be carried out now; empty when it can."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            return name
        read = [self._note(value) for value in tree_flatten((args, kwargs))[0] if _has_no_values(value)]
        for noted in sorted(read, key=lambda noted: not noted.why):  # what went before says more than what follows from it
            if noted.why:
                return noted.why
            if noted.by_chance:
                return f"{name} of drawn values"
            if noted.value is None and noted.base.numel > MOST_FIXED:
                return f"{name}, which needs {noted.base.numel} elements at once (more than {MOST_FIXED})"
        return ""

    def _real(self, value: Any) -> Any:
        """The real tensor behind one of shapes only, without chance; and the real device."""
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not _has_no_values(value):
            return value
        noted = self._note(value)
        if noted.value is None:
            recipe = Recipe(shape=noted.base.shape, dtype=DType.parse(str(noted.dtype)), steps=tuple(noted.steps))
            noted.value = recipe.part(0, whole_box(recipe.shape))
        return _real_view(value, noted.value)

    # The result.

    def told(self, module: nn.Module) -> Recorded:
        recipes: dict[str, Recipe] = {}
        fixed: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        for what, pairs in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for name, tensor in pairs:
                noted = self._note(tensor)
                if noted.value is not None:
                    with torch.device("cpu"), torch.no_grad():
                        fixed[name] = _real_view(tensor, noted.value).contiguous().clone()
                    continue
                recipes[name] = _recipe(what, name, tensor, noted, names)
        return Recorded(recipes=recipes, fixed=fixed)


def _recipe(what: str, name: str, tensor: Tensor, noted: _Noted, names: dict[str, str]) -> Recipe:
    way_out = "give its values instead: --init module, or --init weights:FILE"
    if noted.why:
        raise Unsupported(f"{what} {name} is initialised by {noted.why}, which cannot be drawn in parts; {way_out}")
    if not noted.is_filled:
        raise Unsupported(f"{what} {name} keeps memory that was never filled (torch.empty); initialise it, or {way_out}")
    boxed = any(getattr(step, "where", None) is not None for step in noted.steps)
    if tensor.numel() != noted.base.numel or (boxed and _Layout.of(tensor) != noted.base):
        raise Unsupported(f"{what} {name} of shape {tuple(tensor.shape)} is a view of a larger or transposed tensor; {way_out}")
    steps: list[Step] = []
    for number, step in enumerate(noted.steps):
        # A draw is named after the first parameter that has it, so that adding a layer does not change the others.
        steps.append(replace(step, key=names.setdefault(step.key, f"{name}#{number}")) if isinstance(step, Draw) else step)
    return Recipe(shape=tuple(tensor.shape), dtype=DType.parse(str(noted.dtype or tensor.dtype)), steps=tuple(steps))


def _has_no_values(value: object) -> bool:
    """A tensor of shapes only."""
    return isinstance(value, Tensor) and value.device.type == "meta"


def _is_written(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, bool | int | float) else None


def _distribution(name: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Distribution | None:
    """Of x.normal_(mean, std) and x.uniform_(low, high)."""
    if name == "normal":
        mean, std = (*rest, *(0.0, 1.0)[len(rest) :])[:2]
        return Normal(mean=float(kwargs.get("mean", mean)), std=float(kwargs.get("std", std)))
    if name == "uniform":
        low, high = (*rest, *(0.0, 1.0)[len(rest) :])[:2]
        return Uniform(low=float(kwargs.get("from", low)), high=float(kwargs.get("to", high)))
    return None


def _factory(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Distribution | None:
    if name in ("randn", "randn_like"):
        return Normal()
    if name in ("rand", "rand_like"):
        return Uniform()
    if name == "normal" and len(args) >= 2 and all(isinstance(a, int | float) for a in args[:2]):
        return Normal(mean=float(args[0]), std=float(args[1]))
    return None


def _change(name: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Change | None:
    """Elementwise arithmetic with numbers."""
    op = _CHANGES.get(name)
    if op is None or any(kwargs.get(key) not in (None, 1) for key in ("alpha", "rounding_mode")):
        return None
    if op is Arithmetic.CLAMP:
        places = {"clamp": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",)}[name]
        given = dict(zip(places, rest, strict=False)) | {key: kwargs[key] for key in places if key in kwargs}
        if any(value is not None and _number(value) is None for value in given.values()):
            return None
        low, high = _number(given.get("min")), _number(given.get("max"))
        return Change(op=op, numbers=(-math.inf if low is None else low, math.inf if high is None else high))
    numbers = [_number(value) for value in rest]
    wanted = 0 if op in (Arithmetic.NEG, Arithmetic.ABS, Arithmetic.SQRT) else 1
    if len(numbers) != wanted or None in numbers:
        return None
    return Change(op=op, numbers=tuple(n for n in numbers if n is not None))


def _covers(view: Tensor, noted: _Noted) -> bool:
    """The view shows all elements of the tensor that made the storage, in its order."""
    return _Layout.of(view) == noted.base


def _box_of(view: Tensor, base: _Layout) -> Box | None:
    """The box of a contiguous ``base`` that the view shows, dims possibly dropped (select) or added (unsqueeze); None when it is none."""
    if not base.is_contiguous:
        return None
    left = int(view.storage_offset()) - base.offset
    shown = [(extent, stride) for extent, stride in zip(view.shape, view.stride(), strict=True) if extent != 1]
    box: list[tuple[int, int]] = []
    for extent, stride in zip(base.shape, base.stride, strict=True):
        offset, left = divmod(left, stride) if stride else (0, left)
        match = next((pair for pair in shown if pair[1] == stride and extent != 1), None)
        if match is not None:
            shown.remove(match)
        box.append((offset, match[0] if match is not None else 1))
        if offset + box[-1][1] > extent:
            return None
    return tuple(box) if not shown and left == 0 else None


def _real_view(view: Tensor, value: Tensor) -> Tensor:
    """The same view of the real tensor."""
    return value.as_strided(view.shape, view.stride(), view.storage_offset())
