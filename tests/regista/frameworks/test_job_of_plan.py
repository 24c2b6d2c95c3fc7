"""A Plan's settings for other frameworks: read again they are the job of the Plan, and what a framework cannot say is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, commands
from matrix import read_plan

from planner.ir.errors import Unsupported
from planner.ir.files import save_plan
from planner.ir.sbp import NdSbp, Split
from regista.frameworks import job_for, planned_job
from regista.jobs.formats import Asked, Form, flags_text, read_framework, write_flags
from regista.jobs.job import Layout, Precision, Recompute

GPT = "zoo:gpt?layers=2&width=32&heads=4&vocab=64&batch=8&seq=16"
LLAMA = "zoo:llama3?layers=2&width=32&heads=4&kv_heads=2&hidden=64&vocab=64&batch=8&seq=16"

LAYOUTS = {
    "data2": {"dp": 2},
    "sequence2": {"tp": 2, "sequence_parallel": True},
    "data2_tensor2": {"dp": 2, "tp": 2},
    "pipeline2": {"pp": 2},
    "pipeline2_data2": {"pp": 2, "dp": 2},
    "pipeline2_data2_tensor2": {"pp": 2, "dp": 4, "fsdp": 2},  # weights of so small a model are gathered along the second axis
    "zero3": {"dp": 2, "fsdp": 2},
}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.mark.parametrize("way", list(LAYOUTS))
def test_degrees_are_those_of_the_plan(way: str) -> None:
    plan = read_plan("gpt", way, "fp32")
    layout = planned_job(plan, GPT).job.layout
    wanted = {"tp": 1, "pp": 1, "dp": 1, "cp": 1, "fsdp": 1, "sequence_parallel": False} | LAYOUTS[way]
    assert {key: getattr(layout, key) for key in wanted} == wanted
    assert layout.devices == plan.num_ranks and layout.micro_batches == plan.micro_batches and layout.global_batch == plan.batch_size


@pytest.mark.parametrize("way", ["data2", "data2_tensor2", "pipeline2_data2", "zero1", "recompute_data2", "sequence2"])
def test_megatrons_arguments_are_read_again_as_the_same_job(way: str) -> None:
    plan = read_plan("gpt", way, "fp32")
    job = job_for(Form.MEGATRON, planned_job(plan, GPT).job)
    written = write_flags(job, Form.MEGATRON, "dgx-h100:1")
    assert written.lost == ()
    again = read_framework(flags_text(written, job, Form.MEGATRON), Asked(cluster="dgx-h100:1")).job
    degrees = [name for name in Layout.__dataclass_fields__ if name != "dp"]
    assert {name: getattr(again.layout, name) for name in degrees} == {name: getattr(job.layout, name) for name in degrees}
    assert (again.running.precision, again.running.recompute) == (job.running.precision, job.running.recompute)
    assert (again.model.layers, again.model.hidden, again.model.heads) == (2, 32, 4)


def test_recomputation_and_zero_become_settings() -> None:
    blocks, state = (
        planned_job(read_plan("gpt", "recompute_data2", "fp32"), GPT).job,
        planned_job(read_plan("gpt", "zero1", "fp32"), GPT).job,
    )
    assert blocks.running.recompute is Recompute.FULL and blocks.running.precision is Precision.FP32
    assert write_flags(job_for(Form.MEGATRON, state), Form.MEGATRON, "x").flags["use-distributed-optimizer"] is True
    assert write_flags(job_for(Form.DEEPSPEED, state), Form.DEEPSPEED, "x").flags["zero_optimization.stage"] == 1


@pytest.mark.parametrize(
    ("model", "way", "dtype", "says"),
    [
        ("gpt", "zb_h1", "fp32", "schedule zb-h1: settings are written for 1f1b and interleaved"),
        ("gpt", "interleaved2", "fp32", "a layer is cut in its midst, and frameworks cut between"),
        ("gpt", "data2", "bf16", "parameters in bfloat16 without float32 copies"),
    ],
)
def test_what_no_framework_has_is_refused_by_name(model: str, way: str, dtype: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        planned_job(read_plan(model, way, dtype), GPT)


def test_a_matrix_that_is_cut_otherwise_is_named() -> None:
    plan = read_plan("gpt", "data2_tensor2", "fp32")
    state = next(state for state in plan.states if state.name == "h.0.attn.q.weight")
    regst = plan.regst[state.regst]
    tensors = [replace(t, sbp=NdSbp((t.sbp[0], Split(1)))) if index == state.index else t for index, t in enumerate(regst.tensors)]
    other = replace(plan, regsts=tuple(replace(r, tensors=tuple(tensors)) if r.id == regst.id else r for r in plan.regsts))
    with pytest.raises(Unsupported, match=r"h\.0\.attn\.q\.weight S\(1\) in place of S\(0\)"):
        planned_job(other, GPT)


def test_parameters_that_lie_split_over_some_of_the_replicas_are_refused() -> None:
    job = job_for(Form.MEGATRON, planned_job(read_plan("gpt", "pipeline2_data2_tensor2", "fp32"), GPT).job)
    assert "parameters split over 2 of 4 replicas" in write_flags(job, Form.MEGATRON, "x").lost[0]


def test_a_model_without_numbers_is_refused_with_the_way_out() -> None:
    with pytest.raises(Unsupported, match="name one with --model"):
        planned_job(read_plan("convnet", "data2", "fp32"))


def test_the_command_writes_settings_and_names_what_lies_otherwise(command: Command, tmp_path: Path) -> None:
    save_plan(read_plan("gpt", "data2_tensor2", "fp32"), tmp_path / "p.json")
    done = command("export", tmp_path / "p.json", "--to", "megatron", "--model", GPT, "-o", tmp_path / "flags.txt")
    assert done.code == 0 and "tensor 2, context 1, pipeline 1, data 2" in done.out
    assert "wte.weight: B in the plan, S(0) in the frameworks" in done.out
    assert "--tensor-model-parallel-size 2" in (tmp_path / "flags.txt").read_text()
    lost = command("export", tmp_path / "p.json", "--to", "deepspeed", "--model", GPT, "-o", tmp_path / "ds.json")
    assert lost.code == 2 and "the JSON says data parallel alone" in lost.err and not (tmp_path / "ds.json").exists()
    none = command("export", tmp_path / "p.json", "--to", "dtensor", "--model", GPT, "-o", tmp_path / "d.csv")
    assert none.code == 2 and "--model goes with --to torch" in none.err


def test_llamas_numbers_come_from_its_name() -> None:
    job = planned_job(read_plan("llama3", "data2", "fp32"), LLAMA).job
    assert (job.model.kv_heads, job.model.ffn, job.model.gated, job.model.tied) == (2, 64, True, False)


def test_torchtitans_settings_are_read_again_as_the_same_layout(tmp_path: Path) -> None:
    plan = read_plan("llama3", "data2", "fp32")
    job = planned_job(plan, "zoo:llama3?batch=8&seq=16").job  # with the numbers of a flavor that torchtitan has
    eight = replace(job, layout=replace(job.layout, dp=8, fsdp=8, micro_batch=1))
    titan = job_for(Form.TORCHTITAN, eight)
    written = write_flags(titan, Form.TORCHTITAN, "x")
    assert written.lost == () and written.flags["model.flavor"] == "8B"
    (tmp_path / "job.toml").write_text(flags_text(written, titan, Form.TORCHTITAN))
    again = read_framework(str(tmp_path / "job.toml"), Asked(cluster="dgx-h100:1")).job.layout
    assert (again.dp, again.fsdp, again.tp, again.pp, again.micro_batch) == (8, 8, 1, 1, 1)
    with pytest.raises(Unsupported, match="torchtitan gathers them once per step there"):
        job_for(Form.TORCHTITAN, replace(eight, layout=replace(eight.layout, pp=2)))
