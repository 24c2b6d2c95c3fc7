"""Records what a module's own code does to its parameters when it is built, without memory and without random numbers.

The module is built on the meta device (shapes only) under a dispatch mode that sees every op:

    factories (zeros, randn, ...)          a recipe begins
    x.normal_(), x.mul_(0.5), x.fill_(0)   a step more, on the box of the parameter that the view ``x`` shows
    x * 0.5, x.clone(), x.to(dtype)        a recipe of its own, from that of x
    anything that draws nothing            is computed for real (masks, tables of positions): a fixed tensor
    anything else                          cannot be drawn in parts: refused, if a parameter or buffer holds it in the end
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from backend.initial.aten_steps import EMPTY, FILLS, change_of, distribution_of, factory_distribution, number_of
from backend.initial.recipe import Cast, Change, Distribution, Draw, Fill, Recipe, Step, TruncatedNormal
from backend.initial.storage_notes import Layout, StorageNote, box_shown, covers, has_no_values, real_view, recipe_of
from backend.initial.values import whole_box
from planner.ir.errors import RegistaError, Unsupported
from planner.ir.tensor import DType

__all__ = ["Recorded", "record"]

_IS_META = Tensor.is_meta.__get__  # type: ignore[attr-defined]
_GIVEN = (torch.tensor, torch.as_tensor)

MOST_FIXED = 1 << 26
"""The most elements that a tensor computed while recording may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    recipes: Mapping[str, Recipe]
    fixed: Mapping[str, Tensor]


def record(build: Callable[[], nn.Module]) -> Recorded:
    """Build the module without memory and say how each parameter and buffer gets its values.

    Raises:
        Unsupported: naming the parameter and the op, or what the building code asked of a tensor that has no values yet.
    """
    recorder = _Recorder()
    with torch.random.fork_rng(devices=[]), torch.device("meta"), recorder, _HidesMeta(), _recording_truncated_normals(recorder):
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
    return recorder.recorded(module)


