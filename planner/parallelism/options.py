"""What a user may ask of a plan, and what is refused before anything is searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod

from planner.cost.routing import ExpertLoad
from planner.ir.cluster import Cluster
from planner.ir.errors import Unsupported
from planner.ir.graph import Mode
from planner.ir.units import MB
from planner.parallelism.asked_quotas import text_of_quotas
from planner.parallelism.shape import Shape, stage_devices
from planner.schedule import PipelineSchedule, Schedule, check_schedule, from_torch_csv
from planner.search import Method
from planner.search.context import Context
from planner.search.zero import LEVELS
from planner.stages.recompute.asked import BLOCKS, SELECTIVE, Recompute, recompute_of

__all__ = ["SHARES", "PlanOptions", "by", "check_options", "given_order", "of_shape", "of_shape_alone"]

SHARES = ("80%", "60%", "40%", "20%")
"""Tried in turn by ``selective``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the user fixes; the rest is chosen.

    stages: pipeline stages, each on its own devices (None: searched).  mesh: device mesh inside a stage (None: searched).
    micro_batches: per step (None: searched).
    cuts: module paths that begin the next stage.  balance: or cut the graph where the fewest bytes cross, with so much more work than the mean.
    pins: 'PATTERN=SBP'.  quotas: Regst id pattern -> blocks.
    bucket_bytes: gradients are reduced in buckets of about so many bytes.
    recompute: make what is inside numbered blocks again in the backward part instead of keeping it (None: where nothing else fits); or a part of
        it: ``attention``, ``60%`` (planner.stages.recompute.asked), or ``selective``: where nothing else fits, the largest of SHARES that does.
    schedule: the order of a pipeline's passes.  interleave: stages per placement (interleaved).  hold: micro-batches' activations that a
        device may hold under the automatic schedule (None: as many as stages, what 1F1B holds).  order: torch's CSV (schedule GIVEN).
    zero: ZeRO level 0 to 3 (planner.search.zero) that states and gradients must have (None: searched).
    context: how attention over a cut sequence is performed (None: searched).
    load: how tokens are routed to experts; the search prices their busiest rank at its quantile (None: every expert has the even load).
    mode: the kind of step; an evaluation has no backward pass, no gradients and no optimizer state.
    strict: refuse ops without a rule, which otherwise every device performs with whole inputs.
    method, seconds: how to search, and when to stop with the best plan so far (these and strict are no part of the record).
    """

    stages: int | None = 1
    mesh: tuple[int, ...] | None = None
    micro_batches: int | None = 1
    cuts: tuple[str, ...] = ()
    balance: float | None = None
    pins: tuple[str, ...] = ()
    schedule: Schedule = Schedule.ONE_F_ONE_B
    bucket_bytes: int = 25 * MB
    quotas: Mapping[str, int] = field(default_factory=dict)
    recompute: Recompute = None
    zero: int | None = None
    context: Context | None = None
    load: ExpertLoad | None = None
    interleave: int = 1
    hold: int | None = None
    order: str = ""
    mode: Mode = Mode.TRAIN
    strict: bool = False
    method: Method = Method.EXACT
    seconds: float = inf

    @property
    def again(self) -> str:
        """What the backward part computes again in every shape, as a Shape has it."""
        if isinstance(self.recompute, str):
            return "" if self.recompute == SELECTIVE else self.recompute
        return BLOCKS if self.recompute else ""

    @property
    def again_if_unfit(self) -> tuple[str, ...]:
        """What it computes again where a shape does not fit without, the next where that does not fit either."""
        if self.recompute is None:
            return (BLOCKS,)
        return (*SHARES, BLOCKS) if self.recompute == SELECTIVE else ()

    def as_text(self) -> dict[str, str]:
        """For the Plan's record of how it was made."""
        return {
            "stages": str(self.stages),
            "cuts": ",".join(self.cuts),
            "pins": ";".join(self.pins),
            "schedule": self.schedule.value,
            "bucket_bytes": str(self.bucket_bytes),
            "recompute": {None: "", True: BLOCKS, False: "none", SELECTIVE: ""}.get(self.recompute, str(self.recompute)),
            "quotas": text_of_quotas(self.quotas),
            **({} if self.balance is None else {"balance": str(self.balance)}),
            **({} if self.zero is None else {"zero": str(self.zero)}),
            **({} if self.context is None else {"context": self.context.value}),
            **({} if self.load is None else self.load.as_text()),
            **({} if self.interleave == 1 else {"interleave": str(self.interleave)}),
            **({} if self.hold is None else {"hold": str(self.hold)}),
            **({} if not self.order else {"order": self.order}),
            **({} if self.mode is Mode.TRAIN else {"mode": self.mode.value}),
        }


def of_shape(options: PlanOptions, shape: Shape) -> PlanOptions:
    """The options with the shape's stages, mesh, micro-batches and, if it has any, recomputation."""
    recompute = recompute_of(shape.recompute) if shape.recompute else options.recompute
    return replace(options, stages=shape.stages, micro_batches=shape.micro_batches, mesh=shape.mesh, recompute=recompute)


