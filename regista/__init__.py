"""Regista: a research planner and simulator of distributed deep-learning training whose Plans really run.

Names are loaded when they are first used, so that ``regista --help`` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from planner.ir.collector import collector_paused
from planner.ir.display import display_with

if TYPE_CHECKING:
    from planner.frontend import SGD, AdamW, Program
    from planner.frontend.optim.clipping import ClipNorm
    from planner.frontend.optim.loss_scale import LossScaling
    from planner.frontend.stablehlo import from_jax
    from planner.ir.cluster import Cluster, load_cluster
    from planner.ir.errors import RegistaError
    from planner.ir.files import load_plan, load_trace, save_plan, save_trace
    from planner.ir.plan import Plan
    from planner.ir.traces.held import consecutive
    from planner.ir.traces.trace import Trace, check_trace
    from planner.solve.time_limit import Cancel
    from regista.analysis.comparison import Comparison, compare
    from regista.api import Performer, plan, run, session, simulate
    from regista.calibrate import calibrate_machine, calibrate_plan
    from regista.data import with_data
    from regista.evaluation import Evaluation, evaluator
    from regista.jobs.advice.asked import advise
    from regista.notebook import gantt
    from regista.planner_session import PlannerSession
    from regista.remote import connect
    from regista.training import TrainJob, train

__all__ = [
    "SGD",
    "AdamW",
    "Cancel",
    "ClipNorm",
    "Cluster",
    "Comparison",
    "Evaluation",
    "LossScaling",
    "Performer",
    "Plan",
    "PlannerSession",
    "Program",
    "RegistaError",
    "Trace",
    "TrainJob",
    "advise",
    "calibrate_machine",
    "calibrate_plan",
    "check_trace",
    "compare",
    "connect",
    "consecutive",
    "evaluator",
    "from_jax",
    "gantt",
    "load_cluster",
    "load_plan",
    "load_trace",
    "plan",
    "run",
    "save_plan",
    "save_trace",
    "session",
    "simulate",
    "train",
    "with_data",
]

_HOME = {
    **dict.fromkeys(("SGD", "AdamW", "Program"), "planner.frontend"),
    "ClipNorm": "planner.frontend.optim.clipping",
    "LossScaling": "planner.frontend.optim.loss_scale",
    **dict.fromkeys(("Cluster", "load_cluster"), "planner.ir.cluster"),
    **dict.fromkeys(("load_plan", "load_trace", "save_plan", "save_trace"), "planner.ir.files"),
    "consecutive": "planner.ir.traces.held",
    **dict.fromkeys(("Trace", "check_trace"), "planner.ir.traces.trace"),
    "Plan": "planner.ir.plan",
    "PlannerSession": "regista.planner_session",
    "connect": "regista.remote",
    **dict.fromkeys(("Performer", "plan", "run", "session", "simulate"), "regista.api"),
    **dict.fromkeys(("calibrate_machine", "calibrate_plan"), "regista.calibrate"),
    "from_jax": "planner.frontend.stablehlo",
    "Cancel": "planner.solve.time_limit",
    "RegistaError": "planner.ir.errors",
    "with_data": "regista.data",
    **dict.fromkeys(("Evaluation", "evaluator"), "regista.evaluation"),
    "advise": "regista.jobs.advice.asked",
    "gantt": "regista.notebook",
    **dict.fromkeys(("TrainJob", "train"), "regista.training"),
    **dict.fromkeys(("Comparison", "compare"), "regista.analysis.comparison"),
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'regista' has no attribute {name!r}")
    with collector_paused():  # what is loaded stays
        value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _in_a_notebook(value: object) -> str:
    """The screen of a Plan, a Trace, a Comparison or an Advice as HTML."""
    html_of = import_module("regista.notebook").html_of
    return str(html_of(value))


display_with(_in_a_notebook)
