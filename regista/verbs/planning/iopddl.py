"""The verb 'iopddl': solve one instance of Google's sharding-choice contest, with a lower bound."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from planner.ir.text import check_target
from regista.verbs.arguments import positive
from regista.verbs.screen import Json, show

if TYPE_CHECKING:
    from planner.solve import Solution
    from planner.solve.problem import Progress

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the instance (*.json or *.json.gz)")
    parser.add_argument("--seconds", type=positive, default=300.0, metavar="S", help="search for at most this long (default 300)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the choice: a JSON list with the strategy of every node")


def perform(args: argparse.Namespace) -> Json:
    """Read args.file, search for args.seconds, write the choice to args.out if given; returns the figures for --json.

    Raises:
        InvalidFile: the instance is malformed, or the choice cannot be written there.
        Unsupported: no choice is allowed, or none was found in time.
    """
    from planner.solve.iopddl import load_iopddl, save_choice
    from planner.solve.limited.memory import solve_within

    if args.out is not None:
        check_target(args.out)
    problem = load_iopddl(args.file)
    if args.json:
        solution = solve_within(problem, seconds=args.seconds, watch=lambda progress: None)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("reading the instance", total=None)
            solution = solve_within(
                problem, seconds=args.seconds, watch=lambda progress: bar.update(task, description=_progress_text(progress))
            )
    if args.out is not None:
        save_choice(args.out, solution.choice)
    show(args, *_lines(args, solution))
    return {
        "objective": _number(solution.objective),
        "lower_bound": _number(solution.lower_bound),
        "gap": solution.gap,
        "seconds": round(solution.seconds, 3),
    }


def _number(value: float) -> int | float:
    """The contest's costs are whole numbers; show them as such."""
    return int(value) if float(value).is_integer() else value


def _progress_text(progress: Progress) -> str:
    if progress.objective == float("inf"):
        return "no choice within the limit yet"
    gap = (progress.objective - progress.lower_bound) / max(abs(progress.objective), 1e-30)
    shown = f"gap {max(gap, 0.0):.2%}" if progress.lower_bound > float("-inf") else "no bound yet"
    return f"objective {progress.objective:,.0f}   {shown}"


def _lines(args: argparse.Namespace, solution: Solution) -> Sequence[str]:
    return (
        f"objective    {solution.objective:,.0f}   ({solution.method})",
        f"lower bound  {solution.lower_bound:,.0f}   ({solution.proof or 'none'})",
        f"gap          {solution.gap:.3g}{'   optimal' if solution.gap <= 1e-9 else ''}",
        f"seconds      {solution.seconds:.1f}",
        *((f"choice       {args.out}",) if args.out is not None else ()),
    )
