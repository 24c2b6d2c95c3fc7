"""Predict first, then measure: acts are timed one at a time, the simulator lays them over each other, and only then the Plan runs for real."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from backend.acts.act import Batches
from backend.devices.device import Device
from backend.devices.options import DeviceOptions
from backend.inprocess import run
from backend.placing.owners import OwnedBytes
from backend.run_folder.outcome import Outcome
from planner.ir.plan import Plan, Task
from planner.ir.text import content_id
from planner.ir.traces.trace import Trace
from simulator import simulate

__all__ = ["AlonePrices", "Predicted", "predict_then_run", "prices_of"]

SKIPPED = 2
"""Steps that warm up and do not count."""


@dataclass(frozen=True, kw_only=True)
class AlonePrices:
    """A CostModel: median seconds of each (task, rank), every act alone in the process.  Messages in one process take no time."""

    seconds: Mapping[tuple[str, int], float]

    @property
    def id(self) -> str:
        return f"alone-{content_id([[task, rank, value] for (task, rank), value in sorted(self.seconds.items())])}"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        return self.seconds[task.id, rank]

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


def prices_of(plan: Plan, trace: Trace) -> AlonePrices:
    """Medians over the counted steps of a trace whose acts ran alone."""
    durations_of: dict[tuple[str, int], list[float]] = defaultdict(list)
    for act in trace.acts:
        if act.number >= SKIPPED * plan.task[act.task].acts:
            durations_of[act.task, act.rank].append(act.duration_s)
    return AlonePrices(seconds={key: median(values) for key, values in durations_of.items()})


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A prediction, made before the run; ``peak_bytes``: per device name, what it held at once at most, working memory included.

    alone: task -> seconds of an act by itself.   owned: per device name, what was counted before the run.
    """

    sim: Trace
    outcome: Outcome
    sim_step_s: float
    run_steps_s: tuple[float, ...]
    peak_bytes: Mapping[str, int]
    alone: Mapping[str, float]
    owned: Mapping[str, OwnedBytes] = field(default_factory=dict)


def _forget() -> None:
    """Free the blocks of earlier runs, and the products' workspaces, of which torch keeps one per stream as long as the process lives."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def predict_then_run(
    plan: Plan,
    state: Mapping[str, Tensor],
    batches: Batches,
    devices: Mapping[int, Device],
    *,
    steps: int,
    alone_steps: int = 8,
    graphs: bool = False,
) -> Predicted:
    """Time acts alone, simulate ``steps`` steps, then perform as many."""
    few = run(
        plan,
        state,
        batches,
        SKIPPED + alone_steps,
        devices=devices,
        options=DeviceOptions(graphs=graphs),
        alone=True,
        timeout_s=60,
        allow_nan=True,
    )
    prices = prices_of(plan, few.trace)
    sim = simulate(plan, prices, steps=SKIPPED + steps)
    _forget()
    distinct = {device.name: device for device in devices.values()}
    for device in distinct.values():
        device.reset_peak()
    outcome = run(
        plan, state, batches, SKIPPED + steps, devices=devices, options=DeviceOptions(graphs=graphs), timeout_s=60, allow_nan=True
    )
    return Predicted(
        sim=sim,
        outcome=outcome,
        sim_step_s=median(sim.step_times_s(plan)[SKIPPED:]),
        run_steps_s=outcome.trace.step_times_s(plan)[SKIPPED:],
        peak_bytes={name: device.peak_bytes() for name, device in distinct.items()},
        alone={task: seconds for (task, _), seconds in prices.seconds.items()},
    )
