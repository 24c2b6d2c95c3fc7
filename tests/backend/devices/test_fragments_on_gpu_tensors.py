"""Fragments on tensors that say they lie on a GPU and hold nothing: an op with operands on two devices, or of which a GPU has another form,
shows without a GPU."""

from __future__ import annotations

import pytest
import torch
from matrix import MODELS, plan_for
from torch._subclasses.fake_tensor import FakeTensorMode

from backend.layout.sharding import torch_dtype
from backend.memory.options import RegisterMode
from backend.ops.fragment import compile_fragment, draws
from backend.ops.writable import writable_blocks
from planner.ir.plan import Access, Fragment, Plan

GPU = torch.device("cuda:0")

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")

WAYS = {"mlp": "data2", "gpt": "tensor2", "convnet": "data2"}
"""The cheapest way of some models; of the others as well in ``make test-all``."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of that kind; and some methods of Tensor through their ops, since a torch without CUDA refuses to guard a device there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    aten, whole = torch.ops.aten, torch.Tensor.__getitem__

    def narrow(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
        return aten.slice.Tensor(self, dim, start, start + length)

    def item(self: torch.Tensor, key: object) -> torch.Tensor:
        if isinstance(key, tuple) and len(key) == 2 and key[0] is ... and isinstance(key[1], slice):
            return aten.slice.Tensor(self, self.ndim - 1, key[1].start, key[1].stop)
        return whole(self, key)  # type: ignore[index]

    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other, non_blocking=False: aten.copy_.default(self, other))
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: aten.clone.default(self, memory_format=torch.contiguous_format))
    monkeypatch.setattr(torch.Tensor, "narrow", narrow)
    monkeypatch.setattr(torch.Tensor, "__getitem__", item)


def _empty(plan: Plan, access: Access, rank: int) -> torch.Tensor:
    regst = plan.regst[access.regst]
    local = regst.tensors[access.index].local_type(plan.placement[regst.placement], rank)
    return torch.empty(local.shape, dtype=torch_dtype(local.dtype), device=GPU)


def failures(plan: Plan, device: str = str(GPU)) -> list[str]:
    """What raises, and results that lie elsewhere, of the first and the last rank of every fragment.   device: as fragments are told."""
    found: list[str] = []
    for task in plan.tasks:
        if not isinstance(task.body, Fragment):
            continue
        writable = writable_blocks(plan, task, RegisterMode.STATIC)
        for rank in {plan.ranks_of(task)[0], plan.ranks_of(task)[-1]}:
            function = compile_fragment(task, plan.placement[task.placement], rank, writable, device=device)
            with FakeTensorMode():
                values = [_empty(plan, access, rank) for access in task.reads]
                slots = [_empty(plan, task.writes[place], rank) for place in writable.slots]
                try:
                    results = function(*values, *slots, *([0] if draws(task) else []))
                except Exception as error:
                    found.append(f"{task.id}: {type(error).__name__}: {error}")
                    continue
            found += [f"{task.id}: {a.name} on {r.device}" for a, r in zip(task.writes, results, strict=True) if r.device != GPU]
    return found


@pytest.mark.representatives(*WAYS)
@pytest.mark.parametrize("model", list(MODELS))
def test_every_fragment_of_a_plan_computes_where_its_operands_lie(model: str) -> None:
    assert failures(plan_for(model, WAYS.get(model, "data2"))) == []


def test_a_fragment_that_is_not_told_where_to_make_constants_is_caught() -> None:
    found = failures(plan_for("gpt", "tensor2"), device="")
    assert any("two devices" in failure or "on cpu" in failure for failure in found)
