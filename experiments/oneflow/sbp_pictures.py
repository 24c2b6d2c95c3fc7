"""The SBP figures of the OneFlow articles with real tensors: every picture is executed, put together again and compared.

    python -m experiments.oneflow.sbp_pictures              execute, write results/sbp_pictures.csv, draw figures/sbp_pictures.svg
    python -m experiments.oneflow.sbp_pictures --redraw     draw from the CSV

    parallel     one tensor as S(0), S(1), B and P on two devices                                              (design article, figure 5)
    signature    Y = A B, A (64, 10), B (10, 50): every signature of matmul, the two of the article among them (figure 6)
    hybrid       Y0 = A0 B0 data parallel, Y1 = Y0 B1 model parallel: the boxing between them                  (figure 7)
    linear       X W in data, row, column and 2-D parallel, then what the next op wants: B                     (runtime article)

``theory_sent_bytes``: what a device sends (SEMANTICS 2).   ``run_max_error``: largest difference between the parts put together and the
product on one device, in float64; a P is a sum in another order, so it may differ by rounding.
"""

from __future__ import annotations

import argparse
from itertools import product
from math import prod
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

from backend.layout.sharding import join_parts, slice_part
from planner.boxing import boxing_path
from planner.ir.collective import Collective, sent_bytes
from planner.ir.graph import Op, Ref, Role
from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType, TensorType
from planner.opset import signatures
from regista.views.pictures.gantt import save_figure

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/sbp_pictures.csv", HERE / "figures/sbp_pictures.svg"
LINK_BYTES_PER_S = 1e9
"""For the choice of a route only: the cheapest by bytes on equal links."""

Row = dict[str, object]


def parts_of(value: Tensor, sbp: NdSbp, mesh: tuple[int, ...]) -> dict[tuple[int, ...], Tensor]:
    return {place: slice_part(value, sbp, mesh, place) for place in product(*map(range, mesh))}


def error(parts: dict[tuple[int, ...], Tensor], sbp: NdSbp, mesh: tuple[int, ...], logical: Tensor) -> float:
    whole = join_parts(parts, sbp, mesh, tuple(logical.shape))
    return float((whole - logical).abs().max())


def local_shapes(parts: dict[tuple[int, ...], Tensor]) -> str:
    return "; ".join(f"{'.'.join(map(str, place))}: {tuple(part.shape)}" for place, part in parts.items())


def parallel(generator: torch.Generator) -> list[Row]:
    """One tensor in the four ways of figure 5."""
    value = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    rows = []
    for text in ("S(0)", "S(1)", "B", "P"):
        sbp = NdSbp.parse(text)
        parts = parts_of(value, sbp, (2,))
        rows.append(
            {
                "picture": "parallel",
                "case": text,
                "mesh": "2",
                "y": text,
                "y_parts": local_shapes(parts),
                "run_max_error": error(parts, sbp, (2,), value),
            }
        )
    return rows


def multiplied(
    picture: str, case: str, a: Tensor, b: Tensor, layouts: tuple[NdSbp, NdSbp, NdSbp], mesh: tuple[int, ...], then: NdSbp | None
) -> Row:
    """Cut A and B, multiply part by part, put Y together; then the boxing to what the next op wants."""
    sa, sb, sy = layouts
    left, right = parts_of(a, sa, mesh), parts_of(b, sb, mesh)
    parts = {place: left[place] @ right[place] for place in left}
    row: Row = {"picture": picture, "case": case, "mesh": "x".join(map(str, mesh)), "a": str(sa), "b": str(sb), "y": str(sy)}
    row |= {
        "a_parts": local_shapes(left),
        "b_parts": local_shapes(right),
        "y_parts": local_shapes(parts),
        "run_max_error": error(parts, sy, mesh, a @ b),
    }
    if then is None:
        return row
    logical = TensorType((a.shape[0], b.shape[1]), DType.FLOAT64)
    steps, _ = boxing_path(logical, mesh, sy, then, lambda kind, size, axis: sent_bytes(kind, size, mesh[axis]) / LINK_BYTES_PER_S)
    row |= {
        "next": str(then),
        "boxing": "; ".join(f"{s.collective.value} along axis {s.axis} ({s.src} -> {s.dst})" for s in steps if s.src != s.dst) or "none",
    }
    row["theory_sent_bytes"] = sum(_sent_bytes(step, logical, mesh) for step in steps)
    return row


def _sent_bytes(step: Boxing, logical: TensorType, mesh: tuple[int, ...]) -> float:
    """Of one step: the axis' devices hold what the other axes leave of the tensor."""
    others = [
        size for axis, (size, entry) in enumerate(zip(mesh, step.src, strict=True)) if axis != step.axis and str(entry).startswith("S")
    ]
    return (
        sent_bytes(step.collective, logical.size_bytes / prod(others), mesh[step.axis]) if step.collective is not Collective.LOCAL else 0.0
    )


def matmul_signatures(shape: tuple[int, int, int], parts: int) -> list[tuple[NdSbp, NdSbp, NdSbp]]:
    """All 1-D signatures of (m, k) x (k, n) that the op's factor rule gives."""
    m, k, n = shape
    op = Op(id="mm", target="aten.mm.default", args=(Ref("a"), Ref("b")), outputs=("y",), role=Role.FORWARD)
    types = {name: TensorType(s, DType.FLOAT64) for name, s in (("a", (m, k)), ("b", (k, n)), ("y", (m, n)))}
    layouts_of_operands = []
    for signature in signatures(op, types, parts):
        layouts = {**dict(zip(("a", "b"), signature.inputs, strict=True)), "y": signature.outputs[0]}
        layouts_of_operands.append((NdSbp((layouts["a"],)), NdSbp((layouts["b"],)), NdSbp((layouts["y"],))))
    return layouts_of_operands


