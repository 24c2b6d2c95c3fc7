"""Whatever tracing ran, all that the module reaches is afterwards the very same objects with the same contents."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from planner.frontend.tracing.reachable import Snapshot
from planner.ir.errors import InvalidProgram
from tests.planner.frontend.dropped.test_next_step import Keeping, _count_only, _program, identities
from zoo import ZOO

SMALL: dict[str, dict[str, int]] = {
    "mlp": {"batch": 8, "width": 16, "hidden": 32},
    "gpt": {"batch": 4, "seq": 8, "width": 32, "heads": 4, "vocab": 64, "layers": 2},
    "convnet": {"batch": 8, "channels": 4, "size": 8},
}


@pytest.mark.parametrize("name", list(SMALL))
def test_a_zoo_model_is_the_same_objects_after_planning(name: str) -> None:
    program = ZOO[name](**SMALL[name])
    before, values = identities(program.module), {n: t.clone() for n, t in program.module.state_dict().items()}
    versions = [p._version for p in program.module.parameters()]
    program.graph(2)
    assert identities(program.module) == before
    assert all(torch.equal(tensor, values[n]) for n, tensor in program.module.state_dict().items())
    assert [p._version for p in program.module.parameters()] == versions
    assert all(p.grad is None for p in program.module.parameters())


class Nasty(nn.Module):
    """Changes whatever it has, in place, each time it runs; none of it is computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(6, 4), nn.Linear(2, 2)
        self.ordered: OrderedDict[str, object] = OrderedDict(a=[1, 2], b={"c": [3]})
        self.window: deque[object] = deque([1, 2], maxlen=2)
        self.nested = SimpleNamespace(inner=SimpleNamespace(values=[0]), tags={"x"})

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        self.ordered.move_to_end("a")
        assert isinstance(self.ordered["b"], dict)
        self.ordered["b"]["c"].append(out)
        self.ordered["new"] = out
        self.window.append(out)
        self.nested.inner.values[0] = out
        self.nested.inner = SimpleNamespace(values=[])
        self.nested.tags.clear()
        self.spare.register_forward_pre_hook(lambda *_: None)
        self.linear.register_full_backward_hook(lambda _m, inputs, _o: inputs)
        self.spare.weight.requires_grad_(True)
        self._buffers["late"] = out.detach()
        self.add_module("late_module", nn.Linear(1, 1))
        del self.ordered["a"]
        return out


def test_a_module_that_changes_all_it_has_is_the_same_objects_after_a_refused_trace() -> None:
    """The second trace fails (there is no 'a' any more): whatever was done until then is undone."""
    module = Nasty()
    inner = module.nested.inner
    before = identities(module)
    with pytest.raises(InvalidProgram, match="ordered"):
        _program(module).graph()
    assert identities(module) == before and module.nested.inner is inner and inner.values == [0]
    assert module.nested.tags == {"x"} and list(module.ordered) == ["a", "b"] and module.ordered["b"] == {"c": [3]}


def test_a_snapshot_names_each_change_and_undoes_it() -> None:
    module = Keeping(_count_only)
    tensor = torch.zeros(2)
    module.names["t"] = tensor
    snapshot = Snapshot({"": module})
    assert snapshot.changes() == []
    module.names["t"].add_(1)  # type: ignore[attr-defined]
    module.names["b"] = module.names.pop("a")
    module.calls = 3
    del module.flag
    assert {change.path for change in snapshot.changes()} >= {
        "names['t']",
        "names['b']",
        "names['a']",
        "calls",
        "flag",
    }
    snapshot.restore()
    assert list(module.names) == ["a", "t"] and module.names["t"] is tensor and not tensor.any() and module.flag is None
