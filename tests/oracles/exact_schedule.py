"""The oracle of planner.schedule.automatic: the exact zero-bubble schedule of a small pipeline, a mixed integer program solved by HiGHS.

Micro-batches are alike, so each device performs each kind of pass in their order; what remains open is how the kinds are woven together.

    t[a] >= 0               start of act a                         x[a,b] in {0,1}   a before b, for two acts of one device of different kinds
    C                       cost: the longest span

    min C
    t[b] >= t[a] + T[a] + T_comm                                    b needs a                                                       (1)
    t[b] >= t[a] + T[a]                                             a before b on its device, always                                (2)
    t[b] >= t[a] + T[a] - U (1 - x[a,b]),  t[a] >= t[b] + T[b] - U x[a,b]    otherwise; U: a cost that is known                     (3)
    (k+1) M_B - (M_B - M_W) sum_j x[I_j, F_k] - M_W sum_j x[W_j, F_k] <= limit                                                      (4)
    C >= t[W_last] + T_W - t[F_0]                                   each device                                                     (5)

The program is that of arXiv:2401.10241, section 3.2 (appendix G), without its optimizer terms.  Sizes up to about 4 stages x 6 micro-batches.
"""

from __future__ import annotations

from itertools import product
from math import inf

import pulp

from planner.ir.errors import Unsupported
from planner.schedule.actions import Action, Pass, PipelineSchedule
from planner.schedule.automatic import AutomaticSchedule, zb_auto
from planner.schedule.greedy import MemoryLimit
from planner.schedule.timing import PassTimes, needs, spans_s

__all__ = ["zb_exact"]

_F, _I, _W = Pass.FORWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT
_KINDS = (_F, _I, _W)


def zb_exact(micro_batches: int, times: PassTimes, memory: MemoryLimit, *, seconds: float = inf) -> AutomaticSchedule:
    """The schedule of least cost; with ``seconds`` the best so far and its bound.  It starts from what zb_auto finds.

    Raises:
        Unsupported: no schedule fits the limit.
    """
    p, m = len(times.forward_s), micro_batches
    start = zb_auto(m, times, memory)
    unit_s = max(times.forward_s)  # the solver sees times near 1
    upper = _horizon_s(m, times) / unit_s
    model = pulp.LpProblem("schedule", pulp.LpMinimize)
    cost = model.add_variable("cost", lowBound=start.bound_s / unit_s, upBound=start.cost_s / unit_s)
    begin = {
        Action(i, kind, k): model.add_variable(f"t{i}{kind.value}{k}", lowBound=0) for i in range(p) for kind in _KINDS for k in range(m)
    }
    length = {action: times.of(action) / unit_s for action in begin}
    gradient_of = {(a.stage, a.micro_batch): a for a in begin if a.kind is _I}
    model += cost
    for b in begin:
        for a in needs(b, p, gradient_of):
            model += begin[b] >= begin[a] + length[a] + (times.comm_s / unit_s) * (a.stage != b.stage)  # (1)
        if b.micro_batch:
            a = Action(b.stage, b.kind, b.micro_batch - 1)
            model += begin[b] >= begin[a] + length[a]  # (2)
    for i in range(p):
        earlier: dict[tuple[Action, Action], pulp.LpVariable] = {}
        # F_k before I_j and W_j for k <= j, and I_k before W_j for k <= j, follow from (1) and (2); the other pairs are open.
        for late, soon in ((_F, _I), (_F, _W), (_I, _W)):
            for k, j in product(range(m), repeat=2):
                if k <= j:
                    continue
                b, a = Action(i, late, k), Action(i, soon, j)
                x = earlier[a, b] = model.add_variable(f"x{i}{soon.value}{j}{late.value}{k}", cat=pulp.LpBinary)
                model += begin[b] >= begin[a] + length[a] - upper * (1 - x)  # (3)
                model += begin[a] >= begin[b] + length[b] - upper * x
        for k in range(m):
            before = [(x, a.kind) for (a, b), x in earlier.items() if b == Action(i, _F, k)]
            given = {_I: memory.activation - memory.weight_activation, _W: memory.weight_activation}
            freed = pulp.lpSum(given[kind] * x for x, kind in before)
            model += (k + 1) * memory.activation - freed <= memory.limit * (1 + 1e-9)  # (4)
        last = Action(i, _W, m - 1)
        model += cost >= begin[last] + length[last] - begin[Action(i, _F, 0)]  # (5)
    solver = pulp.HiGHS(msg=False, threads=1, timeLimit=None if seconds == inf else seconds, gapRel=1e-6)
    model.solve(solver)
    bound_s = max(start.bound_s, float(model.solverModel.getInfo().mip_dual_bound) * unit_s)
    if cost.varValue is None:
        return AutomaticSchedule(schedule=start.schedule, cost_s=start.cost_s, bound_s=min(bound_s, start.cost_s), tried=start.tried)
    orders = tuple(tuple(sorted((a for a in begin if a.stage == i), key=lambda a: _place(begin, a))) for i in range(p))
    schedule = PipelineSchedule("zb-exact", orders)
    cost_s = max(spans_s(schedule, times))
    if cost_s > start.cost_s:
        schedule, cost_s = start.schedule, start.cost_s
    return AutomaticSchedule(schedule=schedule, cost_s=cost_s, bound_s=min(bound_s, cost_s), tried=start.tried + 1)


def _place(begin: dict[Action, pulp.LpVariable], action: Action) -> tuple[float, int, int]:
    """Sort key; passes of no duration stand in the order in which they need each other."""
    value = begin[action].varValue
    if value is None:
        raise Unsupported(f"the solver gave {action} no start; ask with more seconds")
    return round(float(value), 6), _KINDS.index(action.kind), action.micro_batch


def _horizon_s(micro_batches: int, times: PassTimes) -> float:
    """A time by which even a schedule without any overlap has ended."""
    passes = sum(times.forward_s) + sum(times.backward_input_s) + sum(times.backward_weight_s)
    return micro_batches * (passes + 2 * len(times.forward_s) * times.comm_s)
