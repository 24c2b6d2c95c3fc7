"""The same numbers on the device: Plans of 1, 2 and 4 ranks there, against the reference on CPUs (SEMANTICS 6.1, 7.4, 9.5).

fp32, dropout   ||x - x_cpu|| / ||x_cpu|| of all gradients and all states together, and of losses, in multiples of FP32
bf16-mixed      distance from float32 training, in multiples of twice the distance that the reference has in bf16-mixed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backend.devices.options import DeviceOptions
from backend.inprocess import run
from backend.reference import perform
from backend.run_folder.outcome import Outcome
from experiments.gpu.alone import SKIPPED
from experiments.gpu.bench import Bench, Row, row
from experiments.gpu.plans import roomy_cluster
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.ir.traces.trace import check_trace
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

__all__ = ["FP32", "distance", "transparency"]

FP32 = 1e-4
"""Allowed in float32 between two libraries that add up in other orders, after a few steps of SGD."""
STEPS = 3

WAYS: Mapping[str, tuple[int, PlanOptions]] = {
    "1 rank": (1, PlanOptions(micro_batches=2)),
    "2 ranks, data parallel": (2, PlanOptions(mesh=(2,), micro_batches=2, pins=("input*=S(0)",))),
    "2 ranks, pipeline": (2, PlanOptions(stages=2, micro_batches=4)),
    "2 ranks, ZeRO-3": (2, PlanOptions(mesh=(2,), micro_batches=2, zero=3)),
    "4 ranks, pipeline of 2 x 2": (4, PlanOptions(stages=2, mesh=(2,), micro_batches=2, pins=("input*=S(0)",))),
}


@dataclass(frozen=True, slots=True)
class _Distance:
    loss: float
    gradient: float
    state: float

    @property
    def largest(self) -> float:
        return max(self.loss, self.gradient, self.state)


GRAPHED = frozenset({"1 rank", "4 ranks, pipeline of 2 x 2"})
"""Ways that are tried with CUDA graphs, too."""


def distance(one: Outcome, other: Outcome) -> _Distance:
    """Relative, of all tensors of a kind together."""
    losses = [torch.tensor(outcome.losses, dtype=torch.float64) for outcome in (one, other)]
    return _Distance(
        loss=float((losses[0] - losses[1]).norm() / losses[1].norm()),
        gradient=_apart(one.gradients, other.gradients),
        state=_apart(one.states, other.states),
    )


def _apart(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> float:
    apart = whole = 0.0
    for name, value in there.items():
        if value.is_floating_point():
            apart += float((here[name].double() - value.double()).square().sum())
            whole += float(value.double().square().sum())
    return float((apart / max(whole, 1e-30)) ** 0.5)


def transparency(bench: Bench) -> Iterator[Row]:
    width = 64 if bench.scale.is_large else 16
    for precision, dropout in (("fp32", 0.0), ("fp32", 0.1), ("bf16-mixed", 0.0)):
        name = f"{precision}{', dropout' if dropout else ''}"
        # AdamW divides a gradient by its own size: one that is 0 but for rounding (of a key's bias) moves a parameter by a whole step, to either side.
        source = ZOO["gpt"](layers=2, width=width, heads=2, vocab=64, batch=8, seq=16, dropout=dropout, optimizer="sgd")
        mixed = source.in_formats(precision, None) if precision != "fp32" else source
        on_cpu = cache(_on_cpu)
        for way, (ranks, options) in WAYS.items():
            plan = _planned(mixed, ranks, options)
            for graphs in (False, True) if bench.name != "cpu" and way in GRAPHED else (False,):
                steps = STEPS + SKIPPED * graphs
                truth = on_cpu(source, plan.micro_batches, steps)
                allowed = FP32 if mixed is source else 2 * distance(on_cpu(mixed, plan.micro_batches, steps), truth).largest
                with bench.devices(dict.fromkeys(range(ranks), "device")) as devices:
                    outcome = run(
                        plan,
                        mixed.initial_state(plan.micro_batches),
                        mixed.batch,
                        steps,
                        gradients=True,
                        devices=devices,
                        options=DeviceOptions(graphs=graphs),
                        timeout_s=60,
                    )
                check_trace(plan, outcome.trace)
                setting = f"{name}: {way}{', graphs' if graphs else ''}"
                yield row("transparency", setting, "error", "of what is allowed", None, (distance(outcome, truth).largest / allowed,))


def _planned(source: Program, ranks: int, options: PlanOptions) -> Plan:
    graph = source.graph(options.micro_batches or 1)
    return make_plan(graph, model="gpt", batch_size=source.batch_size, cluster=roomy_cluster(ranks), options=options)


def _on_cpu(source: Program, micro_batches: int, steps: int) -> Outcome:
    plan = _planned(source, 1, PlanOptions(micro_batches=micro_batches))
    return perform(plan, source.initial_state(micro_batches), source.batch, steps, gradients=True)
