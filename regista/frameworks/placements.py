"""The layouts of a Plan's tensors as DTensor writes them: per mesh axis Shard, Replicate or Partial.

Both cut from the outermost axis inwards.  DTensor has no parts that are moved around an axis (SEMANTICS 1.7), and where a dim does not divide it cuts
as torch.chunk does: parts that it would cut otherwise (1.3) are refused.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import assert_never

from planner.ir.errors import Unsupported
from planner.ir.plan import PlacedTensor, Plan, RegstKind
from planner.ir.sbp import Broadcast, Partial, Sbp, Split, part_of

__all__ = ["DTensorRow", "dtensor_rows", "dtensor_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DTensorRow:
    """kind: parameter or another kind of state, input, or value (activations and gradients).   placements: one per axis of the mesh of its ranks."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: tuple[str, ...]


def dtensor_rows(plan: Plan) -> tuple[DTensorRow, ...]:
    """States, inputs and all other values that the Plan keeps in registers; a value in several layouts has a row for each.

    Raises:
        Unsupported: a layout that DTensor has no placement for.
    """
    states = {(state.regst, state.index): state for state in plan.states}
    inputs = {entry.value: entry.name for entry in plan.batch_inputs}
    placements = {placement.id: placement for placement in plan.placements}
    rows: dict[DTensorRow, None] = {}
    for regst in plan.regsts:
        if regst.kind is RegstKind.CONTROL:
            continue
        placement = placements[regst.placement]
        for index, tensor in enumerate(regst.tensors):
            state, value = states.get((regst.id, index)), tensor.name.partition("@")[0]
            row = DTensorRow(
                kind=state.kind.value if state else "input" if value in inputs else "value",
                name=state.name if state else inputs.get(value, tensor.name),
                shape=tensor.shape,
                dtype=tensor.dtype.value,
                mesh=placement.mesh,
                ranks=placement.ranks,
                placements=_placements(tensor, placement.mesh),
            )
            rows[row] = None
    return tuple(rows)


def _placements(tensor: PlacedTensor, mesh: Sequence[int]) -> tuple[str, ...]:
    lengths = [{extent} for extent in tensor.shape]
    for entry, parts in zip(tensor.sbp.entries, mesh, strict=True):
        if isinstance(entry, Split):
            for extent in lengths[entry.dim]:
                if _chunks(extent, parts) != [part_of(extent, parts, i)[1] for i in range(parts)]:
                    raise Unsupported(
                        f"{tensor.name} {list(tensor.shape)} lies as {tensor.sbp}: DTensor cuts {extent} into {_chunks(extent, parts)}, the plan "
                        f"into other parts; choose a size that {parts} divides"
                    )
            lengths[entry.dim] = {part_of(extent, parts, i)[1] for extent in lengths[entry.dim] for i in range(parts)}
    return tuple(_placement(entry, tensor) for entry in tensor.sbp.entries)


def _chunks(extent: int, parts: int) -> list[int]:
    size = -(-extent // parts)
    return [max(0, min(size, extent - i * size)) for i in range(parts)]


def _placement(entry: Sbp, tensor: PlacedTensor) -> str:
    match entry:
        case Broadcast():
            return "Replicate()"
        case Split(dim, 0):
            return f"Shard({dim})"
        case Split():
            raise Unsupported(
                f"{tensor.name} lies as {tensor.sbp}: DTensor has no parts that are moved around an axis; plan without rings of attention"
            )
        case Partial(op):
            return f"Partial({op.value})"
        case _:
            assert_never(entry)


def dtensor_text(rows: Sequence[DTensorRow], out: str) -> str:
    """The rows as the name of the file says: .csv, .json, or .txt.

    Raises:
        Unsupported: another ending.
    """
    records = [asdict(row) for row in rows]
    match Path(out).suffix:
        case ".json":
            return json.dumps(records, indent=1) + "\n"
        case ".csv":
            made = io.StringIO()
            writer = csv.writer(made, lineterminator="\n")
            writer.writerow(records[0] if records else ())
            writer.writerows([_cell(cell) for cell in record.values()] for record in records)
            return made.getvalue()
        case ".txt":
            cells = [[_cell(cell) for cell in record.values()] for record in records]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            return "".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() + "\n" for line in cells)
        case other:
            raise Unsupported(f"placements are written as .csv, .json or .txt, by the name of the file; {out} ends in {other or 'nothing'}")


def _cell(cell: object) -> str:
    return " ".join(map(str, cell)) if isinstance(cell, tuple) else str(cell)
