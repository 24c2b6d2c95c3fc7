"""Clusters as data: presets with the origin of their numbers, racks, rates per dtype; and what a dtype's rate does to a price."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import CLUSTER
from torch import nn

from planner.cost import AnalyticCost, compute_dtype, op_s
from planner.cost.clusters import preset, preset_names
from planner.frontend import Program
from planner.ir.actors.verify import verify
from planner.ir.cluster import Cluster, LinkSpec, Rate, load_cluster, save_cluster
from planner.ir.errors import InvalidCluster, InvalidFile, InvalidPlan
from planner.ir.files import load_plan, save_plan
from planner.ir.graph import Dt, Op, Ref, Role
from planner.ir.plan import DTypeFlop, Fragment, Plan
from planner.ir.tensor import DType, TensorType
from planner.ir.text import canonical, decode
from planner.opset import flop
from planner.parallelism.make import PlanOptions, make_plan
from regista.clusters import resolve_cluster
from zoo import ZOO

T = 1e12
SHARE = 0.7
"""Sustained share of peak flop and of peak memory bandwidth that every preset states."""

# name: devices per node, peak TFLOP/s (float32, float16), peak memory GB/s, memory GB, peak GB/s out of a node          [data sheets]
PEAKS = {
    "p3.16xlarge": (8, 15.7, 125.0, 900.0, 16.0, 25 / 8),
    "dlperf-v100": (8, 15.7, 125.0, 900.0, 16.0, 100 / 8),
    "tepdist-m8": (8, 15.7, 125.0, 900.0, 32.0, 100 / 8),
    "tepdist-s1": (1, 16.4, 130.0, 1134.0, 32.0, 100 / 8),
    "dgx-a100": (8, 19.5, 312.0, 2039.0, 80.0, 8 * 200 / 8),
    "dgx-h100": (8, 67.0, 989.0, 3350.0, 80.0, 8 * 400 / 8),
    "h100-sxm": (8, 67.0, 989.0, 3350.0, 80.0, 8 * 400 / 8),
    "h100-pcie": (8, 51.0, 756.0, 2000.0, 80.0, 2 * 200 / 8),
    "h800-sxm": (8, 67.0, 989.0, 3350.0, 80.0, 8 * 400 / 8),
    "h200-sxm": (8, 67.0, 989.0, 4800.0, 141.0, 8 * 400 / 8),
    "b200-sxm": (8, 75.0, 2250.0, 7700.0, 180.0, 8 * 400 / 8),
    "gb200-nvl72": (72, 80.0, 2500.0, 8000.0, 186.0, 72 * 400 / 8),
    "b300-sxm": (8, 75.0, 2250.0, 8000.0, 288.0, 8 * 800 / 8),
    "gb300-nvl72": (72, 80.0, 2500.0, 8000.0, 279.0, 72 * 800 / 8),
    "gh200": (4, 67.0, 989.0, 4000.0, 96.0, 4 * 200 / 8),
    "a100-80gb-sxm": (8, 19.5, 312.0, 2039.0, 80.0, 8 * 200 / 8),
    "a100-40gb-sxm": (8, 19.5, 312.0, 1555.0, 40.0, 8 * 200 / 8),
    "a800-sxm": (8, 19.5, 312.0, 2039.0, 80.0, 8 * 200 / 8),
    "l40s": (8, 91.6, 362.0, 864.0, 48.0, 2 * 200 / 8),
    "rtx-4090": (8, 82.6, 165.2, 1008.0, 24.0, 100 / 8),
    "mi300x": (8, 163.4, 1307.4, 5300.0, 192.0, 8 * 400 / 8),
    "tpu-v5p": (64, 76.0, 459.0, 2765.0, 95.0, 16 * 200 / 8),
}


# --- presets -----------------------------------------------------------------------------------------------------------------


def test_every_preset_has_its_data_sheet_here() -> None:
    assert set(preset_names()) == PEAKS.keys()


@pytest.mark.parametrize("name", PEAKS)
def test_a_preset_is_the_stated_share_of_its_data_sheet(name: str) -> None:
    devices, single, half, memory, capacity, nic = PEAKS[name]
    cluster = preset(name)
    assert (cluster.name, cluster.devices_per_node) == (name, devices)
    device = cluster.device
    assert device.rate_for(DType.FLOAT32) == pytest.approx(SHARE * single * T, rel=1e-3)
    assert device.rate_for(DType.FLOAT16) == pytest.approx(SHARE * half * T, rel=1e-3)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(SHARE * memory * 1e9, rel=1e-3)
    assert device.memory_bytes == capacity * 1e9
    assert cluster.nic is not None
    assert 0.89 <= cluster.nic.bandwidth_bytes_per_s / (nic * 1e9) <= 0.94
    assert cluster.nic.latency_s > cluster.node.latency_s


@pytest.mark.parametrize("name", PEAKS)
def test_a_preset_says_where_its_numbers_come_from(name: str) -> None:
    assert "data sheet" in preset(name).source
    assert f"{SHARE} of peak" in preset(name).source
    with (Path(__file__).parents[3] / "planner/cost/clusters" / f"{name}.toml").open() as file:
        lines = file.read().splitlines()
    number = [i for i, line in enumerate(lines) if line.startswith(("compute_", "memory_bandwidth", "act_", "latency_"))]
    assert all(lines[i - 1].startswith("#") for i in number), "a number without a comment above it"


def test_bfloat16_has_a_rate_only_where_the_device_has_units_for_it() -> None:
    assert preset("dgx-a100").device.rate_for(DType.BFLOAT16) == preset("dgx-a100").device.rate_for(DType.FLOAT16)
    assert preset("p3.16xlarge").device.rate_for(DType.BFLOAT16) == preset("p3.16xlarge").device.rate_for(DType.FLOAT32)


def test_a_number_behind_the_name_is_that_many_nodes_and_nothing_else_changes() -> None:
    one, four = resolve_cluster("p3.16xlarge"), resolve_cluster("p3.16xlarge:4")
    assert four.num_devices == 32
    assert four == replace(one, name="p3.16xlarge:4", num_nodes=4)
    assert resolve_cluster("dgx-a100:128").num_devices == 1024
    assert resolve_cluster("dlperf-v100").num_devices == 32, "the paper's cluster has four nodes"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "dgx-b9000",
            r"no preset has that name; presets are a100-40gb-sxm, .*dgx-a100, dgx-h100, .*; or give local:N, or the path of a TOML file",
        ),
        ("", "no preset has that name"),
        ("dgx-a100:", r"'' is not a number of nodes; write for example dgx-a100:4"),
        ("dgx-a100:two", r"'two' is not a number of nodes"),
        ("dgx-a100:-1", r"'-1' is not a number of nodes"),
        ("dgx-a100:0", "topology.nodes = 0; a cluster needs at least 1"),
        ("dgx-a100:9999999", "devices; at most"),
    ],
)
def test_a_name_that_no_preset_has_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidCluster, match=says):
        resolve_cluster(text)


def test_a_toml_path_is_a_file_even_if_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"no such file; give a cluster \(TOML\)"):
        resolve_cluster("dgx-a100.toml")
    (tmp_path / "mine").write_text(CLUSTER)
    assert resolve_cluster(str(tmp_path / "mine")).name == "small"


# --- racks and rates in files ------------------------------------------------------------------------------------------------

RACKS = CLUSTER.replace("nodes = 1\n", "nodes = 6\nnodes_per_rack = 2\n") + (
    "[links.nic]\nlatency_us = 300\nbandwidth_GBps = 1\n[links.rack]\nlatency_us = 400\nbandwidth_GBps = 0.5\n"
    "[device.rates]\nbfloat16_GFLOPs = 180\nfloat64_GFLOPs = 45\n"
)


def racks(tmp_path: Path, old: str = "", new: str = "") -> Cluster:
    assert old in RACKS
    (tmp_path / "c.toml").write_text(RACKS.replace(old, new, 1))
    return load_cluster(tmp_path / "c.toml")


def test_racks_and_rates_come_back_equal_from_text_and_from_toml(tmp_path: Path) -> None:
    cluster = racks(tmp_path)
    assert cluster.rack == LinkSpec(latency_s=pytest.approx(400e-6), bandwidth_bytes_per_s=0.5e9)
    assert cluster.device.rates == (Rate(dtype=DType.FLOAT64, flop_per_s=45e9), Rate(dtype=DType.BFLOAT16, flop_per_s=180e9))
    save_cluster(cluster, tmp_path / "again.toml")
    assert load_cluster(tmp_path / "again.toml") == cluster
    assert decode(Cluster, json.loads(canonical(cluster))) == cluster


def test_ranks_lie_in_nodes_and_nodes_in_racks(tmp_path: Path) -> None:
    cluster = racks(tmp_path)
    assert [cluster.node_of(rank) for rank in range(12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [cluster.rack_of(rank) for rank in range(12)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert cluster.link_between((0, 1)) == cluster.node
    assert cluster.link_between((1, 2)) == cluster.nic
    assert cluster.link_between((3, 4)) == cluster.rack


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("nodes_per_rack = 2\n", "", r"\[links.rack\] is given but no topology.nodes_per_rack; racks need both"),
        ("[links.rack]\nlatency_us = 400\nbandwidth_GBps = 0.5\n", "", r"topology.nodes_per_rack is given but no \[links.rack\]"),
        ("nodes_per_rack = 2", "nodes_per_rack = 0", "topology.nodes_per_rack = 0; a cluster needs at least 1"),
        ("nodes_per_rack = 2", "nodes_per_rack = 1.5", "a whole number is needed"),
        ("bandwidth_GBps = 0.5", "bandwidth_GBps = 0", r"links.rack.bandwidth_GBps = 0; memory and rates must be finite and > 0"),
        ("latency_us = 400", "latency_us = -1", r"links.rack.latency_us = -1; latencies must be finite"),
        ("bandwidth_GBps = 0.5", "bandwidth_Gbps = 0.5", r"\[links.rack\] has unknown keys \['bandwidth_Gbps'\]"),
        ("bfloat16_GFLOPs = 180", "bfloat16_GFLOPs = 0", r"device.rates.bfloat16_GFLOPs = 0; memory and rates"),
        (
            "bfloat16_GFLOPs = 180",
            "half_GFLOPs = 180",
            r"\[device.rates\] has unknown keys \['half_GFLOPs'\]; known are \['bfloat16_GFLOPs'",
        ),
        ("bfloat16_GFLOPs = 180", "bfloat16_GFLOPs = true", r"\[device.rates\] bfloat16_GFLOPs = True; a number is needed"),
    ],
)
def test_racks_and_rates_that_no_machine_has_are_refused_in_the_units_of_the_file(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(InvalidCluster, match=says):
        racks(tmp_path, old, new)


# --- a rate per dtype --------------------------------------------------------------------------------------------------------

FLOAT32, BFLOAT16 = DType.FLOAT32, DType.BFLOAT16


def mm(dtype: DType, size: int = 512) -> tuple[Op, dict[str, TensorType]]:
    op = Op(id="mm", target="aten.mm.default", args=(Ref("a"), Ref("b")), kwargs=(), outputs=("c",), role=Role.FORWARD)
    return op, dict.fromkeys("abc", TensorType((size, size), dtype))


@pytest.mark.parametrize(
    ("operands", "result", "expected"),
    [
        ((BFLOAT16, BFLOAT16), BFLOAT16, BFLOAT16),
        ((BFLOAT16, FLOAT32), FLOAT32, FLOAT32),
        ((BFLOAT16, DType.FLOAT16), FLOAT32, FLOAT32),
        ((FLOAT32, DType.INT64), FLOAT32, FLOAT32),
        ((DType.BOOL, BFLOAT16), BFLOAT16, BFLOAT16),
        ((DType.INT64, DType.INT64), FLOAT32, FLOAT32),
        ((DType.INT64, DType.INT64), DType.INT64, None),
    ],
)
def test_an_op_computes_in_the_floating_type_its_operands_are_promoted_to(
    operands: tuple[DType, DType], result: DType, expected: DType | None
) -> None:
    op, _ = mm(FLOAT32)
    types = {name: TensorType((2, 2), dtype) for name, dtype in zip("abc", (*operands, result), strict=True)}
    assert compute_dtype(op, types) is expected


def test_a_cast_of_a_weight_computes_in_what_it_reads() -> None:
    op = Op(id="to", target="aten._to_copy.default", args=(Ref("a"),), kwargs=(("dtype", Dt(BFLOAT16)),), outputs=("b",), role=Role.FORWARD)
    assert compute_dtype(op, {"a": TensorType((2,), FLOAT32), "b": TensorType((2,), BFLOAT16)}) is FLOAT32


def roofline(name: str) -> Cluster:
    """A preset whose kernels are not priced one by one."""
    cluster = preset(name)
    return replace(cluster, device=replace(cluster.device, kernels=""))


def test_op_s_takes_the_rate_of_the_dtype_until_memory_is_slower() -> None:
    cluster = roofline("dgx-a100")
    work = flop(*mm(FLOAT32, 8192))
    assert op_s(cluster, work, 0, FLOAT32) == op_s(cluster, work, 0) == pytest.approx(work / (SHARE * 19.5 * T))
    assert op_s(cluster, work, 0, BFLOAT16) == pytest.approx(work / (SHARE * 312 * T))
    assert op_s(cluster, 1, 10**9, BFLOAT16) == op_s(cluster, 1, 10**9) == 10**9 / cluster.device.memory_bandwidth_bytes_per_s


def made_plan(cluster: Cluster) -> Plan:
    graph = ZOO["mlp"](batch=64, width=32, hidden=32, depth=1).graph(1)
    return make_plan(graph, model="mlp", batch_size=64, cluster=cluster, options=PlanOptions())


def with_fragment(plan: Plan, **changes: object) -> Plan:
    """The plan with another price of its first fragment."""
    first = next(task for task in plan.tasks if isinstance(task.body, Fragment))
    assert isinstance(first.body, Fragment)
    changed = replace(first, body=replace(first.body, **changes))  # type: ignore[arg-type]
    return replace(plan, tasks=tuple(changed if task is first else task for task in plan.tasks))


def first_fragment_s(plan: Plan, cluster: Cluster) -> float:
    task = next(task for task in plan.tasks if isinstance(task.body, Fragment))
    return AnalyticCost(cluster).act_s(plan, task, 0) - cluster.device.act_overhead_s


def test_a_fragment_pays_each_dtype_at_its_own_rate_and_the_rest_at_the_general_one() -> None:
    cluster = roofline("dgx-a100")
    plan = with_fragment(
        made_plan(cluster),
        flop=10**12 + 2 * 10**12 + 4 * 10**12,
        flop_by_dtype=(DTypeFlop(dtype=FLOAT32, flop=10**12), DTypeFlop(dtype=BFLOAT16, flop=2 * 10**12)),
        traffic_bytes=0,
    )
    general, half = cluster.device.rate_flop_per_s, cluster.device.rate_for(BFLOAT16)
    assert first_fragment_s(plan, cluster) == pytest.approx(5 * 10**12 / general + 2 * 10**12 / half)


def test_where_a_device_has_one_rate_a_fragment_costs_what_it_always_did() -> None:
    cluster = replace(roofline("dgx-a100"), device=replace(roofline("dgx-a100").device, rates=()))
    plan = with_fragment(made_plan(cluster), flop=3, flop_by_dtype=(DTypeFlop(dtype=BFLOAT16, flop=2),), traffic_bytes=0)
    assert first_fragment_s(plan, cluster) == pytest.approx(3 / cluster.device.rate_flop_per_s, rel=1e-9)


def test_the_flop_of_a_plan_are_those_of_its_dtypes() -> None:
    """The mlp is float32 throughout; only what is computed on integers is left out."""
    plan = made_plan(roofline("dgx-a100"))
    fragments = [task.body for task in plan.tasks if isinstance(task.body, Fragment)]
    assert all({part.dtype for part in body.flop_by_dtype} <= {FLOAT32} for body in fragments)
    counted = sum(part.flop for body in fragments for part in body.flop_by_dtype)
    total = sum(body.flop for body in fragments)
    assert 0.95 * total < counted <= total


class Half(nn.Module):
    """Two matrix products in bfloat16; the loss is float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.second(self.first(x)).float().square().mean()
        return loss


