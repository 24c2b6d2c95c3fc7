"""Kernels of the catalogue's devices: what is measured comes back, what is not lies between, and nothing beats the data sheet."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import planner.cost.kernels
from planner.cost.kernels import KernelModel, Precision, device_names, device_sheet
from planner.cost.kernels.model import Basis
from planner.cost.kernels.tables import Scattered, product_ratios, without_holes
from planner.ir.errors import InvalidCluster, Unsupported
from planner.ir.tensor import DType

TERA = 1e12
HALF = [name for name in device_names() if Precision.BFLOAT16 in device_sheet(name).peaks]


@pytest.mark.parametrize(
    ("device", "tera"),
    [("A100 SXM", 250), ("H100 SXM", 770), ("B200", 1495)],
)
def test_a_measured_product_comes_back(device: str, tera: float) -> None:
    """4096^3 in bfloat16, as published by those who measured it."""
    took_s = KernelModel.for_device(device).gemm_s(4096, 4096, 4096)
    assert 2 * 4096**3 / took_s / TERA == pytest.approx(tera, rel=0.01)


@pytest.mark.parametrize("device", HALF)
def test_no_kernel_beats_the_data_sheet(device: str) -> None:
    model, sheet = KernelModel.for_device(device), device_sheet(device)
    for m, n, k in ((1024, 1024, 1024), (8192, 8192, 8192), (30000, 5000, 333), (16384, 57344, 8192)):
        assert 2 * m * n * k / model.gemm_s(m, n, k) < sheet.peaks[Precision.BFLOAT16]
    flop = 2 * 2 * 32 * 4096**2 * 128
    assert flop / model.attention_s(2, 32, 4096, 128) < sheet.peaks[Precision.BFLOAT16]
    assert 10**9 / model.stream_s(10**9) < sheet.bandwidth_bytes_per_s


def test_a_product_takes_longer_where_a_size_doubles() -> None:
    model = KernelModel.for_device("H100 SXM")
    for m, n, k in ((2048, 4096, 4096), (4096, 1024, 8192), (1500, 3000, 700)):
        once_s = model.gemm_s(m, n, k)
        assert all(once_s < twice_s for twice_s in (model.gemm_s(2 * m, n, k), model.gemm_s(m, 2 * n, k), model.gemm_s(m, n, 2 * k)))
        assert once_s < model.gemm_s(m, n, k, batch=2)


def test_what_was_not_measured_on_this_device_says_so() -> None:
    bases = {name: KernelModel.for_device(name).gemm_basis() for name in ("H100 SXM", "H100 PCIe", "MI300X")}
    assert bases == {"H100 SXM": Basis.MEASURED, "H100 PCIe": Basis.SCALED, "MI300X": Basis.SCALED}
    assert KernelModel.for_device("H100 SXM").gemm_basis(Precision.FLOAT8) is Basis.SCALED
    assert KernelModel.for_device("L4").gemm_basis(DType.FLOAT32) is Basis.MEASURED


def test_a_backward_attention_and_a_whole_mask_take_longer() -> None:
    model = KernelModel.for_device("H200")
    causal_s = model.attention_s(2, 16, 4096, 128, kv_heads=4)
    assert model.attention_s(2, 16, 4096, 128, kv_heads=4, causal=False) > 1.5 * causal_s
    assert model.attention_s(2, 16, 4096, 128, kv_heads=4, backward=True) > 2 * causal_s


def test_equal_groups_take_as_long_as_a_batch_of_products() -> None:
    model = KernelModel.for_device("B200")
    assert model.grouped_gemm_s([(1024, 4096, 2048)] * 8) == model.gemm_s(1024, 4096, 2048, batch=8)
    assert model.grouped_gemm_s([(1024, 4096, 2048), (0, 4096, 2048)]) == model.gemm_s(1024, 4096, 2048)


def test_a_hole_of_the_grid_lies_between_its_neighbours() -> None:
    axes = tuple(np.arange(4.0) for _ in range(3))
    values = np.arange(4.0)[:, None, None] + np.zeros((4, 4, 4))
    holed = values.copy()
    holed[1, 2, 2] = np.nan
    assert without_holes(axes, holed)[1, 2, 2] == pytest.approx(1.0, abs=0.2)  # type: ignore[arg-type]
    assert np.isfinite(product_ratios("h100-sxm").log_ratio).all()


def test_scattered_points_say_nothing_far_away() -> None:
    points = Scattered(np.arange(20.0)[:, None], np.full(20, 0.3))
    assert points.at(np.array([4.5])) == pytest.approx(0.3)
    assert points.at(np.array([40.0])) == 0.0


def test_of_equally_far_points_the_first_of_the_table_are_taken_whatever_the_last_bits_say() -> None:
    angles = np.arange(24) * (2 * np.pi / 24)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    log_ratio = np.where(np.arange(24) < 12, 0.1, 0.9)  # more than a line's neighbours lie equally far, up to rounding
    for scale in (1.0, 1 + 1e-15, 1 - 1e-15):
        assert Scattered(circle * scale, log_ratio).at(np.zeros(2)) == pytest.approx(0.1)
    assert Scattered(circle[::-1], log_ratio[::-1]).at(np.zeros(2)) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: KernelModel.for_device("B9000"), "device 'B9000' has no kernel data; devices are a100-80gb-sxm"),
        (
            lambda: KernelModel.for_device("A100").gemm_s(64, 64, 64, Precision.FLOAT8),
            "a100-80gb-sxm has no rate for float8; it has float64",
        ),
        (lambda: KernelModel.for_device("A100").gemm_s(0, 64, 64), "every size is at least 1"),
        (lambda: KernelModel.for_device("A100").grouped_gemm_s([(1, 2, 3), (1, 3, 3)]), "all have the same n and k"),
    ],
)
def test_what_cannot_be_priced_is_refused(asked: object, says: str) -> None:
    with pytest.raises((InvalidCluster, Unsupported), match=re.escape(says)):
        asked()  # type: ignore[operator]


def test_the_tables_are_small_and_carry_their_sources() -> None:
    folder = Path(planner.cost.kernels.__file__).parent
    assert (folder / "tables.npz").stat().st_size < 5e6
    with np.load(folder / "tables.npz", allow_pickle=False) as tables:
        about = str(tables["about"])
    assert "Apache-2.0" in about and "MIT" in about
    assert all(
        "data sheet" in device_sheet(name).source or "white paper" in device_sheet(name).source for name in HALF if "tpu" not in name
    )
