"""Fragments on devices with kernel tables: what is launched, what fusion joins, and that a fragment takes the sum of its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CLUSTER

from planner.cost import AnalyticCost, full_rate
from planner.cost.clusters import preset, preset_names
from planner.cost.kernels import KernelModel, Precision, device_sheet
from planner.cost.kernels.launches import fragment_kernels, op_kernel
from planner.ir.cluster import Cluster, load_cluster, save_cluster
from planner.ir.errors import InvalidCluster, Mismatch
from planner.ir.files import load_plan, save_plan
from planner.ir.graph import Fusion, KernelKind, KernelWork, Op, Ref, Role
from planner.ir.plan import Fragment, Plan
from planner.ir.tensor import DType, TensorType
from planner.opset import flop, traffic_bytes
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

F32 = DType.FLOAT32
WIDE = TensorType((64, 64), F32)
PRICED = [name for name in preset_names() if preset(name).device.kernels]


def op(name: str, target: str, *inputs: str) -> Op:
    return Op(id=name, target=target, args=tuple(map(Ref, inputs)), kwargs=(), outputs=(name,), role=Role.FORWARD)


def launched(ops: list[Op], fusion: Fusion, written: set[str]) -> list[tuple[str, int, int]]:
    types = {o.id: dict.fromkeys((*o.inputs, o.id), WIDE) for o in ops}
    counted = {o.id: (flop(o, types[o.id]), traffic_bytes(o, types[o.id]), F32) for o in ops}
    made = fragment_kernels(ops, types, counted, frozenset(written), fusion)
    return [(work.kind.value, work.size_bytes // WIDE.size_bytes, work.times) for work in made]


CHAIN = [op("s", "aten.add.Tensor", "x", "y"), op("r", "aten.relu.default", "s"), op("t", "aten.mul.Tensor", "r", "z")]


def test_eagerly_every_op_is_a_kernel_and_equal_ones_are_counted() -> None:
    assert launched(CHAIN, Fusion.EAGER, {"t"}) == [("pass", 3, 2), ("pass", 2, 1)]


def test_fused_a_chain_reads_what_comes_in_once_and_writes_what_is_read_outside() -> None:
    assert launched(CHAIN, Fusion.FUSED, {"t"}) == [("pass", 4, 1)]
    assert launched(CHAIN, Fusion.FUSED, {"t", "r"}) == [("pass", 5, 1)]


def test_a_product_is_a_kernel_of_its_own_and_parts_the_chain() -> None:
    ops = [*CHAIN, op("p", "aten.mm.default", "t", "w"), op("u", "aten.add.Tensor", "p", "s")]
    assert sorted(launched(ops, Fusion.FUSED, {"u"})) == [("pass", 3, 1), ("pass", 5, 1), ("product", 3, 1)]


def test_fused_a_copy_for_a_product_costs_nothing_and_one_that_is_kept_does() -> None:
    ops = [op("c", "aten.clone.default", "x"), op("p", "aten.mm.default", "c", "w")]
    assert launched(ops, Fusion.FUSED, {"p"}) == [("product", 3, 1)]
    assert sorted(launched(ops, Fusion.FUSED, {"p", "c"})) == [("pass", 2, 1), ("product", 3, 1)]
    assert sorted(launched(ops, Fusion.EAGER, {"p"})) == [("pass", 2, 1), ("product", 3, 1)]


def test_an_attention_knows_its_shape_and_its_direction() -> None:
    q, kv, row = TensorType((2, 8, 64, 16), F32), TensorType((2, 4, 32, 16), F32), TensorType((2, 8, 64), F32)
    forward = Op(
        id="a",
        target="regista.attention",
        args=(Ref("q"), Ref("k"), Ref("v"), None, True, 1.0, (2, 8, 64, 16), ()),
        kwargs=(),
        outputs=("o", "l"),
        role=Role.FORWARD,
    )
    work = op_kernel(forward, {"q": q, "k": kv, "v": kv, "o": q, "l": row}, F32)
    assert work is not None
    assert (work.kind, work.shape, work.dtype) == (KernelKind.ATTENTION, (2, 8, 4, 64, 32, 16, 1), F32)
    half = {name: replace(t, dtype=DType.BFLOAT16) for name, t in (("q", q), ("k", kv), ("v", kv), ("o", q))} | {"l": row}
    in_half = op_kernel(forward, half, F32)
    assert in_half is not None and in_half.dtype is DType.BFLOAT16, "its row of numbers is float32, its products are not"


def made_plan(cluster: Cluster, width: int = 4096) -> Plan:
    graph = ZOO["mlp"](batch=2048, width=width, hidden=width, depth=2).graph(1)
    return make_plan(graph, model="mlp", batch_size=2048, cluster=cluster, options=PlanOptions(mesh=(1,)))


def one_device(name: str, fusion: Fusion = Fusion.FUSED) -> Cluster:
    cluster = preset(name)
    return replace(cluster, devices_per_node=1, nic=None, device=replace(cluster.device, fusion=fusion))


def step_s(plan: Plan) -> float:
    cost = AnalyticCost(plan.cluster)
    return sum(cost.act_s(plan, task, 0) for task in plan.tasks if isinstance(task.body, Fragment))


def test_a_fragment_takes_the_sum_of_its_kernels_and_an_act() -> None:
    plan = made_plan(one_device("h100-sxm"))
    model = KernelModel.for_device("h100-sxm")
    for task in plan.tasks:
        if isinstance(task.body, Fragment) and task.body.kernels:
            kernels_s = sum(work.times * model.work_s(work) for work in task.body.kernels)
            launches_s = 5e-6 * sum(work.times for work in task.body.kernels)
            assert AnalyticCost(plan.cluster).act_s(plan, task, 0) == pytest.approx(
                plan.cluster.device.act_overhead_s + max(kernels_s, launches_s)
            )


def test_no_device_is_used_above_three_quarters_and_fusion_saves_time() -> None:
    for name in ("h100-sxm", "a100-80gb-sxm"):
        steps = {}
        for fusion in (Fusion.EAGER, Fusion.FUSED):
            plan = made_plan(one_device(name, fusion))
            flop = sum(task.body.flop for task in plan.tasks if isinstance(task.body, Fragment))
            steps[fusion] = step_s(plan)
            assert flop / full_rate(plan.cluster.device, F32) / steps[fusion] <= 0.75
        assert steps[Fusion.FUSED] <= steps[Fusion.EAGER]


def test_a_plan_without_kernels_is_not_priced_by_kernels() -> None:
    plan = made_plan(one_device("tepdist-m8"))
    elsewhere = replace(plan, cluster=one_device("h100-sxm"))
    with pytest.raises(Mismatch, match=r"prices kernels \(of h100-sxm\), but the plan's fragments of .* list none.*plan it anew"):
        step_s(elsewhere)


def test_a_plan_with_kernels_comes_back_equal_from_its_file(tmp_path: Path) -> None:
    plan = made_plan(one_device("b200-sxm", Fusion.COMPILED), width=256)
    assert any(isinstance(task.body, Fragment) and task.body.kernels for task in plan.tasks)
    save_plan(plan, str(tmp_path / "plan.json"))
    assert load_plan(str(tmp_path / "plan.json")) == plan
    save_cluster(plan.cluster, tmp_path / "cluster.toml")
    assert load_cluster(tmp_path / "cluster.toml") == plan.cluster


@pytest.mark.parametrize("name", PRICED)
def test_every_preset_with_kernels_names_a_device_that_has_them(name: str) -> None:
    device = preset(name).device
    sheet = device_sheet(device.kernels)
    assert sheet.bandwidth_bytes_per_s == pytest.approx(device.memory_bandwidth_bytes_per_s / 0.7, rel=1e-3)
    assert full_rate(device, F32) == pytest.approx(device.rate_for(F32) / 0.7, rel=1e-3)
    half = DType.BFLOAT16 if Precision.BFLOAT16 in sheet.peaks else DType.FLOAT16  # a V100 has no bfloat16
    work = KernelWork(kind=KernelKind.PRODUCT, dtype=half, shape=(1, 4096, 4096, 4096), flop=2 * 4096**3, size_bytes=0)
    assert 0.3 < work.flop / KernelModel.for_device(device.kernels).work_s(work) / full_rate(device, half) < 0.95


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('kernels = "h100-sxm"\nfusion = "some"', r"\[device\] fusion = 'some'; it is one of eager, fused, compiled"),
        ('fusion = "eager"', r"\[device\] fusion = 'eager' without kernels; name the device"),
    ],
)
def test_a_way_to_run_that_nobody_knows_is_refused(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER.replace("[topology]", f"{line}\n[topology]", 1))
    with pytest.raises(InvalidCluster, match=says):
        load_cluster(tmp_path / "c.toml")


def test_a_device_without_kernel_data_is_refused_when_it_is_planned_for() -> None:
    cluster = one_device("h100-sxm")
    with pytest.raises(InvalidCluster, match="device 'b9000' has no kernel data; devices are a100-80gb-sxm"):
        made_plan(replace(cluster, device=replace(cluster.device, kernels="b9000")), width=256)


def test_a_float32_convolution_is_computed_and_counted_in_tf32_where_the_device_has_it() -> None:
    work = KernelWork(kind=KernelKind.CONVOLUTION, dtype=F32, shape=(1, 200704, 64, 576, 0), flop=2 * 200704 * 64 * 576, size_bytes=10**7)
    for name, peak in (("a100-80gb-sxm", 156e12), ("v100-sxm", 15.7e12)):
        model = KernelModel.for_device(name)
        assert model.least_s(work) == pytest.approx(work.flop / peak)
        assert model.least_s(work) < 0.75 * model.work_s(work)


def test_filters_of_3_by_3_that_move_by_one_take_fewer_multiplications_in_float32_alone() -> None:
    """On a V100; where float32 convolutions run on matrix units, and in float16, such filters are products like others."""

    def seconds(device: str, dtype: DType, by_one: int) -> float:
        shape, flop = (1, 200704, 64, 576, by_one), 2 * 200704 * 64 * 576
        return KernelModel.for_device(device).work_s(
            KernelWork(kind=KernelKind.CONVOLUTION, dtype=dtype, shape=shape, flop=flop, size_bytes=10**7)
        )

    assert 2.0 < seconds("v100-sxm", F32, 0) / seconds("v100-sxm", F32, 1) < 4.0
    assert seconds("v100-sxm", DType.FLOAT16, 0) == seconds("v100-sxm", DType.FLOAT16, 1)
    assert seconds("a100-80gb-sxm", F32, 0) == seconds("a100-80gb-sxm", F32, 1)
