"""The verb 'iopddl': solve one instance of Google's sharding-choice contest, with a lower bound."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from planner.ir.text import check_target
from planner.solve.iopddl import load_iopddl, save_choice
from planner.solve.limited.memory import solve_within
from planner.solve.problem import Progress, Solution

__all__ = ["iopddl"]


def iopddl(args: argparse.Namespace) -> dict[str, object]:
    """Read args.file, search for args.seconds, write the choice to args.out if given; returns the figures for --json.

    Raises:
        InvalidFile: the instance is malformed, or the choice cannot be written there.
        Unsupported: no choice is allowed, or none was found in time.
    """
    if args.out is not None:
        check_target(args.out)
    problem = load_iopddl(args.file)
    if args.json:
        solution = solve_within(problem, seconds=args.seconds, watch=lambda known: None)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading the instance", total=None)
            solution = solve_within(problem, seconds=args.seconds, watch=lambda known: bar.update(task, description=_news(known)))
    if args.out is not None:
        save_choice(args.out, solution.choice)
    if not args.json:
        _show(args, solution)
    return {
        "objective": _number(solution.objective),
        "lower_bound": _number(solution.lower_bound),
        "gap": solution.gap,
        "seconds": round(solution.seconds, 3),
    }


def _number(value: float) -> int | float:
    """The contest's costs are whole numbers; show them as such."""
    return int(value) if float(value).is_integer() else value


def _news(known: Progress) -> str:
    if known.objective == float("inf"):
        return "no choice within the limit yet"
    gap = (known.objective - known.lower_bound) / max(abs(known.objective), 1e-30)
    shown = f"gap {max(gap, 0.0):.2%}" if known.lower_bound > float("-inf") else "no bound yet"
    return f"objective {known.objective:,.0f}   {shown}"


def _show(args: argparse.Namespace, solution: Solution) -> None:
    console = Console()
    lines = (
        f"objective    {solution.objective:,.0f}   ({solution.method})",
        f"lower bound  {solution.lower_bound:,.0f}   ({solution.proof or 'none'})",
        f"gap          {solution.gap:.3g}{'   optimal' if solution.gap <= 1e-9 else ''}",
        f"seconds      {solution.seconds:.1f}",
        *((f"choice       {args.out}",) if args.out is not None else ()),
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
