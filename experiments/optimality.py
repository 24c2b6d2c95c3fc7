"""Is the planner's answer the best there is, and how much do quicker methods lose?  Every model of the zoo cut to two layers, on five meshes.

    python -m experiments.optimality [--minutes M]     solve what results/optimality.csv lacks, then draw figures/optimality.png
    python -m experiments.optimality --redraw          draw from the CSV

exact    elimination and message passing, certified by itself           o3       TePDist: an ILP over the cones of the graph
ilp      one ILP of the whole problem, nothing reduced before            o2       TePDist: segments, one after another
                                                                         greedy   OneFlow: op after op

exact, o3 and ilp find their optima by different ways, so equal objectives are evidence for each of them.  A row is known by the content id of
its choice problem (which ops, layouts and prices there are), so rows of an older planner are solved anew.  Cheapest first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import inf, isfinite, prod
from pathlib import Path
from time import perf_counter
from types import MappingProxyType

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.errors import Unsupported
from planner.ir.text import content_id
from planner.search import Method, build_model, search
from planner.search.model import SearchModel
from planner.solve import Problem, Solution
from planner.solve.ilp import solve_ilp
from planner.stages import assign_stages, prepare
from zoo import ZOO

__all__ = ["CUT", "MESHES", "cut_model", "main", "small_cluster"]

HERE = Path(__file__).parent
CSV, PICTURE = HERE / "results/optimality.csv", HERE / "figures/optimality.png"

MESHES: tuple[tuple[int, ...], ...] = ((2,), (4,), (8,), (2, 2), (4, 2))

_IMAGES = {"batch": 8, "image": 16, "width": 8, "classes": 8}
_TOKENS = {"batch": 8, "layers": 2, "width": 64, "heads": 8, "seq": 16}

CUT: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dlrm": {"batch": 16, "rows": 256, "tables": 4, "width": 8},
        "wide_deep": {"batch": 16, "vocab": 64, "embedding": 8, "layers": 2, "width": 16},
        "mlp": {"batch": 64, "width": 64, "hidden": 128, "depth": 2},
        "alexnet": _IMAGES | {"image": 63},
        "vgg19": _IMAGES | {"image": 32, "layers": 11},
        "unet": _IMAGES | {"layers": 2},
        "convnet": {"batch": 8, "channels": 8, "size": 8},
        "vit": _IMAGES | {"patch": 4, "width": 64, "heads": 8, "layers": 2},
        "gpt": _TOKENS | {"vocab": 64},
        "gpt2": _TOKENS | {"vocab": 64},
        "gpt3": _TOKENS | {"vocab": 64},
        "bert": _TOKENS | {"vocab": 64},
        "dnabert": {**_TOKENS, "kmer": 3},
        "resnet50": _IMAGES | {"layers": 8},
        "insightface": {"batch": 8, "image": 16, "classes": 16, "layers": 6, "width": 8, "vector": 16},
        "llama3": _TOKENS | {"vocab": 64, "kv_heads": 8, "hidden": 128},
        "moe": _TOKENS | {"vocab": 64, "experts": 8, "hidden": 128},
        "deepseek": _TOKENS
        | {"vocab": 64, "hidden": 128, "dense": 1, "head": 8, "rotary": 8, "q_rank": 16, "kv_rank": 16}
        | {"experts": 8, "asked": 2, "groups": 4, "groups_asked": 2, "expert_hidden": 32},
        "wide_resnet": _IMAGES | {"layers": 8, "widen": 2},
        "t5": _TOKENS | {"vocab": 64, "hidden": 128},
    }
)
"""What each model of the zoo is cut to: two layers (or its fewest) and extents that 8 devices divide."""

TEXT = {"mesh": str, "problem": str, "graph": str}
RAW = "ilp"
METHODS = ("exact", "greedy", "o3", RAW, "o2")
_RAW_RANKS = 4
"""On more devices the unreduced ILP has ten times the variables of o3's."""


def small_cluster(num_devices: int) -> Cluster:
    """One node scaled down with the models: 10 flop per byte of link and hardly any latency, so that distributing them pays."""
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"small-{num_devices}", source="", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


def cut_model(model: str, mesh: tuple[int, ...]) -> tuple[SearchModel, str]:
    """(the choice problem of a cut model on a mesh, content id of its graph)."""
    graph = ZOO[model](**CUT[model]).graph(1)
    return build_model(prepare(graph, assign_stages(graph, 1, ()), 1), mesh, small_cluster(prod(mesh)), (), 1), content_id(graph)


def problem_id(problem: Problem) -> str:
    """Content id of a choice problem: its nodes, costs and edges."""
    digest = sha256("\n".join(problem.names).encode())
    for costs in problem.costs:
        digest.update(costs.tobytes())
    for edge in problem.edges:
        digest.update(f"{edge.u},{edge.v}".encode())
        digest.update(edge.matrix.tobytes())
    return digest.hexdigest()[:16]


