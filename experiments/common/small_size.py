"""Small sizes are for tests: they are never written over the committed rows."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

__all__ = ["among_committed", "refuse_over_committed"]

HERE = Path(__file__).parents[1]


def among_committed(path: Path) -> bool:
    return path.resolve().is_relative_to(HERE.resolve())


def refuse_over_committed(parser: ArgumentParser, csv: Path) -> None:
    """End with the parser's error (exit code 2), which names the way out, where ``csv``, of --smoke, lies among the committed files.

    experiments.reproduce --smoke leads a module's paths elsewhere before it calls the module; the CSV has the experiment's name.
    """
    if among_committed(csv):
        parser.error(
            f"--smoke would write over the committed rows; call python -m experiments.reproduce --smoke --only {csv.stem} --out DIR"
        )
