"""Stages, passes and lowering: what a Plan must look like whatever the model."""

from __future__ import annotations

import pytest
from matrix import CELLS, WAYS, plan_for, roomy_cluster

from planner.ir.errors import Unsupported
from planner.ir.graph import ACCUMULATE, Role
from planner.ir.plan import Fragment, Plan, RegstKind, StreamKind, TaskKind
from planner.opset import is_view
from planner.parallelism.make import PlanOptions, make_plan
from planner.schedule import Schedule
from planner.stages import assign_stages, prepare
from zoo import ZOO

SMALL_GPT = {"layers": 4, "width": 16, "heads": 2, "vocab": 32, "batch": 8, "seq": 4}


def gpt_plan(**options: object) -> Plan:
    program = ZOO["gpt"](**SMALL_GPT)
    made = PlanOptions(**options)  # type: ignore[arg-type]
    graph = program.graph(made.micro_batches)
    return make_plan(graph, model="gpt", batch_size=8, cluster=roomy_cluster(made.stages), options=made)


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_data_never_flows_to_an_earlier_stage_in_forward(num_stages: int) -> None:
    graph = ZOO["gpt"](**SMALL_GPT).graph(1)
    stage = assign_stages(graph, num_stages)
    producers = graph.producers()
    forward = [op for op in graph.ops if op.role is Role.FORWARD]
    assert {stage[op.id] for op in forward} == set(range(num_stages))
    for op in forward:
        assert all(stage[producers[v].id] <= stage[op.id] for v in op.inputs if v in producers)


def test_an_even_split_cuts_between_blocks() -> None:
    graph = ZOO["gpt"](**SMALL_GPT).graph(1)
    stage = assign_stages(graph, 2)
    by_block = {op.module.split(".")[1]: stage[op.id] for op in graph.ops if op.role is Role.FORWARD and op.module.startswith("h.")}
    assert by_block == {"0": 0, "1": 0, "2": 1, "3": 1}


def test_a_cut_begins_the_next_stage_at_its_module() -> None:
    graph = ZOO["gpt"](**SMALL_GPT).graph(1)
    stage = assign_stages(graph, 2, ("h.1",))
    first = [op for op in graph.ops if op.role is Role.FORWARD and op.module.startswith("h.0")]
    second = [op for op in graph.ops if op.role is Role.FORWARD and op.module.startswith("h.1")]
    assert {stage[op.id] for op in first} == {0}
    assert {stage[op.id] for op in second} == {1}