def measure() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = parallel(generator)
    a, b = torch.randn(64, 10, dtype=torch.float64, generator=generator), torch.randn(10, 50, dtype=torch.float64, generator=generator)
    for sa, sb, sy in matmul_signatures((64, 10, 50), 2):
        if not sa.has_partial and not sb.has_partial:
            rows.append(multiplied("signature", f"{sa} x {sb}", a, b, (sa, sb, sy), (2,), None))
    b1 = torch.randn(50, 8, dtype=torch.float64, generator=generator)
    nd = NdSbp.parse
    rows.append(multiplied("hybrid", "MatMul_0, data parallel", a, b, (nd("S(0)"), nd("B"), nd("S(0)")), (2,), nd("B")))
    rows.append(multiplied("hybrid", "MatMul_1, model parallel", a @ b, b1, (nd("B"), nd("S(1)"), nd("S(1)")), (2,), None))
    x, w = torch.randn(8, 12, dtype=torch.float64, generator=generator), torch.randn(12, 16, dtype=torch.float64, generator=generator)
    linear = {
        "data": ("S(0)", "B", "S(0)", (2,), "S(0)"),
        "row (RowParallelLinear)": ("S(1)", "S(0)", "P", (2,), "B"),
        "column (ColumnParallelLinear)": ("B", "S(1)", "S(1)", (2,), "B"),
        "2-D: data x row, 4 machines of 8": ("S(0),S(1)", "B,S(0)", "S(0),P", (4, 8), "S(0),B"),
    }
    for case, (sx, sw, so, mesh, then) in linear.items():
        size = (8, 12, 16) if len(mesh) == 1 else (16, 64, 16)
        x, w = (torch.randn(*s, dtype=torch.float64, generator=generator) for s in (size[:2], size[1:]))
        rows.append(multiplied("linear", case, x, w, (nd(sx), nd(sw), nd(so)), mesh, nd(then)))
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(CSV, index=False)


COLOURS = {"S(0)": "#0072B2", "S(1)": "#009E73", "B": "#E69F00", "P": "#CC79A7"}


def _tensor(axes: object, x: float, y: float, sbp: str, device: int, title: str) -> None:
    """The part that a device holds, drawn on the outline of the logical tensor."""
    from matplotlib.patches import Rectangle

    width, height = 0.7, 0.7
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="#999999", linewidth=0.8, linestyle=":"))  # type: ignore[attr-defined]
    part = {"S(0)": (x, y + (0.35 if device == 0 else 0.0), width, 0.35), "S(1)": (x + 0.35 * device, y, 0.35, height)}.get(
        sbp, (x, y, width, height)
    )
    hatch = "////" if sbp == "P" else None
    patch = Rectangle(part[:2], part[2], part[3], facecolor=COLOURS[sbp], edgecolor="white", hatch=hatch, alpha=0.85)
    axes.add_patch(patch)  # type: ignore[attr-defined]
    axes.text(x + width / 2, y + height + 0.04, f"{title}: {sbp}", ha="center", fontsize=7)  # type: ignore[attr-defined]


def show() -> None:
    table = pd.read_csv(CSV).astype(object)
    flat = table[table.mesh.astype(str) == "2"]
    with mpl.rc_context({"svg.hashsalt": "regista", "font.size": 9}):
        figure = Figure(figsize=(9, 1.25 * len(flat)), layout="constrained")
        axes = figure.subplots()
        for number, row in enumerate(flat.itertuples()):
            y = (len(flat) - number - 1) * 1.15
            axes.text(-0.1, y + 0.35, f"{row.picture}\n{row.case}", ha="right", va="center", fontsize=8)
            for device in (0, 1):
                x = device * 3.2
                shown = [(name, getattr(row, name.lower())) for name in ("A", "B", "Y")]
                for column, (name, sbp) in enumerate((n, s) for n, s in shown if isinstance(s, str)):
                    _tensor(axes, x + 0.95 * column, y, sbp, device, name)
            if isinstance(row.boxing, str) and row.boxing != "none":
                axes.text(6.3, y + 0.35, f"then {row.boxing.partition(' along')[0]}\n-> {row.next}", va="center", fontsize=8)
        axes.text(1.3, len(flat) * 1.15, "device 0", ha="center", weight="bold")
        axes.text(4.5, len(flat) * 1.15, "device 1", ha="center", weight="bold")
        axes.set_xlim(-2.6, 7.8)
        axes.set_ylim(-0.1, len(flat) * 1.15 + 0.3)
        axes.axis("off")
        PICTURE.parent.mkdir(exist_ok=True)
        save_figure(figure, PICTURE)
    report = Table("picture", "case", "mesh", "A", "B", "Y", "boxing", "sent per device, theory", "largest error, run")
    for row in table.itertuples():
        texts = ["" if not isinstance(v, str) else v for v in (row.a, row.b, row.y, row.boxing)]
        sent = "" if pd.isna(row.theory_sent_bytes) else f"{row.theory_sent_bytes:.0f} B"
        report.add_row(row.picture, row.case, str(row.mesh), *texts, sent, f"{row.run_max_error:.1e}")
    Console(width=160).print(report)
    Console().print(f"{CSV}, {PICTURE}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="draw from the CSV")
    if not parser.parse_args().redraw:
        measure()
    show()


if __name__ == "__main__":
    main()
