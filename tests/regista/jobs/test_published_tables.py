"""Readers of Megatron-Bridge's and Sailor's tables: what a row does not say is what its framework does, and what cannot be predicted is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.readers.bridge import bridge_job
from regista.jobs.readers.sailor import sailor_job
from regista.jobs.recipes import Recipe

PAPER = Path(__file__).parents[3] / "experiments/paper_numbers"


def _row(name: str, **cells: str) -> dict[str, str]:
    with (PAPER / name).open(newline="", encoding="utf-8") as file:
        return next(row for row in csv.DictReader(file) if all(row[key].startswith(value) for key, value in cells.items()))


BRIDGE = _row("megatron_bridge_performance_summary.csv", model="LLAMA3.1_405B", precision="MXFP8")
SAILOR = _row("sailor_validation.csv", model="GPT-NEO", gpus="64")


def test_a_row_of_megatron_bridge_is_the_job_of_its_recipe() -> None:
    job = bridge_job(BRIDGE)
    assert (job.machine, job.devices, job.layout.tp, job.layout.pp, job.layout.cp, job.layout.vp, job.layout.dp) == (
        "gb300",
        256,
        2,
        8,
        2,
        4,
        8,
    )
    assert (job.running.precision, job.running.recipe) == (Precision.FP8, Recipe.MX)
    assert job.layout.sequence_parallel and job.running.overlap_tp
    assert (job.model.layers, job.model.seq) == (126, 8192)


@pytest.mark.parametrize(
    ("model", "system", "container", "knobs"),
    [
        ("Qwen3_30B_a3B", "DGX-GB300", "26.04.01 NeMo Container", "graphs host_experts expert_once"),
        ("Qwen3_30B_a3B", "DGX-GB300", "26.08 NeMo Container", "graphs fused_experts expert_once overlap_experts"),
        ("DeepSeekV3", "DGX-GB200", "", "graphs fused_experts expert_once overlap_experts"),
        ("DeepSeekV3", "DGX-B200", "26.04.01 NeMo Container", "graphs host_experts expert_once overlap_experts"),
        ("Qwen3_235B_a22B", "DGX-B300", "26.02 NeMo Container", ""),
        ("Qwen3_235B_a22B", "DGX-B300", "26.04 NeMo Container", "expert_once"),
        ("GPT OSS 120B", "DGX-B300", "26.06 NeMo Container", "graphs host_experts fused_experts expert_once overlap_experts"),
        ("GPT OSS 120B", "DGX-B200", "26.06 NeMo Container", ""),
        ("Nemotron_3_Nano", "DGX-H100", "26.06 NeMo Container", "expert_once"),
    ],
)
def test_a_mixture_of_experts_has_the_knobs_of_its_release_of_the_recipe(model: str, system: str, container: str, knobs: str) -> None:
    given = BRIDGE | {"model": model, "system": system, "container": container, "tp": "1", "pp": "1", "cp": "1", "vp": "", "ep": "8"}
    run = bridge_job(given).running
    assert [
        name for name in ("graphs", "host_experts", "fused_experts", "expert_once", "overlap_experts") if getattr(run, name)
    ] == knobs.split()


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"model": "Mamba9"}, "model 'Mamba9' is not predicted"),
        ({"system": "DGX-X9"}, "system 'DGX-X9' is unknown"),
        ({"precision": "INT2"}, "precision 'INT2' is unknown"),
        ({"tp": "0"}, "each is at least 1"),
        ({"gbs": ""}, "gbs is empty"),
    ],
)
def test_a_row_of_megatron_bridge_that_cannot_be_predicted_is_refused_with_its_knob(cells: dict[str, str], says: str) -> None:
    with pytest.raises((InvalidFile, Unsupported), match=says):
        bridge_job(BRIDGE | cells)


def test_a_row_of_sailor_has_its_layers_per_stage_without_embedding_and_head() -> None:
    job = sailor_job(SAILOR)
    assert (job.machine, job.devices, job.layout.tp, job.layout.pp, job.layout.dp) == ("gh200", 64, 4, 4, 4)
    assert job.layout.layers_of_chunks == (6, 9, 9, 8)
    assert job.model.layers == 32


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"gpu_types": "RTX-2080+RTX-3090"}, "one kind of device"),
        ({"model": "GPT-9"}, "model 'GPT-9' is unknown"),
        ({"layers_per_stage": "[[0], [1]"}, "a JSON list of 4 lists"),
        ({"layers_per_stage": '[["a"], [1], [2], [3]]'}, "whole numbers"),
        ({"tp_per_stage": "[[4], [2], [4], [4]]"}, "stages and replicas of one shape"),
    ],
)
def test_a_row_of_sailor_that_cannot_be_predicted_is_refused_with_its_knob(cells: dict[str, str], says: str) -> None:
    with pytest.raises((InvalidFile, Unsupported), match=says):
        sailor_job(SAILOR | cells)


def test_attention_kernel_by_kernel_takes_longer_than_products_and_one_softmax_and_that_longer_than_one_kernel() -> None:
    model = Model(name="gpt", layers=2, hidden=1024, ffn=4096, heads=16, kv_heads=16, head_dim=64, vocab=50_257, seq=2048)
    one = Job(name="", machine="gh200", devices=1, model=model, layout=Layout(), running=Running(precision=Precision.FP16, dropout=True))
    ways = [replace(one, running=replace(one.running, attention=way)) for way in (Attention.FUSED, Attention.UNFUSED, Attention.STEPWISE)]
    seconds = [predict(job).step_s for job in ways]
    assert seconds == sorted(seconds) and seconds[0] < seconds[1] < seconds[2]


def test_buckets_in_which_gradients_travel_are_held_beside_everything_else() -> None:
    job, machine = sailor_job(SAILOR), load_machine("gh200")
    bare = replace(job, running=replace(job.running, bucket_bytes=0))
    with_buckets, without = (stage_memory(j, machine, schedule_of(j), 0).peak_bytes for j in (job, bare))
    assert with_buckets - without == job.running.bucket_bytes == 2 * 10**9