class _HidesMeta(TorchFunctionMode):
    """Hides from the building code that it works on the meta device: functions of torch.nn.init silently do nothing there (orthogonal_).

    torch.tensor(data) is computed on the CPU, as it reads its data before any op can be recorded.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == _IS_META:  # another object at each look
            return False
        if func in _GIVEN and kwargs.get("device") in (None, torch.device("meta"), "meta"):
            return func(*args, **(kwargs | {"device": "cpu"})).to("meta")
        return func(*args, **kwargs)


@contextmanager
def _recording_truncated_normals(recorder: _Recorder) -> Iterator[None]:
    """Record trunc_normal_ as one draw: it draws until all samples lie inside (torch 2.13), or by an inverse function that rounds by position."""
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
        self._notes: dict[int, StorageNote] = {}
        self._kept: list[object] = []  # the notes are keyed by the addresses of these storages
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

    def _note(self, tensor: Tensor) -> StorageNote:
        """Of the storage; a real tensor, made outside or before, is a fixed value."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._notes:
            self._kept.append(storage)
            fake = has_no_values(tensor)
            self._notes[key] = StorageNote(
                Layout.of(tensor), value=None if fake else tensor.detach(), why="" if not fake else "an unknown origin"
            )
        return self._notes[key]

    def _begin(self, tensor: Tensor, noted: StorageNote) -> None:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        self._notes[storage._cdata] = noted

    def _changed(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        written = [a for a, spec in zip(args, func._schema.arguments, strict=False) if isinstance(a, Tensor) and _is_written(spec)]
        written += [kwargs[spec.name] for spec in func._schema.arguments if spec.name in kwargs and _is_written(spec)]
        if len(written) == 1 and has_no_values(written[0]):
            target = written[0]
            if (distribution := distribution_of(name, args[1:], kwargs)) is not None:
                return self.draw(target, distribution)
            number = number_of(args[1]) if name == "fill" else 0.0 if name == "zero" else None
            if number is not None:
                return self._step(target, Fill(value=number), name)
            change = change_of(name, args[1:], kwargs)
            if change is not None and self._note(target).value is None and target.is_floating_point():
                return self._step(target, change, name)
            if name == "copy" and isinstance(args[1], Tensor) and self._copied(target, args[1]):
                return None
        return self._for_real(func, name, args, kwargs, written)

    def _made(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        for out in tree_flatten(result)[0]:
            if not has_no_values(out) or out.untyped_storage()._cdata in self._notes:
                continue  # a view of what is known
            value = FILLS.get(name, number_of(args[1]) if name in ("full", "full_like") else None)
            if name == "new_full":
                value = number_of(args[2])
            if name in EMPTY:
                self._begin(out, StorageNote(Layout.of(out), dtype=out.dtype))
            elif value is not None:
                self._begin(out, StorageNote(Layout.of(out), steps=[Fill(value=value)], dtype=out.dtype))
            elif (distribution := factory_distribution(name, args, kwargs)) is not None:
                self._begin(out, StorageNote(Layout.of(out), dtype=out.dtype))
                self.draw(out, distribution)
            elif not self._derived(name, args, kwargs, out):
                self._for_real(func, name, args, kwargs, [])
                return self._results(func, name, args, kwargs, result)
        return None

    def _derived(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> bool:
        """A recipe from the recipe of the one tensor argument, which is taken whole."""
        if not args or not has_no_values(args[0]) or any(isinstance(a, Tensor) for a in tree_flatten((args[1:], kwargs))[0]):
            return False
        source = self._note(args[0])
        step: Step | None = None
        if name == "_to_copy":
            step = Cast(dtype=DType.parse(str(out.dtype)))
        elif name != "clone" and out.dtype == args[0].dtype and out.is_floating_point():
            step = change_of(name, args[1:], kwargs)
            if step is None:
                return False
        elif name != "clone":
            return False
        if source.value is not None or source.why or not source.is_filled or not covers(args[0], source):
            return False
        self._begin(out, StorageNote(Layout.of(out), steps=[*source.steps, *([step] if step is not None else [])], dtype=source.dtype))
        return True

    def _copied(self, target: Tensor, source: Tensor) -> bool:
        """target.copy_(source), both taken whole; otherwise nothing is noted."""
        held, given = self._note(target), self._note(source)
        if not given.is_random and covers(target, held) and given.base.numel <= MOST_FIXED:
            with torch.device("cpu"), torch.no_grad():
                held.value = self._real(source).to(target.dtype).expand(target.shape).contiguous().clone()
            held.steps, held.why = [], ""
            return True
        simple = given.value is None and not given.why and given.is_filled and target.shape == source.shape
        if not simple or not covers(target, held) or not covers(source, given):
            return False
        cast = [Cast(dtype=DType.parse(str(target.dtype)))] if target.dtype != source.dtype else []
        held.steps, held.value, held.why, held.dtype = [*given.steps, *cast], None, "", given.dtype
        return True

    # Steps and real values.

    def _step(self, target: Tensor, step: Draw | Fill | Change, what: str) -> None:
        noted = self._note(target)
        whole = covers(target, noted)
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
                    real_view(target, noted.value).fill_(step.value if isinstance(step, Fill) else math.nan)
            return
        where = None if whole else box_shown(target, noted.base)
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
            if has_no_values(out):
                self._begin(out, StorageNote(Layout.of(out), value=value, why=problem))

    def _problem(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Why the op cannot be carried out now; empty when it can."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            return name
        read = [self._note(value) for value in tree_flatten((args, kwargs))[0] if has_no_values(value)]
        for noted in sorted(read, key=lambda noted: not noted.why):  # what went before says more than what follows from it
            if noted.why:
                return noted.why
            if noted.is_random:
                return f"{name} of drawn values"
            if noted.value is None and noted.base.numel > MOST_FIXED:
                return f"{name}, which needs {noted.base.numel} elements at once (more than {MOST_FIXED})"
        return ""

    def _real(self, value: Any) -> Any:
        """The real tensor behind one of shapes only, without chance; and the real device."""
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not has_no_values(value):
            return value
        noted = self._note(value)
        if noted.value is None:
            recipe = Recipe(shape=noted.base.shape, dtype=DType.parse(str(noted.dtype)), steps=tuple(noted.steps))
            noted.value = recipe.part(0, whole_box(recipe.shape))
        return real_view(value, noted.value)

    # The result.

    def recorded(self, module: nn.Module) -> Recorded:
        recipes: dict[str, Recipe] = {}
        fixed: dict[str, Tensor] = {}
        names: dict[str, str] = {}
        for what, pairs in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for name, tensor in pairs:
                noted = self._note(tensor)
                if noted.value is not None:
                    with torch.device("cpu"), torch.no_grad():
                        fixed[name] = real_view(tensor, noted.value).contiguous().clone()
                    continue
                recipes[name] = recipe_of(what, name, tensor, noted, names)
        return Recorded(recipes=recipes, fixed=fixed)


def _is_written(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write
