"""How far to trust predictions: errors and intervals of every set of measurements, from the committed rows of all scoring commands.

python -m experiments.trust               results/trust.csv and figures/trust.png; the scoring commands do the same at their end
python -m experiments.trust --redraw      the picture alone
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.trust.record import PICTURE, TABLE, record

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="experiments.trust", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw, write no table")
    args = parser.parse_args(argv)
    rows = record(None if args.redraw else TABLE, PICTURE)
    shown = rows[rows["points"] > 0].drop(columns=["missing", "command", "predicted", "given"])
    print(shown.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    print(f"-> {TABLE}, {PICTURE}")


if __name__ == "__main__":
    main()
