"""A plan repeats one step for ever: a module whose Python makes the next step another one is refused; one that only keeps a record is not."""

from __future__ import annotations

import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from planner.ir.errors import InvalidProgram

_RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 6, generator=_RNG), torch.randn(8, 4, generator=_RNG)


class Keeping(nn.Module):
    """A linear layer, and what else forward does with the module and the layer's result."""

    calls_of_class = 0

    def __init__(self, function: Callable[[Keeping, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.function = function
        self.calls, self.rate = 0, 1.0
        self.flag: bool | None = None
        self.last: Tensor | None = None
        self.seen: list[object] = []
        self.names: dict[str, object] = {"a": 1}
        self.window: deque[object] = deque(maxlen=2)
        self.array = np.zeros(2)
        self.box = SimpleNamespace(count=0)
        self.ids = {1}
        self.numbers: Iterator[int] = itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.linear(x))


def _program(module: nn.Module) -> Program:
    return Program(module, (X, Y), F.mse_loss)


def identities(module: nn.Module) -> list[tuple[int, list[tuple[object, int]]]]:
    """Every object beneath the module's attributes, dicts and lists, in order, by identity."""
    attributes: list[tuple[int, list[tuple[object, int]]]] = []
    waiting: list[object] = [child.__dict__ for child in module.modules()]
    seen: set[int] = set()
    while waiting:
        held = waiting.pop()
        if id(held) in seen or not isinstance(held, dict | list | deque):
            continue
        seen.add(id(held))
        items = list(held.items()) if isinstance(held, dict) else list(enumerate(held))
        attributes.append((id(held), [(key, id(value)) for key, value in items]))
        waiting += [value for _, value in items]
    return attributes


def _counter(m: Keeping, y: Tensor) -> Tensor:
    m.calls += 1
    return y * m.calls


def _list_that_grows(m: Keeping, y: Tensor) -> Tensor:
    m.seen.append(1)
    return y * len(m.seen)


def _rate_that_decays(m: Keeping, y: Tensor) -> Tensor:
    m.rate *= 0.9
    return y * m.rate


def _branch_on_a_counter(m: Keeping, y: Tensor) -> Tensor:
    m.calls += 1
    return y * 2 if m.calls > 1 else y


def _warm_up_of_a_thousand_steps(m: Keeping, y: Tensor) -> Tensor:
    m.calls += 1
    return y * 2 if m.calls > 1000 else y


def _every_hundredth_step(m: Keeping, y: Tensor) -> Tensor:
    if m.calls % 100 == 99:
        y = y * 2
    m.calls += 1
    return y


def _memory_of_the_step_before(m: Keeping, y: Tensor) -> Tensor:
    before, m.last = m.last, y.detach()
    return y if before is None else y + before


def _list_of_tensors(m: Keeping, y: Tensor) -> Tensor:
    m.seen.append(y.detach())
    return y + torch.stack([t for t in m.seen if isinstance(t, Tensor)]).mean(0)


def _dict_entry(m: Keeping, y: Tensor) -> Tensor:
    m.names["a"] = int(str(m.names["a"])) + 1
    return y * int(str(m.names["a"]))


def _namespace(m: Keeping, y: Tensor) -> Tensor:
    m.box.count += 1
    return y + m.box.count


def _array(m: Keeping, y: Tensor) -> Tensor:
    m.array[0] += 1
    return y + float(m.array[0])


def _class_attribute(m: Keeping, y: Tensor) -> Tensor:
    Keeping.calls_of_class += 1
    return y * Keeping.calls_of_class


STEP = 0


def _global(m: Keeping, y: Tensor) -> Tensor:
    global STEP
    STEP += 1
    return y * STEP


def _closure() -> Callable[[Keeping, Tensor], Tensor]:
    count = 0

    def function(m: Keeping, y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return y * count

    return function


def _first_time_only(m: Keeping, y: Tensor) -> Tensor:
    if m.flag is None:
        m.flag = True
        return y * 3
    return y


def _toggled_mode(m: Keeping, y: Tensor) -> Tensor:
    out: Tensor = y * 2 if m.training else y
    m.train(not m.training)
    return out


def _window(m: Keeping, y: Tensor) -> Tensor:
    m.window.append(m.calls)
    return y * (1 + len(m.window))


def _set_that_grows(m: Keeping, y: Tensor) -> Tensor:
    m.ids.add(len(m.ids) + 1)
    return y * len(m.ids)


def _iterator(m: Keeping, y: Tensor) -> Tensor:
    return y * (next(m.numbers) + 1)


def _parameter_added(m: Keeping, y: Tensor) -> Tensor:
    if not hasattr(m, "scale"):
        m.scale = nn.Parameter(torch.ones(4))
        return y
    return y * m.scale


OTHER_NEXT_STEP: dict[str, tuple[Callable[[Keeping, Tensor], Tensor], str]] = {
    "a counter": (_counter, r"calls \(0, then 1\), and .*test_next_step\.py:\d+ 'return y \* m\.calls' computes with it"),
    "a list that grows": (_list_that_grows, r"seen\[0\] \(nothing, then 1\), and .*test_next_step.py:\d+ 'return y \* len"),
    "a rate that decays": (_rate_that_decays, r"rate \(1\.0, then 0\.9\)"),
    "a branch on a counter": (_branch_on_a_counter, r"calls \(0, then 1\), and .*return y \* 2 if m\.calls > 1"),
    "a warm-up of 1000 steps": (_warm_up_of_a_thousand_steps, r"calls \(0, then 1\)"),
    "every hundredth step": (_every_hundredth_step, r"calls \(0, then 1\)"),
    "the step before": (_memory_of_the_step_before, r"last \(None, then a tensor\)"),
    "a list of tensors": (_list_of_tensors, r"seen\[0\] \(nothing, then a tensor\)"),
    "an entry of a dict": (_dict_entry, r"names\['a'\] \(1, then 2\)"),
    "a namespace": (_namespace, r"box\.count \(0, then 1\)"),
    "an array": (_array, r"array \(its values, then other values\)"),
    "a class attribute": (_class_attribute, r"Keeping\.calls_of_class \(0, then 1\)"),
    "a global": (_global, r"STEP \(0, then 1\)"),
    "a closure": (_closure(), r"count \(0, then 1\)"),
    "the first time only": (_first_time_only, r"flag \(None, then True\)"),
    "the mode": (_toggled_mode, r"training \(True, then False\)"),
    "a window": (_window, r"window\[0\] \(nothing, then 0\)"),
    "a set that grows": (_set_that_grows, r"ids \(1 elements, then 2 elements\)"),
    "an iterator": (_iterator, r"numbers \(count\(0\), then count\(1\)\).*cannot be put back"),
    "a parameter that forward adds": (_parameter_added, r"scale \(nothing, then a tensor\)"),
}


@pytest.mark.parametrize(("function", "words"), OTHER_NEXT_STEP.values(), ids=list(OTHER_NEXT_STEP))
def test_a_next_step_that_is_another_one_is_refused_by_name(function: Callable[[Keeping, Tensor], Tensor], words: str) -> None:
    module = Keeping(function)
    with pytest.raises(InvalidProgram, match=words) as refusal:
        _program(module).graph()
    assert "register_buffer" in str(refusal.value)
    assert module.calls == 0 and not module.seen and module.names == {"a": 1} and module.training and module.box.count == 0
    assert Keeping.calls_of_class == 0 and STEP == 0 and not module.array.any() and module.ids == {1} and not hasattr(module, "scale")


def _count_only(m: Keeping, y: Tensor) -> Tensor:
    m.calls += 1
    return y


def _keep_last(m: Keeping, y: Tensor) -> Tensor:
    m.last = y.detach()
    return y


def _cached_constant(m: Keeping, y: Tensor) -> Tensor:
    if m.last is None:
        m.last = torch.arange(4.0) + 1
    return y * m.last


def _cached_buffer(m: Keeping, y: Tensor) -> Tensor:
    if "table" not in m._buffers:
        m.register_buffer("table", torch.arange(4.0).sin(), persistent=False)
    table = m._buffers["table"]
    assert table is not None
    return y * table


def _hooks_its_layer_once(m: Keeping, y: Tensor) -> Tensor:
    if "hooked" not in m.names:
        m.names["hooked"] = True
        m.linear.register_forward_hook(lambda *_: None)
    return y


SAME_NEXT_STEP: dict[str, Callable[[Keeping, Tensor], Tensor]] = {
    "a count that nothing reads": _count_only,
    "the last activation, for a look": _keep_last,
    "a constant made once": _cached_constant,
    "a buffer made once": _cached_buffer,
    "hooks put on once": _hooks_its_layer_once,
}


@pytest.mark.parametrize("function", SAME_NEXT_STEP.values(), ids=list(SAME_NEXT_STEP))
def test_what_nothing_is_computed_with_is_planned_told_and_put_back(
    function: Callable[[Keeping, Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    module = Keeping(function)
    before = identities(module)
    with caplog.at_level(logging.WARNING):
        program = _program(module)
        program.graph()
        program.graph(2)
    assert sum("a run leaves it as it is" in message for message in caplog.messages) == 1
    assert identities(module) == before


def test_python_random_numbers_are_refused_and_the_generators_put_back() -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes()
    with pytest.raises(InvalidProgram, match=r"draws from random, Python's own generator"):
        _program(Keeping(lambda m, y: y * random.random())).graph()
    with pytest.raises(InvalidProgram, match=r"draws from numpy\.random"):
        _program(Keeping(lambda m, y: y * float(np.random.rand()))).graph()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


class SometimesDropped(nn.Module):
    """Layers that a random number of Python or numpy leaves out now and then (LayerDrop)."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layers, self.draw = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), draw

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.draw() < 0.5:
                x = layer(x)
        return x.mean()


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: float(np.random.uniform(0, 1))], ids=["random", "numpy.random"])
def test_a_layer_that_a_number_of_python_leaves_out_is_refused_with_the_line_and_the_rewrite(draw: Callable[[], float]) -> None:
    with pytest.raises(
        InvalidProgram, match=r"test_next_step\.py:\d+ '.*draw.*uniform.*torch\.where\(torch\.rand\(\(\)\) < rate, x, layer\(x\)\)"
    ):
        Program(SometimesDropped(draw), torch.ones(2, 4)).graph()


def test_a_draw_that_leaves_every_layer_out_is_refused_as_a_draw() -> None:
    with pytest.raises(InvalidProgram, match=r"draws from random, Python's own generator, at .*test_next_step\.py:\d+ '.*draw"):
        Program(SometimesDropped(lambda: 0.5 + 0.5 * random.random()), torch.ones(2, 4)).graph()


def test_the_rewrite_of_a_layer_that_is_left_out_is_planned() -> None:
    layer = nn.Linear(4, 4)

    class Rewritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(torch.rand(()) < 0.5, x, self.layer(x)).mean()

    assert Program(Rewritten(), torch.ones(2, 4)).graph().ops


def _branch(m: Keeping, y: Tensor) -> Tensor:
    if y.sum() > 0:
        return y
    return y * 2


def _number(m: Keeping, y: Tensor) -> Tensor:
    return y * float(y[0, 0])


def _listed(m: Keeping, y: Tensor) -> Tensor:
    return y * y.flatten().tolist()[0]


def _boolean_index(m: Keeping, y: Tensor) -> Tensor:
    return y[y > 0].sum() + y


def _nonzero(m: Keeping, y: Tensor) -> Tensor:
    return y + torch.nonzero(y).sum()


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (_branch, r"if y\.sum\(\) > 0:"),
        (_number, r"return y \* float\(y\[0, 0\]\)"),
        (_listed, r"return y \* y\.flatten\(\)"),
        (_boolean_index, r"return y\[y > 0\]\.sum\(\) \+ y"),
        (_nonzero, r"return y \+ torch\.nonzero"),
    ],
)
def test_a_value_that_decides_is_refused_with_the_users_line(function: Callable[[Keeping, Tensor], Tensor], line: str) -> None:
    with pytest.raises(InvalidProgram, match=rf"at .*test_next_step\.py:\d+ '{line}.*torch\.where"):
        _program(Keeping(function)).graph()
