"""Schedules inside Plans: the simulated Plan takes exactly as long as the pure schedule, and holds as much."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest
from matrix import plan_for, roomy_cluster

from planner.ir.actors.verify import verify
from planner.ir.errors import Unsupported
from planner.ir.plan import Fragment, Plan, RegstKind, StreamKind, Task, TaskKind
from planner.ir.traces.trace import Trace, check_trace
from planner.parallelism.make import PlanOptions, make_plan
from planner.schedule import PipelineSchedule, Schedule
from planner.schedule.actions import Action, Pass
from planner.schedule.automatic import zb_auto
from planner.schedule.classic import gpipe, interleaved, one_f_one_b
from planner.schedule.greedy import MemoryLimit
from planner.schedule.in_flight import peak_in_flight
from planner.schedule.timing import PassTimes, act_times, bubble_rate, makespan_s
from planner.schedule.torch_csv import to_torch_csv
from planner.schedule.zero_bubble import zb_h1, zb_h2
from simulator import simulate
from zoo import ZOO

KINDS = {TaskKind.FORWARD: Pass.FORWARD, TaskKind.WEIGHT: Pass.BACKWARD_WEIGHT}
HOP_S = (0.0, 0.2)


@cache
def plan_of(schedule: Schedule, stages: int, micro_batches: int, interleave: int = 1, hold: int | None = None) -> Plan:
    """An MLP with one block per stage."""
    program = ZOO["mlp"](batch=24, width=16, hidden=32, depth=stages * interleave)
    cuts = tuple(f"blocks.{k}" for k in range(1, stages * interleave))
    options = PlanOptions(stages=stages, micro_batches=micro_batches, schedule=schedule, interleave=interleave, cuts=cuts, hold=hold)
    graph = program.graph(micro_batches)
    return make_plan(graph, model="mlp", batch_size=24, cluster=roomy_cluster(stages), options=options)


def pass_of(plan: Plan, task: Task) -> Action | None:
    """(stage, pass) of a compute task, as an act on micro-batch 0."""
    named = re.fullmatch(r"s(\d+)(?:v(\d+))?\.(fwd|bwd|wgt)\.\d+", task.id)
    if named is None:
        return None
    split = any(t.kind is TaskKind.WEIGHT for t in plan.tasks)
    kind = KINDS.get(task.kind, Pass.BACKWARD_INPUT if split else Pass.BACKWARD)
    return Action(int(named[1]) + int(named[2] or 0) * len(plan.placements), kind, 0)


@dataclass(frozen=True)
class PricedPasses:
    """A cost model that knows passes and hops only; everything else takes no time."""

    times: PassTimes
    id: str = "passes"

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        if task.kind is TaskKind.TRANSFER:
            return self.times.comm_s if task.acts == plan.micro_batches else 0.0
        action = pass_of(plan, task)
        return self.times.of(action) if action is not None else 0.0

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0


def simulated(plan: Plan, times: PassTimes) -> dict[Action, tuple[float, float]]:
    """Act -> (start, end) of one simulated step."""
    trace: Trace = simulate(plan, PricedPasses(times), steps=1)
    check_trace(plan, trace)
    intervals = {}
    for act in trace.acts:
        action = pass_of(plan, plan.task[act.task])
        if action is not None:
            intervals[Action(action.stage, action.kind, act.number)] = (act.start_s, act.end_s)
    return intervals


CASES: dict[str, tuple[Schedule, int, int, int, PipelineSchedule]] = {
    "gpipe": (Schedule.GPIPE, 3, 6, 1, gpipe(3, 6)),
    "1f1b": (Schedule.ONE_F_ONE_B, 4, 8, 1, one_f_one_b(4, 8)),
    "interleaved2": (Schedule.INTERLEAVED, 2, 4, 2, interleaved(2, 4, 2)),
    "interleaved3": (Schedule.INTERLEAVED, 2, 8, 3, interleaved(2, 8, 3)),
    "zb-h1": (Schedule.ZB_H1, 4, 8, 1, zb_h1(4, 8)),
    "zb-h2": (Schedule.ZB_H2, 3, 12, 1, zb_h2(3, 12)),
    "zb-h1, few micro-batches": (Schedule.ZB_H1, 4, 2, 1, zb_h1(4, 2)),
}


@pytest.mark.parametrize("hop_s", HOP_S)
@pytest.mark.parametrize("case", [c for c in CASES if c not in ("1f1b", "gpipe")])
def test_a_plan_simulates_to_the_times_of_the_pure_schedule_act_by_act(case: str, hop_s: float) -> None:
    schedule, stages, micro_batches, interleave, pure = CASES[case]
    times = PassTimes.even(stages * interleave, 1.0, 0.9, 0.6, hop_s)
    plan = plan_of(schedule, stages, micro_batches, interleave)
    verify(plan)
    intervals, wanted = simulated(plan, times), act_times(pure, times)
    assert set(intervals) == set(wanted)
    for action, (start_s, end_s) in wanted.items():
        assert intervals[action] == pytest.approx((start_s, end_s)), str(action)


@pytest.mark.parametrize("case", CASES)
def test_the_simulated_bubble_is_that_of_the_pure_schedule(case: str) -> None:
    schedule, stages, micro_batches, interleave, pure = CASES[case]
    times = PassTimes.even(stages * interleave, 1.0, 0.9, 0.6)
    intervals = simulated(plan_of(schedule, stages, micro_batches, interleave), times)
    spans = []
    for order in pure.orders:
        mine = [intervals[action] for action in order]
        spans.append(max(end for _, end in mine) - min(start for start, _ in mine))
    work_s = sum(end - start for action, (start, end) in intervals.items() if pure.device_of[action.stage] == 0)
    assert 1 - work_s / max(spans) == pytest.approx(bubble_rate(pure, times))
    assert max(end for _, end in intervals.values()) == pytest.approx(makespan_s(pure, times))


def test_quotas_alone_are_quicker_than_1f1bs_order_where_links_take_time() -> None:
    """1F1B in a Plan has no order, only quotas; with slow links an act that is ready need not wait for its turn."""
    times = PassTimes.even(4, 1.0, 0.9, 0.6, 0.2)
    intervals = simulated(plan_of(Schedule.ONE_F_ONE_B, 4, 8), times)
    assert max(end for _, end in intervals.values()) <= makespan_s(one_f_one_b(4, 8), times)


def test_stages_of_unequal_length_simulate_to_the_pure_schedule_too() -> None:
    times = PassTimes(forward_s=(1.0, 1.3, 0.7), backward_input_s=(0.9, 1.1, 0.8), backward_weight_s=(0.6, 0.5, 0.9), comm_s=0.15)
    intervals, wanted = simulated(plan_of(Schedule.ZB_H2, 3, 12), times), act_times(zb_h2(3, 12), times)
    assert all(intervals[action] == pytest.approx(when) for action, when in wanted.items())


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("1f1b", "gpipe")])
def test_compute_streams_carry_the_order_of_the_schedule(case: str) -> None:
    schedule, stages, micro_batches, interleave, pure = CASES[case]
    plan = plan_of(schedule, stages, micro_batches, interleave)
    for device, order in enumerate(pure.orders):
        acts: Counter[str] = Counter()
        performed = []
        for task in plan.stream[f"s{device}.compute"].order:
            action = pass_of(plan, plan.task[task])
            if action is not None:
                performed.append(Action(action.stage, action.kind, acts[task]))
                acts[task] += 1
        assert tuple(performed) == order


@pytest.mark.parametrize("case", ["zb-h1", "zb-h2", "interleaved2"])
def test_what_waits_for_the_last_backward_part_has_as_many_blocks_as_are_in_flight(case: str) -> None:
    schedule, stages, micro_batches, interleave, pure = CASES[case]
    plan = plan_of(schedule, stages, micro_batches, interleave)
    last = TaskKind.WEIGHT if schedule.splits_backward else TaskKind.BACKWARD
    checked = 0
    for regst in plan.regsts:
        made_by = plan.task[regst.producer] if regst.producer is not None else None
        readers = {task.kind for task, _ in plan.consumers[regst.id]}
        if made_by is not None and made_by.kind is TaskKind.FORWARD and last in readers and readers <= {TaskKind.BACKWARD, TaskKind.WEIGHT}:
            action = pass_of(plan, made_by)
            assert action is not None
            assert regst.quota == peak_in_flight(pure)[action.stage], regst.id
            checked += 1
    assert checked >= stages


def test_the_automatic_schedule_follows_the_plans_own_prices_and_its_limit() -> None:
    """On a Plan whose weight parts are known, more memory buys a shorter step."""
    from planner.cost import AnalyticCost

    steps = {}
    for hold in (3, 6):
        plan = plan_of(Schedule.ZB_AUTO, 3, 12, hold=hold)
        verify(plan)
        trace = simulate(plan, AnalyticCost(plan.cluster), steps=1)
        check_trace(plan, trace)
        steps[hold] = max(act.end_s for act in trace.acts)
        kept = [r.quota for r in plan.regsts if any(t.kind is TaskKind.WEIGHT for t, _ in plan.consumers[r.id]) and r.producer in plan.task]
        assert max(kept) <= 12
    assert steps[6] <= steps[3]


@pytest.mark.parametrize("model", ["mlp", "gpt", "convnet"])
def test_splitting_the_backward_pass_neither_adds_nor_drops_work(model: str) -> None:
    whole, split = plan_for(model, "pipeline2"), plan_for(model, "zb_h1")
    for stage in range(2):
        flop = [
            sum(t.body.flop for t in plan.tasks if t.kind.is_backward and t.placement == f"s{stage}" and isinstance(t.body, Fragment))
            for plan in (whole, split)
        ]
        assert flop[0] == flop[1] > 0


@pytest.mark.parametrize("way", ["zb_h1", "zb_h1_tensor2", "zb_auto_data2"])
@pytest.mark.parametrize("model", ["mlp", "gpt", "convnet"])
def test_no_other_pass_waits_for_a_weight_part(model: str, way: str) -> None:
    """Whatever is reached from a weight part, through communication or not, acts once per step or belongs to a weight part."""
    plan = plan_for(model, way)
    waiting = [t for t in plan.tasks if t.kind is TaskKind.WEIGHT]
    assert waiting
    seen = set()
    while waiting:
        task = waiting.pop()
        for port in task.produces:
            for reader, _ in plan.consumers[port.regst] if plan.regst[port.regst].kind is RegstKind.DATA else ():
                assert reader.kind is TaskKind.WEIGHT or reader.kind is TaskKind.UPDATE or reader.kind.is_communication, (
                    f"{task.id} -> {reader.id}"
                )
                if reader.id not in seen and reader.kind is not TaskKind.UPDATE:
                    seen.add(reader.id)
                    waiting.append(reader)


def test_matmuls_for_weight_gradients_are_in_the_weight_part() -> None:
    """An inner MLP stage has as many matmuls for inputs as for weights."""
    plan = plan_of(Schedule.ZB_H1, 4, 8)
    count = {
        kind: sum(
            op.target == "aten.mm.default"
            for t in plan.tasks
            if t.kind is kind and t.placement == "s1" and isinstance(t.body, Fragment)
            for op in t.body.ops
        )
        for kind in (TaskKind.BACKWARD, TaskKind.WEIGHT)
    }
    assert count == {TaskKind.BACKWARD: 2, TaskKind.WEIGHT: 2}


@pytest.mark.parametrize(
    ("pure", "stages", "interleave"),
    [(zb_h1(3, 6), 3, 1), (one_f_one_b(3, 6), 3, 1), (interleaved(2, 4, 2), 2, 2)],
    ids=["zb-h1", "1f1b", "interleaved"],
)
def test_a_given_order_is_followed(pure: PipelineSchedule, stages: int, interleave: int) -> None:
    """Also whole backward passes: both parts, one after the other."""
    program = ZOO["mlp"](batch=24, width=16, hidden=32, depth=stages * interleave)
    options = PlanOptions(
        stages=stages,
        micro_batches=pure.micro_batches,
        schedule=Schedule.GIVEN,
        order=to_torch_csv(pure),
        interleave=interleave,
        cuts=tuple(f"blocks.{k}" for k in range(1, stages * interleave)),
    )
    plan = make_plan(program.graph(pure.micro_batches), model="mlp", batch_size=24, cluster=roomy_cluster(stages), options=options)
    verify(plan)
    times = PassTimes.even(stages * interleave, 1.0, 0.9, 0.6)
    intervals, wanted = simulated(plan, times), act_times(pure, times)
    for action, when in wanted.items():
        if action.kind is Pass.BACKWARD:
            parts = [intervals[Action(action.stage, kind, action.micro_batch)] for kind in (Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)]
            assert parts[0][1] == pytest.approx(parts[1][0])
        else:
            assert action in intervals
            if not pure.splits_backward:
                continue
            assert intervals[action] == pytest.approx(when)


@pytest.mark.parametrize(
    ("pure", "words"),
    [
        (zb_h1(2, 6), "2 stages on 2 devices and 6 micro-batches, the plan has 2 x 1 stages and 4"),
        (zb_h1(3, 4), "3 stages on 3 devices"),
        (PipelineSchedule("turned", (one_f_one_b(2, 4).orders[1], one_f_one_b(2, 4).orders[0])), r"puts stages on devices \(1, 0\)"),
    ],
)
def test_a_given_order_that_does_not_fit_is_refused(pure: PipelineSchedule, words: str) -> None:
    program = ZOO["mlp"](batch=8, width=16, hidden=32, depth=2)
    options = PlanOptions(stages=2, micro_batches=4, schedule=Schedule.GIVEN, order=to_torch_csv(pure))
    with pytest.raises(Unsupported, match=words):
        make_plan(program.graph(4), model="mlp", batch_size=8, cluster=roomy_cluster(2), options=options)


def test_updates_come_after_all_passes() -> None:
    plan = plan_of(Schedule.ZB_H1, 4, 8)
    for stream in plan.streams:
        if stream.kind is StreamKind.COMPUTE:
            kinds = [plan.task[task].kind for task in stream.order]
            first = kinds.index(TaskKind.UPDATE)
            assert set(kinds[first:]) == {TaskKind.UPDATE}


def test_a_limit_in_the_automatic_schedule_is_a_limit_of_the_pure_one() -> None:
    times = PassTimes.even(3, 1.0, 0.9, 0.6)
    assert max(peak_in_flight(zb_auto(12, times, MemoryLimit(limit=4)).schedule)) <= 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": Schedule.INTERLEAVED}, "ask for interleaved with at least 2"),
        ({"schedule": Schedule.ZB_H1, "interleave": 2}, "ask for interleaved with at least 2"),
        ({"schedule": Schedule.INTERLEAVED, "interleave": 2, "stages": 1}, "are one stage"),
        ({"schedule": Schedule.INTERLEAVED, "interleave": 40}, "80 stages for .* forward ops; use fewer"),
        ({"hold": 4}, "it limits zb-auto"),
        ({"schedule": Schedule.ZB_H1, "zero": 3}, "its gathers follow 1f1b or gpipe"),
    ],
)
def test_wishes_that_mean_nothing_are_refused(options: dict[str, object], words: str) -> None:
    program = ZOO["mlp"](batch=8, width=16, hidden=32, depth=2)
    made = PlanOptions(**({"stages": 2, "micro_batches": 4} | options))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=words):
        make_plan(program.graph(4), model="mlp", batch_size=8, cluster=roomy_cluster(made.stages or 1), options=made)
