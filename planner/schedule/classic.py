"""Schedules whose backward pass is one act: GPipe, 1F1B and interleaved 1F1B.

1F1B on p = 3 devices, m = 4 micro-batches (digits: forward, letters a, b, ...: backward of micro-batch 0, 1, ...):

    device 0   0 1 2 . . a 3 b . c . d
    device 1   . 0 1 . a 2 b 3 c . d .         F and B alternate from the first gradient on;
    device 2   . . 0 a 1 b 2 c 3 d . .         stage i holds at most p - i micro-batches

Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2019 (PipeDream, 1F1B); Narayanan et al. 2021 (Megatron-LM, section 2.2, interleaving).
"""

from __future__ import annotations

from planner.ir.errors import Unsupported
from planner.schedule.actions import Action, Pass, PipelineSchedule

__all__ = ["check_counts", "gpipe", "interleaved", "one_f_one_b"]


def gpipe(num_stages: int, micro_batches: int) -> PipelineSchedule:
    """All forward passes, then all backward passes, both in the order of the micro-batches.

    Raises:
        Unsupported: a count < 1.
    """
    check_counts(num_stages, micro_batches)
    order = (*((Pass.FORWARD, k) for k in range(micro_batches)), *((Pass.BACKWARD, k) for k in range(micro_batches)))
    return PipelineSchedule("gpipe", tuple(tuple(Action(i, kind, k) for kind, k in order) for i in range(num_stages)))


def one_f_one_b(num_stages: int, micro_batches: int) -> PipelineSchedule:
    """One forward, one backward: stage i of p first performs p - 1 - i forward passes, then F and B alternately, then the remaining B.

    Raises:
        Unsupported: a count < 1.
    """
    check_counts(num_stages, micro_batches)
    schedule = interleaved(num_stages, micro_batches, 1, warm_up_step=1)
    return PipelineSchedule("1f1b", schedule.orders)


def interleaved(
    num_devices: int, micro_batches: int, stages_per_device: int, *, warm_up_step: int = 2, per_round: int | None = None
) -> PipelineSchedule:
    """Interleaved 1F1B: device d of p performs stages d, d + p, d + 2p, ...; each stage performs a round of micro-batches before the next one.

    The k-th forward pass of a device, k = 0, 1, ..., belongs to its stage number (k div r) mod v, where r is the micro-batches per round;
    backward passes take the stages in the opposite order.  Before the first backward pass come (v - 1) r + 2 (p - 1 - d) forward passes.

    Args:
        stages_per_device: v.
        warm_up_step: by how many forward passes a device begins its backward passes later than the next device.
        per_round: r; None: m / max(1, m div p), of which there are the most rounds.

    Raises:
        Unsupported: a count < 1, or micro-batches that do not divide into rounds of one size.

    Source: Narayanan et al. 2021, section 2.2.2, for r = p.  Rounds of m / max(1, m div p) micro-batches: torch's ScheduleInterleaved1F1B.
    """
    p, m, v = num_devices, micro_batches, stages_per_device
    check_counts(p, m, v)
    rounds = max(1, m // p) if per_round is None else -(-m // max(1, per_round))
    if v > 1 and m % rounds:
        raise Unsupported(
            f"interleaving {v} stages on each of {p} devices needs {m} micro-batches in {rounds} equal rounds; use a multiple of {p}"
        )
    # With one stage per device a round is one micro-batch, which may be of any number.
    per_round = m // rounds if v > 1 else 1
    orders = []
    for d in range(p):
        warm_up = min((v - 1) * per_round + warm_up_step * (p - 1 - d), m * v)
        forward = [_nth_pass(k, d, p, v, per_round, Pass.FORWARD) for k in range(m * v)]
        backward = [_nth_pass(k, d, p, v, per_round, Pass.BACKWARD) for k in range(m * v)]
        steady = [action for pair in zip(forward[warm_up:], backward, strict=False) for action in pair]
        orders.append((*forward[:warm_up], *steady, *backward[m * v - warm_up :]))
    return PipelineSchedule("interleaved", tuple(orders))


def _nth_pass(k: int, device: int, num_devices: int, stages_per_device: int, per_round: int, kind: Pass) -> Action:
    """The k-th forward or backward pass of a device."""
    chunk = (k // per_round) % stages_per_device
    if kind is not Pass.FORWARD:
        chunk = stages_per_device - 1 - chunk
    micro_batch = k // (per_round * stages_per_device) * per_round + k % per_round
    return Action(chunk * num_devices + device, kind, micro_batch)


def check_counts(*counts: int) -> None:
    """Raises Unsupported where a count of devices, micro-batches or stages is below 1."""
    if min(counts) < 1:
        raise Unsupported(
            f"a schedule of {' x '.join(map(str, counts))} devices, micro-batches (and stages per device): each is at least 1"
        )
