"""Tables of nn.Embedding(sparse=True): the rows that the batch names are updated as torch updates them from sparse gradients, on any layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regista
from planner.frontend import Program
from planner.ir.errors import Unsupported

pytestmark = pytest.mark.filterwarnings("ignore:.*devices on .* cores", "ignore:.*ranks on .* cores")

Optimizers = list[torch.optim.Optimizer]
ROWS, WIDTH, BATCH, STEPS = 16, 4, 8, 4


class Clicks(nn.Module):
    """One table that is looked up twice, one with a padding row, and a dense layer."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.deep = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.padded = nn.Embedding(ROWS, WIDTH, padding_idx=2, sparse=sparse)
        self.head = nn.Linear(2 * WIDTH, 1)

    def forward(self, ids: Tensor, others: Tensor) -> Tensor:
        both = self.deep(ids).sum(1) + self.deep(others)
        logits: Tensor = self.head(torch.cat([both, self.padded(ids).sum(1)], 1)).squeeze(1)
        return logits


def tables(module: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in module.named_parameters() if "head" not in name]


def rest(module: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in module.named_parameters() if "head" in name]


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizers]] = {
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1)],
    "adagrad": lambda m: [torch.optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2)],
    "sparse adam": lambda m: [torch.optim.SparseAdam(tables(m), lr=0.1), torch.optim.Adam(rest(m), lr=0.02)],
    "sparse adam, upwards": lambda m: [torch.optim.SparseAdam(tables(m), lr=0.1, maximize=True), torch.optim.SGD(rest(m), lr=0.02)],
}
WHOLE, BY_ROWS, BY_WIDTH = ["*.weight=B"], ["deep.weight=S(0)", "padded.weight=S(0)"], ["deep.weight=S(1)", "padded.weight=S(1)"]
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one device": (1, {}),
    "data": (2, {"pins": ["input.*=S(0)", *WHOLE]}),
    "rows": (2, {"pins": ["input.*=S(0)", *BY_ROWS]}),
    "width": (2, {"pins": BY_WIDTH}),
    "rows and width": (4, {"mesh": (2, 2), "pins": ["deep.weight=S(0),S(1)", "padded.weight=S(1),B"]}),
    "pipeline": (2, {"stages": 2}),
    "zero 1": (2, {"pins": ["input.*=S(0)"], "zero": 1}),
    "zero 3": (2, {"pins": ["input.*=S(0)"], "zero": 3}),
}


