"""The columns of a sweep's CSV.  Their first word says what kind of number it is (sim, run, theory, paper, error), their end the unit."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir.errors import InvalidFile
from planner.ir.plan import TaskKind
from regista.sweep.keys import nearest
from regista.sweep.point import Performer, Point

__all__ = ["ALIASES", "RUN_COLUMNS", "SIM_COLUMNS", "all_columns", "column_of"]

_KINDS = tuple(kind.value for kind in TaskKind)

SIM_COLUMNS = (
    "theory_objective_s",
    "theory_lower_bound_s",
    "theory_device_bytes",
    "theory_step_flop",
    "theory_boxing",
    "theory_kept_blocks",
    "theory_crossing_bytes",
    "theory_stage_imbalance_share",
    "theory_layouts",
    "sim_step_s",
    "sim_throughput_per_s",
    "sim_device_flop_per_s",
    "sim_idle_share",
    "sim_peak_bytes",
    "sim_register_bytes",
    *(f"sim_{kind}_s" for kind in _KINDS),
    "run_plan_s",
)
RUN_COLUMNS = (
    "run_step_s",
    "run_p10_s",
    "run_p90_s",
    "run_steps_count",
    "run_again_step_s",
    "run_noise_share",
    "run_throughput_per_s",
    *(f"run_{kind}_s" for kind in _KINDS),
    "theory_register_bytes",
    "run_register_bytes",
    "sim_held_bytes",
    "run_held_bytes",
    "theory_process_bytes",
    "run_isolated_kept_bytes",
    "run_process_base_bytes",
    "run_process_peak_bytes",
    "error_step_share",
    "error_register_bytes",
    "error_held_share",
    "error_process_peak_share",
    *(f"error_{kind}_share" for kind in _KINDS),
)
ALIASES = {
    "throughput": "sim_throughput_per_s",
    "step_time": "sim_step_s",
    "peak": "sim_peak_bytes",
    "objective": "theory_objective_s",
    "run_throughput": "run_throughput_per_s",
    "run_step_time": "run_step_s",
    "error_step_time": "error_step_share",
}
"""Short names that relations and figures may use."""


def all_columns(points: Sequence[Point]) -> tuple[str, ...]:
    """Every column of the sweep, in the CSV's order.

    A point's field comes where it first appears; points that do not have it leave it empty.
    """
    fields = dict.fromkeys(name for point in points for name in point.fields)
    papers = dict.fromkeys(f"paper_{name}" for point in points for name in point.paper)
    run = RUN_COLUMNS if any(point.performer is Performer.RUN for point in points) else ()
    about = ("plan_id", "cost_id", "torch", "status", "says")
    return ("point_id", "phase", "written_at", "label", *fields, *about, *papers, *SIM_COLUMNS, *run)


def column_of(name: str, columns: Sequence[str]) -> str:
    """The column that a name stands for: itself, an alias, or ``paper`` where the sweep has one column of the paper.

    Raises:
        InvalidFile: none, with the nearest.
    """
    if name in columns:
        return name
    if ALIASES.get(name) in columns:
        return ALIASES[name]
    papers = [column for column in columns if column.startswith("paper_")]
    if name == "paper":
        if len(papers) == 1:
            return papers[0]
        raise InvalidFile(f"'paper' is one of {len(papers)} columns ({', '.join(papers) or 'none'}); name it")
    raise InvalidFile(f"there is no column {name!r}{nearest(name, [*columns, *ALIASES])}")
