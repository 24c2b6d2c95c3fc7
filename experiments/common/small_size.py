"""Small sizes are for tests: they are never written over the committed rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

__all__ = ["among_committed", "refuse_over_committed", "small_or_redrawn"]

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


def small_or_redrawn(about: str | None, small: str, csv: Path) -> Namespace:
    """The arguments ``redraw`` and ``smoke`` of a module that writes one CSV; ends as ``refuse_over_committed`` does.

    Args:
        about: the module's docstring, for --help.   small: what its small size is.
    """
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    parser.add_argument("--smoke", action="store_true", help=f"{small}; for experiments.reproduce --smoke, which writes elsewhere")
    asked = parser.parse_args()
    if asked.smoke:
        refuse_over_committed(parser, csv)
    return asked
