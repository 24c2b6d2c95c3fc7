"""A checkpoint as one file for plain torch: module.load_state_dict(torch.load(FILE)), and optimizer.load_state_dict likewise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.checkpoint.folder import write_part, write_whole
from backend.checkpoint.manifest import Group, SavedState
from backend.checkpoint.saved import Saved, find, verify
from backend.initial.values import whole_box
from planner.frontend.optim.adaptive import Adadelta, Adamax, NAdam, RAdam
from planner.frontend.optim.rules import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, RMSprop
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind

__all__ = ["export", "optimizer_state_dict", "state_dict"]

_SLOTS = {rule.target: rule.all_slots for rule in (SGD, AdamW, Adam, Adagrad, RMSprop, Adafactor, Muon, Adamax, NAdam, RAdam, Adadelta)}


def _whole(saved: Saved, state: SavedState) -> Tensor:
    return saved.part(state.name, whole_box(state.shape))


def state_dict(folder: str | Path) -> dict[str, Tensor]:
    """Parameters and buffers by name, whole.

    A tied parameter stands under its first name only, and buffers that are not persistent are there too: load with strict=False.
    """
    saved = Saved(str(find(folder)))
    wanted = (InputKind.PARAMETER, InputKind.BUFFER)
    return {state.name: _whole(saved, state) for state in saved.manifest.states if state.kind in wanted}


def optimizer_state_dict(folder: str | Path) -> dict[str, Any]:
    """What ``optimizer.load_state_dict`` takes, for the torch.optim optimizer over the trained parameters in the module's order.

    Parameters with equal numbers are one group, groups stand in the order of their first parameters.

    Raises:
        Unsupported: numbers that a checkpoint does not hold (Muon's), or no parameter is trained.
    """
    saved = Saved(str(find(folder)))
    manifest = saved.manifest
    trained = [state.name for state in manifest.states if any(state.name in group.parameters for group in manifest.groups)]
    if not trained:
        raise Unsupported(f"{saved.folder}: no parameter of its plan is updated by an optimizer; export without optimizer state")
    numbers = {name: number for number, name in enumerate(trained)}
    state: dict[int, dict[str, Tensor]] = {}
    for name, number in numbers.items():
        (group,) = [g for g in manifest.groups if name in g.parameters]
        slots = {slot: manifest.state.get(f"{name}:{slot}") for slot in _SLOTS.get(group.target, ())}
        state[number] = {slot: _whole(saved, entry) for slot, entry in slots.items() if entry is not None}
        if "mu_product" in state[number] and not state[number]["step"]:
            del state[number]  # before the first step it is 1, as torch makes it
    groups = [_group(group, [numbers[name] for name in group.parameters], state) for group in manifest.groups]
    return {"state": state, "param_groups": groups}


def _group(group: Group, members: list[int], state: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Any]:
    """The group as torch.optim writes it: made by torch.optim itself, so that no key is missing in any version."""
    dummy = [torch.zeros(()) for _ in members]
    kept = state.get(members[0], {})
    optimizer: torch.optim.Optimizer
    match group.target, group.numbers:
        case "regista.adamw", (lr, beta1, beta2, eps, decay):
            optimizer = torch.optim.AdamW(dummy, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        case "regista.sgd", (lr, momentum, decay, nesterov):
            optimizer = torch.optim.SGD(dummy, lr=lr, momentum=momentum, weight_decay=decay, nesterov=bool(nesterov))
        case "regista.adam", (lr, beta1, beta2, eps, decay, decoupled):
            amsgrad = "max_exp_avg_sq" in kept
            kind = torch.optim.AdamW if decoupled else torch.optim.Adam
            optimizer = kind(dummy, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, amsgrad=amsgrad)
        case "regista.adagrad", (lr, lr_decay, decay, eps):
            optimizer = torch.optim.Adagrad(dummy, lr=lr, lr_decay=lr_decay, weight_decay=decay, eps=eps)
        case "regista.rmsprop", (lr, alpha, eps, decay, momentum):
            centered = "grad_avg" in kept
            optimizer = torch.optim.RMSprop(dummy, lr, alpha, eps, decay, momentum, centered)
        case "regista.adamax", (lr, beta1, beta2, eps, decay):
            optimizer = torch.optim.Adamax(dummy, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        case "regista.nadam", (lr, beta1, beta2, eps, decay, momentum_decay, decoupled):
            optimizer = torch.optim.NAdam(dummy, lr, (beta1, beta2), eps, decay, momentum_decay, bool(decoupled))
        case "regista.radam", (lr, beta1, beta2, eps, decay, decoupled):
            optimizer = torch.optim.RAdam(dummy, lr, (beta1, beta2), eps, decay, bool(decoupled))
        case "regista.adadelta", (lr, rho, eps, decay):
            optimizer = torch.optim.Adadelta(dummy, lr=lr, rho=rho, eps=eps, weight_decay=decay)
        case "regista.adafactor", (lr, beta2_decay, eps2, d, decay, *eps1):
            eps_pair = (eps1[0] if eps1 else None, eps2)
            optimizer = torch.optim.Adafactor(dummy, lr=lr, beta2_decay=beta2_decay, eps=eps_pair, d=d, weight_decay=decay)
        case _:
            raise Unsupported(f"optimizer {group.target} with {len(group.numbers)} numbers has no form in torch.optim; export without it")
    (made,) = optimizer.state_dict()["param_groups"]
    return {**made, "params": members}


def export(folder: str | Path, out: str | Path, *, optimizer: bool = False) -> int:
    """Write one file for torch.load: a state_dict, or {"model": state_dict, "optimizer": optimizer state, "step": steps}.

    Returns:
        its size in bytes.

    Raises:
        InvalidFile: the checkpoint is damaged, or the file cannot be written.   Unsupported: see optimizer_state_dict.
    """
    step = verify(find(folder)).step
    if not optimizer:
        return write_part(Path(out), state_dict(folder)).size_bytes
    content = {"model": state_dict(folder), "optimizer": optimizer_state_dict(folder), "step": step}
    return write_whole(Path(out), lambda file: torch.save(content, file)).size_bytes  # type: ignore[arg-type]
