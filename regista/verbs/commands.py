"""What each verb does.  A verb returns plain JSON data and shows tables unless --json asks for the data alone."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from rich.console import Console, RenderableType

import regista.api as api
from planner.cost import parse_mesh, save_cost
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import save_cluster
from planner.ir.errors import Mismatch, Unsupported
from planner.ir.files import load_plan, load_trace, save_plan
from planner.ir.plan import Plan
from planner.ir.text import canonical, save_text
from planner.ir.traces.trace import Source, Trace
from planner.ir.units import MB, show_s
from planner.solve import Progress as Known
from regista.analysis.comparison import compare as lay_over
from regista.analysis.diff import diff as difference
from regista.analysis.explain import Wanted
from regista.analysis.explain import explain as explained
from regista.analysis.search_time import load_rows, measure, points, save_rows
from regista.analysis.whatif import whatif as what_if
from regista.calibrate import calibrate_machine, calibrate_plan
from regista.clusters import clusters_json, named_clusters, resolve_cluster, show_clusters
from regista.targets import check_targets as _targets
from regista.verbs.demo import run_demo
from regista.verbs.doctor import examine
from regista.verbs.ops_command import families, families_json, show_families, show_used, used_json, used_ops
from regista.views.exports.kineto import save_kineto
from regista.views.exports.perfetto import save_perfetto
from regista.views.pictures.gantt import check_picture
from regista.views.pictures.gantt import gantt as draw
from regista.views.pictures.schedule_gantt import schedule_gantt
from regista.views.pictures.search_time import draw_search_time
from regista.views.tables.show import show_comparison, show_layouts, show_plan
from regista.views.tables.show_search import (
    difference_json,
    explanation_json,
    gap_text,
    rows_json,
    show_difference,
    show_explanation,
    show_rows,
    show_whatif,
    whatif_json,
)

__all__ = [
    "calibrate",
    "clusters",
    "compare",
    "demo",
    "diff",
    "doctor",
    "explain",
    "export",
    "gantt",
    "ops",
    "plan",
    "search_time",
    "timeline",
    "whatif",
]

Json = dict[str, object]


out = Console()
err = Console(stderr=True)


def _show(args: argparse.Namespace, *parts: RenderableType) -> None:
    if args.json:
        return
    for part in parts:
        if isinstance(part, str):
            out.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            if not out.is_terminal:
                # A file or a pipe has no width of its own; 80 columns would cut the ids short.
                out.width = max(out.width, 160)
            out.print(part)


def _quotas(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        if not equals or not pattern or not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise Unsupported(f"quota {text!r}: write PATTERN=N, for example 's0-s1.*=2'")
        found[pattern] = int(number)
    return found


def plan_json(plan: Plan) -> Json:
    """The facts of a plan for machines."""
    return {
        "plan_id": plan.plan_id,
        "model": plan.model,
        "cluster": plan.cluster.name,
        "num_ranks": plan.num_ranks,
        "micro_batches": plan.micro_batches,
        "batch_size": plan.batch_size,
        "placements": {p.id: {"ranks": list(p.ranks), "mesh": list(p.mesh)} for p in plan.placements},
        "tasks": len(plan.tasks),
        "regsts": {r.id: r.quota for r in plan.regsts},
        "layouts": {s.name: str(plan.regst[s.regst].tensors[s.index].sbp) for s in plan.states},
        "search": {
            "method": plan.search.method,
            "cost_model": plan.search.cost_model,
            "objective_s": plan.search.objective_s,
            "lower_bound_s": plan.search.lower_bound_s,
        },
        "planned_bytes": {str(rank): size for rank, size in device_bytes(plan).items()},
    }


def plan(args: argparse.Namespace) -> Json:
    _targets([args.out], [args.model, args.cluster])
    with err.status("tracing and searching ...") if not args.json else _Quiet() as status:
        found = api.plan(
            args.model,
            args.cluster,
            stages=args.stages,
            mesh=None if args.mesh is None else parse_mesh(args.mesh),
            micro_batches=args.micro_batches,
            recompute={"auto": None, "none": False, "blocks": True}[args.recompute],
            zero=None if args.zero == "auto" else int(args.zero),
            cuts=args.cut,
            balance=args.balance,
            pins=args.pin,
            schedule=args.schedule,
            interleave=args.interleave,
            hold=args.hold,
            quotas=_quotas(args.quota),
            bucket_bytes=None if args.bucket_mb is None else int(args.bucket_mb * MB),
            method=args.method,
            seconds=math.inf if args.seconds is None else args.seconds,
            on_progress=(lambda known: None) if status is None else lambda known: status.update(_news(known)),
            on_shape=None if status is None else lambda shape, best_s, bound_s: status.update(_shape_news(shape, best_s, bound_s)),
        )
    save_plan(found, args.out)
    _show(args, show_plan(found), f"search: {gap_text(found)}", f"wrote {args.out}")
    return plan_json(found)


def _news(known: Known) -> str:
    """One line of what a search knows; Ctrl-C takes the best."""
    if math.isinf(known.objective):
        return f"searching: no plan yet, lower bound {show_s(max(known.lower_bound, 0.0))}   {known.seconds:.0f} s"
    gap = max(0.0, known.objective - known.lower_bound) / max(known.objective, 1e-30)
    bounds = f"objective {show_s(known.objective)}, lower bound {show_s(max(known.lower_bound, 0.0))}, gap {gap:.2%}"
    return f"searching: {bounds}   {known.seconds:.0f} s, Ctrl-C takes the best"


def _shape_news(shape: str, best_s: float, bound_s: float) -> str:
    """The same, of a search over shapes."""
    if math.isinf(best_s):
        return f"searching shapes: {shape}; lower bound {show_s(bound_s)}"
    return f"searching shapes: {shape}; best {show_s(best_s)}, lower bound {show_s(bound_s)}, Ctrl-C takes the best"


class _Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def explain(args: argparse.Namespace) -> Json:
    found = load_plan(args.plan)
    wanted = Wanted(op=args.op, module=args.module, most=args.top, seconds=args.seconds)
    with err.status("tracing and pricing alternatives ...") if not args.json else _Quiet():
        told = explained(found, wanted)
    _show(args, show_plan(found), show_layouts(found), show_explanation(told))
    return plan_json(found) | explanation_json(told)


def diff(args: argparse.Namespace) -> Json:
    first, second = load_plan(args.a), load_plan(args.b)
    with err.status("comparing ...") if not args.json else _Quiet():
        found = difference(first, second)
    _show(args, show_difference(found))
    return difference_json(found)


def whatif(args: argparse.Namespace) -> Json:
    _targets([args.out], [args.plan])
    planned = load_plan(args.plan)
    with err.status("planning anew ...") if not args.json else _Quiet():
        found = what_if(planned, args.set)
    if args.out:
        save_plan(found.plan, args.out)
    _show(args, show_whatif(found), *([f"wrote {args.out}"] if args.out else []))
    return whatif_json(found)


def search_time(args: argparse.Namespace) -> Json:
    table = args.csv or str(Path(args.out).with_suffix(".csv"))
    _targets([args.out, table])
    check_picture(args.out)
    cluster = resolve_cluster(args.cluster)
    wanted = points(args.models.split(","), args.layers, args.methods.split(","), cluster, parse_mesh(args.mesh), args.seconds)
    rows = list(load_rows(table))
    with err.status("searching ...") if not args.json else _Quiet() as status:
        for row in measure(wanted, rows, cluster, status.update if status is not None else lambda text: None):
            rows.append(row)
            save_rows(rows, table)  # after each, so that what is interrupted can be continued
    asked = [row for row in rows if row.point in wanted]
    draw_search_time(asked, args.out)
    _show(args, show_rows(asked), f"wrote {args.out} and {table}")
    return {"out": args.out, "csv": table, "rows": rows_json(asked)}


def compare(args: argparse.Namespace) -> Json:
    _targets([args.out, args.gantt], [args.sim, args.run])
    if args.gantt:
        check_picture(args.gantt)
    sim_plan, sim = load_trace(args.sim)
    run_plan, measured = load_trace(args.run)
    if (sim.source, measured.source) == (Source.SIM, Source.RUN) and sim_plan.plan_id != run_plan.plan_id:
        raise Mismatch(
            f"{args.sim} is of plan {sim_plan.plan_id}, {args.run} of plan {run_plan.plan_id}; simulate and run the same plan file"
        )
    comparison = lay_over(sim_plan, sim, measured, warmup=args.warmup)
    if args.gantt:
        draw(sim_plan, (sim, measured), args.gantt)
    if args.out:
        save_text(args.out, canonical(comparison.to_json()) + "\n")
    _show(args, show_comparison(comparison))
    return comparison.to_json()


def _traces(paths: list[str]) -> tuple[Plan, list[Trace]]:
    loaded = [load_trace(path) for path in paths]
    ids = {plan.plan_id for plan, _ in loaded}
    if len(ids) > 1:
        raise Mismatch(f"the traces are of different plans ({', '.join(sorted(ids))}); draw traces of one plan together")
    return loaded[0][0], [trace for _, trace in loaded]


def gantt(args: argparse.Namespace) -> Json:
    _targets([args.out], args.traces)
    check_picture(args.out)
    if args.streams and (args.memory or args.links):
        raise Unsupported("--memory and --links stand beneath rows of devices; leave out --streams, or them")
    found, traces = _traces(args.traces)
    if args.streams:
        draw(found, traces, args.out, steps=args.steps)
    else:
        schedule_gantt(found, traces, args.out, steps=args.steps, memory=args.memory, links=args.links)
    _show(args, f"wrote {args.out}")
    return {"out": args.out, "plan_id": found.plan_id}


def timeline(args: argparse.Namespace) -> Json:
    _targets([args.out], args.traces)
    from regista.views.timeline import save_timeline  # Bokeh takes a second to import; only this verb needs it

    found, traces = _traces(args.traces)
    save_timeline(found, traces, args.out, steps=args.steps)
    _show(args, f"wrote {args.out}; open it in a browser")
    return {"out": args.out, "plan_id": found.plan_id}


def export(args: argparse.Namespace) -> Json:
    if args.format != "kineto":
        _targets([args.out], args.traces)
    found, traces = _traces(args.traces)
    if args.format == "kineto":
        if len(traces) != 1:
            raise Mismatch(f"kineto files are profiles of one run; got {len(traces)} traces, export each into a folder of its own")
        written = [str(path) for path in save_kineto(found, traces[0], args.out)]
        _show(args, f"wrote {len(written)} files into {args.out}; open them with hta.trace_analysis.TraceAnalysis(trace_dir={args.out!r})")
        return {"out": args.out, "plan_id": found.plan_id, "format": args.format, "files": written}
    save_perfetto(found, traces, args.out)
    _show(args, f"wrote {args.out}; open it at ui.perfetto.dev or chrome://tracing")
    return {"out": args.out, "plan_id": found.plan_id, "format": args.format}


def calibrate(args: argparse.Namespace) -> Json:
    _targets([args.out], [args.plan, args.cluster])
    if args.plan is not None and args.cluster is not None:
        raise Unsupported(f"--cluster {args.cluster} has no meaning beside a plan, which has its own; leave one of them out")
    if args.plan is None and args.data is not None:
        raise Unsupported(f"--data {args.data} has no meaning without a plan; a machine is measured without data")
    with err.status("measuring ...") if not args.json else _Quiet():
        if args.plan is None:
            cluster = calibrate_machine(resolve_cluster(args.cluster or "local:2"), rounds=args.rounds)
            save_cluster(cluster, args.out)
            result: Json = {"out": args.out, "cluster": cluster.name, "rate_flop_per_s": cluster.device.rate_flop_per_s}
            result |= {"node_latency_s": cluster.node.latency_s, "node_bandwidth_bytes_per_s": cluster.node.bandwidth_bytes_per_s}
        else:
            cost = calibrate_plan(load_plan(args.plan), rounds=args.rounds, data=args.data)
            save_cost(cost, args.out)
            result = {"out": args.out, "cost_id": cost.id, "acts": len(cost.acts), "act_overhead_s": cost.act_overhead_s}
    _show(args, f"wrote {args.out}")
    return result


def ops(args: argparse.Namespace) -> Json:
    if args.model is None:
        known = families()
        _show(args, show_families(known))
        return families_json(known)
    with err.status("tracing ...") if not args.json else _Quiet():
        used = used_ops(api.program_of(args.model))
    _show(args, show_used(args.model, used))
    return used_json(args.model, used)


def clusters(args: argparse.Namespace) -> Json:
    found = named_clusters()
    _show(args, show_clusters(found))
    return clusters_json(found)


def doctor(args: argparse.Namespace) -> Json:
    report = examine()
    _show(args, *(f"{'ok  ' if item.good else 'LOOK'}  {item.what}: {item.found}{item.advice}" for item in report))
    return {"good": all(item.good for item in report), "checks": [{"what": i.what, "found": i.found, "good": i.good} for i in report]}


def demo(args: argparse.Namespace) -> Json:
    comparison = run_demo(args.model, Path(args.out), args.steps, quiet=args.json)
    _show(args, show_comparison(comparison, actors=False), f"files: {args.out}/")
    return comparison.to_json()
