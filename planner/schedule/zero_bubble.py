"""The handcrafted zero-bubble schedules ZB-H1 and ZB-H2: the backward pass is split, and weight parts are delayed to fill bubbles.

H1 on p = 3 devices, m = 4, T_F = T_B = T_W, in the letters of planner.schedule.actions:

    device 0   F F F . . I W F I W I W I W
    device 1   . F F . I F I W F I W I W W        device i performs its weight parts i micro-batches late,
    device 2   . . F I F I F I W F I W W W        so each device holds as much as device 0 holds in 1F1B

H2 begins with 2 (p - i) - 1 forward passes instead of p - i and performs the weight parts 2 i micro-batches late.  It takes twice the memory, and
if T_F = T_B = T_W, no device waits between its first and its last act.

Source: Qi et al. 2024 (arXiv:2401.10241), sections 2.2 and 2.3, figures 2 and 3.
"""

from __future__ import annotations

from planner.schedule.actions import Action, Pass, PipelineSchedule
from planner.schedule.classic import check_counts

__all__ = ["zb_h1", "zb_h2"]


def zb_h1(num_stages: int, micro_batches: int) -> PipelineSchedule:
    """ZB-H1: a device holds activations of at most p micro-batches, including those that wait for their weight part.

    Raises:
        Unsupported: a count < 1.
    """
    return _handcrafted("zb-h1", num_stages, micro_batches, memory=1)


def zb_h2(num_stages: int, micro_batches: int) -> PipelineSchedule:
    """ZB-H2: a device holds activations of at most 2 p - 1 micro-batches.

    Raises:
        Unsupported: a count < 1.
    """
    return _handcrafted("zb-h2", num_stages, micro_batches, memory=2)


def _handcrafted(name: str, p: int, m: int, memory: int) -> PipelineSchedule:
    check_counts(p, m)
    orders = []
    for i in range(p):
        first, late = min(memory * (p - i) - (memory - 1), m), memory * i
        order = [(Pass.FORWARD, k) for k in range(first)]
        for k in range(m):
            order.append((Pass.BACKWARD_INPUT, k))
            if k >= late:
                order.append((Pass.BACKWARD_WEIGHT, k - late))
            if first + k < m:
                order.append((Pass.FORWARD, first + k))
        order += [(Pass.BACKWARD_WEIGHT, k) for k in range(max(0, m - late), m)]
        orders.append(tuple(Action(i, kind, k) for kind, k in order))
    return PipelineSchedule(name, tuple(orders))
