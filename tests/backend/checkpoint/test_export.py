"""A checkpoint exported for plain torch goes on there as it would here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from small_gpt import program
from torch import Tensor

import regista
from backend.checkpoint import export
from backend.checkpoint.export import optimizer_state_dict
from planner.frontend import AdamW, Program
from tests.backend.checkpoint.checkpoint_cases import drawn_state, save
from zoo import ZOO


def test_an_exported_checkpoint_goes_on_in_plain_torch_as_in_ours(tmp_path: Path) -> None:
    """state_dict and optimizer state load, and a step of torch.optim from there equals one of a model that never left torch."""
    model = ZOO["gpt"](layers=2, width=32, heads=4, vocab=64, batch=16, seq=16, tied=1)
    module, batch = model.module, model.batch(0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, eps=1e-3)

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model.loss_of(module, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step(module, optimizer)
    state: dict[str, Tensor] = {n: v.detach().clone() for n, v in (*module.named_parameters(), *module.named_buffers())}
    for name, parameter in module.named_parameters():
        state |= {f"{name}:{slot}": value.clone() for slot, value in optimizer.state[parameter].items()}
    constants = program().constants(4)
    save(tmp_path, "zero3_pipeline2", state | constants, 1)
    export(tmp_path, tmp_path / "all.pt", optimizer=True)
    held = torch.load(tmp_path / "all.pt", weights_only=True)
    other = ZOO["gpt"](layers=2, width=32, heads=4, vocab=64, batch=16, seq=16, tied=1, seed=5).module
    missing = other.load_state_dict(held["model"], strict=False)
    assert missing.missing_keys == ["lm_head.weight"]  # tied to wte.weight
    assert set(missing.unexpected_keys) == {"h.0.attn.mask", "h.1.attn.mask"}  # buffers that are not persistent
    resumed = torch.optim.AdamW(other.parameters(), lr=0.5)
    resumed.load_state_dict(held["optimizer"])
    assert held["step"] == 1
    for _ in range(2):
        assert step(other, resumed) == step(module, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_an_export_without_optimizer_is_a_plain_state_dict(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "w.pt")
    held = torch.load(tmp_path / "w.pt", weights_only=True)
    assert set(held) == set(dict(program().module.named_parameters()) | dict(program().module.named_buffers()))
    assert all(torch.equal(held[name], drawn_state(1)[name]) for name in held)


def test_the_optimizer_state_of_torch_has_its_own_keys(folder: Path) -> None:
    (group,) = optimizer_state_dict(folder)["param_groups"]
    assert (group["lr"], group["eps"], group["weight_decay"], tuple(group["betas"])) == (1e-2, 1e-3, AdamW().weight_decay, (0.9, 0.999))
    assert set(group) == set(torch.optim.AdamW([torch.zeros(1)]).state_dict()["param_groups"][0])


KINDS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-1, lr_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-1, weight_decay=0.01),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2, weight_decay=0.1, momentum_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2, betas=(0.9, 0.95), decoupled_weight_decay=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.8),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 2])
def test_every_kind_of_optimizer_goes_on_in_torch_after_an_export(kind: str, steps: int, tmp_path: Path) -> None:
    def small() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4))

    x, y = torch.linspace(-1, 1, 48).view(8, 6), torch.linspace(1, -1, 32).view(8, 4)

    def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = torch.nn.functional.mse_loss(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    module = small()
    optimizer = KINDS[kind](module.parameters())
    for _ in range(steps):
        step(module, optimizer)
    own = Program(module, (x, y), torch.nn.functional.mse_loss, optimizer)
    save(tmp_path, regista.plan(own, "local:2", mesh=(2,)), own.initial_state(), max(steps, 1))
    export(tmp_path, tmp_path / "all.pt", optimizer=True)
    held, other = torch.load(tmp_path / "all.pt", weights_only=True), small()
    other.load_state_dict(held["model"])
    resumed = type(optimizer)(other.parameters(), lr=0.5)  # type: ignore[call-arg]
    resumed.load_state_dict(held["optimizer"])
    for _ in range(3):
        assert step(other, resumed) == step(module, optimizer)
