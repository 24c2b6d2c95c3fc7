"""The verb 'demo': a GPT on two CPU devices, from the module to a picture of predicted above measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from planner.cost import save_cost
from planner.ir.cluster import save_cluster
from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.files import save_plan, save_trace
from planner.ir.text import canonical, check_target, save_text
from planner.ir.traces.trace import check_trace
from planner.ir.units import show_s
from regista.clusters import resolve_cluster
from regista.verbs.arguments import MODEL_HELP, count
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    from regista.analysis.comparison import Comparison

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", metavar="DIR", help="where the files go (default out/demo)")
    parser.add_argument("--steps", type=count, default=20, help="training steps to run (default 20)")
    parser.add_argument("--model", default="zoo:gpt", metavar="MODEL", help=MODEL_HELP)


def perform(args: argparse.Namespace) -> Json:
    from regista.views.tables.show import show_comparison

    comparison = _demonstrate(args.model, Path(args.out), args.steps, quiet=args.json)
    show(args, show_comparison(comparison, actors=False), f"files: {args.out}/")
    return comparison.to_json()


def _demonstrate(model: str, folder: Path, steps: int, *, quiet: bool = False) -> Comparison:
    """Calibrate, plan, simulate, run, compare; each result is a file of ``folder``.

    Raises:
        RegistaError: whatever a step refuses.
    """
    import regista.api as api
    from regista.analysis.comparison import compare
    from regista.calibrate import calibrate_machine, calibrate_plan
    from regista.views.exports.perfetto import save_perfetto
    from regista.views.pictures.gantt import gantt

    say = Console(stderr=True, quiet=quiet)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"cannot make folder {folder}: {error.strerror}; give another one") from error
    check_target(folder / "plan.json")
    if steps < 1:
        raise Unsupported(f"steps = {steps}; a run has at least 1")
    program = api.program_of(model)
    with say.status("1/6 measuring this machine ..."):
        cluster = calibrate_machine(resolve_cluster("local:2"))
        save_cluster(cluster, folder / "cluster.toml")
    say.print(f"1/6 measured {cluster.name}: {cluster.device.rate_flop_per_s / 1e9:.0f} GFLOP/s per device  -> cluster.toml")
    with say.status("2/6 tracing and searching ..."):
        plan = api.plan(model, cluster)
        save_plan(plan, str(folder / "plan.json"))
    say.print(f"2/6 planned {model}: {len(plan.tasks)} tasks, objective {show_s(plan.search.objective_s)} per step  -> plan.json")
    with say.status("3/6 profiling the plan's acts while the peers run ..."):
        cost = calibrate_plan(plan, program)
        save_cost(cost, str(folder / "cost.json"))
    say.print(f"3/6 profiled {len(cost.acts)} different acts  -> cost.json")
    sim = api.simulate(plan, cost)
    check_trace(plan, sim)
    save_trace(plan, sim, str(folder / "sim.json"))
    say.print(f"4/6 simulated: {show_s(sim.settled_step_s(plan))} per step  -> sim.json")
    with say.status(f"5/6 running {steps} steps on {plan.num_ranks} processes ...") as status:
        outcome = api.run(
            plan,
            program,
            steps=steps,
            keep_states=False,
            on_progress=lambda step, loss: status.update(f"5/6 running: step {step + 1}/{steps}, loss {loss:.4f} ..."),
        )
    check_trace(plan, outcome.trace)
    save_trace(plan, outcome.trace, str(folder / "run.json"))
    say.print(f"5/6 ran {steps} steps, loss {outcome.losses[0]:.4f} -> {outcome.losses[-1]:.4f}  -> run.json")
    comparison = compare(plan, sim, outcome.trace)
    save_text(folder / "compare.json", canonical(comparison.to_json()) + "\n")
    gantt(plan, (sim, outcome.trace), folder / "gantt.png")
    save_perfetto(plan, (sim, outcome.trace), folder / "timeline.perfetto.json")
    say.print("6/6 compared  -> compare.json, gantt.png, timeline.perfetto.json")
    return comparison
