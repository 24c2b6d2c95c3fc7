"""An estimate of a job's step in closed form, which orders candidates before they are predicted; nothing is claimed of it.

step = (m + (p - 1) / v) t + what shows of the data-parallel collectives + update,   t = the longer of the first and the last stage's passes
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.ir.collective import Collective
from planner.schedule import PipelineSchedule
from regista.jobs.job import Job, Layout, Running
from regista.jobs.machines import Machine
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.prices import Prices
from regista.jobs.work import Group, layer_backward, layer_forward
from regista.jobs.work.chunks import head_backward, head_forward

__all__ = ["Estimator", "most_bytes"]


@dataclass(slots=True)
class Estimator:
    """Of layouts of one job on one machine; passes of equal layers are priced once."""

    machine: Machine
    _layers: dict[tuple[Layout, Running], tuple[float, float]] = field(default_factory=dict)

    def step_s(self, job: Job) -> float:
        """Seconds of a step, roughly."""
        at, run = job.layout, job.running
        layer_s, head_s = self._passes(job)
        each = (job.model.layers + job.model.encoder) / at.pp
        stage_s = each * layer_s + head_s if at.pp == 1 else max(each * layer_s + head_s / 2, (each - 1) * layer_s + head_s)
        prices = Prices(machine=self.machine, running=run, devices=job.devices)
        held = job.model.parameters / (at.tp * at.pp) if not job.model.experts else job.model.parameters / (at.tp * at.pp * at.ep)
        sent_s = 0.0 if at.fsdp > 1 else prices.meeting_s(Collective.ALL_REDUCE, run.grad_bytes * held, Group(at.dp * at.cp, at.tp))
        update = held * self.machine.values["update_bytes"] / self.machine.memory_bytes_per_s
        update /= at.dp * at.cp if run.distributed_optimizer or at.fsdp > 1 else 1
        return (at.micro_batches + (at.pp - 1) / at.vp) * stage_s + sent_s * (0.15 if run.overlap_grad else 1.0) + update

    def _passes(self, job: Job) -> tuple[float, float]:
        """Seconds of one layer forward and backward, averaged over kinds of layer, and of the head."""
        at = replace(job.layout, pp=1, vp=1, vp_group=None, layers_of_chunks=None, global_batch=job.layout.dp * job.layout.micro_batch)
        if at.fsdp == 1 and not job.model.experts:
            at = replace(at, dp=1, global_batch=at.micro_batch)
        key = (at, job.running)
        if key not in self._layers:
            prices = Prices(machine=self.machine, running=job.running, devices=job.devices)
            total_s, count = 0.0, 0
            for model, own in job.model.stacks:
                stack = replace(job, model=model, layout=at)
                total_s += own * (prices.pass_s(layer_forward(stack)) + prices.pass_s(layer_backward(stack)))
                count += own
            whole = replace(job, layout=at)
            self._layers[key] = total_s / count, prices.pass_s(head_forward(whole)) + prices.pass_s(head_backward(whole))
        return self._layers[key]


def most_bytes(job: Job, machine: Machine) -> int:
    """The most that a device of the job is asked for, on its first or last stages; a longer step holds no more at once."""
    at = job.layout
    short = min(at.micro_batches, 4 * at.per_round)
    few = replace(job, layout=replace(at, global_batch=short * at.dp * at.micro_batch))
    schedule: PipelineSchedule = schedule_of(few)
    return max(stage_memory(few, machine, schedule, stage).device_bytes[1] for stage in {0, min(1, at.pp - 1), at.pp - 1})
