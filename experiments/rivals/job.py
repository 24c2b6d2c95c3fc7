"""What the two sides of a pair train, and the Plan with which our side does it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum

import regista
from planner.ir.plan import Plan
from regista.api import program_of
from regista.clusters import resolve_cluster

__all__ = ["JOBS", "Job", "Way", "from_json", "plan_of", "to_json"]

MODEL = "zoo:gpt?layers=4&width=256&heads=8&vocab=2048&batch=8&seq=128"
BY_SAMPLES = ("input.0=S(0)", "out:h.?=S(0)")
MICRO_BATCHES = 8


class Way(Enum):
    """How the step is distributed; ``rival`` names torch's means for it."""

    DATA = "data"
    DROPOUT = "dropout"
    SHARDED = "sharded"
    KEPT = "kept"
    PIPELINE = "pipeline"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"
    COMPILED = "compiled"
    SINGLE = "single"
    MIXED = "mixed"
    MIXED_SHARDED = "mixed-sharded"
    COMPILED_SINGLE = "compiled-single"
    OP_BY_OP = "op-by-op"

    @property
    def rival(self) -> str:
        return _RIVALS[self]

    @property
    def ours(self) -> str:
        return _OURS[self]

    @property
    def in_stages(self) -> bool:
        """Whether ranks hold stages, so that each reads all samples."""
        return self in (Way.PIPELINE, Way.INTERLEAVED, Way.ZERO_BUBBLE)


_RIVALS = {
    Way.DATA: "DistributedDataParallel",
    Way.DROPOUT: "DistributedDataParallel, dropout",
    Way.SHARDED: "fully_shard",
    Way.KEPT: "fully_shard(reshard_after_forward=False)",
    Way.PIPELINE: "pipelining.Schedule1F1B",
    Way.INTERLEAVED: "pipelining.ScheduleInterleaved1F1B",
    Way.ZERO_BUBBLE: "pipelining.ScheduleZBVZeroBubble",
    Way.COMPILED: "torch.compile(DistributedDataParallel)",
    Way.SINGLE: "eager training",
    Way.MIXED: "DistributedDataParallel, autocast",
    Way.MIXED_SHARDED: "fully_shard(mp_policy)",
    Way.COMPILED_SINGLE: "torch.compile",
    Way.OP_BY_OP: "one-device Plan, op by op",
}
_OURS = {
    Way.DATA: "data-parallel Plan",
    Way.DROPOUT: "data-parallel Plan, dropout",
    Way.SHARDED: "sharded Plan (ZeRO-3)",
    Way.KEPT: "sharded Plan (ZeRO-2)",
    Way.PIPELINE: "2-stage Plan (1F1B)",
    Way.INTERLEAVED: "2 x 2-stage Plan (interleaved)",
    Way.ZERO_BUBBLE: "2-stage Plan (ZB-H1)",
    Way.COMPILED: "data-parallel Plan",
    Way.SINGLE: "one-device Plan",
    Way.MIXED: "data-parallel Plan, bf16-mixed",
    Way.MIXED_SHARDED: "ZeRO-3 Plan, bf16-mixed",
    Way.COMPILED_SINGLE: "one-device Plan",
    Way.OP_BY_OP: "one-device Plan",
}
_SCHEDULES = {Way.PIPELINE: "1f1b", Way.INTERLEAVED: "interleaved", Way.ZERO_BUBBLE: "zb-h1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``steps``: performed by each side, warm-up and what runs after the last turn included.  ``cuts``: numbers of the blocks that begin a stage on
    our side (pipelines only); ZERO_BUBBLE's rival has two stages per rank in a V, one block per stage.  ``fused``: the rival's AdamW is torch's
    fused kernel; False: what torch.optim.AdamW takes by itself.  ``close``: largest relative difference of the losses of the first ``compared``
    steps; masks of dropout differ, so there they are alike only.
    """

    way: Way
    model: str = MODEL
    ranks: int = 2
    micro_batches: int = 1
    cuts: tuple[int, ...] = ()
    steps: int = 40
    precision: str = "fp32"
    fused: bool = True
    close: float = 1e-5
    compared: int = 8
    kernels: str = "eager"

    def of_steps(self, steps: int) -> Job:
        """The same job, so many steps of it."""
        return replace(self, steps=steps)


JOBS = (
    Job(way=Way.DATA),
    Job(way=Way.DROPOUT, model=f"{MODEL}&dropout=0.1", close=0.01),
    Job(way=Way.SHARDED),
    Job(way=Way.KEPT),
    Job(way=Way.PIPELINE, model=f"{MODEL}&tied=0", micro_batches=MICRO_BATCHES, cuts=(2,)),
    Job(way=Way.INTERLEAVED, model=f"{MODEL}&tied=0", micro_batches=MICRO_BATCHES, cuts=(1, 2, 3)),
    Job(way=Way.ZERO_BUBBLE, model=f"{MODEL}&tied=0", micro_batches=MICRO_BATCHES, cuts=(2,)),
    Job(way=Way.COMPILED),
    Job(way=Way.SINGLE, ranks=1),
    Job(way=Way.MIXED, model=f"{MODEL}&dropout=0.1", precision="bf16-mixed", close=0.02),
    Job(way=Way.MIXED_SHARDED, model=f"{MODEL}&dropout=0.1", precision="bf16-mixed", close=0.02),
)


def plan_of(job: Job) -> Plan:
    """The Plan that performs the job as its rival does: the same layout, the same cut, the same micro-batches.

    Raises:
        RegistaError: the model cannot be planned so.
    """
    cluster = resolve_cluster(f"local:{job.ranks}")
    program = program_of(job.model).in_formats(job.precision, None)
    match job.way:
        case Way.DATA | Way.DROPOUT | Way.MIXED | Way.COMPILED:
            return regista.plan(program, cluster, pins=(*BY_SAMPLES, "*:exp_avg*=B"))
        case Way.SHARDED | Way.MIXED_SHARDED:
            return regista.plan(program, cluster, pins=BY_SAMPLES, zero=3)
        case Way.KEPT:
            return regista.plan(program, cluster, pins=BY_SAMPLES, zero=2)
        case Way.PIPELINE | Way.INTERLEAVED | Way.ZERO_BUBBLE:
            return regista.plan(
                program,
                cluster,
                stages=job.ranks,
                micro_batches=job.micro_batches,
                cuts=tuple(f"h.{block}" for block in job.cuts),
                schedule=_SCHEDULES[job.way],
                interleave=(len(job.cuts) + 1) // job.ranks,
            )
        case Way.SINGLE | Way.COMPILED_SINGLE | Way.OP_BY_OP:
            return regista.plan(program, cluster)


def to_json(job: Job) -> str:
    return json.dumps(asdict(job) | {"way": job.way.value})


def from_json(text: str) -> Job:
    fields = json.loads(text)
    return Job(**fields | {"way": Way(fields["way"]), "cuts": tuple(fields["cuts"])})
