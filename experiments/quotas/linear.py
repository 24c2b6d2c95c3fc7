"""The relaxation: quotas as real numbers, start times as potentials.  For Buffers of one block per period (b = 1).

    min  sum_r price_r q_r
    s.t. s_v - s_u >= w / L - k                     fixed arcs                              (1)
         s_p + q_r - s_c >= release / L             rings of r                              (2)
         lower_r <= q_r <= upper_r
         sum of q_r around a cycle >= a whole number        (3)  in rounds: experiments.quotas.cycles, then solved again

with times in units of the period L.  Its value bounds the bytes of every quota vector with that period from below.  Its dual is a minimum-cost
flow.  Arrays go to HiGHS directly: at 10,000 Buffers building a model row by row would take longer than solving it.

Source: Ning & Gao 1993, "A novel framework of register allocation for software pipelining".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import highspy
import numpy as np

from experiments.quotas.cycles import cycle_cuts
from planner.ir.errors import Unsupported
from simulator.quotas.problem import Floats, QuotaProblem

__all__ = ["Relaxed", "relax", "relaxations"]


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """bound_bytes: no quotas need less.   starts: s_v / L.   quotas: real numbers."""

    bound_bytes: float
    starts: Floats
    quotas: Floats


def relax(problem: QuotaProblem, period_s: float) -> Relaxed | None:
    """Solve (1) and (2); None: no quotas reach this period.

    Args:
        period_s: L > 0, in seconds.

    Raises:
        Unsupported: Buffers with several blocks per period, or a period that is not positive.
    """
    return next(relaxations(problem, period_s, 0), None)


def relaxations(problem: QuotaProblem, period_s: float, rounds: int) -> Iterator[Relaxed]:
    """As relax, and then again with (3), at most so many rounds and while there are cuts; the bound never falls.  Nothing: no quotas do."""
    if any(len(ring.producers) != 1 for buffer in problem.buffers for ring in buffer.rings):
        raise Unsupported("the relaxation takes buffers of one block per period; fold the acts of a step first")
    if not 0 < period_s < inf:
        raise Unsupported(f"period {period_s} s: quotas are sized for a period that is positive and finite")
    buffer, consumer, _, _, begins, flat, release = problem._rings
    nodes, count = problem.num_nodes, len(problem.buffers)
    price = problem.price_bytes.astype(np.float64)
    scale = 1.0 / max(1.0, float(price.max(initial=1.0)))
    loops = problem.head == problem.tail
    if (problem.weight_s[loops] > period_s * problem.tokens[loops] * (1 + 1e-9)).any():
        return
    head, tail = problem.head[~loops], problem.tail[~loops]
    fixed = len(head)
    producer = flat[begins] if len(flat) else consumer
    # A ring from a node to itself leaves only its quota.
    same = producer == consumer
    lower = problem.lower.astype(np.float64)
    np.maximum.at(lower, buffer[same], np.ceil(release[same] / period_s * (1 - 1e-12)))
    if (lower > problem.upper).any():
        return
    buffer, consumer, producer, release = buffer[~same], consumer[~same], producer[~same], release[~same]
    rings = len(consumer)
    columns = np.concatenate([np.stack([head, tail], 1).ravel(), np.stack([producer, consumer, nodes + buffer], 1).ravel()])
    values = np.concatenate([np.tile([1.0, -1.0], fixed), np.tile([1.0, -1.0, 1.0], rings)])
    starts = np.concatenate([np.arange(fixed) * 2, 2 * fixed + np.arange(rings) * 3])
    low = np.concatenate([problem.weight_s[~loops] / period_s - problem.tokens[~loops], release / period_s])
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = nodes + count, fixed + rings
    lp.col_cost_ = np.concatenate([np.zeros(nodes), price * scale])
    lp.col_lower_ = np.concatenate([np.full(nodes, -highspy.kHighsInf), lower])
    lp.col_upper_ = np.concatenate([np.full(nodes, highspy.kHighsInf), problem.upper.astype(np.float64)])
    lp.row_lower_ = low
    lp.row_upper_ = np.full(fixed + rings, highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.append(starts, len(columns)).astype(np.int32)
    lp.a_matrix_.index_ = columns.astype(np.int32)
    lp.a_matrix_.value_ = values
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    model.setOptionValue("threads", 1)
    model.passModel(lp)
    row_tail, row_head = np.concatenate([tail, consumer]), np.concatenate([head, producer])
    row_buffer = np.concatenate([np.full(fixed, -1, dtype=np.int64), buffer])
    for left in range(rounds, -1, -1):
        model.run()
        status = model.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return
        if status != highspy.HighsModelStatus.kOptimal:
            raise Unsupported(f"HiGHS left the relaxation with status {model.modelStatusToString(status)}")
        solution = model.getSolution()
        primal = np.array(solution.col_value)
        yield Relaxed(model.getObjectiveValue() / scale, primal[:nodes], primal[nodes:])
        if not left:
            return
        flow = np.maximum(np.array(solution.row_dual)[: fixed + rings], 0.0)
        cuts = cycle_cuts(nodes, row_tail, row_head, low, row_buffer, flow)
        if not len(cuts.least):
            return
        endless = np.full(len(cuts.least), highspy.kHighsInf)
        index = (nodes + cuts.buffer).astype(np.int32)
        model.addRows(len(cuts.least), cuts.least, endless, len(index), cuts.first.astype(np.int32), index, cuts.times)
