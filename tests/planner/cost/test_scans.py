"""Kernels of state-space layers: what was measured comes back, and other devices are scaled."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pandas as pd
import pytest

from experiments.kernel_database.scans import TABLE, fitted_rates, left_out, scan_rows
from planner.cost.kernels import device_names, device_sheet
from planner.cost.scans import scan_rates
from planner.ir.errors import InvalidCluster, Unsupported


def test_the_committed_rates_are_fitted_to_the_committed_rows():
    with resources.files("planner.cost.scans").joinpath("rates.csv").open(encoding="utf-8") as file:
        committed = pd.read_csv(file)
    fitted = fitted_rates(pd.read_csv(TABLE))
    assert list(committed.device) == list(fitted.device)
    for column in ("launch_us", "scan_ns", "conv_GBps"):
        np.testing.assert_allclose(committed[column], fitted[column], rtol=1e-3)


def test_a_measured_scan_comes_back_and_so_does_one_of_heads_that_were_left_out():
    table = pd.read_csv(TABLE)
    rates = scan_rates("GB200")
    assert rates.measured
    errors = [rates.scan_s(r.tokens, r.heads, r.head_dim) / (1e-3 * r.latency_ms) - 1 for r in scan_rows(table).itertuples()]
    assert np.median(np.abs(errors)) < 0.15 and max(map(abs, errors)) < 0.5
    assert np.median(np.abs(left_out(table))) < 0.25


def test_a_measured_convolution_comes_back_on_every_device():
    table = pd.read_csv(TABLE)
    rows = table[(table.kernel == "causal_conv1d_fn") & (table.state == 128) & (table.tokens >= 16384) & (table.seq >= 4096)]
    for device, part in rows.groupby("device"):
        channels = part.heads * part.head_dim + 2 * part.groups * part.state
        rates = scan_rates(str(device))
        errors = [rates.conv_s(t, c, 2) / (1e-3 * ms) - 1 for t, c, ms in zip(part.tokens, channels, part.latency_ms, strict=True)]
        assert np.median(np.abs(errors)) < 0.1, device


@pytest.mark.parametrize("device", device_names())
def test_a_device_that_was_not_measured_is_slower_by_its_multiprocessors_and_its_bandwidth(device: str):
    rates, sheet, known = scan_rates(device), device_sheet(device), scan_rates("H100 SXM")
    assert 0 < rates.conv_bytes_per_s < sheet.bandwidth_bytes_per_s
    if device == "v100-sxm":
        assert not rates.measured
        assert rates.head_token_s == pytest.approx(known.head_token_s * 132 / 80)
        assert rates.conv_bytes_per_s == pytest.approx(known.conv_bytes_per_s * sheet.bandwidth_bytes_per_s / 3.35e12)


def test_the_backward_scan_makes_eight_products_where_the_forward_one_makes_three():
    rates = scan_rates("H100 SXM")
    assert rates.scan_s(8192, 64, 64, backward=True) == pytest.approx(8 / 3 * rates.scan_s(8192, 64, 64))
    assert rates.scan_s(8192, 64, 128) - rates.launch_s == pytest.approx(2 * (rates.scan_s(8192, 64, 64) - rates.launch_s))


def test_sizes_below_one_and_unknown_devices_are_refused():
    rates = scan_rates("H100 SXM")
    with pytest.raises(Unsupported, match="every size is at least 1"):
        rates.scan_s(8192, 0, 64)
    with pytest.raises(Unsupported, match="every size is at least 1"):
        rates.conv_s(0, 64, 2)
    with pytest.raises(InvalidCluster, match="no kernel data"):
        scan_rates("H10000")
