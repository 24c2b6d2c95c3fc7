"""Regista: a research planner and simulator of distributed deep-learning training whose Plans really run."""

from planner.frontend import SGD, AdamW, Program
from planner.ir.cluster import Cluster, load_cluster
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan, load_plan, save_plan
from planner.ir.trace import Trace, check_trace, load_trace, save_trace
from regista.api import Performer, plan, run, simulate
from regista.calibrate import calibrate_machine, calibrate_plan
from regista.compare import Comparison, compare

__all__ = [
    "SGD",
    "AdamW",
    "Cluster",
    "Comparison",
    "Performer",
    "Plan",
    "Program",
    "RegistaError",
    "Trace",
    "calibrate_machine",
    "calibrate_plan",
    "check_trace",
    "compare",
    "load_cluster",
    "load_plan",
    "load_trace",
    "plan",
    "run",
    "save_plan",
    "save_trace",
    "simulate",
]
