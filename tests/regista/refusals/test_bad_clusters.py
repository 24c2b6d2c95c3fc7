"""Clusters that no machine can be are refused in the units of their file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import CLUSTER, TINY, Command

from tests.regista.refusals.refusal import assert_refused


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("memory_GB = 8.0", "memory_GB = -8.0", r"device\.memory_GB = -8; "),
        ("memory_GB = 8.0", "memory_GB = nan", r"\[device\] memory_GB = nan; a finite number"),
        ("memory_GB = 8.0", "memory_GB = 1e308", "memory_GB = 1e.308; a finite number below 1e.15"),
        ("memory_GB = 8.0", "memory_GB = true", "memory_GB = True; a number is needed"),
        ("memory_GB = 8.0", "", "memory_GB = None; a number is needed"),
        ("nodes = 1", "nodes = inf", "nodes = inf"),
        ("nodes = 1", "nodes = 1.5", "a whole number is needed"),
        ("nodes = 1", "nodes = 0", r"topology\.nodes = 0; a cluster needs at least 1"),
        ("nodes = 1", "nodes = 2", r"2 nodes but no \[links.nic\]"),
        ("nodes = 1", "nodes = 1000000000", "2000000000 devices; at most"),
        ("nodes = 1", "nodes = " + "9" * 5000, "not a readable TOML file"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 0", r"links\.node\.bandwidth_GBps = 0; .* > 0, or nothing ever arrives"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = -1.2", r"links\.node\.bandwidth_GBps = -1\.2"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 1e308", "bandwidth_GBps = 1e.308"),
        ("bandwidth_GBps = 1.2", "bandwidth_GBps = 5e-324", "bandwidth_GBps = "),
        (
            "bandwidth_GBps = 1.2",
            "bandwidth_Gbps = 1.2",
            r"\[links\.node\] has unknown keys \['bandwidth_Gbps'\]; known are \['bandwidth_GBps'",
        ),
        ("latency_us = 200.0", "latency_us = -1", "latency_us = -1; latencies must be finite and >= 0"),
        ("[topology]", 'kernels = "h100-sxm"\nfusion = "some"\n[topology]', "fusion = .some.; it is one of eager, fused, compiled"),
        ("[topology]", 'kernels = "b9000"\n[topology]', "device .b9000. has no kernel data; devices are a100-80gb-sxm"),
        ("[topology]", "[topolog]", r"unknown keys \['topolog'\]; known are"),
        ("schema = 1", "schema = 2", "cluster schema 2, this regista reads 1"),
        ("schema = 1", "schema", "not a readable TOML file"),
    ],
)
def test_a_cluster_that_no_machine_can_be_is_refused_in_the_units_of_its_file(
    command: Command, tmp_path: Path, old: str, new: str, says: str
):
    assert old in CLUSTER
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER.replace(old, new, 1))
    assert_refused(command, tmp_path, "plan", TINY, "--cluster", path, "-o", tmp_path / "p.json", says=says)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ("local:0", "local:0: a cluster needs at least 1 device"),
        ("local:-2", "local:-2: a cluster needs at least 1 device"),
        ("local:abc", "write local:N with N devices"),
        ("local:2000", "at most 1024"),
        ("nope.toml", r"no such file; give a cluster .TOML., or local:N"),
        ("/", "Is a directory"),
    ],
)
def test_a_name_that_is_no_cluster_is_refused(command: Command, tmp_path: Path, cluster: str, says: str):
    assert_refused(command, tmp_path, "plan", TINY, "--cluster", cluster, "-o", tmp_path / "p.json", says=says)


def test_kinds_of_node_that_nothing_connects_are_refused(command: Command, tmp_path: Path):
    device = 'device = { kind = "cpu", memory_GB = 8.0, compute_GFLOPs = 90.0, memory_bandwidth_GBps = 10.0 }'
    links = "links = { node = { latency_us = 1.0, bandwidth_GBps = 50.0 } }"
    kinds = [f'[[nodes]]\nname = "{name}"\ncount = 1\ndevices_per_node = 2\n{device}\n{links}\n' for name in ("here", "there")]
    (tmp_path / "c.toml").write_text("schema = 1\n" + "".join(kinds))
    says = "no link connects the nodes here with the nodes there; reached from here are here; add .*between"
    assert_refused(command, tmp_path, "plan", TINY, "--cluster", tmp_path / "c.toml", "-o", tmp_path / "p.json", says=says)


def test_more_devices_than_cores_is_a_warning_not_a_refusal(command: Command, tmp_path: Path):
    model = "zoo:mlp?batch=64&width=64&hidden=64&depth=1"
    ran = command("plan", model, "--cluster", "local:64", "-o", tmp_path / "p.json", "--json")
    assert ran.code == 0
    assert re.match(r"warning: local:64 puts 64 devices on \d+ cores; .*no prediction is promised", ran.err)
    assert ran.json["num_ranks"] == 64


@pytest.mark.parametrize("bandwidth", ["1e-11", "1e14"])
def test_the_slowest_and_fastest_links_still_plan_and_simulate(command: Command, tmp_path: Path, bandwidth: str):
    (tmp_path / "c.toml").write_text(CLUSTER.replace("1.2", bandwidth))
    assert command("plan", TINY, "--cluster", tmp_path / "c.toml", "-o", tmp_path / "p.json").code == 0
    ran = command("simulate", tmp_path / "p.json", "--json")
    assert ran.code == 0
    assert ran.json["step_time_s"] > 0


def test_a_plan_too_large_for_its_devices_is_refused_with_the_numbers_and_a_way_out(command: Command, tmp_path: Path):
    (tmp_path / "c.toml").write_text(CLUSTER.replace("memory_GB = 8.0", "memory_GB = 1e-5"))
    assert_refused(
        command, tmp_path, "plan", TINY, "--cluster", tmp_path / "c.toml", "-o", tmp_path / "p.json",
        says=r"rank 0 needs [\d.]+ KiB \(state [\d.]+ KiB, largest regst \S+: .*\) but a device of small has 9\.8 KiB .*; use more devices or stages",
    )  # fmt: skip


def test_kernels_are_refused_on_a_cluster_that_has_no_table(command: Command, tmp_path: Path):
    says = r"kernels 'fused': cluster tepdist-m8 has no kernel table.*take one of a100-40gb-sxm"
    assert_refused(command, tmp_path, "plan", TINY, "--cluster", "tepdist-m8", "--kernels", "fused", "-o", tmp_path / "p.json", says=says)
