"""What the front end cannot trace it refuses by name, before anything else is done with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.frontend import SGD, AdamW, Program
from planner.ir.errors import InvalidProgram, RegistaError, Unsupported
from tests.planner.frontend.programs import X, Y, around, mse, zoo


def _double_the_weight(body: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        body.weight.mul_(2)
    return body(x)


_OUTSIDE = nn.Parameter(torch.ones(8))

REFUSED: dict[str, tuple[Callable[[], Program], type[RegistaError], str]] = {
    "loss not a scalar": (lambda: Program(nn.Linear(8, 8), (X, Y), lambda o, t: o - t), InvalidProgram, r"\(4, 6, 8\)"),
    "loss of integers": (lambda: around(lambda b, x, y: b(x).argmax(), loss=None), InvalidProgram, "int64"),
    "module returns no tensor": (lambda: around(lambda b, x, y: {"logits": b(x)}, loss=None), InvalidProgram, "dict"),
    "module returns no loss": (lambda: around(lambda b, x, y: b(x), loss=None), InvalidProgram, r"loss=\.\.\."),
    "branch on a value": (lambda: around(lambda b, x: b(x) if x.sum() > 0 else x), InvalidProgram, "torch.where"),
    "shape from a value": (lambda: around(lambda b, x: b(x)[x > 0], loss=lambda o, t: o.sum()), InvalidProgram, "torch.where"),
    "nothing trainable": (lambda: around(lambda b, x: b(x), nn.Linear(8, 8).requires_grad_(False)), InvalidProgram, "no trainable"),
    "no parameter at all": (lambda: Program(nn.ReLU(), (X, Y), mse), InvalidProgram, "no trainable"),
    "loss detached": (lambda: around(lambda b, x: b(x).detach()), InvalidProgram, "does not depend"),
    "parameter written": (lambda: around(_double_the_weight), InvalidProgram, "body.weight in place"),
    "input written": (lambda: around(lambda b, x: b(x.mul_(2))), InvalidProgram, "input.0 in place"),
    "random": (
        lambda: around(lambda b, x: b(x) * torch.rand(8, generator=torch.Generator())),
        Unsupported,
        "aten.rand.generator with a Generator",
    ),
    "strides": (lambda: around(lambda b, x: b(x)[:, :, :4].as_strided((4, 6, 8), (48, 8, 1))), Unsupported, "strides"),
    "outside parameter": (lambda: around(lambda b, x: b(x) * _OUTSIDE), InvalidProgram, "no parameter of the module"),
    "wrong shapes": (lambda: Program(nn.Sequential(nn.Linear(8, 8), nn.Linear(5, 5)), (X, Y), mse), InvalidProgram, "module '1' raised"),
    "quantized": (lambda: around(lambda b, x: b(x).to(torch.float8_e4m3fn).to(torch.float32)), InvalidProgram, "float8_e4m3fn"),
    "sparse": (lambda: around(lambda b, x: b(x) @ b.weight.to_sparse().to_dense()), Unsupported, "layout torch.sparse_coo"),
    "unknown optimizer": (lambda: Program(nn.Linear(8, 8), (X, Y), mse, "lamb"), InvalidProgram, "'sgd', 'adamw' or 'lazy_adam'"),
    "negative rate": (lambda: Program(nn.Linear(8, 8), (X, Y), mse, SGD(lr=-1)), InvalidProgram, "lr=-1"),
    "no module": (lambda: Program(mse, (X, Y), mse), InvalidProgram, "nn.Module"),  # type: ignore[arg-type]
    "a part in TorchScript": (
        lambda: Program(nn.Sequential(torch.jit.script(nn.Linear(8, 8))), (X, Y), mse),
        Unsupported,
        "module '0' is a module of TorchScript",
    ),
    "all in TorchScript": (lambda: Program(torch.jit.script(nn.Linear(8, 8)), (X, Y), mse), Unsupported, "the root module is a module of"),
    "parameters without a shape": (
        lambda: Program(nn.LazyLinear(8), (X, Y), mse),
        InvalidProgram,
        "weight of the root module.*no shape before",
    ),
    "no tensors": (lambda: Program(nn.Linear(8, 8), (X, {1, 2}), mse), InvalidProgram, "is a set; inputs are tensors"),
    "no batch": (lambda: Program(nn.Linear(8, 8), torch.tensor(1.0), mse), InvalidProgram, "dim 0"),
    "too many targets": (lambda: Program(nn.Linear(8, 8), (X,), lambda o, a, b: o.sum()), InvalidProgram, "2 targets"),
    "loss without parameters": (lambda: Program(nn.Linear(8, 8), (X,), lambda: 0), InvalidProgram, "module's output"),
}


@pytest.mark.parametrize(("make", "kind", "words"), REFUSED.values(), ids=list(REFUSED))
def test_refusals_name_the_cause(make: Callable[[], Program], kind: type[RegistaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        make().graph()


def test_a_refused_trace_leaves_no_hook_behind() -> None:
    with pytest.raises(InvalidProgram):
        around(lambda b, x: b(x) if x.sum() > 0 else x).graph()
    assert not torch.nn.modules.module._global_forward_hooks and not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("micro_batches", [3, 0, -1, 16])
def test_micro_batches_divide_the_batch(micro_batches: int) -> None:
    with pytest.raises(InvalidProgram, match=r"one of \[1, 2, 4, 8\]"):
        zoo("mlp").graph(micro_batches)


def test_data_of_another_shape_is_refused() -> None:
    program = Program(nn.Linear(8, 8), (X, Y), mse, data=lambda step: (X, Y[:2]))
    with pytest.raises(InvalidProgram, match=r"data\(7\)"):
        program.batch(7)


def test_torch_optimizers_are_converted() -> None:
    module = nn.Linear(8, 8)
    sgd = Program(module, (X, Y), mse, torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1, nesterov=True))
    adamw = Program(module, (X, Y), mse, torch.optim.AdamW(module.parameters(), lr=0.5, betas=(0.8, 0.9), eps=1e-6))
    assert sgd.optimizer == SGD(0.5, 0.9, 0.1, True)
    assert adamw.optimizer == AdamW(0.5, (0.8, 0.9), 1e-6, 0.01)
    assert Program(module, (X, Y), mse).optimizer == SGD(0.01)
