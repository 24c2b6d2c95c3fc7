"""What an op takes at least however it is cut: no part of any strategy takes less than its share, on devices with a kernel table and without."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from planner.cost import least_work_s, op_work_s
from planner.cost.kernels import KernelModel
from planner.cost.kernels.devices import Precision, device_names
from planner.ir.graph import KernelKind, KernelWork, LogicalGraph, Role
from planner.ir.tensor import DType
from planner.search.strategies import StrategySets
from regista.clusters import resolve_cluster
from zoo import ZOO

MODELS = {
    "gpt": {"layers": 1, "width": 1024, "heads": 16, "vocab": 50304, "batch": 64, "seq": 512, "optimizer": "adamw", "dtype": "bf16"},
    "convnet": {"batch": 256},
}


def graph(model: str) -> LogicalGraph:
    return ZOO[model](**MODELS[model]).graph(1)


@pytest.mark.parametrize("cluster_name", ["dgx-a100:8", "dgx-h100:8", "p3.16xlarge:8"])
@pytest.mark.parametrize("mesh", [(8,), (64,), (8, 8)], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_no_part_of_an_op_takes_less_than_its_share_of_the_least(model: str, mesh: tuple[int, ...], cluster_name: str) -> None:
    cluster, step, sets = resolve_cluster(cluster_name), graph(model), StrategySets(mesh)
    for op in (op for op in step.ops if op.role in (Role.FORWARD, Role.BACKWARD)):
        types = {v: step.values[v] for v in (*op.inputs, *op.outputs) if v}
        parts_s = [op_work_s(cluster, s.local.op, s.local.types) for s in sets.of(op, step.values).strategies]
        assert prod(mesh) * min(parts_s) >= least_work_s(cluster, op, types) * (1 - 1e-9), op.where()


def test_a_part_of_a_product_can_take_less_than_its_share_of_the_whole() -> None:
    """Counter-example to the bound as it was: a kernel table need not give larger products less time per flop."""
    cluster, step, sets = resolve_cluster("dgx-h100:8"), graph("gpt"), StrategySets((8, 8))
    shares = []
    for op in (op for op in step.ops if op.target == "aten.mm.default"):
        types = {v: step.values[v] for v in (*op.inputs, *op.outputs) if v}
        part_s = min(op_work_s(cluster, s.local.op, s.local.types) for s in sets.of(op, step.values).strategies)
        shares.append(64 * part_s / op_work_s(cluster, op, types))
    assert min(shares) < 0.99


@pytest.mark.parametrize("device", device_names())
def test_no_product_of_the_table_is_quicker_than_the_least(device: str) -> None:
    model = KernelModel.for_device(device)
    for dtype in (DType.BFLOAT16, DType.FLOAT32):
        if Precision.of(dtype) not in model.device.peaks:
            continue
        for m, n, k in product((24, 130, 1000, 4096, 30_000), (64, 1500, 8192), (48, 2000, 50_000)):
            work = KernelWork(kind=KernelKind.PRODUCT, dtype=dtype, shape=(1, m, n, k), flop=2 * m * n * k, size_bytes=0)
            assert model.work_s(work) >= model.least_part_s(work)