@pytest.mark.parametrize(("cuts", "words"), [(("nowhere",), "no forward op belongs to it"), (("h.2", "h.1"), "2 cuts make 3 stages")])
def test_a_cut_that_means_nothing_is_refused(cuts: tuple[str, ...], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        assign_stages(ZOO["gpt"](**SMALL_GPT).graph(1), 2, cuts)


def test_no_view_crosses_from_forward_to_backward() -> None:
    """A view that backward needs is made there again; its base crosses, and is counted once."""
    graph = ZOO["gpt"](**SMALL_GPT).graph(1)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    producers = staged.graph.producers()
    for op in staged.graph.ops:
        for value in op.inputs:
            maker = producers.get(value)
            if maker is not None and op.role is Role.BACKWARD and maker.role is Role.FORWARD:
                assert not is_view(maker), f"{maker.where()} is read by {op.where()}"


def test_a_tied_gradient_is_accumulated_on_both_stages_and_meets_once_per_step() -> None:
    graph = ZOO["gpt"](**SMALL_GPT).graph(1)
    staged = prepare(graph, assign_stages(graph, 2), 2)
    (adder,) = [op for op in staged.graph.ops if op.role is Role.UPDATE and op.target == "aten.add.Tensor"]
    producers = staged.graph.producers()
    makers = [producers[value] for value in adder.inputs]
    assert [maker.target for maker in makers] == [ACCUMULATE, ACCUMULATE]
    assert {staged.stage[maker.id] for maker in makers} == {0, 1}
    transfers = [task for task in gpt_plan(stages=2, micro_batches=4).tasks if task.kind is TaskKind.TRANSFER and ".grad" in task.id]
    assert [task.acts for task in transfers] == [1]


def test_forward_to_backward_quota_is_p_minus_i() -> None:
    """SEMANTICS 3.8: 1F1B without a scheduler."""
    plan = gpt_plan(stages=4, micro_batches=8)
    for stage in range(4):
        saved = [
            regst
            for regst in plan.regsts
            if regst.producer == f"s{stage}.fwd.0" and any(t.kind is TaskKind.BACKWARD for t, _ in plan.consumers[regst.id])
        ]
        assert saved
        assert {regst.quota for regst in saved} == {4 - stage}


def test_gpipe_keeps_every_micro_batch() -> None:
    plan = gpt_plan(stages=2, micro_batches=4, schedule=Schedule.GPIPE)
    (saved,) = [r for r in plan.regsts if r.producer == "s0.fwd.0" and any(t.kind is TaskKind.BACKWARD for t, _ in plan.consumers[r.id])]
    assert saved.quota == 4


def test_a_wished_quota_overrides_the_rule_and_an_unknown_name_is_refused() -> None:
    plan = gpt_plan(stages=2, micro_batches=4, quotas={"s0-s1.fwd.*": 3})
    assert {r.quota for r in plan.regsts if r.id.startswith("s0-s1.fwd.")} == {3}
    with pytest.raises(Unsupported, match="no regst has such an id"):
        gpt_plan(stages=2, micro_batches=4, quotas={"nothing.*": 3})


@pytest.mark.parametrize(("model", "way"), [cell for cell in CELLS if cell[0] in ("mlp", "gpt", "convnet")])
def test_every_communicator_has_an_order_and_every_parameter_a_home(model: str, way: str) -> None:
    plan = plan_for(model, way)
    ordered = {StreamKind.COLLECTIVE}
    if WAYS[way].schedule not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):  # the others follow from the order of compute streams
        ordered.add(StreamKind.COMPUTE)
    for stream in plan.streams:
        assert bool(stream.order) == (stream.kind in ordered)
    updated = {regst.id for regst in plan.regsts if regst.kind is RegstKind.STATE and regst.producer is not None}
    trained = {state.regst for state in plan.states if state.kind.value == "parameter"}
    assert trained <= updated


def test_gradients_are_reduced_in_buckets_that_overlap_backward() -> None:
    program = ZOO["mlp"](batch=512, width=32, hidden=64, depth=4)
    pins = ("input.0=S(0)", "out:blocks.?=S(0)")
    plans = [
        make_plan(
            program.graph(1), model="mlp", batch_size=512, cluster=roomy_cluster(2), options=PlanOptions(pins=pins, bucket_bytes=size)
        )
        for size in (10**9, 8_000)
    ]
    backward = [[t for t in plan.tasks if t.kind is TaskKind.BACKWARD and isinstance(t.body, Fragment)] for plan in plans]
    reductions = [[t for t in plan.tasks if t.kind is TaskKind.BOXING and ".grad" in t.id] for plan in plans]
    assert len(reductions[1]) > len(reductions[0])
    assert len(backward[1]) > len(backward[0])


def test_flop_of_the_parts_add_up_to_the_whole_when_everything_is_split() -> None:
    """Data parallel over 2: each rank does half of the forward and backward flop."""

    def flop(plan: Plan) -> int:
        return sum(t.body.flop for t in plan.tasks if isinstance(t.body, Fragment) and t.kind is not TaskKind.UPDATE)

    whole = gpt_plan(stages=1)
    program = ZOO["gpt"](**SMALL_GPT)
    options = PlanOptions(pins=("input.0=S(0)", "out:h.?=S(0)"))
    half = make_plan(program.graph(1), model="gpt", batch_size=8, cluster=roomy_cluster(2), options=options)
    assert flop(half) == pytest.approx(flop(whole) / 2, rel=0.1)
