"""What the rows of the corpus say: counts, and a picture of every model in every way."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

__all__ = ["COLOURS", "commits", "draw", "report", "summary"]

COLOURS = {
    "equal": "#3a9d5d",
    "refused by value": "#c9c9c9",
    "refused": "#e8a33d",
    "timeout": "#8d6cab",
    "wrong": "#c03a2b",
    "traceback": "#2b2b2b",
    "unusable": "#f4f4f4",
}
WAYS = ("searched", "data", "pipeline", "tensor", "zero", "recompute")
COLUMNS = 5


def summary(table: pd.DataFrame) -> str:
    """Models, planned, equal, wrong, refused, traceback; a share of those whose graph no value decides."""
    table = table[table.status != "unusable"]
    counts = table.status.value_counts()
    decided = set(table[table.status == "refused by value"].groupby(["library", "model"]).groups)
    fixed = table[[(row.library, row.model) not in decided for row in table.itertuples()]]
    in_float64 = int(((table.status == "equal") & (table.dtype == "float64")).sum())
    whole = fixed.groupby(["library", "model"]).status.agg(lambda status: (status == "equal").all())
    planned = int(counts.get("equal", 0) + counts.get("wrong", 0))
    others = ", ".join(f"{status} {counts.get(status, 0)}" for status in ("wrong", "refused by value", "refused", "traceback", "timeout"))
    return (
        f"{table.groupby(['library', 'model']).ngroups} models, {len(table)} plans asked for: planned and performed {planned}, "
        f"equal {counts.get('equal', 0)} ({in_float64} of them in float64), {others}; of the models in which no value decides, "
        f"{whole.sum()} of {len(whole)} ({whole.mean():.1%}) are equal in every way"
    )


def commits(table: pd.DataFrame) -> str:
    """How many rows each commit of the code has given, the most first."""
    if "commit" not in table:
        return f"unknown {len(table)}"
    return ", ".join(f"{commit or 'unknown'} {count}" for commit, count in table.commit.value_counts().items())


def report(table: pd.DataFrame) -> None:
    """Print the summary, and every reason once with the models that have it."""
    print(summary(table))
    print(f"rows of each commit: {commits(table)}")
    bad = table[~table.status.isin(["equal", "unusable"])]
    for (status, says), group in bad.groupby(["status", "says"], sort=False):
        models = sorted({f"{row.model}:{row.way}" for row in group.itertuples()})
        print(f"  {status}: {', '.join(models)}: {says or group.iloc[0]['where']}")


def draw(table: pd.DataFrame, picture: Path) -> None:
    """A cell per model and way, models in the order of the rows."""
    names = list(dict.fromkeys(zip(table.library, table.model, strict=True)))
    status_of = {(row.library, row.model, row.way): row.status for row in table.itertuples()}
    codes = list(COLOURS)
    length = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(3.1 * COLUMNS, 0.145 * length + 1.3), layout="constrained")
    panels = figure.subplots(1, COLUMNS, squeeze=False)[0]
    for panel, start in zip(panels, range(0, COLUMNS * length, length), strict=True):
        shown = names[start : start + length]
        panel.set_axis_off() if not shown else None
        cells = [[codes.index(status_of[*name, way]) if (*name, way) in status_of else float("nan") for way in WAYS] for name in shown]
        cells += [[float("nan")] * len(WAYS)] * (length - len(shown))
        panel.imshow(cells, cmap=ListedColormap(list(COLOURS.values())), vmin=-0.5, vmax=len(codes) - 0.5, aspect="auto")
        panel.set_yticks(range(len(shown)), [f"{model}" for _, model in shown], fontsize=6)
        panel.set_xticks(range(len(WAYS)), WAYS, rotation=60, ha="left", fontsize=6)
        panel.xaxis.tick_top()
        panel.tick_params(length=0)
        for x in range(1, len(WAYS)):
            panel.axvline(x - 0.5, color="white", linewidth=1)
        for y in range(1, length):
            panel.axhline(y - 0.5, color="white", linewidth=0.7)
        for spine in panel.spines.values():
            spine.set_visible(False)
    present = [status for status in COLOURS if status in set(table.status)]
    figure.legend(handles=[Patch(color=COLOURS[s], label=s) for s in present], loc="outside lower center", ncols=len(present), fontsize=8)
    figure.suptitle(
        f"{len(names)} models of transformers, torchvision and timm, default flags, on 2 devices against plain PyTorch on one, 2 steps (run)\n"
        f"rows of each commit: {commits(table)}",
        fontsize=10,
    )
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, dpi=130)
