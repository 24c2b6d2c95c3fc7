"""The table at the end of a run: what was predicted beside what was measured.

Prices of the prediction: a table measured on this machine ('regista calibrate PLAN'), or else those of the Plan's cluster.  An error in percent
is given only where the prices mean this machine: GPU prices of a Plan that ran on CPU cores are no prediction of that run.

bubble   share of the time in which no compute act of a rank ran, mean over its ranks; the step after which nothing follows is left out
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

import regista.api as api
from backend.run_folder import hardware
from planner.cost import AnalyticCost, MeasuredCost
from planner.ir.plan import Plan, StreamKind
from planner.ir.traces.spans import Span, disjoint
from planner.ir.traces.trace import Trace
from planner.ir.units import show_bytes, show_s
from regista.analysis.comparison import Comparison, Pair, compare, default_warmup
from regista.views.tables.show import MEASURED, PREDICTED

__all__ = ["Prediction", "Verdict", "bubble", "predict", "show_verdict", "verdict"]

SIM_STEPS = 4
_CALIBRATED = "regista calibrate: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A simulated trace.   prices: what it was priced with.   incomparable: why its errors mean nothing on this machine; empty: they mean something."""

    trace: Trace
    prices: str
    is_measured: bool
    incomparable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``bubble`` in shares, 0 to 1; ``memory`` in bytes of registers and state on the fullest rank."""

    comparison: Comparison
    bubble: Pair
    memory: Pair
    prediction: Prediction

    def to_json(self) -> dict[str, object]:
        """Plain JSON data; ``predicted`` is always sim, ``measured`` always run.  comparable: whether the errors mean anything."""
        prediction = self.prediction
        return self.comparison.to_json() | {
            "bubble": {"predicted": self.bubble.predicted, "measured": self.bubble.measured},
            "prices": prediction.prices,
            "prices_measured": prediction.is_measured,
            "comparable": not prediction.incomparable,
            "why_not": prediction.incomparable,
        }


def predict(plan: Plan, cost: MeasuredCost | None, *, num_nodes: int = 1) -> Prediction:
    """Simulate what is about to run.

    Args:
        cost: a measured table; None: the prices of the Plan's cluster.   num_nodes: machines that will perform it.

    Raises:
        Mismatch: the table has no price for an act.   And as regista.api.simulate.
    """
    trace = api.simulate(plan, cost or AnalyticCost(plan.cluster), steps=SIM_STEPS)
    prices = f"cost table {cost.id}" if cost is not None else f"prices of cluster {plan.cluster.name}"
    incomparable = _other_table(plan, cost) if cost is not None else _other_cluster(plan, num_nodes)
    return Prediction(trace=trace, prices=prices, is_measured=cost is not None, incomparable=incomparable)


def _other_table(plan: Plan, cost: MeasuredCost) -> str:
    here, there = hardware(plan.num_ranks)["cpu"], cost.about.get("cpu")
    return f"the table was measured on {there}, this machine has {here}" if there not in (None, here) else ""


def _other_cluster(plan: Plan, num_nodes: int) -> str:
    cluster, here = plan.cluster, hardware(plan.num_ranks)["cpu"]
    if cluster.device.kind != "cpu":
        return f"the prices are those of {cluster.device.kind} in {cluster.name}; it ran on CPU cores ({here})"
    if cluster.num_nodes != num_nodes:
        return f"the prices are those of {cluster.num_nodes} nodes of {cluster.name}; it ran on {num_nodes}"
    if cluster.source.startswith(_CALIBRATED) and here not in cluster.source:
        return f"cluster {cluster.name} was calibrated on {cluster.source.removeprefix(_CALIBRATED)}; this machine has {here}"
    return ""


def verdict(plan: Plan, prediction: Prediction, run: Trace) -> Verdict:
    """Lay the run beside its prediction.  Raises Mismatch: another Plan's trace."""
    sim = prediction.trace
    comparison = compare(plan, sim, run)
    memory = Pair(predicted=max(sim.register_bytes.values(), default=0), measured=max(run.register_bytes.values(), default=0))
    return Verdict(
        comparison=comparison,
        bubble=Pair(predicted=bubble(plan, sim, max(0, sim.steps - 2)), measured=bubble(plan, run, default_warmup(run))),
        memory=memory,
        prediction=prediction,
    )


def bubble(plan: Plan, trace: Trace, first: int) -> float:
    """Share (0 to 1) of the steps from ``first`` on without compute; the last step is left out where there are more."""
    ends = (min((act.start_s for act in trace.acts), default=0.0), *trace.step_ends_s(plan))
    begin, end = ends[first], ends[-2] if trace.steps - first > 1 else ends[-1]
    spans: dict[int, list[Span]] = {rank: [] for p in plan.placements for rank in p.ranks}
    for act in trace.acts:
        if plan.stream[plan.task[act.task].stream].kind is StreamKind.COMPUTE and act.end_s > begin and act.start_s < end:
            spans[act.rank].append((max(begin, act.start_s), min(end, act.end_s)))
    return mean(1 - _length(busy) / (end - begin) for busy in spans.values()) if end > begin else 0.0


def _length(spans: list[Span]) -> float:
    """Of the union."""
    return sum(end_s - begin_s for begin_s, end_s in disjoint(spans))


def show_verdict(judged: Verdict) -> RenderableType:
    """One table, and beneath it what the prediction was priced with and how to get a better one."""
    compared, prediction = judged.comparison, judged.prediction
    title = f"{escape(compared.model)}, plan {compared.plan_id}: predicted against measured"
    table = Table(title=title, title_justify="left", caption_justify="left", min_width=64)
    table.add_column("quantity")
    for column in (PREDICTED, MEASURED, "error"):
        table.add_column(column, justify="right", no_wrap=True)

    def row(what: str, pair: Pair, show: Callable[[float], str], error: str | None = None) -> None:
        relative = pair.relative_error
        said = error if error is not None else "-" if relative is None else f"{relative:+.1%}"
        table.add_row(what, show(pair.predicted), show(pair.measured), "-" if prediction.incomparable else said)

    row("step time", compared.step_time_s, show_s)
    row("throughput", compared.throughput_per_s, lambda rate: f"{rate:.1f} samples/s")
    for kind, pair in compared.kinds.items():
        row(f"{kind}, busiest rank", pair, show_s)
    gap = 100 * (judged.bubble.predicted - judged.bubble.measured)
    row("bubble, mean of ranks", judged.bubble, lambda share: f"{share:.1%}", f"{gap:+.1f} points")
    row("registers and state, fullest rank", judged.memory, show_bytes)
    spread = compared.spread
    table.caption = (
        f"measured: median of {spread.steps} steps after {compared.warmup_steps} warm-up steps, p10 {show_s(spread.p10)}, p90 {show_s(spread.p90)}; "
        "error = predicted / measured - 1"
    )
    return Group(table, *(escape(line) for line in _remarks(prediction)))


def _remarks(prediction: Prediction) -> list[str]:
    lines = [f"predicted with {prediction.prices}"]
    if prediction.incomparable:
        lines.append(f"no error is given: {prediction.incomparable}")
    if not prediction.is_measured:
        lines.append("a better prediction: regista calibrate PLAN -o cost.json, then regista run PLAN --cost cost.json")
    return lines
