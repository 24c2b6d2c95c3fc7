"""The kernel database of planner.cost.kernels.

python -m experiments.kernel_database --build FOLDER    tables.npz and constants.toml anew, from the published CSVs in FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from experiments.kernel_database.build import build
from experiments.kernel_database.surfaces import fit_surfaces, save_constants

__all__ = ["main"]

HOME = Path(str(resources.files("planner.cost.kernels")))


def main(argv: Sequence[str] | None = None) -> None:
    """Build, as the arguments say."""
    parser = argparse.ArgumentParser(
        prog="experiments.kernel_database", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build tables.npz and constants.toml from the CSVs in this folder")
    args = parser.parse_args(argv)
    if args.build is not None:
        size = build(args.build, HOME / "tables.npz")
        with np.load(HOME / "tables.npz", allow_pickle=False) as file:
            save_constants(fit_surfaces({name: file[name] for name in file.files}), HOME / "constants.toml")
        print(f"{HOME / 'tables.npz'}: {size} bytes")


if __name__ == "__main__":
    main()
