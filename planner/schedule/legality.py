"""The conditions for a legal schedule, and the memory that it holds.

(1) each stage is performed by one device;   (2) each micro-batch of each stage has one F, and either one B or one I and one W;
(3) the orders of devices and the edges between stages form no cycle, so that every act is performed.

Memory, in the units of arXiv:2401.10241 section 2:  F takes M_B;  B gives M_B back;  I gives M_B - M_W back;  W gives M_W back.
"""

from __future__ import annotations

from collections import Counter

from planner.ir.errors import InvalidPlan
from planner.schedule.actions import Action, Pass, PipelineSchedule
from planner.schedule.timing import PassTimes, act_times

__all__ = ["check_schedule", "peak_memory"]


def check_schedule(
    schedule: PipelineSchedule, limit: float | None = None, *, activation: float = 1.0, weight_activation: float = 1.0
) -> None:
    """Refuse a schedule that breaks (1), (2) or (3), or holds more than ``limit`` on a device.

    Raises:
        InvalidPlan: (1) or (2), or too much memory; the message names the act or the device.
        DeadLock: (3).
    """
    for device, order in enumerate(schedule.orders):
        for action in order:
            if schedule.device_of[action.stage] != device:
                raise InvalidPlan(
                    f"schedule {schedule.name}: stage {action.stage} is performed by devices {schedule.device_of[action.stage]} and {device}; "
                    f"move {action} to device {schedule.device_of[action.stage]}"
                )
    counts = Counter(schedule.actions())
    for stage in range(schedule.num_stages):
        for k in range(schedule.micro_batches):
            passes = {kind: counts[Action(stage, kind, k)] for kind in Pass}
            whole, parts = passes[Pass.BACKWARD], (passes[Pass.BACKWARD_INPUT], passes[Pass.BACKWARD_WEIGHT])
            if passes[Pass.FORWARD] != 1 or (whole, parts) not in {(1, (0, 0)), (0, (1, 1))}:
                counted = ", ".join(f"{number} {kind.value}" for kind, number in passes.items())
                raise InvalidPlan(
                    f"schedule {schedule.name}: stage {stage} performs {counted} of micro-batch {k}; it needs 1 F and either 1 B or 1 I and 1 W"
                )
    act_times(schedule, PassTimes.even(schedule.num_stages, 1.0, 1.0, 1.0))
    if limit is None:
        return
    peaks = peak_memory(schedule, activation=activation, weight_activation=weight_activation)
    worst = max(range(len(peaks)), key=peaks.__getitem__)
    if peaks[worst] > limit * (1 + 1e-9):
        raise InvalidPlan(
            f"schedule {schedule.name}: device {worst} holds {peaks[worst]:g} of activations, more than the limit of {limit:g}; "
            f"perform backward or weight parts earlier, or raise the limit"
        )


def peak_memory(schedule: PipelineSchedule, *, activation: float = 1.0, weight_activation: float = 1.0) -> tuple[float, ...]:
    """The peak of the activations that each device holds, in the unit of the arguments.

    Args:
        activation: M_B, the activations of one micro-batch that one stage saves from F to the backward pass.
        weight_activation: M_W <= M_B, the part of them that the weight part still needs after the input part.
    """
    change = {
        Pass.FORWARD: activation,
        Pass.BACKWARD: -activation,
        Pass.BACKWARD_INPUT: weight_activation - activation,
        Pass.BACKWARD_WEIGHT: -weight_activation,
    }
    peaks = []
    for order in schedule.orders:
        held = peak = 0.0
        for action in order:
            held += change[action.kind]
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)