def solve(model: SearchModel, method: str, limit_s: float) -> dict[str, object]:
    """One method on one problem, as columns of a row; ``status`` is 'ok' or says why there is no answer."""
    began = perf_counter()
    try:
        solution = _raw(model.problem, limit_s) if method == RAW else search(model, Method(method), seconds=limit_s)
    except Unsupported as error:
        return {"status": str(error), "seconds": perf_counter() - began}
    if not isfinite(solution.objective):
        return {"status": "dead end: takes a forbidden pair", "seconds": solution.seconds}
    certified = method in ("exact", "o3", RAW)
    return {
        "status": "ok" if not certified or solution.gap == 0 else f"stopped after {limit_s:g} s",
        "objective_s": solution.objective,
        "lower_bound_s": solution.lower_bound if certified else None,
        "gap": solution.gap if certified else None,
        "seconds": solution.seconds,
        "proof": solution.proof,
    }


def _raw(problem: Problem, limit_s: float) -> Solution:
    began = perf_counter()
    choice, objective, bound = solve_ilp(problem, seconds=limit_s)
    if choice is None:
        raise Unsupported(f"the ILP found nothing in {limit_s:g} s")
    proven = bound >= objective * (1 - 1e-9)
    return Solution(
        choice=choice,
        objective=objective,
        lower_bound=objective if proven else bound,
        seconds=perf_counter() - began,
        method=RAW,
        proof="branch and bound over the whole problem",
    )


def _todo(meshes: tuple[tuple[int, ...], ...]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Quick methods everywhere, then the slow ones, small meshes first."""
    for methods in (METHODS[:2], METHODS[2:]):
        for mesh in meshes:
            for model in CUT:
                for method in methods:
                    if method != RAW or prod(mesh) <= _RAW_RANKS:
                        yield model, mesh, method


def measure(limit_s: float, minutes: float) -> None:
    began = perf_counter()
    known_rows = pd.read_csv(CSV, dtype=TEXT).to_dict("records") if CSV.exists() else []
    rows: list[dict[str, object]] = [{str(column): value for column, value in row.items()} for row in known_rows]
    latest, problem = None, ""
    CSV.parent.mkdir(exist_ok=True)
    todo = list(_todo(MESHES))
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(todo))
        for name, mesh, method in todo:
            if perf_counter() - began > 60 * minutes:
                break
            shape = "x".join(map(str, mesh))
            progress.update(bar, description=f"{name} {shape} {method}")
            if latest != (name, mesh):
                model, graph = cut_model(name, mesh)
                latest, problem = (name, mesh), problem_id(model.problem)
            about = {"model": name, "mesh": shape, "method": method}
            measured_with = about | {"problem": problem}
            if not any(all(row.get(k) == v for k, v in measured_with.items()) for row in rows):
                rows = [row for row in rows if any(row.get(k) != v for k, v in about.items())]
                made = {"kind": "theory", "ranks": prod(mesh), "graph": graph, "nodes": len(model.problem.names)}
                rows.append(measured_with | made | solve(model, method, limit_s))
                pd.DataFrame(rows).to_csv(CSV, index=False)
            progress.advance(bar)


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The answers with their ratio to exact's on the same problem."""
    best = table[(table.method == "exact") & (table.status == "ok")].set_index("problem").objective_s
    best = best[~best.index.duplicated()]
    return table.assign(ratio_to_exact=table.objective_s / table.problem.map(best))


def draw() -> None:
    table = compared(pd.read_csv(CSV, dtype=TEXT))
    table.to_csv(CSV, index=False)
    report = Table("method", "answers", "equal to exact", "median ratio", "worst ratio", "median s", "slowest s")
    for method, group in table.groupby("method"):
        answered = group[group.objective_s.notna()]
        ratio = answered.ratio_to_exact
        report.add_row(
            str(method),
            f"{len(answered)}/{len(group)}",
            str(int((ratio - 1 < 1e-9).sum())),
            f"{ratio.median():.4f}",
            f"{ratio.max():.3f}",
            f"{answered.seconds.median():.2f}",
            f"{answered.seconds.max():.1f}",
        )
    Console().print(report)
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(1, len(MESHES), sharey=True)
    names = [name for name in CUT if name in set(table.model)]
    colours = {"greedy": "#D55E00", "o2": "#56B4E9"}
    for panel, mesh in zip(panels, MESHES, strict=True):
        shape = "x".join(map(str, mesh))
        here = table[table.mesh == shape]
        for offset, (method, colour) in zip((-0.2, 0.2), colours.items(), strict=True):
            ratio = here[here.method == method].set_index("model").ratio_to_exact
            for i, name in enumerate(names):
                if name not in ratio:
                    continue
                loss = max(100 * (float(ratio[name]) - 1), 0.0)
                width, text = (loss, f"{loss:.1f}") if isfinite(loss) else (0.0, "no answer in time")
                panel.barh(i + offset, width, 0.38, color=colour, label=method if i == 0 else None)
                panel.text(width, i + offset, f" {text}", va="center", fontsize=6)
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xlim(0, 2e4)
        panel.set_title(f"mesh {shape}", fontsize=10)
        panel.set_xlabel("slower than the optimum [%]", fontsize=8)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, fontsize=9)
    figure.suptitle(
        "What greedy (OneFlow's) and o2 (TePDist's) lose against the proven optimum (no bar and no number: not run)", fontsize=11
    )
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    Console().print(f"-> {CSV}, {PICTURE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per method and problem")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes")
    args = parser.parse_args()
    if not args.redraw:
        measure(args.limit, args.minutes)
    draw()


if __name__ == "__main__":
    main()
