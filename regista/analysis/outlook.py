"""What one simulation says of a Plan, in the numbers people ask for: the facts behind the screen of ``regista simulate``.

(1) MFU           sum over dtypes of flop / rate, over (step time x devices)              [PaLM 2022, App. B]  -> utilisation()
                  flop: of the Plan's fragments on all devices, per step (what several devices compute alike counts on each); rate: the
                  cluster file's, or the data sheet's peak in the precision of each kernel where they are priced.  Where the Plan makes
                  activations again, those flop are in it, so it is the hardware's utilisation (HFU) and is called so.
(2) tokens        whole numbers [samples, positions] among the batch inputs                                     -> tokens_per_sample()
(3) peak, folded  devices that hold the same bytes stand in one row                                             -> Devices
(4) pace          the critical cycle (SEMANTICS 4.2), and which of its tasks take what share of it              -> Pace

Kinds: (1) to (3) ``sim``; (4) ``theory``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.cost import full_rate
from planner.cost.kernels import KernelModel
from planner.ir.cluster import DeviceSpec
from planner.ir.errors import OutOfMemory, Unsupported
from planner.ir.plan import Boxing, Fragment, Plan, Task
from planner.ir.protocols import CostModel
from planner.ir.tensor import DType
from planner.ir.units import show_bytes
from planner.lower.names import value_of
from planner.opset import is_creation, is_view
from planner.stages.copies import is_recomputed
from regista.trust.interval import Interval, plan_interval, prices_of
from simulator.analysis.category import Category
from simulator.analysis.forecast import Forecast, RankGroup, forecast
from simulator.engine import Engine
from simulator.noise import Noise, NoisySteps, simulate_noisy
from simulator.steady import SteadyState, steady_state
from simulator.steady.observed_order import is_ordered

__all__ = ["Devices", "Outlook", "Pace", "check_noise", "look", "planned_utilisation", "tokens_per_sample", "utilisation"]

MOST_CYCLE_ACTS = 500_000
"""Acts per step, one rank per placement, beyond which the critical cycle would take longer than all the rest."""
MOST_NOISY_ACTS = {True: 200_000_000, False: 20_000_000}
"""Acts of all ranks, steps and runs with noise: by the recurrence of fixed orders, and act by act; some minutes each."""
MOST_PARTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices that hold the same bytes at their worst moment.  placements: what they perform.   categories_bytes: None: not known."""

    ranks: tuple[int, ...]
    placements: tuple[str, ...]
    peak_bytes: int
    register_bytes: int
    categories_bytes: Mapping[Category, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The critical cycle.  Kind ``theory``.

    text: in words, in the order of time.   waits: its length.   parts: (what, share of the cycle's time, how often), the largest first.
    left_out: what the period does not count (simulator.steady.graph.MarkedGraph); empty: nothing.   missing: why there is none.
    """

    period_s: float | None = None
    text: str = ""
    waits: int = 0
    parts: tuple[tuple[str, float, int], ...] = ()
    about: str = ""
    left_out: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A Plan and what its simulation says.  flop: dtype (None: whole numbers, or not given) -> flop per step on all devices.

    mfu: (1), 0 to 1.   is_recomputed: its flop hold work that is done twice.   tokens_per_s: None: not a model of tokens.
    interval: of the step, from measured points of the device.
    """

    plan: Plan
    cost_id: str
    steps: int
    forecast: Forecast
    flop: Mapping[DType | None, int]
    mfu: float
    is_recomputed: bool
    tokens_per_s: float | None
    devices: tuple[Devices, ...]
    pace: Pace
    interval: Interval
    noise: Noise | None = None
    noisy: NoisySteps | None = None

    @property
    def samples_per_s(self) -> float:
        return self.plan.batch_size / self.forecast.step_s if self.forecast.step_s > 0 else 0.0


def look(
    plan: Plan,
    cost: CostModel,
    *,
    steps: int = 4,
    engine: Engine = Engine.AUTO,
    noise: Noise | None = None,
    runs: int = 20,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Outlook:
    """Simulate and work out everything.

    Args:
        plan: a verified Plan.   cost: seconds per act and message.
        noise: also perform ``runs`` runs with it.   on_progress: called with what is being done.

    Raises:
        OutOfMemory: a device holds more than it has.   DeadLock, InvalidPlan: see simulator.analysis.forecast.
        Unsupported: see simulator.analysis.forecast; or the runs with noise are too many acts.   InvalidCluster: see simulator.noise.
    """
    if noise is not None:
        check_noise(plan, steps, runs)
    on_progress("simulating ...")
    prediction = forecast(plan, cost, steps=steps, engine=engine)
    devices = _devices(plan, prediction)
    _check_memory(plan, devices)
    on_progress("looking for the critical cycle ...")
    pace = _pace(plan, cost)
    noisy = None
    if noise is not None:
        on_progress(f"run 1 of {runs} with noise ...")
        noisy = simulate_noisy(
            plan, cost, noise, runs=runs, steps=steps, on_run=lambda done: on_progress(f"{done} of {runs} runs with noise ...")
        )
    flop = _flop(plan)
    tokens = tokens_per_sample(plan)
    return Outlook(
        plan=plan,
        cost_id=cost.id,
        steps=steps,
        forecast=prediction,
        flop=flop,
        mfu=utilisation(plan, flop, prediction.step_s),
        is_recomputed=_is_done_again(plan),
        tokens_per_s=tokens * plan.batch_size / prediction.step_s if tokens and prediction.step_s > 0 else None,
        devices=devices,
        pace=pace,
        interval=plan_interval(plan, prices_of(cost), prediction.step_s),
        noise=noise,
        noisy=noisy,
    )


def planned_utilisation(plan: Plan) -> tuple[str, float] | None:
    """``MFU`` (or ``HFU``, where work is done twice) at the step time of the search, 0 to 1; None: the Plan does not say its flop."""
    flop = _flop(plan)
    if not flop or plan.search.objective_s <= 0:
        return None
    return "HFU" if _is_done_again(plan) else "MFU", utilisation(plan, flop, plan.search.objective_s)


def utilisation(plan: Plan, flop: Mapping[DType | None, int], step_s: float) -> float:
    """(1): the time that the flop would take at the device's full rates, over the devices' time; 0 for steps that take none."""
    device = plan.cluster.device
    if plan.cluster.parts:
        ideal_s = sum(
            task.acts * len(plan.ranks_of(task)) * _least_s(plan.cluster.device_of(plan.ranks_of(task)[0]), task.body)
            for task in plan.tasks
            if isinstance(task.body, Fragment)
        )
    elif device.kernels:
        model = KernelModel.for_device(device.kernels)
        ideal_s = sum(
            task.acts * len(plan.ranks_of(task)) * work.times * model.least_s(work)
            for task in plan.tasks
            if isinstance(task.body, Fragment)
            for work in task.body.kernels
        )
    else:
        ideal_s = sum(count / full_rate(device, dtype) for dtype, count in flop.items())
    return ideal_s / (plan.num_ranks * step_s) if step_s > 0 else 0.0


def _least_s(device: DeviceSpec, fragment: Fragment) -> float:
    """The time of a fragment's flop at the full rates of a device."""
    rated = sum(part.flop for part in fragment.flop_by_dtype)
    by_dtype = sum(part.flop / full_rate(device, part.dtype) for part in fragment.flop_by_dtype)
    return by_dtype + max(fragment.flop - rated, 0) / full_rate(device, None)


def tokens_per_sample(plan: Plan) -> int | None:
    """(2): positions per sample of the batch inputs of whole numbers, shape [samples, positions]; None: there are none, or they differ."""
    values = {entry.value for entry in plan.batch_inputs if entry.batch_dim == 0}
    positions = {
        tensor.shape[1]
        for regst in plan.regsts
        for tensor in regst.tensors
        if value_of(tensor.name) in values and len(tensor.shape) == 2 and tensor.dtype in (DType.INT32, DType.INT64)
    }
    return positions.pop() if len(positions) == 1 else None


def _flop(plan: Plan) -> dict[DType | None, int]:
    """flop per step on all devices, by dtype."""
    flop_of: dict[DType | None, int] = {}
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            times = task.acts * len(plan.ranks_of(task))
            rest = task.body.flop
            for part in task.body.flop_by_dtype:
                flop_of[part.dtype] = flop_of.get(part.dtype, 0) + times * part.flop
                rest -= part.flop
            flop_of[None] = flop_of.get(None, 0) + times * rest
    return {dtype: count for dtype, count in flop_of.items() if count}


def _is_done_again(plan: Plan) -> bool:
    """Whether the backward part makes activations again; views and constants, which cost nothing, it always does."""
    ops = (op for task in plan.tasks if isinstance(task.body, Fragment) for op in task.body.ops)
    again = (op for op in ops if is_recomputed(op) and op.target.startswith("aten."))  # slices and the like of the lowering cost nothing
    return any(not is_view(op) and not is_creation(op) for op in again)


def _devices(plan: Plan, forecast: Forecast) -> tuple[Devices, ...]:
    rows: dict[tuple[object, ...], list[int]] = {}
    first: dict[tuple[object, ...], tuple[tuple[str, ...], RankGroup]] = {}
    for group in forecast.rank_groups:
        parts = None if group.categories_bytes is None else tuple(group.categories_bytes.values())
        here = tuple(p.id for p in plan.placements if group.ranks[0] in p.ranks)
        key = here, group.peak_bytes, group.register_bytes, parts
        rows.setdefault(key, []).extend(group.ranks)
        first.setdefault(key, (here, group))
    return tuple(
        Devices(
            ranks=tuple(sorted(ranks)),
            placements=first[key][0],
            peak_bytes=first[key][1].peak_bytes,
            register_bytes=first[key][1].register_bytes,
            categories_bytes=first[key][1].categories_bytes,
        )
        for key, ranks in sorted(rows.items(), key=lambda row: (-first[row[0]][1].peak_bytes, min(row[1])))
    )


def _check_memory(plan: Plan, devices: tuple[Devices, ...]) -> None:
    fullest, limit = devices[0], plan.cluster.device.memory_bytes
    if fullest.peak_bytes > limit:
        raise OutOfMemory(
            f"rank {fullest.ranks[0]} (of {len(fullest.ranks)} alike) holds {show_bytes(fullest.peak_bytes)} at its worst moment, but a device of "
            f"{plan.cluster.name} has {show_bytes(limit)} (SEMANTICS 5, law 5); 'regista quotas --budget' lowers quotas, or plan with more devices"
        )


def check_noise(plan: Plan, steps: int, runs: int) -> None:
    if runs < 10:
        raise Unsupported(f"{runs} runs say nothing about the interval in which 9 of 10 lie; ask for at least 10")
    acts = (runs + 1) * steps * sum(task.acts * len(plan.ranks_of(task)) for task in plan.tasks)
    most = MOST_NOISY_ACTS[is_ordered(plan)]
    if acts > most:
        raise Unsupported(
            f"{runs} noisy runs of {steps} steps, and one without noise, are {acts:,} acts, more than {most:,}: with noise no two ranks are "
            "alike, so every rank is played; ask for fewer runs or steps, or a plan on fewer devices"
        )


def _pace(plan: Plan, cost: CostModel) -> Pace:
    nodes = sum(task.acts for task in plan.tasks)
    if nodes > MOST_CYCLE_ACTS:
        return Pace(missing=f"{nodes:,} acts per step are more than the {MOST_CYCLE_ACTS:,} among which it is looked for")
    try:
        state = steady_state(plan, cost)
    except Unsupported as error:
        return Pace(missing=str(error))
    return Pace(
        period_s=state.period_s,
        text=state.text,
        waits=len(state.cycle),
        parts=_parts(plan, state),
        about=state.about,
        left_out=state.graph.left_out,
    )


def _parts(plan: Plan, state: SteadyState) -> tuple[tuple[str, float, int], ...]:
    """Who takes the cycle's time: its waits by placement and kind of task."""
    total_s = sum(wait.time_s for wait in state.cycle)
    sums: dict[str, tuple[float, int]] = {}
    for wait in state.cycle:
        name = _kind(plan.task[wait.task])
        time_s, times = sums.get(name, (0.0, 0))
        sums[name] = time_s + wait.time_s, times + 1
    ordered = sorted(sums.items(), key=lambda part: (-part[1][0], part[0]))
    return tuple((name, time_s / total_s if total_s else 0.0, times) for name, (time_s, times) in ordered[:MOST_PARTS])


def _kind(task: Task) -> str:
    what = task.body.collective.value if isinstance(task.body, Boxing) else task.kind.value
    return f"{task.placement} {what}"
