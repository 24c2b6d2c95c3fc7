"""The Python API: the same verbs as the command line, on values instead of files.

program = regista.Program(module, (inputs, targets), loss=cross_entropy, optimizer=regista.AdamW(lr=1e-3))
plan    = regista.plan(program, "local:2", pins=["input.0=S(0)"])
sim     = regista.simulate(plan)
outcome = regista.run(plan, program, steps=20)
print(regista.compare(plan, sim, outcome.trace).step_time_s.relative_error)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from torch import Tensor

import backend
import simulator
from backend import inprocess
from backend.acts.act import Batches
from backend.acts.step_inputs import check_numbers
from backend.checkpoint import SaveRequest
from backend.devices.cores import Waiting
from backend.devices.opening import open_devices
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.initial import Values
from backend.launch import Session
from backend.launch.host import check_host
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.inductor import Kernels
from backend.run_folder import Outcome
from planner.cost import AnalyticCost
from planner.cost.routing import ExpertLoad
from planner.frontend import Program
from planner.frontend.batch import BatchDim
from planner.ir.cluster import Cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from planner.ir.protocols import CostModel
from planner.ir.traces.held import StepSelection
from planner.ir.traces.trace import Trace
from planner.parallelism.make import PlanOptions, search_plans
from planner.parallelism.memory import SearchMemory
from planner.parallelism.shape_search import ShapeWatch
from planner.schedule import Schedule
from planner.search import Method
from planner.search.context import context_of
from planner.solve.problem import Watch
from planner.solve.time_limit import Cancel
from planner.stages.recompute import Recompute, recompute_of
from planner.validate import ProvenPlans
from regista.clusters import resolve_cluster, run_as
from regista.data import Data, batches_for
from regista.origin import names_code, record
from regista.padded.asked import divided, padded, recorded_samples
from regista.performers import Performer, check_performer, chosen, chosen_kernels
from regista.programs import check_program, planned_program, program_for, program_of
from regista.schedules.automatic import AUTOMATIC, check_open, with_quickest_schedule
from regista.schedules.file import read_schedule
from regista.starting import beginning, typed_state
from regista.trust.constants import constants_of, pessimistic, spreads_text
from regista.trust.interval import prices_of
from regista.update_options import (
    NO_UPDATE_OPTIONS,
    UpdateOptions,
    as_planned,
    asked_formats,
    in_mode,
    own_rates,
    recorded_of,
    with_batch_norm,
)
from simulator.analysis.replay import message_times

__all__ = ["Performer", "check_program", "plan", "planned_program", "program_for", "program_of", "run", "session", "simulate"]


@collector_paused()
def plan(
    program: Program | str,
    cluster: Cluster | str,
    *,
    stages: int | None = 1,
    mesh: Sequence[int] | None = None,
    micro_batches: int | None = 1,
    cuts: Iterable[str] = (),
    balance: float | None = None,
    pins: Iterable[str] = (),
    schedule: str = "1f1b",
    quotas: Mapping[str, int] | None = None,
    bucket_bytes: int | None = None,
    recompute: Recompute = None,
    zero: int | None = None,
    context: str | None = None,
    load: ExpertLoad | None = None,
    interleave: int = 1,
    hold: int | None = None,
    mode: str = Mode.TRAIN.value,
    outputs: bool | Sequence[str] = False,
    strict: bool = False,
    batch_dim: BatchDim = None,
    batch_norm: str = "global",
    update: UpdateOptions = NO_UPDATE_OPTIONS,
    precision: str | None = None,
    grad_dtype: str | None = None,
    attention: str | None = None,
    kernels: str | None = None,
    robust: Mapping[str, float] | None = None,
    method: str = "exact",
    seconds: float = inf,
    on_progress: Watch | None = None,
    on_shape: ShapeWatch | None = None,
    on_next: Callable[[Plan], None] | None = None,
    cancel: Cancel | None = None,
    model: str | None = None,
    memory: SearchMemory | None = None,
) -> Plan:
    """Search a Plan for a program on a cluster.

    Args:
        program: a Program or the name of one.   cluster: a Cluster, ``local:N``, or a TOML path.
        stages: pipeline stages.   mesh: device mesh inside each stage.   micro_batches: per step.   None: searched.
        cuts: module paths that begin the next stage.   balance: or cut where the fewest bytes cross, stages at most so much above the mean work.
        pins: ``PATTERN=SBP``.   schedule: ``1f1b``, ``gpipe``, ``interleaved``, ``zb-h1``, ``zb-h2`` or ``zb-auto`` (the backward pass in two
            parts), a file of torch's pipelining CSV, or ``auto``: the quickest by simulation (regista.schedules).
        interleave: stages per device group, for ``interleaved``.
        hold: micro-batches' activations that a device may hold, for ``zb-auto``; None: as many as stages.
        quotas: Regst id pattern -> blocks.   bucket_bytes: size of gradient buckets.
        recompute: keep only what enters numbered blocks, and make the rest again in the backward part; None: where nothing else fits.  Or
            ``attention``: make what lies between its two products again; ``60%``: the ops that cost least while that share of the bytes is kept;
            ``selective``: where nothing else fits, the largest share of 80, 60, 40 and 20 % that does, then blocks.
        zero: ZeRO level 0 to 3; None: searched, and parameters are gathered again for the backward part only where memory binds.
        context: attention over a cut sequence: ``gathered`` (keys and values) or ``heads`` (all-to-all); None: searched, and the sequence need not
            be cut.
        load: how tokens are routed to experts (planner.cost.routing), at whose quantile they are priced; None: every expert has the even load.
        mode: ``train``, or ``eval``: the forward pass alone, of the module in eval mode, without gradients, update and optimizer state.
        outputs: of an evaluation, what a run gives beside the loss: all that the module returns (True), or outputs by name
            (planner.frontend.outputs).  A module that returns no loss is evaluated for them alone.
        batch_dim: the dim of the program's inputs that is the batch, as Program(batch_dim=...) takes it; None: the program's own.
        batch_norm: ``global``, or ``local``: over the part of each device, as DistributedDataParallel (regista.update_options.with_batch_norm).
        update: learning rates by step, clipping and a moving average for a program that is named (a Program says them itself).
        precision, grad_dtype, attention: as Program takes them; None: the program's own.
        kernels: ``eager``, ``fused`` or ``compiled``, on a cluster with kernel tables; None: as the cluster says.
        robust: search with every constant of the cluster at the bad end of its spread (regista.trust.constants: key -> share, ``""`` -> default);
            the Plan's objective and lower bound are then those of the pessimistic prices, which its record names.
        strict: refuse ops without an SBP rule; otherwise each device of their stage performs them with whole inputs, as a warning says.
        method: ``exact`` (certified), ``o3``, ``o2``, ``greedy`` or ``exhaustive``.   seconds: end the search by then with the best so far.
        on_shape: called with every shape (stages, mesh, micro-batches) that was looked at.
        on_next: called with the best Plan of another shape, if the search worked one out on its way.
        on_progress: called with the best objective and the bound (exact only); Ctrl-C, or a KeyboardInterrupt that it raises, ends the search.
        cancel: a Cancel; once it is cancelled, from any thread, the search ends as at the end of its seconds, with the best so far.
        model: the name by which the Program was loaded, which the Plan records; None: the Program's own.
        memory: what other searches of the program have worked out (regista.PlannerSession, which says what it may change).

    Raises:
        RegistaError: what cannot be traced, placed, fitted or kept live, with the way out.
        KeyboardInterrupt: Ctrl-C before there is a plan.
    """
    recorded_name = model or (program if isinstance(program, str) else program.name)
    source = program_of(program) if isinstance(program, str) else program
    if batch_dim is not None:
        source = source.cut_along(batch_dim)
    target = run_as(resolve_cluster(cluster) if isinstance(cluster, str) else cluster, kernels)
    source = asked_formats(with_batch_norm(source, batch_norm, stages, mesh, target), precision, grad_dtype, attention)
    source = update.applied(source)
    order = read_schedule(schedule) if schedule.endswith(".csv") else ""
    named = [s.value for s in Schedule if s is not Schedule.GIVEN]
    automatic = schedule == AUTOMATIC
    if not order and not automatic and schedule not in named:
        raise Unsupported(f"schedule {schedule!r} is not known; choose from {', '.join((*named, AUTOMATIC))}, or give a .csv file")
    search_method = chosen(Method, method, "search method")
    if not seconds > 0:
        raise Unsupported(f"seconds = {seconds}: a search needs some time; give a number above 0")
    pins = tuple(pins)
    recompute = recompute_of(recompute) if isinstance(recompute, str) else recompute
    source = in_mode(source, mode, outputs, update)
    source = divided(source, target, micro_batches=micro_batches, stages=stages, mesh=mesh, pins=pins, zero=zero)
    options = PlanOptions(
        stages=stages,
        mesh=tuple(mesh) if mesh is not None else None,
        micro_batches=micro_batches,
        cuts=tuple(cuts),
        balance=balance,
        pins=pins,
        schedule=Schedule.GIVEN if order else Schedule.ONE_F_ONE_B if automatic else Schedule(schedule),
        order=order,
        quotas=dict(quotas or {}),
        recompute=False if recompute is None and source.mode is Mode.EVAL else recompute,
        zero=zero,
        context=context_of(context),
        load=load,
        interleave=interleave,
        hold=hold,
        mode=source.mode,
        strict=strict,
        method=search_method,
        seconds=seconds,
    )
    if bucket_bytes is not None:
        options = replace(options, bucket_bytes=bucket_bytes)
    if automatic:
        check_open(options)
    kept = SearchMemory() if memory is None else memory
    proofs = kept.of_program(source, lambda: ProvenPlans(source))
    constants = () if robust is None else constants_of(target, robust)
    search = partial(
        search_plans,
        source.graph,
        model=recorded_name,
        batch_size=source.batch_size,
        cluster=pessimistic(target, constants) if constants else target,
        watch=on_progress,
        on_shape=on_shape,
        dry_run=simulator.dry_run,
        cancel=cancel,
        memory=kept,
        second=source.traces_beside() if source.is_large else None,
        prove=proofs.prove,
    )
    plans = search(options=options)
    plan = plans.plan if not automatic else with_quickest_schedule(plans.plan, options, lambda asked: search(options=asked).plan)
    if constants:
        plan = replace(plan, cluster=target, options={**plan.options, "robust": spreads_text(constants)})
    if on_next is not None and plans.next_best is not None:
        on_next(plans.next_best)
    without_loss = {} if source.has_loss(plan.micro_batches) else {"loss": "none"}
    recorded = update.recorded | recorded_of(source) | recorded_samples(source) | without_loss
    if source.batch_dims.given:
        recorded["batch_dim"] = ",".join("none" if dim is None else str(dim) for dim in source.batch_dims.dims)
    plan = replace(plan, options={**plan.options, **recorded}) if recorded else plan
    proofs.prove(plan)
    if (isinstance(program, str) or model is not None) and names_code(plan):
        record(plan)
    return plan


def simulate(plan: Plan, cost: CostModel | None = None, *, steps: int = 4, engine: str = "auto") -> Trace:
    """Predict the timeline.

    Args:
        cost: a measured table; None: the prices of the Plan's cluster (roofline; NCCL's times or alpha-beta).
        engine: ``simpy``, ``compiled`` (the same trace, sooner), or ``auto``: compiled where it is worth loading.

    Raises:
        Unsupported: an engine that is not known, or ``compiled`` on what only SimPy can do.
    """
    prices = cost if cost is not None else AnalyticCost(plan.cluster)
    trace = simulator.simulate(plan, prices, steps=steps, engine=chosen(simulator.Engine, engine, "engine"))
    told = {**trace.about, "prices": prices_of(prices).value}  # and messages, so that the trace alone tells when blocks were free again
    return replace(trace, about=told, message_s=message_times(plan, prices.message_s))


def run(
    plan: Plan,
    program: Program | None = None,
    *,
    steps: int = 20,
    performer: Performer | str = Performer.GLOO,
    gradients: bool = False,
    timeout_s: float = 30.0,
    on_progress: Callable[[int, float], None] | None = None,
    data: Data | None = None,
    lr_schedule: str | None = None,
    init: str = "module",
    checkpoint: str | None = None,
    save_every: int = 0,
    keep: int = 0,
    resume: bool = False,
    device: str = "cpu",
    device_options: DeviceOptions = DEFAULT_DEVICE_OPTIONS,
    allow_nan: bool = False,
    max_restarts: int = 0,
    save_when_interrupted: bool = False,
    memory: MemoryOptions = DEFAULT_MEMORY,
    state: Mapping[str, Tensor] | Values | None = None,
    ema: bool = False,
    trace_steps: str | None = None,
    keep_states: bool = True,
    waiting: Waiting | str = Waiting.AUTO,
    kernels: Kernels | str = Kernels.EAGER,
) -> Outcome:
    """Perform the Plan on real devices.

    Args:
        program: where initial values and data come from; None: the program that the Plan names.
        gradients: also return the last step's mean gradients.   timeout_s: give up when nothing happens for so long.
        data: where training data lies, or batches of Python's (regista.data); None: the program's own batches.
        lr_schedule: learning rates by step as the command line gives them (regista.update_options), of a plan that takes them from outside.
        init: first values: ``module``, ``philox:SEED``, ``weights:FILE`` or ``checkpoint:DIR`` (regista.starting).
        state: first values by name instead, of any Plan of the program (regista.starting); what this Plan has no state for is left out.
        ema: moving averages of parameters take the place of the parameters.
        checkpoint: folder for checkpoints; the state after the last step is saved there, and after every ``save_every`` steps (0: none);
            the ``keep`` newest stay (0: all).
        resume: begin where the newest checkpoint ends; ``steps`` counts from the very first one, so the rest is done.
        allow_nan: go on when the loss is no finite number (the reference performer always does).
        max_restarts: after a fault start again, so often at most, from the newest checkpoint.
        save_when_interrupted: Ctrl-C lets the run save to ``checkpoint`` first, two steps later at most (without restarts; a second one does not).
        memory: how registers and workspace are held, for tests and measurements (backend.memory.MemoryOptions).
        device: ``cpu``, ``cuda``, ``cuda:1``, or rank by rank, ``0=cpu,1=cuda:0``.  Real processes: ``cuda`` is a GPU for each rank;
            threads: all on the first.  ``fake``: lanes without hardware.
        device_options: of devices with streams: CUDA graphs, how far the host runs ahead, TF32, determinism.
        trace_steps: of which steps the trace holds the acts, for long runs on real processes: ``first:20,last:20,every:1000`` (every 1000th
            beside the first 20 and the last 20); None: of all.
        keep_states: the outcome has the final states, of real processes read when a tensor is asked for; False: these leave none.
        waiting: how real processes of one host wait for each other: on cores of their own and awake for a moment, or asleep (Waiting).
        kernels: ``eager``: op by op; ``compiled``: by code that inductor makes of fragments before the first step (backend.ops.inductor).

    Raises:
        InvalidFile: a checkpoint or a weights file is missing or damaged, or the folder holds another run's checkpoints.
        Mismatch: the program is not the one that was planned.   WorkerFailed: a process died, hung or raised.
    """
    if steps < 1:
        raise Unsupported(f"steps = {steps}; a run has at least 1")
    performer, waiting = chosen(Performer, performer, "performer"), chosen(Waiting, waiting, "waiting")
    if performer is Performer.GLOO:
        check_host(plan)
    source = as_planned(plan, program) if program is not None else planned_program(plan)
    source = program_for(plan, own_rates(plan, source, lr_schedule, performs=program is None))
    names = check_performer(plan, performer, device, device_options, memory, saves=checkpoint is not None or resume, gradients=gradients)
    kernels = chosen_kernels(kernels, set(names.values()))
    check_numbers(plan, source.step_numbers, range(steps))  # before a folder is made
    if checkpoint is None and (save_every or keep):
        raise Unsupported("save_every and keep belong to checkpoints; give their folder, too")
    if trace_steps is not None and performer is not Performer.GLOO:
        raise Unsupported(f"trace_steps belong to runs on real processes; performer {performer.value} keeps all acts, leave them out")
    start = beginning(plan, source, init=init, checkpoint=checkpoint, resume=resume, state=state, ema=ema)
    if start.first_step >= steps:
        raise Unsupported(f"{checkpoint} is at step {start.first_step} already, {steps} were asked for; ask for more steps to go on")
    if trace_steps is not None:
        StepSelection.parse(trace_steps).check(steps - start.first_step)
    check_program(plan, source, typed_state(plan, start.values))
    batches: Batches = source.batches(plan.micro_batches)
    if data is not None:
        batches = batches_for(plan, data, steps, source)
    if performer is Performer.REFERENCE:
        return backend.perform(plan, start.values, batches, steps, gradients=gradients, numbers=source.step_numbers, kernels=kernels)
    if performer is Performer.THREADS:
        with open_devices(names) as devices:
            return inprocess.run(
                plan,
                start.values,
                batches,
                steps,
                gradients=gradients,
                timeout_s=timeout_s,
                on_progress=on_progress,
                devices=devices,
                options=device_options,
                allow_nan=allow_nan,
                memory=memory,
                numbers=source.step_numbers,
                kernels=kernels,
            )
    first_step, values = start.first_step, [start.values]
    del start  # the list is the only one to hold the first values now, and not for longer than the workers need
    return backend.run(
        plan,
        values.pop,
        batches,
        steps - first_step,
        gradients=gradients,
        timeout_s=timeout_s,
        on_progress=on_progress,
        first_step=first_step,
        checkpoint=None
        if checkpoint is None
        else SaveRequest(folder=checkpoint, every=save_every, keep=keep, when_interrupted=save_when_interrupted),
        allow_nan=allow_nan,
        memory=memory,
        max_restarts=max_restarts,
        numbers=source.step_numbers,
        devices=names,
        device_options=device_options,
        trace_steps=trace_steps or "",
        keep_states=keep_states,
        waiting=waiting,
        kernels=kernels,
    )


def session(plan: Plan, program: Program | None = None, *, ahead: int = 2, init: str = "module", timeout_s: float = 30.0) -> Session:
    """Train step by step beside the caller's own Python (backend.launch.session.Session): ``step(batch)`` returns at once.

    Args:
        program: where initial values come from; None: the program that the Plan names.
        ahead: how many unfinished steps there may be.   init: as for ``run``.

    Raises:
        As ``run``.
    """
    check_host(plan)
    source = as_planned(plan, program) if program is not None else own_rates(plan, planned_program(plan), None, performs=True)
    source = program_for(plan, source)
    start = beginning(plan, source, init=init)
    check_program(plan, source, typed_state(plan, start.values))
    return Session(plan, start.values, ahead=ahead, timeout_s=timeout_s, numbers=source.step_numbers, fed=padded(source))
