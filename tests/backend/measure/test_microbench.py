"""Machine constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.measure.microbench import fit, microbench
from planner.ir.errors import Unsupported


def test_the_fit_finds_the_line_it_was_given() -> None:
    sizes = [1024 * 4**k for k in range(8)]
    alpha, beta = fit(sizes, [2e-4 + n / 1.5e9 for n in sizes])
    assert alpha == pytest.approx(2e-4)
    assert beta == pytest.approx(1.5e9)


def test_noise_never_makes_a_negative_latency_or_bandwidth() -> None:
    alpha, beta = fit([1, 2, 3], [3.0, 2.0, 1.0])
    assert alpha >= 0
    assert beta > 0
    with pytest.raises(Unsupported, match="two different sizes"):
        fit([1, 1], [1.0, 2.0])


@pytest.mark.thorough
@pytest.mark.processes
def test_two_processes_measure_every_constant(tmp_path: Path) -> None:
    constants = microbench(2, rounds=3, sizes_bytes=(1024, 65536, 1048576), workdir=tmp_path)
    assert 1e8 < constants["flop_per_s"] < 1e13
    assert 1e8 < constants["memory_bytes_per_s"] < 1e13
    assert set(constants["collectives"]) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    for line in (*constants["collectives"].values(), constants["transfer"]):
        assert line["alpha_s"] >= 0
        assert line["beta_bytes_per_s"] > 1e6
    assert 0 < constants["message_s"] < 0.1
    assert list(tmp_path.iterdir()) == []