def of_shape_alone(options: PlanOptions, shape: Shape) -> PlanOptions:
    """As ``of_shape``; a shape without recomputation has none."""
    return replace(of_shape(options, shape), recompute=recompute_of(shape.recompute or "none"))


def check_options(options: PlanOptions, cluster: Cluster) -> None:
    """Options that contradict each other or the cluster.

    Raises:
        Unsupported: with the way out.
    """
    if (options.stages is not None and options.stages < 1) or (options.micro_batches is not None and options.micro_batches < 1):
        raise Unsupported(f"stages = {options.stages}, micro-batches = {options.micro_batches}; both are at least 1")
    for pattern, asked_for in options.quotas.items():
        if asked_for < 1:
            raise Unsupported(f"quota {pattern}={asked_for}: an actor needs at least 1 block to write to, ask for 1 or more")
    if options.zero is not None and options.zero not in LEVELS:
        raise Unsupported(f"there is no ZeRO level {options.zero}; levels are {', '.join(map(str, LEVELS))}, or none for a free search")
    if isinstance(options.recompute, str):
        recompute_of(options.recompute)
    _check_mode(options)
    _check_schedule(options)
    if options.bucket_bytes < 1:
        raise Unsupported(f"buckets of {options.bucket_bytes} bytes hold no gradient; give at least 1 byte")
    if options.stages is not None and cluster.num_devices % options.stages:
        raise Unsupported(f"{options.stages} stages do not divide the {cluster.num_devices} devices of {cluster.name}")
    if options.stages is not None:
        stage_devices(cluster, options.stages)
    mesh = options.mesh
    if mesh is None:
        return
    if options.stages is not None and (any(extent < 1 for extent in mesh) or prod(mesh) * options.stages != cluster.num_devices):
        raise Unsupported(
            f"mesh {by(mesh)} has {prod(mesh)} places, but each of {options.stages} stages has "
            f"{cluster.num_devices // options.stages} devices of {cluster.name}"
        )
    if any(extent < 1 for extent in mesh) or cluster.num_devices % prod(mesh):
        raise Unsupported(
            f"mesh {by(mesh)} has {prod(mesh)} places, which do not divide the {cluster.num_devices} devices of {cluster.name}"
        )


def _check_mode(options: PlanOptions) -> None:
    if options.mode is Mode.TRAIN:
        return
    way_out = "leave it out, or plan a training step"
    if options.zero is not None:
        raise Unsupported(
            f"ZeRO level {options.zero} of an evaluation, which has neither gradients nor optimizer state to split; {way_out}"
        )
    if options.recompute:
        raise Unsupported(f"recomputation in an evaluation, which has no backward pass to keep anything for; {way_out}")
    if options.schedule.splits_backward:
        raise Unsupported(
            f"schedule {options.schedule.value} of an evaluation orders the parts of a backward pass, which it does not have; "
            "ask for 1f1b or interleaved"
        )


def _check_schedule(options: PlanOptions) -> None:
    interleaved = options.schedule is Schedule.INTERLEAVED
    given = options.schedule is Schedule.GIVEN
    if given != bool(options.order):
        raise Unsupported(
            f"schedule {options.schedule.value} with an order of {len(options.order)} characters: give one with schedule csv only"
        )
    if (interleaved != (options.interleave > 1) and not given) or options.interleave < 1:
        raise Unsupported(
            f"schedule {options.schedule.value} with {options.interleave} stages per placement: ask for interleaved with at least 2 of them, "
            f"or for another schedule with 1"
        )
    if interleaved and options.stages == 1:
        raise Unsupported(f"{options.interleave} interleaved stages on 1 placement are one stage; ask for at least 2 stages")
    if options.hold is not None and (options.schedule is not Schedule.ZB_AUTO or options.hold < 1):
        raise Unsupported(f"hold = {options.hold} with schedule {options.schedule.value}: it limits zb-auto, and is at least 1")
    if options.zero == 3 and options.schedule.has_order:
        raise Unsupported(f"ZeRO level 3 with schedule {options.schedule.value}: its gathers follow 1f1b or gpipe; ask for one of these")


def given_order(options: PlanOptions) -> PipelineSchedule | None:
    """The order that the user gave, checked against the shape."""
    if options.schedule is not Schedule.GIVEN:
        return None
    order = from_torch_csv(options.order)
    check_schedule(order)
    assert options.stages is not None
    if (order.num_devices, order.num_stages, order.micro_batches) != (
        options.stages,
        options.stages * options.interleave,
        options.micro_batches,
    ):
        raise Unsupported(
            f"the schedule file orders {order.num_stages} stages on {order.num_devices} devices and {order.micro_batches} micro-batches, the plan "
            f"has {options.stages} x {options.interleave} stages and {options.micro_batches} micro-batches; make them equal"
        )
    if order.device_of != tuple(s % options.stages for s in range(order.num_stages)):
        raise Unsupported(f"the schedule file puts stages on devices {order.device_of}; stage s lies on device s mod {options.stages} here")
    return order


def by(mesh: tuple[int, ...]) -> str:
    """A mesh as 2x8."""
    return "x".join(map(str, mesh))