def batch(step: int) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(step)
    ids = torch.randint(0, ROWS // 2, (BATCH, 3), generator=rng)  # repeats, and rows that no step names
    return ids, torch.randint(0, ROWS - 3, (BATCH,), generator=rng), torch.randint(0, 2, (BATCH,), generator=rng).float()


def loss(logits: Tensor, clicked: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, clicked)


def program_of(module: nn.Module, optimizer: object, **options: Any) -> Program:
    return Program(module, batch(0), loss, optimizer, data=batch, **options)  # type: ignore[arg-type]


def trained_plainly(kind: str) -> tuple[list[float], dict[str, Tensor]]:
    """The losses, and the parameters after the last step, of an ordinary loop with sparse gradients."""
    module = Clicks()
    optimizers, losses = OPTIMIZERS[kind](module), []
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        ids, others, clicked = batch(step)
        value = loss(module(ids, others), clicked)
        value.backward()
        assert all(p.grad is not None and p.grad.is_sparse for p in tables(module))
        for optimizer in optimizers:
            optimizer.step()
        losses.append(value.item())
    return losses, {name: p.detach() for name, p in module.named_parameters()}


def assert_as_plain(outcome: regista.Outcome, kind: str) -> None:
    losses, parameters = trained_plainly(kind)
    assert outcome.losses == pytest.approx(losses, rel=1e-5)
    for name, value in parameters.items():
        torch.testing.assert_close(outcome.states[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.representatives("rows-sparse adam", "data-adagrad")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_trained_as_torch_trains_them_from_sparse_gradients(way: str, kind: str) -> None:
    devices, options = WAYS[way]
    module = Clicks()
    program = program_of(module, OPTIMIZERS[kind](module))
    plan = regista.plan(program, f"local:{devices}", **options)
    for performer in (regista.Performer.REFERENCE, regista.Performer.THREADS):
        assert_as_plain(regista.run(plan, program, steps=STEPS, performer=performer), kind)


def test_the_comparison_sees_moments_that_decay_in_rows_which_no_index_names() -> None:
    module = Clicks(sparse=False)
    program = program_of(module, torch.optim.Adam(module.parameters(), lr=0.1))
    outcome = regista.run(regista.plan(program, "local:1"), program, steps=STEPS, performer=regista.Performer.REFERENCE)
    with pytest.raises(AssertionError):
        assert_as_plain(outcome, "sparse adam")


def test_no_tensor_of_the_tables_shape_is_made_for_the_gradient() -> None:
    module = Clicks()
    program = program_of(module, OPTIMIZERS["sparse adam"](module))
    graph = program.graph()
    shaped = {value for value, type_ in graph.values.items() if type_.shape == (ROWS, WIDTH)}
    states = {given.value for given in graph.inputs} | set(graph.updates.values())
    assert shaped and shaped <= states
    assert set(graph.gradients) == {"head.weight", "head.bias"}


def test_an_optimizer_that_has_made_steps_goes_on_with_its_moments() -> None:
    module = Clicks()
    optimizers = OPTIMIZERS["sparse adam"](module)
    loss(module(*batch(0)[:2]), batch(0)[2]).backward()
    for optimizer in optimizers:
        optimizer.step()
    program = program_of(copy.deepcopy(module), "sgd")
    assert program.initial_state().keys().isdisjoint({"deep.weight:exp_avg"})
    held = program_of(module, optimizers).initial_state()
    assert held["deep.weight:step"] == 1 and bool((held["deep.weight:exp_avg"] != 0).any())


def test_a_sum_of_sparse_and_dense_gradients_is_dense_as_in_torch() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, WIDTH, sparse=True)

        def forward(self, ids: Tensor) -> Tensor:
            return (self.table(ids) @ self.table.weight.T).square().mean()

    module = Tied()
    graph = Program(module, (batch(0)[0],), None, "adamw").graph()
    assert set(graph.gradients) == {"table.weight"}
    with pytest.raises(Unsupported, match=r"SparseAdam trains table\.weight, whose gradient is dense"):
        Program(module, (batch(0)[0],), None, torch.optim.SparseAdam(module.parameters())).graph()


REFUSED: dict[str, tuple[object, dict[str, Any], int, str]] = {
    "AdamW": ("adamw", {}, 1, "AdamW takes no sparse gradients, as in torch"),
    "momentum": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), {}, 1, "momentum moves rows"),
    "weight decay": (lambda m: torch.optim.Adagrad(m.parameters(), weight_decay=0.1), {}, 1, "weight decay moves rows"),
    "clipping": ("lazy_adam", {"clip_norm": 1.0}, 1, "clipping needs gradients of tensors' shapes"),
    "grad_dtype": ("lazy_adam", {"grad_dtype": "bf16"}, 1, "grad_dtype is the format"),
    "scaled loss": ("lazy_adam", {"precision": "fp16-mixed"}, 1, "a scaled loss is not carried"),
    "micro-batches": ("lazy_adam", {}, 2, "not added up over 2 micro-batches"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_sparse_gradient_does_not_go_with_is_refused_by_name(what: str) -> None:
    given, options, micro_batches, message = REFUSED[what]
    module = Clicks()
    with pytest.raises(Unsupported, match=message):
        program_of(module, given(module) if callable(given) else given, **options).graph(micro_batches)
