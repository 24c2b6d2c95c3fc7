"""The comparison of measured kernels with the shipped model: ratios by kind and format, short kernels left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.gpu.compared.shipped import LEAST_S, compared
from planner.cost.kernels.model import KernelModel
from planner.cost.kernels.table import KernelTable, KernelTime
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.tensor import DType

WORK = KernelWork(kind=KernelKind.PRODUCT, dtype=DType.BFLOAT16, shape=(1, 4096, 4096, 4096), flop=2 * 4096**3, size_bytes=3 * 2 * 4096**2)


def test_kernels_that_take_twice_as_long_as_the_model_says_have_ratio_two() -> None:
    model = KernelModel.for_device("NVIDIA H200")
    seconds = model.work_s(WORK)
    time = KernelTime(target="aten.mm.default", work=WORK, seconds=2 * seconds, low_s=seconds, high_s=seconds, rounds=3)
    times = (time, replace(time, seconds=4 * seconds), replace(time, seconds=LEAST_S / 2))
    rows = compared(KernelTable(device="cuda:0", launch_s=1e-5, times=times), model)
    (row,) = rows.to_dict("records")
    assert (row["kind"], row["dtype"], row["kernels"]) == ("product", "bfloat16", 2)
    assert row["run_over_sim"] == pytest.approx(3)
