"""Manifests and scripts: valid against what is published, and they start what they say."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fastjsonschema
import handmade
import pytest
import yaml
from command_line import TINY, Command, commands
from hypothesis import given
from hypothesis import strategies as st

from planner.ir.cluster import LinkSpec
from planner.ir.errors import Mismatch, Unsupported
from planner.ir.files import load_plan, load_trace, save_plan
from planner.ir.plan import Plan
from planner.ir.traces.trace import check_trace
from regista.deploy import NodeLayout, node_layout, sbatch_script, train_job
from regista.deploy.kubernetes import MOST_PLAN_BYTES, train_job_yaml

FITS = fastjsonschema.compile(json.loads(Path(__file__).with_name("trainjob-v1alpha1.json").read_text())["schema"])


def placed(num_nodes: int, devices_per_node: int, kind: str = "cpu", ranks: int | None = None) -> Plan:
    """A plan on all devices of such a cluster, or on the first ``ranks``."""
    plan = handmade.data_parallel(ranks or num_nodes * devices_per_node, 1)
    nic = LinkSpec(latency_s=1e-5, bandwidth_bytes_per_s=1e10)
    device = replace(plan.cluster.device, kind=kind)
    return replace(plan, cluster=replace(plan.cluster, num_nodes=num_nodes, devices_per_node=devices_per_node, nic=nic, device=device))


def job(plan: Plan, **options: str) -> dict[str, object]:
    document = train_job(plan, "{}", node_layout(plan), image="registry/regista:1", steps=7, **options)[-1]
    loaded = yaml.safe_load(train_job_yaml([document], []))
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


# Layouts.


@given(st.integers(1, 8), st.integers(1, 8))
def test_a_layout_puts_every_rank_on_the_machine_that_the_cluster_says(num_nodes: int, devices_per_node: int) -> None:
    plan = placed(num_nodes, devices_per_node)
    layout = node_layout(plan)
    assert layout == NodeLayout(num_nodes=num_nodes, ranks_per_node=devices_per_node, gpus_per_node=0)
    assert all(rank // layout.ranks_per_node == plan.cluster.node_of(rank) for rank in range(plan.num_ranks))
    assert node_layout(plan, num_nodes) == layout


def test_a_plan_on_a_part_of_one_machine_takes_one_machine() -> None:
    assert node_layout(placed(4, 8, ranks=2)) == NodeLayout(num_nodes=1, ranks_per_node=2, gpus_per_node=0)


def test_machines_that_the_plan_was_not_made_for_are_refused_with_those_that_it_was() -> None:
    with pytest.raises(Mismatch, match=r"4 ranks of plan \w+ do not divide by 3 nodes; it was made for 2 nodes of .*, 2 devices each"):
        node_layout(placed(2, 2), 3)
    with pytest.raises(
        Mismatch, match=r"not for 4 nodes with 1 each: .*give --nnodes 2, or plan for a cluster TOML with topology.nodes = 4"
    ):
        node_layout(placed(2, 2), 4)
    with pytest.raises(Mismatch, match="not for 2 nodes with 2 each"):
        node_layout(placed(1, 4), 2)
    with pytest.raises(Mismatch, match=r"has 6 ranks for 2 nodes of .*, 4 devices each, not for 2 nodes with 3 each: .*; plan for"):
        node_layout(placed(2, 4, ranks=6))


# Kubernetes.


@pytest.mark.parametrize("kind", ["cpu", "A100-SXM4-80GB"])
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_a_train_job_keeps_to_the_published_schema(num_nodes: int, kind: str) -> None:
    plan = placed(num_nodes, 2, kind)
    FITS(job(plan))
    FITS(job(plan, claim="plans"))


def test_the_schema_catches_a_wrong_type_an_unknown_and_a_missing_field() -> None:
    good = job(placed(2, 2))
    text = json.dumps(good)
    for old, new, fault in (
        ('"numNodes": 2', '"numNodes": "2"', "data.spec.trainer.numNodes must be integer"),
        ('"numNodes": 2', '"nodes": 2', "data.spec.trainer must not contain {'nodes'} properties"),
        ('"name": "torch-distributed"', '"kind": "ClusterTrainingRuntime"', "data.spec.runtimeRef must contain ['name'] properties"),
        ('"manager": "regista.dev/deploy", ', "", "data.spec.runtimePatches[0] must contain ['manager'] properties"),
    ):
        assert old in text
        with pytest.raises(fastjsonschema.JsonSchemaValueException, match=re.escape(fault)):
            FITS(json.loads(text.replace(old, new)))


def test_a_train_job_asks_for_the_plans_machines_ranks_and_gpus() -> None:
    made = job(placed(3, 2, "A100-SXM4-80GB"))
    spec, about = made["spec"], made["metadata"]
    assert isinstance(spec, dict) and isinstance(about, dict)
    trainer = spec["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 2)
    assert trainer["resourcesPerNode"] == {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    assert "limits" not in job(placed(3, 2))["spec"]["trainer"]["resourcesPerNode"]  # type: ignore[index]
    assert re.search(r'--nnodes 3 --rdzv "\$PET_MASTER_ADDR:\$PET_MASTER_PORT" --node-rank "\$PET_NODE_RANK"$', trainer["command"][2])
    # The manifest names the secret of the launchers, and does not hold it.
    named = {"name": "REGISTA_SECRET", "valueFrom": {"secretKeyRef": {"name": about["name"], "key": "secret"}}}
    assert named in trainer["env"]
    # PET_ variables are the runtime's own; a job that sets them is refused by its webhook.
    assert not [entry for entry in trainer["env"] if entry["name"].startswith("PET_")]


def test_the_config_map_gives_the_plan_back_to_the_byte(command: Command, tmp_path: Path) -> None:
    source, out = tmp_path / "p.json", tmp_path / "job.yaml"
    assert command("plan", TINY, "--cluster", "local:2", "-o", source).code == 0
    ran = command("deploy", source, "--kind", "k8s", "--image", "x:1", "-o", out, "--json")
    assert ran.code == 0, ran.err
    config, job_ = yaml.safe_load_all(out.read_text())
    assert config["data"]["plan.json"] == source.read_text()
    (patch,) = job_["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    mounted = pod["containers"][0]["volumeMounts"][0]
    assert (mounted["name"], f"{mounted['mountPath']}/plan.json") == ("plan", "/plan/plan.json")
    assert "regista run /plan/plan.json" in job_["spec"]["trainer"]["command"][2]
    assert ran.json["text"] == out.read_text()


def test_a_plan_that_no_config_map_holds_needs_a_claim() -> None:
    plan = placed(2, 2)
    text, layout = " " * (MOST_PLAN_BYTES + 1), node_layout(plan)
    with pytest.raises(Unsupported, match=r"a ConfigMap holds .*--claim"):
        train_job(plan, text, layout, image="x:1", steps=1)
    (only,) = train_job(plan, text, layout, image="x:1", steps=1, claim="plans")
    assert only["kind"] == "TrainJob"


def test_deploy_refuses_options_that_its_kind_has_not(command: Command, tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    assert command("plan", TINY, "--cluster", "local:2", "-o", plan).code == 0
    for arguments, says in (
        (["--kind", "k8s"], "a TrainJob needs --image NAME"),
        (["--kind", "slurm", "--claim", "x"], "--claim names a volume of Kubernetes"),
        (["--kind", "slurm", "--nnodes", "2"], "not for 2 nodes with 1 each"),
        (["--kind", "slurm", "-o", plan], "the same command reads or writes that file"),
    ):
        ran = command("deploy", plan, *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err
    save_plan(replace(load_plan(str(plan)), model="a value of Python"), str(plan))
    assert "which no file holds" in command("deploy", plan, "--kind", "slurm").err


# Slurm.

SRUN = """#!/bin/bash
# srun without Slurm: one task per node, all on this host; the first to fail decides.
for word in "$@"; do
  case "$word" in --ntasks=*) tasks=${word#*=};; esac
done
while [[ "$1" == --* ]]; do shift; done
pids=()
for ((node = 0; node < tasks; node++)); do SLURM_NODEID=$node "$@" & pids+=($!); done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
[[ "$1 $2 $3" == "show hostnames node[0-1]" ]] || exit 1
printf '127.0.0.1\\nnode1\\n'
"""


@pytest.mark.parametrize("path", ["/data/plan.json", "/data/it's a plan; rm $HOME.json"])
@pytest.mark.parametrize("image", [None, "registry/a b:1"])
@pytest.mark.parametrize("kind", ["cpu", "A100-SXM4-80GB"])
def test_a_batch_script_is_valid_bash_and_asks_for_the_plans_machines(path: str, image: str | None, kind: str) -> None:
    plan = placed(3, 2, kind)
    text = sbatch_script(plan, path, node_layout(plan), steps=5, image=image)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
    assert (asked["nodes"], asked["ntasks-per-node"], asked["cpus-per-task"]) == ("3", "1", "2")
    assert asked.get("gpus-per-node") == (None if kind == "cpu" else "2")
    # Slurm stops reading its directives at the first command.
    assert max(text.index(line) for line in text.splitlines() if line.startswith("#SBATCH")) < text.index("set -euo pipefail")


def test_a_batch_script_hands_the_plans_path_to_every_launcher_whole(tmp_path: Path) -> None:
    plan, path = placed(2, 2), "/data/it's a plan; echo $HOME.json"
    (tmp_path / "regista").write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" > "$OUT/$SLURM_NODEID"\necho "$REGISTA_SECRET" > "$OUT/secret$SLURM_NODEID"\n'
    )
    ran = in_stub_slurm(sbatch_script(plan, path, node_layout(plan), steps=5), tmp_path, 7)
    assert ran.returncode == 0, ran.stderr
    for node in ("0", "1"):
        words = (tmp_path / node).read_text().splitlines()
        assert words[:3] == ["run", path, "--steps"]
        assert words[words.index("--rdzv") + 1] == "127.0.0.1:20007"
        assert words[words.index("--node-rank") + 1] == node
        assert words[words.index("--run-id") + 1] == "slurm-7"
    # One secret for both, in no command line.
    said = {(tmp_path / f"secret{node}").read_text().strip() for node in (0, 1)}
    assert len(said) == 1 and re.fullmatch("[0-9a-f]{64}", secret := said.pop())
    assert secret not in (tmp_path / "0").read_text()


def in_stub_slurm(script: str, folder: Path, job_id: int, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a batch script with srun and scontrol of our own first in PATH."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
    for name in ("srun", "scontrol", "regista"):
        if (folder / name).exists():
            (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": str(job_id), "OUT": str(folder)}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True, capture_output=True, timeout=timeout_s)


TWO_NODES = """schema = 1
name = "two"
source = "tests"
[device]
kind = "cpu"
memory_GB = 4.0
compute_GFLOPs = 90.0
memory_bandwidth_GBps = 10.0
[topology]
nodes = 2
devices_per_node = 1
[links.node]
latency_us = 200.0
bandwidth_GBps = 1.2
[links.nic]
latency_us = 300.0
bandwidth_GBps = 1.0
"""


@pytest.mark.thorough
@pytest.mark.processes
def test_a_batch_script_trains_on_two_nodes_and_leaves_one_lawful_trace(command: Command, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO_NODES)
    plan, script = tmp_path / "plan.json", tmp_path / "job.sbatch"
    assert command("plan", TINY, "--cluster", tmp_path / "two.toml", "-o", plan).code == 0
    assert command("deploy", plan, "--kind", "slurm", "--steps", "4", "-o", script).code == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1] - 20000  # the script's port is 20000 + the job's number
    assert 0 <= number < 45536
    text = script.read_text().replace("% 20000", "% 45536")
    ran = in_stub_slurm(text, tmp_path, number)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "predicted against" in ran.stdout
    assert "the ranks of this host have done 4 steps" in ran.stdout
    placed, trace = load_trace(str(tmp_path / f"trace-{number}.json"))
    check_trace(placed, trace, slack_s=float(trace.about["clock_slack_s"]))
    assert (placed.num_ranks, trace.about["hosts"], len(trace.losses)) == (2, "2", 4)


# --- a sweep as a job --------------------------------------------------------------------------------------------------

MANIFEST = """
claim = "none"
source = "tests"
[model]
name = "zoo:mlp"
batch = [8, 16]
[cluster]
name = "dgx-a100:1"
[plan]
stages = 1
mesh = "8"
"""

SAYS = '#!/bin/bash\nprintf "%s\\n" "$(basename "$0")" "$@" > "$OUT/$(basename "$0")-$1.words"\n'


def test_a_sweep_on_one_node_is_one_command(command: Command, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MANIFEST)
    ran = command("deploy", tmp_path / "m.toml", "--sweep", "--kind", "slurm", "--processes", "16")
    assert ran.code == 0 and "#SBATCH --cpus-per-task=16" in ran.out and ran.out.endswith('srun regista sweep "$manifest" --jobs 16\n')


@pytest.mark.thorough
def test_a_sweep_on_several_nodes_has_a_scheduler_workers_and_one_writer(command: Command, tmp_path: Path) -> None:
    manifest, script = tmp_path / "it's a manifest.toml", tmp_path / "job.sbatch"
    manifest.write_text(MANIFEST)
    assert command("deploy", manifest, "--sweep", "--kind", "slurm", "--nnodes", "2", "-o", script).code == 0
    for name in ("dask", "regista"):
        (tmp_path / name).write_text(SAYS + ("sleep 20\n" if name == "dask" else "sleep 1\n"))
        (tmp_path / name).chmod(0o755)
    ran = in_stub_slurm(script.read_text(), tmp_path, 7)
    assert ran.returncode == 0, ran.stderr
    host = socket.gethostname()
    assert (tmp_path / "regista-sweep.words").read_text().split("\n")[1:5] == ["sweep", str(manifest), "--on", f"dask://{host}:20007"]
    assert f"tcp://{host}:20007" in (tmp_path / "dask-worker.words").read_text()
    assert "20007" in (tmp_path / "dask-scheduler.words").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sweep", "--kind", "k8s", "--image", "x"], "as a Slurm script alone"),
        (["--sweep", "--kind", "slurm", "--claim", "x"], "as a Slurm script alone"),
        (["--kind", "slurm", "--processes", "4"], "--processes belongs to --sweep"),
    ],
)
def test_options_that_a_sweep_has_no_place_for_are_refused(command: Command, tmp_path: Path, options: list[str], says: str) -> None:
    (tmp_path / "m.toml").write_text(MANIFEST)
    ran = command("deploy", tmp_path / "m.toml", *options)
    assert ran.code == 2 and says in ran.err


def test_points_that_are_run_are_one_process_on_one_node(command: Command, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('performer = "run"\n' + MANIFEST.replace("dgx-a100:1", "local:2").replace('"8"', '"2"'))
    assert "--jobs 1\n" in command("deploy", tmp_path / "m.toml", "--sweep", "--kind", "slurm").out
    ran = command("deploy", tmp_path / "m.toml", "--sweep", "--kind", "slurm", "--nnodes", "2")
    assert ran.code == 2 and "one after the other on one machine" in ran.err
