"""One case: a random program planned, performed and compared with plain PyTorch; a refusal is told, an error of ours is not caught."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regista
from experiments.corpus.compare import Eager, errors, train_eagerly
from experiments.corpus.ways import small_cluster
from experiments.random_programs import nets, sequences
from experiments.random_programs.nets import random_net
from experiments.random_programs.sequences import SequenceModel, random_sequence_model
from experiments.random_programs.states import random_model_with_state
from experiments.random_programs.trainings import Training, random_training
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram, Unsupported

__all__ = ["PROGRAMS", "Case", "Status", "compared"]

STEPS, SEARCH_S, BATCH = 3, 20.0, 4
LIMIT = 1e-6
"""Of a difference between float64 values, as experiments.corpus.compare shares it out."""


class Status(StrEnum):
    """REFUSED: in one sentence, before anything ran."""

    EQUAL = "equal"
    WRONG = "wrong"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """program: net, sequence, state or training.   names: of its parts.   ways: how the Plan was asked for.

    error: the largest, of losses, states and the last gradients.
    """

    program: str
    seed: int
    performer: str
    names: str
    ways: str
    status: Status
    error: float
    says: str = ""
    kind: str = "run"


_WAYS: Sequence[Mapping[str, Any]] = (
    {},
    {"pins": ["input.*=S(0)"]},
    {"pins": ["input.*=S(0)"], "zero": 3},
    {"micro_batches": 2},
    {"stages": 2},
    {"stages": 2, "micro_batches": 2},
)
"""Of nets and sequences."""


def _of_net(seed: int, performer: str) -> Case:
    net = random_net(seed)
    batch = torch.randn(BATCH, 3, 8, 8, dtype=torch.float64), torch.randint(0, nets.CLASSES, (BATCH,))
    return _of_module("net", seed, performer, net, net.names, batch)


def _of_sequence(seed: int, performer: str) -> Case:
    return _of_words("sequence", seed, performer, random_sequence_model(seed))


def _of_state(seed: int, performer: str) -> Case:
    return _of_words("state", seed, performer, random_model_with_state(seed))


def _of_words(name: str, seed: int, performer: str, model: SequenceModel) -> Case:
    batch = torch.randint(0, sequences.WORDS, (BATCH, sequences.TOKENS)), torch.randint(0, sequences.CLASSES, (BATCH,))
    return _of_module(name, seed, performer, model, model.names, batch)


def _of_module(name: str, seed: int, performer: str, module: nn.Module, names: tuple[str, ...], batch: tuple[Tensor, Tensor]) -> Case:
    ways = Random(seed + 1).choice(_WAYS)
    program = Program(module.double(), batch, F.cross_entropy, SGD(lr=0.01, momentum=0.9))
    plain = train_eagerly(program, ways.get("micro_batches", 1))
    plan = regista.plan(program, small_cluster(), seconds=SEARCH_S, **ways)
    steps = len(plain.losses)
    run = regista.run(plan, program, steps=steps, performer=regista.Performer(performer), gradients=True, allow_nan=True)
    return _told(name, seed, performer, names, ways, errors(run, plain).worst)


def _of_training(seed: int, performer: str) -> Case:
    training = random_training(seed)
    words, target = training.batch
    program = Program(
        training.module,
        training.batch,
        training.loss,
        training.optimizer,
        lr_schedule=training.scheduler,
        data=lambda step: (words.roll(step, 1), target),
        **training.options,
    )
    ways = {"devices": training.devices, **training.ways}
    try:
        plan = regista.plan(program, small_cluster(training.devices), seconds=SEARCH_S, **training.ways)
    except (InvalidProgram, Unsupported) as error:
        return Case(
            program="training", seed=seed, performer=performer, names=", ".join(training.names), ways=str(ways),
            status=Status.REFUSED, error=0.0, says=str(error).splitlines()[0],
        )  # fmt: skip
    run = regista.run(plan, program, steps=STEPS, performer=regista.Performer(performer), gradients=True, allow_nan=True)
    return _told("training", seed, performer, training.names, ways, errors(run, _trained_plainly(training, program)).worst)


def _trained_plainly(training: Training, program: Program) -> Eager:
    """Plain PyTorch, of a copy, without micro-batches: the loss of a Plan's, too, divides by the counts of the whole batch."""
    module: nn.Module
    module, optimizer, scheduler = copy.deepcopy((training.module, training.optimizer, training.scheduler))
    losses, gradients = [], dict[str, Tensor]()
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        words, target = program.batch(step)
        loss = training.loss(module(words), target)
        torch.autograd.backward(loss)
        losses.append(loss.item())
        gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        if training.clip is not None:
            training.clip([p for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return Eager(losses=tuple(losses), gradients=gradients, states={name: p.detach() for name, p in module.named_parameters()})


def _told(program: str, seed: int, performer: str, names: tuple[str, ...], ways: object, error: float) -> Case:
    status = Status.EQUAL if error <= LIMIT else Status.WRONG
    return Case(program=program, seed=seed, performer=performer, names=", ".join(names), ways=str(ways), status=status, error=error)


PROGRAMS = {"net": _of_net, "sequence": _of_sequence, "state": _of_state, "training": _of_training}


def compared(program: str, seed: int, performer: str) -> Case:
    """One random program, a ``net``, a ``sequence``, a model with ``state`` or a ``training``; performer: threads or gloo."""
    return PROGRAMS[program](seed, performer)