def test_the_matrix_products_of_a_model_in_bfloat16_are_counted_and_priced_in_bfloat16() -> None:
    program = Program(Half(), (torch.randn(64, 64, dtype=torch.bfloat16),), loss=None, optimizer="sgd")
    fast = replace(roofline("dgx-a100:1"), devices_per_node=1)
    slow = replace(fast, device=replace(fast.device, rates=()))
    plan = make_plan(program.graph(1), model="half", batch_size=64, cluster=fast, options=PlanOptions())
    products = 5 * 2 * 64**3  # two forward, two for the weights' gradients, one for the input of the second
    counted: Counter[DType] = Counter()
    for task in plan.tasks:
        if isinstance(task.body, Fragment):
            counted += Counter({part.dtype: part.flop for part in task.body.flop_by_dtype})
    assert products <= counted[BFLOAT16] < 1.1 * products
    assert 0 < counted[FLOAT32] < 0.1 * products
    work = with_fragment(plan, traffic_bytes=0)
    assert first_fragment_s(work, fast) < 0.1 * first_fragment_s(work, slow)


def test_a_plan_with_racks_rates_and_flop_by_dtype_comes_back_equal_from_its_file(tmp_path: Path) -> None:
    plan = made_plan(racks(tmp_path))
    save_plan(plan, str(tmp_path / "plan.json"))
    assert load_plan(str(tmp_path / "plan.json")) == plan


@pytest.mark.parametrize(
    "parts",
    [
        (DTypeFlop(dtype=FLOAT32, flop=11),),
        (DTypeFlop(dtype=FLOAT32, flop=12), DTypeFlop(dtype=BFLOAT16, flop=-2)),
        (DTypeFlop(dtype=FLOAT32, flop=1), DTypeFlop(dtype=FLOAT32, flop=1)),
    ],
)
def test_flop_by_dtype_that_is_no_part_of_the_flop_is_refused(parts: tuple[DTypeFlop, ...]) -> None:
    plan = with_fragment(made_plan(roofline("dgx-a100")), flop=10, flop_by_dtype=parts)
    with pytest.raises(InvalidPlan, match=r"10 flop, of them .*stand once per dtype and are no more than the whole"):
        verify(plan)
