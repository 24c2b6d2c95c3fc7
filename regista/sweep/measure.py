"""One point: plan it, predict it, and, where the performer is this machine, run it several times.

run_step_s                 of the runs' medians the median (of an even number the lower); kinds and memory are of that run
error_step_share           sim_step_s / run_step_s - 1                          (kinds: busy seconds of the busiest rank, likewise)
run_again_step_s           the run that is farthest from it; run_noise_share: that over run_step_s - 1, a lower limit of any prediction's error
error_register_bytes       theory_register_bytes (all blocks of the Plan on a device) - run_register_bytes (what the worker allocated for
                           them), on the rank where they differ most: 0
error_held_share           sim_held_bytes / run_held_bytes - 1, the most bytes that blocks held at once, which depends on when acts happen
theory_process_bytes       the Plan's bytes of a process: device_bytes, blocks received from other ranks, and scratch of collectives
run_isolated_kept_bytes    what the calibration measured beside it, while it performed the Plan's acts one by one: libraries' pages, threads, what
                           kernels take for themselves (planner.cost.Beside); the batches of this run's steps included
error_process_peak_share   (base + theory_process_bytes + run_isolated_kept_bytes) / run_process_peak_bytes - 1; the base, what a process holds
                           before its first block, is measured; without a calibration the kept bytes are a constant, RUNTIME_BYTES
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from time import perf_counter

import torch

import regista.api as api
from backend.comm.collectives import scratch_bytes
from backend.worker.registers import RUNTIME_BYTES
from planner.cost import AnalyticCost, MeasuredCost
from planner.frontend import Program
from planner.ir.actors.verify import device_bytes
from planner.ir.errors import RegistaError
from planner.ir.graph import InputKind
from planner.ir.plan import Boxing, Fragment, PlacedTensor, Plan, StreamKind, TaskKind
from planner.ir.protocols import CostModel
from planner.ir.tensor import TensorType
from planner.ir.traces.trace import Trace
from regista.analysis.comparison import Comparison, compare, summarise
from regista.analysis.whatif import changed_cluster
from regista.calibrate import calibrate_plan
from regista.clusters import resolve_cluster
from regista.sweep.point import Performer, Point, plan_options

__all__ = ["Columns", "Prediction", "kept_bytes", "perform", "plan_columns", "predict"]

Columns = dict[str, object]
"""Column of a row -> its value."""


class Prediction:
    """A point's Plan, the cost model that predicted it, the simulated trace, and the columns of its row."""

    def __init__(self, plan: Plan, program: Program, cost: CostModel, sim: Trace, columns: Columns) -> None:
        self.plan, self.program, self.cost, self.sim, self.columns = plan, program, cost, sim, columns


def predict(point: Point) -> Prediction | Columns:
    """Plan and simulate a point; the cost model is measured where the point is to be run, else analytic.

    Returns:
        The prediction, or the columns that say why there is none: ``status`` is the error's type, ``says`` its text.
    """
    columns: Columns = {"torch": torch.__version__.partition("+")[0]}
    try:
        program = api.program_of(point.model)
        cluster = changed_cluster(resolve_cluster(point.cluster), point.sets)
        began = perf_counter()
        plan = api.plan(program, cluster, **plan_options(point))  # type: ignore[arg-type]
        columns |= {"plan_id": plan.plan_id, "run_plan_s": perf_counter() - began}
        columns |= plan_columns(plan)
        cost: CostModel
        if point.performer is Performer.RUN:
            cost = calibrate_plan(plan, program, rounds=int(point.run.get("rounds", 15)))
        else:
            cost = AnalyticCost(plan.cluster)
        steps, engine = int(point.simulate.get("steps", 4)), str(point.simulate.get("engine", "auto"))
        sim = api.simulate(plan, cost, steps=steps, engine=engine)
    except RegistaError as error:
        return columns | {"status": type(error).__name__, "says": str(error)[:300]}
    columns |= {"cost_id": cost.id, "status": "ok"} | _sim_columns(plan, sim)
    return Prediction(plan, program, cost, sim, columns)


