"""plan verification: structure, rates, memory, liveness.  A Plan that passes can be simulated and performed; one that does not is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from keyword import iskeyword

from planner.ir.actors.claims import verify_claims
from planner.ir.actors.liveness import play
from planner.ir.actors.peak import live_bytes
from planner.ir.actors.routes import check_sent
from planner.ir.errors import InvalidPlan, OutOfMemory
from planner.ir.plan import Boxing, Fragment, Plan, Regst, RegstKind, Task, TaskKind
from planner.ir.units import show_bytes

__all__ = ["device_bytes", "stream_workspaces", "verify", "verify_structure"]

MOST_ACTS, MOST_BLOCKS = 10**7, 10**6
"""Beyond these a file holds a slip of the pen, and playing or allocating it would never end."""


def verify(plan: Plan, dry_run: Callable[[Plan], Mapping[int, int]] | None = None) -> None:
    """Prove that the Plan is well-formed, fits every device and is live.

    Args:
        dry_run: plays the token game faster than planner.ir.actors.liveness does (planner.ir.protocols.DryRun); None: that module plays.

    Raises:
        InvalidPlan: structure, rates or claims.   OutOfMemory: SEMANTICS 5 law 5.   DeadLock: SEMANTICS 4.1.
    """
    verify_structure(plan)
    verify_claims(plan)
    if dry_run is None:
        _verify_memory(plan, lambda: live_bytes(plan))
        play(plan)
    else:
        live = dry_run(plan)
        _verify_memory(plan, lambda: live)


def verify_structure(plan: Plan) -> None:
    """Ids, counts, rates, shapes and orders; the laws that make the token game well-defined."""
    for what, ids in (
        ("task", [t.id for t in plan.tasks]),
        ("regst", [r.id for r in plan.regsts]),
        ("stream", [s.id for s in plan.streams]),
        ("placement", [p.id for p in plan.placements]),
    ):
        doubles = [i for i, count in Counter(ids).items() if count > 1]
        if doubles:
            raise InvalidPlan(f"{what} ids {doubles} stand twice; ids are unique")
    if plan.micro_batches < 1 or plan.batch_size < 1:
        raise InvalidPlan(f"micro_batches = {plan.micro_batches}, batch_size = {plan.batch_size}; both are at least 1")
    if not plan.tasks:
        raise InvalidPlan("the plan has no task; there is nothing to perform")
    _verify_placements(plan)
    for stream in plan.streams:
        if stream.placement not in plan.placement:
            raise InvalidPlan(f"stream {stream.id} belongs to placement {stream.placement}, which the plan does not have")
    for regst in plan.regsts:
        _verify_regst(plan, regst)
    for task in plan.tasks:
        _verify_task(plan, task)
    for regst in plan.regsts:
        _verify_rates(plan, regst)
    _verify_orders(plan)
    acts = sum(task.acts for task in plan.tasks)
    if acts > MOST_ACTS:
        raise InvalidPlan(f"the plan has {acts} acts per step, more than {MOST_ACTS}; use fewer micro-batches")
    for label, access in (("loss", plan.loss), *((f"gradient of {n}", a) for n, a in plan.gradients.items())):
        _tensor_exists(plan, label, access.regst, access.index)
    for state in plan.states:
        _tensor_exists(plan, f"state {state.name}", state.regst, state.index)
    _verify_outputs(plan)


def _verify_outputs(plan: Plan) -> None:
    handing_over = [task for task in plan.tasks if task.kind is TaskKind.OUTPUT and task.acts == plan.micro_batches]
    handed_over = {(access.regst, access.index) for task in handing_over for access in task.reads}
    for output in plan.outputs:
        _tensor_exists(plan, f"output {output.name}", output.regst, output.index)
        if (output.regst, output.index) not in handed_over:
            raise InvalidPlan(
                f"no task hands over output {output.name} in each of {plan.micro_batches} micro-batches; plan this program anew"
            )
        shape = plan.regst[output.regst].tensors[output.index].shape
        is_one = plan.micro_batches == 1 and output.batch_dim is None
        if not is_one and not (output.batch_dim is not None and 0 <= output.batch_dim < len(shape)):
            raise InvalidPlan(
                f"output {output.name} of shape {list(shape)} is put together along dim {output.batch_dim} of {plan.micro_batches} micro-batches; "
                f"it is a dim of the output, or none of one micro-batch"
            )


def _verify_placements(plan: Plan) -> None:
    ranks = {rank for p in plan.placements for rank in p.ranks}
    if ranks != set(range(len(ranks))):
        raise InvalidPlan(f"ranks {sorted(ranks)[:8]} have gaps; a plan of n devices uses ranks 0 .. n-1")
    for placement in plan.placements:
        size = 1
        for extent in placement.mesh:
            size *= extent
        whole = all(extent >= 1 for extent in placement.mesh) and len(set(placement.ranks)) == len(placement.ranks)
        if size != len(placement.ranks) or not whole:
            raise InvalidPlan(f"placement {placement.id}: mesh {placement.mesh} has {size} places for ranks {placement.ranks}")


def _verify_regst(plan: Plan, regst: Regst) -> None:
    if regst.quota < 1:
        raise InvalidPlan(f"regst {regst.id} has quota {regst.quota}; an actor needs at least 1 block to write to, set quota >= 1")
    if regst.quota > MOST_BLOCKS:
        raise InvalidPlan(f"regst {regst.id} has quota {regst.quota}; more than {MOST_BLOCKS} blocks serve nobody, set a smaller one")
    if regst.placement not in plan.placement:
        raise InvalidPlan(f"regst {regst.id} lies on placement {regst.placement}, which the plan does not have")
    if regst.producer is not None and regst.producer not in plan.task:
        raise InvalidPlan(f"regst {regst.id} names producer {regst.producer}, which is not a task of the plan")
    if regst.producer is None and regst.kind is not RegstKind.STATE:
        raise InvalidPlan(f"regst {regst.id} has no producer; only state may be without one (constants)")
    if regst.kind is RegstKind.STATE and regst.quota != 1:
        raise InvalidPlan(f"state regst {regst.id} has quota {regst.quota}; state is updated in place and has exactly 1 block")
    placement = plan.placement[regst.placement]
    for tensor in regst.tensors:
        if len(tensor.sbp) != len(placement.mesh):
            raise InvalidPlan(f"regst {regst.id}: {tensor.name} has SBP {tensor.sbp} for a mesh of {len(placement.mesh)} axes")
        if any(extent < 0 for extent in tensor.shape):
            raise InvalidPlan(f"regst {regst.id}: {tensor.name} has shape {tensor.shape}; extents are at least 0")
        tensor.sbp.region(tensor.shape, placement.mesh, (0,) * len(placement.mesh))


def _tensor_exists(plan: Plan, who: str, regst: str, index: int) -> None:
    if regst not in plan.regst:
        raise InvalidPlan(f"{who} names regst {regst}, which the plan does not have")
    if not 0 <= index < len(plan.regst[regst].tensors):
        raise InvalidPlan(f"{who} names tensor {index} of regst {regst}, which has {len(plan.regst[regst].tensors)}")


def _verify_task(plan: Plan, task: Task) -> None:
    if task.placement not in plan.placement:
        raise InvalidPlan(f"task {task.id} is placed on {task.placement}, which the plan does not have")
    stream = plan.stream.get(task.stream)
    if stream is None or stream.placement != task.placement:
        raise InvalidPlan(f"task {task.id} runs on stream {task.stream}, which its placement {task.placement} does not have")
    if task.acts < 1:
        raise InvalidPlan(f"task {task.id} acts {task.acts} times per step; at least 1 is needed")
    for port in (*task.consumes, *task.produces):
        if port.regst not in plan.regst:
            raise InvalidPlan(f"task {task.id} names regst {port.regst}, which the plan does not have")
        if port.acts_per_block < 1 or task.acts % port.acts_per_block:
            raise InvalidPlan(
                f"task {task.id}: {port.acts_per_block} acts per block of {port.regst} do not divide its {task.acts} acts per step"
            )
    _verify_places(plan, task)
    names = [port.regst for port in task.consumes]
    if len(set(names)) != len(names):
        raise InvalidPlan(f"task {task.id} consumes a regst twice; one port per regst")
    for port in task.produces:
        if plan.regst[port.regst].producer != task.id:
            raise InvalidPlan(f"task {task.id} produces regst {port.regst}, whose producer is {plan.regst[port.regst].producer}")
    produced = {port.regst for port in task.produces}
    for access in task.reads:
        _tensor_exists(plan, f"task {task.id}", access.regst, access.index)
        own_state = access.regst in produced and plan.regst[access.regst].kind is RegstKind.STATE
        if access.regst not in names and not own_state:
            raise InvalidPlan(f"task {task.id} reads regst {access.regst} without consuming it")
    for access in task.writes:
        _tensor_exists(plan, f"task {task.id}", access.regst, access.index)
        if access.regst not in produced:
            raise InvalidPlan(f"task {task.id} writes regst {access.regst} without producing it")
    if task.kind.is_compute != isinstance(task.body, Fragment) or (task.kind is TaskKind.BOXING) != isinstance(task.body, Boxing):
        raise InvalidPlan(f"task {task.id} of kind {task.kind.value} has a body of type {type(task.body).__name__}")
    if isinstance(task.body, Fragment):
        _verify_fragment(task, task.body)
    if isinstance(task.body, Boxing) and not 0 <= task.body.axis < len(plan.placement[task.placement].mesh):
        raise InvalidPlan(
            f"boxing task {task.id} works on axis {task.body.axis} of a mesh of {len(plan.placement[task.placement].mesh)} axes"
        )
    if isinstance(task.body, Boxing) and not task.body.axis < len(task.body.src) == len(task.body.dst):
        raise InvalidPlan(f"boxing task {task.id}: {task.body.src} -> {task.body.dst} on axis {task.body.axis} are not of one mesh")
    if task.kind in (TaskKind.BOXING, TaskKind.TRANSFER) and len(task.reads) != len(task.writes):
        raise InvalidPlan(f"task {task.id} reads {len(task.reads)} tensors and writes {len(task.writes)}; communication keeps their number")
    if task.kind is TaskKind.TRANSFER:
        _verify_transfer(plan, task)


def _verify_places(plan: Plan, task: Task) -> None:
    """An act reads and writes blocks of its own placement; only what a TRANSFER writes lies elsewhere."""
    ports = task.consumes if task.kind is TaskKind.TRANSFER else (*task.consumes, *task.produces)
    for port in ports:
        there = plan.regst[port.regst].placement
        if there != task.placement:
            raise InvalidPlan(f"task {task.id} on {task.placement} uses regst {port.regst}, which lies on {there}; only a TRANSFER crosses")


def _verify_transfer(plan: Plan, task: Task) -> None:
    """Every rank of the one placement it writes to gets something; a rank that nobody sends to would wait for ever."""
    targets = {plan.regst[port.regst].placement for port in task.produces}
    if len(targets) != 1 or not task.reads:
        raise InvalidPlan(
            f"transfer {task.id} moves {len(task.reads)} tensors to placements {sorted(targets)}; it moves some to exactly one"
        )
    receivers = plan.placement[targets.pop()]
    served: set[int] = set()
    for read, write in zip(task.reads, task.writes, strict=True):
        src, dst = (plan.regst[access.regst].tensors[access.index] for access in (read, write))
        check_sent(src, dst)
        # What is sent is whole, so whoever is to have a part gets it from somebody.
        served.update(rank for rank in receivers.ranks if 0 not in dst.local_type(receivers, rank).shape)
    unserved = sorted(set(receivers.ranks) - served)
    if unserved:
        raise InvalidPlan(f"transfer {task.id} sends nothing to ranks {unserved[:8]}, which wait for it; its tensors are empty")


def _verify_fragment(task: Task, body: Fragment) -> None:
    known = {access.name for access in task.reads}
    for op in body.ops:
        # They become parameters of generated code.
        if not all(key.isidentifier() and not iskeyword(key) for key, _ in op.kwargs):
            raise InvalidPlan(f"task {task.id}: {op.where()} has keyword arguments {[key for key, _ in op.kwargs]}; they must be names")
        missing = [value for value in op.inputs if value not in known]
        if missing:
            raise InvalidPlan(f"task {task.id}: {op.where()} reads {missing}, which nothing before it defines")
        known.update(value for value in op.outputs if value is not None)
    missing = [access.name for access in task.writes if access.name not in known]
    if missing:
        raise InvalidPlan(f"task {task.id} writes {missing}, which it never computes")


def _verify_rates(plan: Plan, regst: Regst) -> None:
    """As many blocks are produced per step as each consumer takes; otherwise counters drift and no number of blocks suffices."""
    if regst.producer is None:
        return
    producer = plan.task[regst.producer]
    ports = [p for p in producer.produces if p.regst == regst.id]
    if len(ports) != 1:
        raise InvalidPlan(f"regst {regst.id}: its producer {producer.id} has {len(ports)} ports for it; exactly 1 is needed")
    made = producer.acts // ports[0].acts_per_block
    for consumer, port in plan.consumers[regst.id]:
        taken = consumer.acts // port.acts_per_block
        if taken != made:
            raise InvalidPlan(
                f"regst {regst.id}: {producer.id} makes {made} blocks per step, {consumer.id} takes {taken}; rates must agree"
            )
        if producer.kind is not TaskKind.TRANSFER and consumer.placement != producer.placement:
            raise InvalidPlan(f"regst {regst.id} goes from {producer.id} to {consumer.id} on another placement; only a TRANSFER crosses")
        if consumer.placement != regst.placement:
            raise InvalidPlan(f"regst {regst.id} lies on {regst.placement}, but {consumer.id} runs on {consumer.placement}")


def _verify_orders(plan: Plan) -> None:
    tasks_of: dict[str, list[Task]] = {stream.id: [] for stream in plan.streams}
    for task in plan.tasks:
        tasks_of[task.stream].append(task)
    for stream in plan.streams:
        members = Counter({task.id: task.acts for task in tasks_of[stream.id]})
        if stream.order and Counter(stream.order) != members:
            raise InvalidPlan(f"stream {stream.id} orders {dict(Counter(stream.order))}, but its tasks act {dict(members)} times per step")
        if not stream.order and any(_is_collective(plan, task) for task in tasks_of[stream.id]):
            raise InvalidPlan(f"stream {stream.id} carries collectives without an order; all ranks must call them alike (SEMANTICS 3.10)")


def _is_collective(plan: Plan, task: Task) -> bool:
    """Whether ranks must meet in it, so that they could wait for each other in different orders."""
    axis = task.meeting_axis
    return axis is not None and plan.placement[task.placement].mesh[axis] > 1


def device_bytes(plan: Plan) -> dict[int, int]:
    """Planned peak bytes per rank: all blocks of all Regsts on it plus the largest workspace of each of its streams."""
    total = dict.fromkeys(range(plan.num_ranks), 0)
    placed: dict[str, int] = {}
    for regst in plan.regsts:
        placed[regst.placement] = placed.get(regst.placement, 0) + regst.quota * plan.block_bytes(regst)
    for placement, size_bytes in placed.items():
        for rank in plan.placement[placement].ranks:
            total[rank] += size_bytes
    for stream, workspace_bytes in stream_workspaces(plan).items():
        for rank in plan.placement[plan.stream[stream].placement].ranks:
            total[rank] += workspace_bytes
    return total


def stream_workspaces(plan: Plan, rank: int | None = None) -> dict[str, int]:
    """Stream -> the largest workspace of its fragments in bytes, which each rank of its placement holds: of all streams, or of those on ``rank``."""
    largest: dict[str, int] = {}
    for task in plan.tasks:
        if isinstance(task.body, Fragment) and (rank is None or rank in plan.ranks_of(task)):
            largest[task.stream] = max(largest.get(task.stream, 0), task.body.workspace_bytes)
    return largest


def _verify_memory(plan: Plan, live: Callable[[], Mapping[int, int]]) -> None:
    """All blocks at once fit; or else what is live at the worst moment of the token game does."""
    limit = plan.cluster.device.memory_bytes
    if max(device_bytes(plan).values(), default=0) <= limit:
        return
    for rank, need in live().items():
        if need <= limit:
            continue
        here = [r for r in plan.regsts if rank in plan.placement[r.placement].ranks]
        state = sum(plan.block_bytes(r) for r in here if r.kind is RegstKind.STATE)
        largest = max((r for r in here), key=lambda r: r.quota * plan.block_bytes(r))
        raise OutOfMemory(
            f"rank {rank} needs {show_bytes(need)} (state {show_bytes(state)}, largest regst {largest.id}: {largest.quota} x "
            f"{show_bytes(plan.block_bytes(largest))}) but a device of {plan.cluster.name} has {show_bytes(limit)} (SEMANTICS 5, law 5); "
            f"use more devices or stages, more micro-batches, or pin optimizer state to S(0)"
        )
