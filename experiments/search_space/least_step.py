"""The least step over all choices of a search's model, by enumerating them node by node; what no later node can tell apart is kept once.

Of partial choices that agree on every node that a later one touches, those that are dominated in the seconds (t_i, u_i) of every stage, and in the
bytes that the model counts at every time, are dropped: the step  sum t_i + (m - 1) max t_i + max u_i  never falls when one of these seconds rises,
so the least step over all choices within the memory is kept.
"""

from __future__ import annotations

from math import inf, isfinite, log

from planner.search.model import SearchModel
from planner.solve.problem import Demand

__all__ = ["least_step_s"]

Front = tuple[float, ...]
"""t_i, then u_i, of the stages, then bytes at the times of the model."""


def least_step_s(model: SearchModel, memory_bytes: float = inf, most: int = 200_000) -> float | None:
    """Seconds of the least step of any choice; None: there are more than ``most`` partial choices at once.   Infinite: none fits.

    memory_bytes: of a device; a model that was built without a limit counts no bytes.
    """
    problem, counts, stages = model.problem, model.stage_counts, model.staged.num_stages
    times = max((demand.stop for demand in problem.demands), default=0)
    demands_of: dict[int, list[Demand]] = {}
    for demand in problem.demands:
        demands_of.setdefault(demand.node, []).append(demand)
    order = _order(model)
    place = {node: number for number, node in enumerate(order)}
    last = {node: place[node] for node in order}
    edges_at: list[list[int]] = [[] for _ in order]
    costs_of = [costs.tolist() for costs in problem.costs]
    matrices = [edge.matrix.tolist() for edge in problem.edges]
    for number, edge in enumerate(problem.edges):
        later = max(edge.u, edge.v, key=place.__getitem__)
        edges_at[later].append(number)
        for node in (edge.u, edge.v):
            last[node] = max(last[node], place[later])
    partial: dict[tuple[tuple[int, int], ...], list[Front]] = {(): [(0.0,) * (2 * stages + times)]}
    for node in order:
        grown: dict[tuple[tuple[int, int], ...], list[Front]] = {}
        for kept, fronts in partial.items():
            taken = dict(kept)
            for strategy, cost in enumerate(costs_of[node]):
                taken[node] = strategy
                more = [0.0] * (2 * stages + times)
                for demand in demands_of.get(node, ()):
                    for time in range(demand.start, demand.stop):
                        more[2 * stages + time] += float(demand.amount[strategy])
                parts = [(cost, counts.node_stage[node], counts.node_count[node])]
                for number in edges_at[node]:
                    edge = problem.edges[number]
                    parts.append((matrices[number][taken[edge.u]][taken[edge.v]], counts.edge_stage[number], counts.edge_count[number]))
                if not all(isfinite(seconds) for seconds, _, _ in parts):
                    continue
                for seconds, stage, count in parts:
                    more[stage + (0 if count > 1 else stages)] += seconds / count if count > 1 else seconds
                key = tuple((n, s) for n, s in taken.items() if last[n] > place[node])
                sums = (tuple(a + b for a, b in zip(front, more, strict=True)) for front in fronts)
                grown.setdefault(key, []).extend(front for front in sums if max(front[2 * stages :], default=0.0) <= memory_bytes)
        partial = {key: _undominated(fronts) for key, fronts in grown.items()}
        if sum(map(len, partial.values())) > most:
            return None
    steps = [
        sum(f[:stages]) + (model.micro_batches - 1) * max(f[:stages]) + max(f[stages : 2 * stages])
        for fronts in partial.values()
        for f in fronts
    ]
    return min(steps, default=inf)


def _order(model: SearchModel) -> list[int]:
    """All nodes, each time the one that leaves the fewest combinations of nodes with neighbours yet to come."""
    around: dict[int, set[int]] = {node: set() for node in range(len(model.problem.costs))}
    for edge in model.problem.edges:
        around[edge.u].add(edge.v)
        around[edge.v].add(edge.u)
    size, order, open_nodes, left = [len(costs) for costs in model.problem.costs], list[int](), set[int](), set(around)

    def after(node: int) -> float:
        still = {n for n in {*open_nodes, node} if around[n] & (left - {node})}
        return sum(log(size[n]) for n in still)

    while left:
        node = min(sorted(left), key=after)
        left.discard(node)
        open_nodes = {n for n in {*open_nodes, node} if around[n] & left}
        order.append(node)
    return order


def _undominated(fronts: list[Front]) -> list[Front]:
    kept: list[Front] = []
    for front in sorted(set(fronts)):
        if not any(all(a <= b for a, b in zip(other, front, strict=True)) for other in kept):
            kept.append(front)
    return kept
