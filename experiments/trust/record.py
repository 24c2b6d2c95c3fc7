"""trust.csv, its picture, and what the package ships of it (residuals.csv and spreads.csv of regista.trust), written anew from all committed rows.

Every command that scores calls this last.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.trust.residuals import save_residuals
from experiments.trust.scored import COLUMNS, row_of, unscored_row
from experiments.trust.sets import RESULTS, UNSCORED, scored_sets, summarised_rows
from experiments.trust.spreads import save_spreads

__all__ = ["record"]

TABLE, PICTURE = RESULTS / "trust.csv", RESULTS.parent / "figures/trust.png"


def record(table: Path | None = TABLE, picture: Path = PICTURE) -> pd.DataFrame:
    """One row per set (and per device where a set is split), then the sets that nothing is predicted for.   table: None: only the picture."""
    from experiments.trust.figure import draw

    sets = scored_sets()
    lines = [row_of(scored, device, part) for scored in sets for device, part in scored.parts()]
    lines += summarised_rows()
    lines += [unscored_row(name, why) for name, why in UNSCORED.items() if name not in {scored.name for scored in sets}]
    if table is not None and table == TABLE:
        save_residuals()
        save_spreads()
    rows = pd.DataFrame(lines, columns=list(COLUMNS))
    if table is not None:
        rows.to_csv(table, index=False, float_format="%.4g")
    draw(sets, picture)
    return rows
