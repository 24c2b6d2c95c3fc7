"""One job predicted: its Plan, the Plan's step on the machine, and the bytes of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.ir.actors.verify import verify
from planner.ir.plan import Plan
from regista.jobs.checks import checked
from regista.jobs.intervals import interval
from regista.jobs.job import Job
from regista.jobs.machines import Machine, load_machine
from regista.jobs.memory import StageMemory, message_bytes, stage_memory, stash_bytes
from regista.jobs.pipeline import pipeline_plan, schedule_of
from regista.jobs.prices import Prices
from regista.jobs.sharing import shared_ports
from regista.jobs.timing import breakdown, job_cost
from regista.jobs.work.routed import busiest_rank, dropped_share

__all__ = ["Prediction", "predict", "simulated_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """step_low_s, step_high_s: 90 % of like jobs took between them.   mfu: flop of the model against the data sheet's rate in 16 (8) bits.

    busiest_rank: tokens of the busiest rank of experts over the even load; dropped_share: of the tokens' choices (both where a routing is given).
    stages: of each pipeline stage the bytes of one device.   limiter: what the seconds of the last stage mostly go to.   plan: what was played.
    """

    step_s: float
    step_low_s: float
    step_high_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    stages: tuple[StageMemory, ...]
    fits: bool
    limiter: str
    seconds: Mapping[str, float]
    plan: Plan
    busiest_rank: float | None = None
    dropped_share: float | None = None


def job_plan(job: Job, machine: Machine) -> Plan:
    """The verified Plan of a checked job.

    Raises:
        Unsupported, InvalidPlan: the schedule does not exist, or the Plan is not live.
    """
    schedule = schedule_of(job)

    def state_bytes(stage: int) -> float:
        return stage_memory(job, machine, schedule, stage).state_bytes

    plan = pipeline_plan(
        job,
        machine,
        stash_bytes=lambda chunk: stash_bytes(job, chunk),
        message_bytes=message_bytes(job),
        state_bytes=state_bytes,
    )
    from simulator.live_bytes import dry_run

    verify(plan, dry_run)
    return plan


def simulated_s(job: Job, prices: Prices, plan: Plan) -> float:
    """Seconds of one step of the Plan, whose acts share the ports of their ranks."""
    from simulator.compiled import compile_plan, times

    cost = job_cost(job, prices, plan)
    return times(compile_plan(plan, cost, sizes=False, contention=shared_ports(job, prices, plan, cost)), steps=1).makespan_s


def predict(job: Job, machine: Machine | None = None) -> Prediction:
    """Predict a job.

    Raises:
        RegistaError: the job is refused; the message names the knob.
    """
    machine = (machine or load_machine(job.machine)).within(job.running.environment)
    checked(job, machine)
    prices = Prices(machine=machine, running=job.running, devices=job.devices)
    plan, schedule = job_plan(job, machine), schedule_of(job)
    step_s = simulated_s(job, prices, plan)
    low_s, high_s = interval(job, machine, step_s)
    stages = tuple(stage_memory(job, machine, schedule, stage) for stage in range(job.layout.pp))
    seconds = breakdown(job, prices, plan, job_cost(job, prices, plan), schedule, step_s)
    tokens = job.layout.global_batch * job.model.seq
    rate = machine.peak(job.running.precision)
    return Prediction(
        step_s=step_s,
        step_low_s=low_s,
        step_high_s=high_s,
        tokens_per_s_per_gpu=tokens / step_s / job.devices,
        mfu=tokens * job.model.flop_per_token() / step_s / job.devices / rate,
        stages=stages,
        fits=max(stage.device_bytes[0] for stage in stages) <= machine.memory_bytes,
        limiter=max(seconds, key=lambda name: seconds[name]),
        seconds=seconds,
        plan=plan,
        busiest_rank=None if job.running.load is None else busiest_rank(job),
        dropped_share=None if job.running.load is None else dropped_share(job),
    )
