"""Published jobs with their measured seconds and bytes, each with its Plan compiled once, so that a fit prices and plays it in milliseconds.

dgxc     174 published seconds per step of NVIDIA's dgxc-benchmarking (H100, GB200)
golden   Megatron-LM's functional tests (A100, H100, GB200): seconds of an iteration, most bytes allocated
bridge   Megatron-Bridge's performance summary (H100 to GB300), seconds from its tokens per second
sailor   Sailor's validation on GH200: seconds of an iteration, most bytes of a device
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from planner.ir.errors import RegistaError
from regista.jobs.checks import checked
from regista.jobs.job import Job
from regista.jobs.machines import Machine, load_machine
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import job_plan
from regista.jobs.prices import Prices
from regista.jobs.readers import Entry, read_jobs
from regista.jobs.sharing import shared_ports
from regista.jobs.timing import job_cost
from simulator.compiled import CompiledPlan, compile_plan, times
from simulator.compiled.event_kernel import play_events

__all__ = ["FILES", "PAPER", "UNSEEN", "Case", "cases", "group_of"]

PAPER = Path(__file__).parents[2] / "paper_numbers"
FILES = {"dgxc": "nvidia_dgxc_step_times.csv", "golden": "megatron_ci_golden_values.csv"}
UNSEEN = {"bridge": "megatron_bridge_performance_summary.csv", "sailor": "sailor_validation.csv"}
"""Tables that the constants of machines are fitted to, and those that they are not."""


SECONDS = ("step_s", "iter_s_median", "iter_s_derived", "iter_s")
"""Columns of measured seconds."""


class _NoCost:
    id = "none"

    def act_s(self, plan: object, task: object, rank: int) -> float:
        return 0.0

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Case:
    """A row with its job.   group: what is left out together.   paper_s, paper_bytes: measured; nan where they are not."""

    data: str
    entry: Entry
    job: Job
    group: str
    paper_s: float
    paper_bytes: float

    @cached_property
    def nameless(self) -> Job:
        """The job without names: equal for rows of one configuration."""
        return replace(self.job, name="", model=replace(self.job.model, name=""))

    @cached_property
    def compiled(self) -> CompiledPlan:
        return compile_plan(job_plan(self.job, load_machine(self.job.machine)), _NoCost(), sizes=False)

    def sim_s(self, machine: Machine, *, alone: bool = False) -> float:
        """Seconds of the step on a machine: what regista.jobs.predict says.   alone: as if every act had its ports to itself."""
        job, compiled = self.job, self.compiled
        prices = Prices(machine=machine.within(job.running.environment), running=job.running, devices=job.devices)
        cost = job_cost(job, prices, compiled.plan)
        contention = None if alone else shared_ports(job, prices, compiled.plan, cost)
        if contention is not None:
            return times(compile_plan(compiled.plan, cost, sizes=False, contention=contention), steps=1).makespan_s
        tables = compiled.tables._replace(duration_s=np.array([cost.seconds[task.id] for task, _ in compiled.actors]))
        played = play_events(tables, 1, compiled.ranks.num_classes, full=False)
        return float(played.end_s.max())

    def sim_bytes(self, machine: Machine) -> int:
        """Most bytes allocated on a device of the last stage, whose last rank is the one that Megatron logs."""
        return stage_memory(self.job, machine, schedule_of(self.job), self.job.layout.pp - 1).peak_bytes


def group_of(data: str, cells: Mapping[str, str]) -> str:
    """Rows of one model and framework, or of one test case: what a fit that predicts one of them must not have seen."""
    if data == "golden":
        return cells["case"].removesuffix("_1node")
    if data in UNSEEN:
        return cells["model"]
    title = cells["title"].lower()
    for word in ("grok", "405b", "finetuning", "70b", "8b", "megatron", "15b", "340b", "gpt175b", "gpt5b"):
        if word in title:
            return f"{'maxtext ' if 'maxtext' in title else ''}{word}"
    return title


def _number(text: str | None) -> float:
    return float(text) if text else float("nan")


def cases(data: str) -> tuple[list[Case], list[tuple[Entry, RegistaError]]]:
    """All rows of a table that can be predicted, and those that are refused."""
    made: list[Case] = []
    refused: list[tuple[Entry, RegistaError]] = []
    plans: dict[Job, CompiledPlan] = {}
    for entry in read_jobs(PAPER / (FILES | UNSEEN)[data]):
        if isinstance(entry.job, RegistaError):
            refused.append((entry, entry.job))
            continue
        try:
            job = checked(entry.job, load_machine(entry.job.machine))
            schedule_of(job)
        except RegistaError as error:
            refused.append((entry, error))
            continue
        cells = entry.cells
        case = Case(
            data,
            entry,
            job,
            group_of(data, cells),
            _number(next((cells[name] for name in SECONDS if cells.get(name)), None)),
            _number(cells.get("mem_max_bytes") or cells.get("max_mem_bytes")),
        )
        # Releases repeat configurations; equal jobs share a Plan.
        if case.nameless not in plans:
            plans[case.nameless] = case.compiled
        case.__dict__["compiled"] = plans[case.nameless]
        made.append(case)
    return made, refused
