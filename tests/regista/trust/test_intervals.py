"""Intervals of Plans' steps: from points of the same device with the same prices, and none where there are too few."""

from __future__ import annotations

import pytest

from planner.cost import AnalyticCost
from planner.cost.clusters import preset
from regista.trust import LEVEL
from regista.trust.interval import REACH, Interval, Prices, _residuals, interval_text, lead_text, prices_of, step_interval

V100 = preset("dlperf-v100").device.kind


def test_a_device_with_points_has_an_interval_around_the_step() -> None:
    made = step_interval(V100, Prices.ROOFLINE, 8, low=False, step_s=1.0)
    assert made.low_s is not None and made.high_s is not None
    assert made.low_s < 1.0 < made.high_s and made.low_s * made.high_s == pytest.approx(1.0)
    assert made.points >= 9 and "90%" in interval_text(made)


@pytest.mark.parametrize(
    ("device", "prices", "devices", "says"),
    [
        ("MI300X-192GB", Prices.ROOFLINE, 8, "no measured points of this device"),
        (V100, Prices.KERNELS, 8, "no measured points of this device"),
        ("t4", Prices.KERNELS, 1, "only 5 measured points"),
        ("h100-sxm", Prices.KERNELS, 2 * REACH, "no measured points of so many devices"),
    ],
)
def test_without_points_behind_it_there_is_no_interval(device: str, prices: Prices, devices: int, says: str) -> None:
    made = step_interval(device, prices, devices, low=False, step_s=1.0)
    assert made.low_s is None and made.high_s is None
    assert says in interval_text(made) and interval_text(made).endswith("no interval")


def test_prices_say_which_points_speak() -> None:
    assert prices_of(AnalyticCost(preset("h100-sxm"))) is Prices.KERNELS
    assert prices_of(AnalyticCost(preset("tepdist-s1"))) is Prices.ROOFLINE
    assert step_interval("cpu", Prices.OTHER, 2, low=False, step_s=1.0).low_s is None


@pytest.mark.parametrize("prices", [Prices.ROOFLINE, Prices.MEASURED])
def test_intervals_hold_for_the_level_of_the_points_that_they_are_made_of(prices: Prices) -> None:
    own = [r for r in _residuals() if r.prices == prices.value]
    held = 0
    for r in own:
        made = step_interval(r.device, prices, r.devices, low=bool(r.at[2]), step_s=1.0)
        assert made.high_s is not None and made.low_s is not None
        held += made.low_s <= 2.718281828 ** (-r.error) <= made.high_s
    assert held / len(own) >= LEVEL - 0.1


def test_a_lead_within_the_interval_is_inside_the_noise() -> None:
    interval = Interval(low_s=0.9, high_s=1.1, points=20)
    assert "inside the noise" in lead_text(1.0, 1.05, interval, of="a")
    assert "outside of its interval" in lead_text(1.0, 1.2, interval, of="a")
    assert "nothing says" in lead_text(1.0, 1.2, Interval(why_not="no points"), of="a")
