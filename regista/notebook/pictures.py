"""Pictures that a notebook shows in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.ir.plan import Plan
from planner.ir.traces.trace import Trace

__all__ = ["Picture", "gantt"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a PNG file has it."""

    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"Picture({len(self.png):,} bytes of PNG)"


def gantt(plan: Plan, *traces: Trace, steps: int = 2) -> Picture:
    """The last steps of a trace, or of a simulated and a measured one above each other.

    Raises:
        Mismatch: no trace, more than two, two of one source, or one of another plan.
    """
    from regista.views.pictures.gantt import gantt as draw

    with TemporaryDirectory() as folder:
        file = Path(folder) / "gantt.png"
        draw(plan, traces, file, steps=steps)
        return Picture(file.read_bytes())
