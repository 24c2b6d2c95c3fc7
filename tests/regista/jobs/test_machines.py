"""Machines of ``regista predict``: their sheets are those of the catalogue of devices, and every cluster of the catalogue of clusters has one."""

from __future__ import annotations

import pytest

from planner.cost.clusters import preset, preset_names
from planner.cost.kernels import device_sheet
from planner.cost.kernels.devices import Precision as KernelPrecision
from regista.jobs.job import Precision
from regista.jobs.machines import load_machine, machine_names
from regista.jobs.predict import predict
from regista.jobs.readers.toml_job import toml_job

KERNEL_PRECISIONS = {
    Precision.FP32: KernelPrecision.FLOAT32,
    Precision.FP16: KernelPrecision.FLOAT16,
    Precision.BF16: KernelPrecision.BFLOAT16,
    Precision.FP8: KernelPrecision.FLOAT8,
}
PAPERS = {"tepdist-s1"}
"""Clusters of a paper, of a device that nobody has published kernels of."""

SOON = {"p3.16xlarge", "h100-pcie", "mi300x", "tpu-v5p", "gb300-nvl72"}
"""One of each maker and kind of wires; the others take longer than they are worth in the quick tier."""


@pytest.mark.parametrize("name", machine_names())
def test_a_machines_sheet_is_that_of_its_device(name: str) -> None:
    machine, device = load_machine(name), device_sheet(name)
    assert (machine.units, machine.memory_bytes_per_s) == (device.units, device.bandwidth_bytes_per_s)
    for precision, rate in machine.peak_flop_per_s.items():
        if precision in KERNEL_PRECISIONS:
            assert rate == pytest.approx(device.peak_flop_per_s(KERNEL_PRECISIONS[precision])), precision


def _job(cluster: str) -> object:
    ranks = preset(cluster).num_devices
    half = "fp16" if "v100" in cluster or "p3" in cluster or "tepdist" in cluster else "bf16"
    layout = {"dp": ranks, "global_batch": ranks, "precision": half, "zero": 1}
    return toml_job({"model": {"family": "llama3-8b", "layers": 2}, "cluster": {"name": cluster}, "layout": layout}, cluster)


def _tier(name: str) -> object:
    return name if name in SOON else pytest.param(name, marks=pytest.mark.thorough)


@pytest.mark.parametrize("cluster", [_tier(name) for name in preset_names() if name not in PAPERS])
def test_a_job_on_every_preset_is_predicted_below_three_quarters_of_the_peak_with_an_interval(cluster: str) -> None:
    done = predict(_job(cluster))  # type: ignore[arg-type]
    assert 0.0 < done.mfu < 0.75
    assert done.step_low_s < done.step_s < done.step_high_s
