"""torch's pipelining CSV (the compute-only form): one row per rank, a cell per act, an empty cell where the rank waits.

    0F0,0F1,,0I0,0W0        stage, letter of the pass, micro-batch: the text of planner.schedule.actions.Action

torch.distributed.pipelining reads it with ``schedule._load_csv(file)`` and writes it with ``schedule._dump_csv(file, format="compute_only")``.
Acts that only move or reduce data (SEND_F, RECV_B, UNSHARD, REDUCE_GRAD, ...) are skipped when a file is read: a Plan derives its own.
"""

from __future__ import annotations

import csv
import io
import re

from planner.ir.errors import InvalidFile, Unsupported
from planner.ir.reading import parse_csv
from planner.schedule.actions import Action, Pass, PipelineSchedule

__all__ = ["from_torch_csv", "to_torch_csv"]

_CELL = re.compile(r"(\d{1,9})(F|B|I|W)(\d{1,9})")
_NO_COMPUTE = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


def to_torch_csv(schedule: PipelineSchedule) -> str:
    """The text of the file, without empty cells, because torch reads only the order."""
    text = io.StringIO()
    csv.writer(text).writerows([[str(action) for action in order] for order in schedule.orders])
    return text.getvalue()


def from_torch_csv(text: str, name: str = "csv") -> PipelineSchedule:
    """The schedule that a file of torch's describes, not yet checked (planner.schedule.check_schedule does that).

    Raises:
        InvalidFile: a cell that is no act, or no rows.
        Unsupported: acts performed as one (OVERLAP_F_B), which have no fragment here.
    """
    orders = []
    for row, cells in enumerate(parse_csv(text)):
        order = []
        for column, cell in enumerate(c.strip() for c in cells):
            if not cell or _NO_COMPUTE.fullmatch(cell):
                continue
            if "OVERLAP_F_B" in cell:
                raise Unsupported(f"row {row}, cell {column}: {cell} performs two passes as one act; write them as two cells")
            match = _CELL.fullmatch(cell)
            if match is None:
                raise InvalidFile(
                    f"row {row}, cell {column}: {cell[:40]!r} is no act; write stage, F, B, I or W, and micro-batch, e.g. 2F0"
                )
            order.append(Action(int(match[1]), Pass(match[2]), int(match[3])))
        orders.append(tuple(order))
    if not any(orders):
        raise InvalidFile("the schedule file names no act; write one row per rank, e.g. 0F0,0B0")
    return PipelineSchedule(name, tuple(orders))
