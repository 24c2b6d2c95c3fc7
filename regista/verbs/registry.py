"""All verbs, in the order of ``regista --help``.

A verb is a module with two functions: ``add_arguments(parser)`` and ``perform(args)``, which returns plain data for ``--json``.  Every module
is imported to build the parser, so none may load torch, numba or a drawing library at import: ``perform`` imports what its work needs
(``tests/regista/verbs/test_verbs.py`` proves it).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from types import ModuleType

from regista.verbs.jobs import advise, predict
from regista.verbs.planning import clusters, diff, explain, iopddl, loading, ops, plan, quotas, search_time, verify, whatif
from regista.verbs.running import calibrate, checkpoint, demo, deploy, doctor, run, sweep, train
from regista.verbs.screen import Json
from regista.verbs.showing import compare, export, gantt, report, sensitivity, simulate, timeline

__all__ = ["VERBS", "Verb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: what the user types, one line of help, and the module that does the work."""

    name: str
    help: str
    module: ModuleType

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self.module.add_arguments(parser)

    def perform(self, args: argparse.Namespace) -> Json:
        result: Json = self.module.perform(args)
        return result


VERBS = (
    Verb(name="demo", module=demo, help="plan, predict, run and compare a GPT on 2 CPU devices"),
    Verb(name="doctor", module=doctor, help="check this machine: versions, cores, memory, solver, processes"),
    Verb(name="calibrate", module=calibrate, help="measure this machine (a cluster TOML) or the acts of a plan (a cost table)"),
    Verb(name="plan", module=plan, help="search a plan for a model on a cluster"),
    Verb(
        name="explain",
        module=explain,
        help="show a plan in words, what other layouts would cost, where its time goes and what fills its devices",
    ),
    Verb(name="verify", module=verify, help="prove that a plan is live, fits its devices, and computes its program"),
    Verb(name="diff", module=diff, help="say what differs between two plans"),
    Verb(
        name="predict",
        module=predict,
        help="predict jobs as people write them (TOML, or CSV with one job per row): seconds per step with an interval, memory per stage",
    ),
    Verb(
        name="advise",
        module=advise,
        help="hand in a job of Megatron-LM (or ours): does it fit, how long is a step, what is wrong, and which settings are better",
    ),
    Verb(name="whatif", module=whatif, help="plan the same program on a changed cluster, and price the old decisions there"),
    Verb(
        name="sensitivity",
        module=sensitivity,
        help="say which constants of the cluster a plan's step, and its choice, depend on (table, CSV, tornado picture)",
    ),
    Verb(
        name="quotas",
        module=quotas,
        help="give a plan's regsts the quotas of least memory or most throughput, with a certificate",
    ),
    Verb(
        name="loading",
        module=loading,
        help="give a plan actors that read, prepare and copy its data, each as far ahead as its quota lets it",
    ),
    Verb(name="simulate", module=simulate, help="predict a plan's throughput, utilisation, memory and timeline"),
    Verb(name="run", module=run, help="perform a plan with real processes"),
    Verb(name="train", module=train, help="train a job: plan once, perform, evaluate, save, and draw the loss"),
    Verb(name="checkpoint", module=checkpoint, help="look at the checkpoints of a run"),
    Verb(name="deploy", module=deploy, help="write a plan as a Kubernetes manifest (Kubeflow TrainJob) or as a Slurm script"),
    Verb(name="compare", module=compare, help="lay a simulated and a measured trace over each other"),
    Verb(name="gantt", module=gantt, help="draw one trace, or two above each other, one row per device"),
    Verb(name="timeline", module=timeline, help="write a timeline for the browser: one HTML file that zooms"),
    Verb(
        name="report",
        module=report,
        help="write pages for the browser: a comparison with tables, timeline, errors and what-ifs; or all of a folder of results",
    ),
    Verb(name="ops", module=ops, help="list the ops that have an SBP rule, or those that a model uses"),
    Verb(name="search-time", module=search_time, help="time the search methods on models of growing size, and draw it"),
    Verb(name="sweep", module=sweep, help="perform an experiment's manifest: its points, the relations that it expects, its figures"),
    Verb(name="clusters", module=clusters, help="list the clusters that --cluster knows by name"),
    Verb(name="iopddl", module=iopddl, help="solve an instance of Google's sharding-choice contest, with a lower bound"),
    Verb(
        name="export",
        module=export,
        help="write traces for other tools: Perfetto / Chrome trace JSON, or profiles as PyTorch's (Kineto)",
    ),
)
