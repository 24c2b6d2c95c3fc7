"""Tables for people: a comparison, a trace, a plan.  Everything here returns rich renderables; printing is the caller's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.actors.verify import device_bytes
from planner.ir.graph import Mode
from planner.ir.plan import BatchInput, Boxing, Fragment, Plan, Port, RegstKind, Task, TaskKind
from planner.ir.units import show_bytes, show_s
from planner.opset import is_view
from planner.stages.copies import is_recomputed
from planner.stages.recompute.asked import KEPT_OPTION
from regista.analysis.comparison import Comparison, Pair, Summary
from regista.analysis.state_bytes import state_bytes
from regista.padded import batch_norm_text, padding_text
from regista.views.tables.alike import alike_ranks

__all__ = [
    "MEASURED",
    "PREDICTED",
    "batch_dims_text",
    "computed_again_text",
    "show_comparison",
    "show_layouts",
    "show_plan",
    "show_summary",
]

"""Of a table; a plan for a thousand devices has ten thousand tasks."""

PREDICTED = "predicted (sim)"
MEASURED = "measured (run)"

_MOST_MODULES = 8
_MOST_OPS = 3


def show_comparison(comparison: Comparison, *, actors: bool = True) -> RenderableType:
    """Step time with its spread, throughput, kinds, peak bytes and (``actors``) every actor."""
    spread = comparison.spread
    head = _pairs(f"{escape(comparison.model)}, plan {comparison.plan_id}", "quantity")
    _row(head, "step time", comparison.step_time_s, show_s)
    _row(head, "throughput", comparison.throughput_per_s, lambda rate: f"{rate:,.1f} samples/s")
    for ranks, peak in alike_ranks(comparison.register_bytes):
        _row(head, f"registers and state, {ranks}", peak, show_bytes)
    head.caption = (
        f"measured: median of {spread.steps} steps after {comparison.warmup_steps} warm-up steps, "
        f"p10 {show_s(spread.p10)}, p90 {show_s(spread.p90)}; error = predicted / measured - 1"
    )
    kinds = _pairs("busy time per step, on the busiest rank", "kind of task")
    for kind, pair in comparison.kinds.items():
        _row(kinds, kind, pair, show_s)
    parts: list[RenderableType] = [head, kinds]
    if actors:
        table = _pairs("one act (median)", "actor")
        for task, pair in comparison.actors.items():
            _row(table, escape(task), pair, show_s)
        parts.append(table)
    return Group(*parts)


def _pairs(title: str, what: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", min_width=64)
    table.add_column(what)
    for column in (PREDICTED, MEASURED, "error"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _row(table: Table, what: str, pair: Pair, show: Callable[[float], str]) -> None:
    error = pair.relative_error
    table.add_row(what, show(pair.predicted), show(pair.measured), "-" if error is None else f"{error:+.1%}")


def show_summary(plan: Plan, summary: Summary) -> RenderableType:
    """Step time, throughput, memory per device and how busy each stream is."""
    column = PREDICTED if summary.source.value == "sim" else MEASURED
    head = Table(
        title=f"{escape(plan.model)}, plan {plan.plan_id}, {summary.steps} steps",
        title_justify="left",
        caption_justify="left",
        min_width=64,
    )
    head.add_column("quantity")
    head.add_column(column, justify="right", no_wrap=True)
    head.add_row("step time", show_s(summary.step_time_s))
    head.add_row("throughput", f"{summary.throughput_per_s:,.1f} samples/s")
    limit = plan.cluster.device.memory_bytes
    for ranks, peak in alike_ranks(summary.peak_bytes):
        head.add_row(f"peak memory, {ranks}", f"{show_bytes(peak)} of {show_bytes(limit)}")
    head.caption = f"by {summary.performer}, without the first {summary.warmup_steps} steps"
    busy = Table(title="busy share of each stream", title_justify="left")
    for name in ("rank", "stream"):
        busy.add_column(name)
    busy.add_column(column, justify="right", no_wrap=True)
    rows = sorted((rank, stream, share) for stream, ranks in summary.busy.items() for rank, share in ranks.items())
    for rank, stream, share in rows:
        busy.add_row(str(rank), escape(stream), f"{share:.1%}")
    return Group(head, busy)


def show_plan(plan: Plan) -> RenderableType:
    """Placements with their memory, streams, tasks and Regsts with their quotas."""
    head = Table(title=f"{escape(plan.model)}, plan {plan.plan_id}", title_justify="left", show_header=False)
    head.add_row("micro-batches", padding_text(plan) or f"{plan.micro_batches} (batch of {plan.batch_size} samples)")
    if kind := evaluation_text(plan):
        head.add_row("kind of step", escape(kind))
    head.add_row("batch dims", escape(batch_dims_text(plan)))
    if norms := batch_norm_text(plan):
        head.add_row("batch norm", escape(norms))
    if again := computed_again_text(plan):
        head.add_row("computed again", escape(again))
    head.add_row("cluster", escape(f"{plan.cluster.name}: {plan.cluster.num_devices} x {plan.cluster.device.kind}, {plan.num_ranks} used"))
    head.add_row("search", escape(f"{plan.search.method}, cost model {plan.search.cost_model}"))
    head.add_row("state per parameter", escape(str(state_bytes(plan))))
    at = ", at pessimistic prices" if "robust" in plan.options else ""
    head.add_row("objective", f"{show_s(plan.search.objective_s)} per step{at} (lower bound {show_s(plan.search.lower_bound_s)})")
    for option, value in plan.options.items():
        if option in ("batch_dim", "mode", "samples", "batch_norm", "loss"):
            continue
        head.add_row(escape(option), escape(value))
    return Group(head, _placements(plan), _streams(plan), _tasks(plan), _regsts(plan))


def evaluation_text(plan: Plan) -> str:
    """What an evaluation gives; empty: the plan trains."""
    if plan.mode is not Mode.EVAL:
        return ""
    outputs = ", ".join(output.name for output in plan.outputs)
    without = "" if plan.has_loss else "; no loss, since the module returns none"
    return f"evaluation: forward pass alone; outputs: {outputs or 'the loss alone'}{without}"


def batch_dims_text(plan: Plan) -> str:
    """Which dim of which input micro-batches slice, and how that was found."""
    named = ", ".join(map(_batch_dim, plan.batch_inputs))
    if "batch_dim" in plan.options:
        return f"{named} (as given)"
    tried = "what is ambiguous is refused" if plan.micro_batches > 1 else "not tried out, since one micro-batch cuts nothing"
    return f"{named} (found: the first input's extent {plan.batch_size} in dim 0; {tried})"


def _batch_dim(entry: BatchInput) -> str:
    if entry.whole_of is not None:
        return f"{entry.whole_of} whole as well (means divide by what the whole batch counts)"
    return f"{entry.name} {'none' if entry.batch_dim is None else f'dim {entry.batch_dim}'}"


def computed_again_text(plan: Plan) -> str:
    """What the backward part computes again of a micro-batch because the plan was asked to, or because the module says so; empty: nothing."""
    if kept := plan.options.get(KEPT_OPTION, ""):
        kinds = (TaskKind.BACKWARD, TaskKind.WEIGHT)
        ops = [op for task in plan.tasks if task.kind in kinds and isinstance(task.body, Fragment) for op in task.body.ops]
        again = (
            op for op in ops if op.target.startswith("aten.") and is_recomputed(op) and not is_view(op)
        )  # a local resharding has no rule
        targets = Counter(op.target.split(".")[1] for op in again)
        most = ", ".join(f"{number} {target}" for target, number in targets.most_common(_MOST_OPS))
        return f"{plan.options['recompute']}: {kept} (whole tensors at roofline, before stages and layouts); most are {most or 'views'}"
    ops = [op for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops if op.again]
    modules = list(dict.fromkeys(op.module or "the root module" for op in ops))
    more = f" and {len(modules) - _MOST_MODULES} more" if len(modules) > _MOST_MODULES else ""
    return f"{', '.join(modules[:_MOST_MODULES])}{more}: {len(ops)} ops, as the module has it (torch.utils.checkpoint)" if ops else ""


def _placements(plan: Plan) -> Table:
    table = Table("placement", "mesh", "ranks", "planned memory per rank", title="placements", title_justify="left")
    planned = device_bytes(plan)
    for placement in plan.placements:
        mesh = " x ".join(map(str, placement.mesh))
        table.add_row(escape(placement.id), mesh, _ranks(placement.ranks), show_bytes(max(planned[r] for r in placement.ranks)))
    return table


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} .. {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _streams(plan: Plan) -> Table:
    table = Table("stream", "kind", "placement", "order", title="streams", title_justify="left")
    for stream in plan.streams:
        order = ", ".join(stream.order[:8]) + (f", ... ({len(stream.order)})" if len(stream.order) > 8 else "")
        table.add_row(escape(stream.id), stream.kind.value, escape(stream.placement), escape(order) or "by priority")
    return table


def _tasks(plan: Plan) -> Table:
    table = Table("task", "kind", "stream", "acts", "consumes", "produces", "body", title="tasks (actors)", title_justify="left")
    for task in plan.tasks:
        ports = _ports(task.consumes), _ports(task.produces)
        table.add_row(escape(task.id), task.kind.value, escape(task.stream), str(task.acts), *ports, _body(task))
    return table


def _ports(ports: tuple[Port, ...]) -> str:
    return escape(", ".join(f"{p.regst} /{p.acts_per_block}" if p.acts_per_block > 1 else p.regst for p in ports))


def _body(task: Task) -> str:
    match task.body:
        case Fragment(ops=ops, flop=flop):
            return f"{len(ops)} ops, {flop / 1e9:.3g} GFLOP"
        case Boxing(src=src, dst=dst, axis=axis, collective=collective):
            return escape(f"{collective.value} {src} -> {dst}, axis {axis}")
        case None:
            return ""


def _regsts(plan: Plan) -> Table:
    table = Table("regst", "kind", "placement", "quota", "block", "producer", "tensors", title="regsts", title_justify="left")
    for regst in plan.regsts:
        tensors = ", ".join(f"{t.name} {t.sbp}" for t in regst.tensors[:4]) + (
            f", ... ({len(regst.tensors)})" if len(regst.tensors) > 4 else ""
        )
        size = "-" if regst.kind is RegstKind.CONTROL else show_bytes(plan.block_bytes(regst))
        cells = (regst.kind.value, escape(regst.placement), str(regst.quota), size, escape(regst.producer or "(constant)"))
        table.add_row(escape(regst.id), *cells, escape(tensors))
    return table


def show_layouts(plan: Plan) -> RenderableType:
    """Where every parameter lives and how it is cut."""
    table = Table("parameter or state", "kind", "placement", "layout", "part per device", title="layouts", title_justify="left")
    for state in plan.states:
        regst = plan.regst[state.regst]
        tensor, placement = regst.tensors[state.index], plan.placement[regst.placement]
        local = tensor.sbp.local_shape(tensor.shape, placement.mesh)
        table.add_row(escape(state.name), state.kind.value, placement.id, str(tensor.sbp), f"{list(local)} of {list(tensor.shape)}")
    return table