def perform(point: Point, prediction: Prediction) -> Columns:
    """Run the Plan as often as the point says (``run.runs``), and compare the middle run with the prediction.

    Returns:
        The prediction's columns and those of the runs, or ``status`` and ``says`` of what stopped them.
    """
    steps, timeout_s = int(point.run.get("steps", 12)), float(point.run.get("timeout_s", 120.0))
    try:
        runs = [
            api.run(prediction.plan, prediction.program, steps=steps, timeout_s=timeout_s, keep_states=False)
            for _ in range(int(point.run.get("runs", 2)))
        ]
        timed = sorted(((summarise(prediction.plan, run.trace).step_time_s, run) for run in runs), key=lambda pair: pair[0])
        _, middle = timed[(len(timed) - 1) // 2]
        beside = compare(prediction.plan, prediction.sim, middle.trace)
    except RegistaError as error:
        return prediction.columns | {"status": type(error).__name__, "says": str(error)[:300]}
    step = beside.step_time_s.measured
    again = max((timed[0][0], timed[-1][0]), key=lambda other: abs(other - step))
    measured: Columns = {
        "run_step_s": step,
        "run_p10_s": beside.spread.p10,
        "run_p90_s": beside.spread.p90,
        "run_steps_count": beside.spread.steps,
        "run_again_step_s": again,
        "run_noise_share": again / step - 1,
        "run_throughput_per_s": beside.throughput_per_s.measured,
        "error_step_share": prediction.sim.settled_step_s(prediction.plan) / step - 1,
    }
    for kind, pair in beside.kinds.items():
        measured |= {f"run_{kind}_s": pair.measured, f"error_{kind}_share": pair.relative_error}
    kept = kept_bytes(prediction.plan, prediction.cost, steps)
    return prediction.columns | measured | _memory_columns(prediction.plan, beside, middle.memory, kept)


def kept_bytes(plan: Plan, cost: CostModel, steps: int) -> Mapping[int, int]:
    """Rank -> bytes that its process takes beside those of the Plan, in a run of ``steps`` steps: measured by the calibration, else RUNTIME_BYTES."""
    measured = cost.beside if isinstance(cost, MeasuredCost) else {}
    kept = {int(rank): beside.kept_bytes + steps * beside.batch_bytes for rank, beside in measured.items()}
    return {rank: kept.get(rank, RUNTIME_BYTES) for rank in range(plan.num_ranks)}


def _memory_columns(plan: Plan, beside: Comparison, memory: Mapping[int, Mapping[str, int]], kept: Mapping[int, int]) -> Columns:
    """Memory columns, of the rank that holds most or differs most; a column is left out where the performer does not count it."""
    held = max(beside.register_bytes.values(), key=lambda pair: pair.measured)
    columns: Columns = {
        "sim_held_bytes": int(held.predicted),
        "run_held_bytes": int(held.measured),
        "error_held_share": held.relative_error,
    }
    counted = [m for m in memory.values() if m.get("allocated_bytes")]
    if counted:
        most = max(counted, key=lambda m: (abs(m["planned_bytes"] - m["allocated_bytes"]), m["planned_bytes"]))
        columns |= {"theory_register_bytes": most["planned_bytes"], "run_register_bytes": most["allocated_bytes"]}
        columns["error_register_bytes"] = most["planned_bytes"] - most["allocated_bytes"]
    processes = {rank: m for rank, m in memory.items() if m.get("process_peak_bytes")}
    if processes:
        rank = max(processes, key=lambda r: processes[r]["process_peak_bytes"])
        most = processes[rank]
        base, peak = most["base_bytes"], most["process_peak_bytes"]
        planned = most["mapped_bytes"] + most["device_bytes"] + scratch_bytes(plan, rank)
        columns |= {"theory_process_bytes": planned, "run_isolated_kept_bytes": kept[rank]}
        columns |= {"run_process_base_bytes": base, "run_process_peak_bytes": peak}
        columns["error_process_peak_share"] = (base + planned + kept[rank]) / peak - 1
    return columns


def _sim_columns(plan: Plan, sim: Trace) -> Columns:
    step_s = sim.settled_step_s(plan)
    busy, compute = _busy_s(plan, sim)
    flop = _step_flop(plan)
    columns: Columns = {
        "sim_step_s": step_s,
        "sim_throughput_per_s": plan.batch_size / step_s if step_s > 0 else None,
        "sim_device_flop_per_s": flop / plan.num_ranks / step_s if step_s > 0 else None,
        "sim_idle_share": 1 - compute / plan.num_ranks / step_s if step_s > 0 else None,
        "sim_peak_bytes": max(sim.peak_bytes.values()),
        "sim_register_bytes": max(sim.register_bytes.values()),
    }
    return columns | {f"sim_{kind}_s": seconds for kind, seconds in busy.items()}


def _busy_s(plan: Plan, sim: Trace) -> tuple[Mapping[str, float], float]:
    """Of the last step but one: busy seconds per kind, on the rank where that kind is busiest; and those of all compute streams together."""
    busy: dict[tuple[str, int], float] = defaultdict(float)
    compute = 0.0
    for act in sim.acts:
        task = plan.task[act.task]
        if act.number // task.acts == max(sim.steps - 2, 0):
            busy[task.kind.value, act.rank] += act.duration_s
            compute += act.duration_s if plan.stream[task.stream].kind is StreamKind.COMPUTE else 0.0
    busiest: dict[str, float] = {}
    for (kind, _), seconds in busy.items():
        busiest[kind] = max(busiest.get(kind, 0.0), seconds)
    return busiest, compute


def _step_flop(plan: Plan) -> int:
    return sum(task.body.flop * task.acts * len(plan.ranks_of(task)) for task in plan.tasks if isinstance(task.body, Fragment))


def _logical_bytes(tensor: PlacedTensor) -> int:
    return TensorType(tensor.shape, tensor.dtype).size_bytes


def plan_columns(plan: Plan) -> Columns:
    """The columns that follow from the Plan alone, before it is simulated or run.

    theory_boxing: steps of boxing by the kind of the tasks that read them.
    theory_kept_blocks: per stage, the most blocks of what its forward tasks keep for its backward tasks.
    theory_crossing_bytes: of all transfers of a step, once per border between neighbouring stages that they cross.
    theory_stage_imbalance_share: work of the busiest stage over the mean, less 1.
    theory_layouts: of the largest parameters of which no device has the whole, six at most.
    """
    blocks_of: dict[str, int] = {}
    crossing = 0
    stages = {placement.id: number for number, placement in enumerate(plan.placements)}
    work: Counter[str] = Counter()
    boxing: Counter[str] = Counter()
    for task in plan.tasks:
        readers = [(reader, port.regst) for port in task.produces for reader, _ in plan.consumers[port.regst]]
        if task.kind is TaskKind.FORWARD:
            blocks_of.setdefault(task.placement, 0)
            for reader, regst in readers:
                if reader.kind.is_backward and reader.placement == task.placement:
                    blocks_of[task.placement] = max(blocks_of[task.placement], plan.regst[regst].quota)
        elif task.kind is TaskKind.TRANSFER:
            for port in task.produces:
                regst_there = plan.regst[port.regst]
                borders = abs(stages[regst_there.placement] - stages[task.placement])
                crossing += sum(_logical_bytes(tensor) for tensor in regst_there.tensors) * task.acts * borders
        elif isinstance(task.body, Boxing):
            into = "+".join(sorted({reader.kind.value for reader, _ in readers})) or "nobody"
            boxing[f"{into}: {task.body.src}->{task.body.dst} {task.body.collective.value}"] += 1
        if isinstance(task.body, Fragment):
            work[task.placement] += task.body.flop * task.acts
    total = sum(work.values())
    parameters = [(state.name, plan.regst[state.regst].tensors[state.index]) for state in plan.states if state.kind is InputKind.PARAMETER]
    split = [(-_logical_bytes(tensor), name, str(tensor.sbp)) for name, tensor in parameters if "S" in str(tensor.sbp)]
    return {
        "theory_objective_s": plan.search.objective_s,
        "theory_lower_bound_s": plan.search.lower_bound_s,
        "theory_device_bytes": max(device_bytes(plan).values()),
        "theory_step_flop": _step_flop(plan),
        "theory_boxing": "; ".join(f"{what} x{count}" for what, count in sorted(boxing.items())) or "none",
        "theory_kept_blocks": " ".join(str(blocks) for blocks in blocks_of.values()),
        "theory_crossing_bytes": crossing,
        "theory_stage_imbalance_share": max(work.values()) * len(work) / total - 1 if total else 0.0,
        "theory_layouts": "; ".join(f"{name}={sbp}" for _, name, sbp in sorted(split)[:6]) or "none is split",
    }
