"""torchtitan's and DeepSpeed's settings: their own files are read as their documentation has it, and a job is read back as itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.families import family
from regista.jobs.formats import Asked, Form, Reading, flags_text, read_framework, write_flags
from regista.jobs.formats.canonical import differences
from regista.jobs.formats.deepspeed.hugging_face import model_of_config
from regista.jobs.formats.torchtitan.models import known, model_of, stage_layers
from regista.jobs.job import Job, Layout, Precision, Recompute, Running
from regista.jobs.recipes import Recipe

AT = Asked(cluster="dgx-h100:8")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
CONFIG = """
[job]
description = "Llama 3 405B"
[model]
name = "llama3"
flavor = "405B"
converters = "float8"
[optimizer]
name = "AdamW"
lr = 8e-5
[training]
batch_size = 2
seq_len = 8192
compile = true
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = 'full'
[float8]
enable_fsdp_float8_all_gather = true
filter_fqns = "output"
"""


def job(run: Running | None = None, model: str = "llama3.1-70b", **layout: object) -> Job:
    at = Layout(**({"tp": 4, "dp": 16, "fsdp": 16, "global_batch": 64, "sequence_parallel": True} | layout))  # type: ignore[arg-type]
    own = run or Running(master_bytes=2, overlap_grad=True, overlap_param=True, overlap_p2p=at.pp > 1, distributed_optimizer=at.pp > 1)
    return Job(name="job", machine="h100", devices=at.devices, model=family(model), layout=at, running=own)


def through(one: Job, form: Form, folder: Path) -> Reading:
    """The job written in a form and read again."""
    path = folder / ("job.toml" if form is Form.TORCHTITAN else "ds.json")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    path.write_text(flags_text(write_flags(one, form, ""), one, form))
    return read_framework(str(path), AT)


TITAN = Running(master_bytes=2, overlap_grad=True, overlap_param=True)
JOBS = {
    "fsdp": job(),
    "hsdp": job(fsdp=8),
    "replicas": job(TITAN.__class__(master_bytes=2, overlap_grad=True), "llama3.1-8b", tp=1, dp=64, fsdp=1, sequence_parallel=False),
    "context": job(tp=1, cp=4, dp=16, fsdp=64, sequence_parallel=False),
    "pipeline": job(pp=4, dp=4, fsdp=1, layers_of_chunks=stage_layers(80, 4)),
    "interleaved": job(pp=4, dp=4, vp=2, fsdp=1, layers_of_chunks=stage_layers(80, 8)),
    "chunks": job(pp=4, dp=4, vp=5, fsdp=1, layers_of_chunks=(4,) * 20),
    "uneven": job(pp=2, dp=8, fsdp=1, micro_batch=2, layers_of_chunks=(41, 39)),
    "experts": job(None, "qwen3-30b-a3b", tp=1, dp=64, fsdp=64, ep=8, sequence_parallel=False),
    "full": job(replace(TITAN, recompute=Recompute.FULL)),
    "every other": job(replace(TITAN, recompute=Recompute.FULL, recompute_layers=40)),
    "selective": job(replace(TITAN, recompute=Recompute.DOTS)),
    "float8": job(replace(TITAN, precision=Precision.FP8, recipe=Recipe.TENSORWISE, low_params=True, overlap_tp=True)),
    "rowwise": job(replace(TITAN, precision=Precision.FP8, recipe=Recipe.ROWWISE)),
    "all in bfloat16": job(replace(TITAN, grad_bytes=2, master_bytes=0, moment_bytes=4)),
    "dropout": job(replace(TITAN, dropout=True)),
    "zero 1": job(replace(TITAN, distributed_optimizer=True), fsdp=1),
    "recompute qkv": job(replace(TITAN, recompute=Recompute.QKV)),
}


@pytest.mark.parametrize("name", list(JOBS))
def test_a_job_is_written_as_torchtitans_settings_and_read_back_as_itself(name: str, tmp_path: Path) -> None:
    one = JOBS[name]
    lost = write_flags(one, Form.TORCHTITAN, "").lost
    assert bool(lost) is (name in ("dropout", "zero 1", "recompute qkv"))
    assert (differences(one, through(one, Form.TORCHTITAN, tmp_path).job) == ()) is not bool(lost)


@pytest.mark.parametrize("config", list(known()["configs"]))
def test_each_of_torchtitans_own_llamas_goes_out_as_it_came_in(config: str, tmp_path: Path) -> None:
    read = read_framework(f"--module llama3 --config {config}", AT)
    written = write_flags(read.job, Form.TORCHTITAN, "")
    assert written.lost == () and read.unmapped == ()
    assert differences(read.job, through(read.job, Form.TORCHTITAN, tmp_path).job) == ()
    assert all(str(written.flags.get(name, value)) == str(value) for name, value in read.flags.items())


def test_a_toml_of_torchtitan_is_read_as_its_documentation_has_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(CONFIG)
    read = read_framework(str(tmp_path / "job.toml"), AT)
    at, run = read.job.layout, read.job.running
    assert (at.tp, at.dp, at.fsdp, at.micro_batch, at.global_batch, at.sequence_parallel) == (8, 8, 8, 2, 16, True)
    assert (run.precision, run.recipe, run.low_params, run.recompute, run.overlap_tp) == (
        Precision.FP8,
        Recipe.TENSORWISE,
        True,
        Recompute.FULL,
        True,
    )
    assert replace(read.job.model, name="") == replace(family("llama3.1-405b"), name="", seq=8192)
    assert read.unmapped == ("training.compile", "float8.filter_fqns")
    assert read.without_effect == ("job.description", "optimizer.lr")


def test_a_flavor_of_torchtitan_is_the_family_of_that_size() -> None:
    for name, flavor, own in (
        ("llama3", "8B", "llama3.1-8b"),
        ("deepseek_v3", "671B", "deepseek-v3"),
        ("qwen3", "235B-A22B", "qwen3-235b-a22b"),
    ):
        assert replace(model_of(name, flavor, 4096), name="") == replace(family(own), name="", seq=4096)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "tensor_parallel_degree = 8",
            "tensor_paralel_degree = 8",
            r"unknown: parallelism.tensor_paralel_degree \(did you mean parallelism.tensor_parallel_degree",
        ),
        ("tensor_parallel_degree = 8", "tensor_parallel_degree = 3", "does not divide the 64 devices"),
        ("data_parallel_shard_degree = -1", "data_parallel_shard_degree = 4", "= 32 is not the 64 devices; -1 takes all"),
        ('flavor = "405B"', 'flavor = "404B"', "'404B' is not predicted; known are llama3: debugmodel"),
        ('converters = "float8"', 'converters = "float8,mx"', "contradict each other"),
        ('converters = "float8"', 'converters = "int3"', "'int3'. are not predicted"),
        ("batch_size = 2", "batch_size = 2\nlocal_batch_size = 2", "one setting of two releases"),
        ("mode = 'full'", "mode = 'memory_budget'", "'memory_budget' is not predicted"),
        ("mode = 'full'", "mode = 'selective'\nselective_ac_option = 'mm'", "'op' or a whole number"),
        (
            "tensor_parallel_degree = 8",
            "pipeline_parallel_degree = 8\npipeline_parallel_schedule = 'ZBVZeroBubble'",
            "'ZBVZeroBubble' is not predicted",
        ),
    ],
)
def test_settings_of_torchtitan_that_cannot_be_are_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in CONFIG
    (tmp_path / "job.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises((InvalidFile, Unsupported), match=says):
        read_framework(str(tmp_path / "job.toml"), AT)


PYTHON = """
from torchtitan.trainer import Trainer
raise SystemExit("this file is executed")

def llama3_70b() -> Trainer.Config:
    model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(recipe_name="rowwise", emulate=False)])
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        model_spec=model_spec,
        optimizer=default_adamw(lr=1.5e-4),
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )

def small_batch() -> Trainer.Config:
    config = llama3_70b()
    config.training.local_batch_size = 1
    config.activation_checkpoint = SelectiveAC.Config()
    return config

old = JobConfig(model=Model(name="llama3", flavor="8B"), training=Training(seq_len=4096), activation_checkpoint=ActivationCheckpoint(mode="none"))
"""


def test_a_configuration_in_python_is_read_without_being_executed(tmp_path: Path) -> None:
    (tmp_path / "llama3").mkdir()
    path = tmp_path / "llama3/config_registry.py"
    path.write_text(PYTHON)
    read = {name: read_framework(f"{path}:{name}", AT) for name in ("llama3_70b", "small_batch", "old")}
    big, small, old = (read[name].job for name in read)
    assert (big.layout.tp, big.layout.micro_batch, big.running.recompute, big.running.recipe) == (8, 8, Recompute.FULL, Recipe.ROWWISE)
    assert replace(big.model, name="") == replace(family("llama3.1-70b"), name="", seq=8192)
    assert (small.layout.tp, small.layout.micro_batch, small.running.recompute) == (8, 1, Recompute.DOTS)
    assert (old.model.seq, old.layout.fsdp, old.running.recompute) == (4096, 64, Recompute.NONE)
    assert read["llama3_70b"].unmapped == ("loss",)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (PYTHON, "", r"no name is given; it has llama3_70b, small_batch, old: write .*:NAME"),
        (PYTHON, ":llama4", "it has no 'llama4'"),
        ("def f(:", "", "not readable as Python"),
        ("x = " + "(" * 500 + ")" * 500, "", "not readable as Python"),
        ("def f():\n    return 3\n", "", "f makes no Trainer.Config or JobConfig that can be read without executing it"),
        ("", "", "it has no configuration"),
    ],
)
def test_python_that_is_no_configuration_is_refused(tmp_path: Path, text: str, name: str, says: str) -> None:
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(InvalidFile, match=says):
        read_framework(f"{tmp_path / 'config.py'}{name}", AT)


ZERO = {
    "0": job(Running(grad_bytes=2), "llama3.1-8b", tp=1, dp=64, fsdp=1, sequence_parallel=False),
    "1": job(
        Running(distributed_optimizer=True, overlap_grad=True, bucket_bytes=400_000_000),
        "llama3.1-8b",
        tp=1,
        dp=64,
        fsdp=1,
        sequence_parallel=False,
    ),
    "3": job(
        Running(overlap_grad=True, overlap_param=True, recompute=Recompute.FULL),
        "llama3.1-8b",
        tp=1,
        dp=64,
        fsdp=64,
        direct_gather=True,
        sequence_parallel=False,
    ),
}


@pytest.mark.parametrize("zero", list(ZERO))
def test_a_job_is_written_as_deepspeeds_settings_and_read_back_as_itself(zero: str, tmp_path: Path) -> None:
    assert write_flags(ZERO[zero], Form.DEEPSPEED, "").lost == ()
    assert differences(ZERO[zero], through(ZERO[zero], Form.DEEPSPEED, tmp_path).job) == ()
    assert write_flags(job(), Form.DEEPSPEED, "").lost != ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"train_batch_size": 100},
            "train_batch_size 100 is not train_micro_batch_size_per_gpu 1 x gradient_accumulation_steps 2 x 64 devices",
        ),
        ({"train_batch_size": "auto"}, "'auto' is filled in by the trainer"),
        ({"fp16": {"enabled": True}}, "bf16.enabled and fp16.enabled contradict"),
        ({"zero_optimisation": {"stage": 3}}, r"unknown: zero_optimisation.stage \(did you mean zero_optimization.stage"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage '4' is not predicted; known are 0, 1, 2, 3"),
        ({"optimizer": {"type": "OneBitAdam"}}, "Adam and AdamW are predicted"),
    ],
)
def test_settings_of_deepspeed_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    given = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}} | settings
    (tmp_path / "ds.json").write_text(json.dumps(given))
    with pytest.raises((InvalidFile, Unsupported), match=says):
        read_framework(str(tmp_path / "ds.json"), AT)


def test_a_deepspeed_job_without_its_model_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    with pytest.raises(InvalidFile, match=r"no such file; put the model's config\.json beside DeepSpeed's JSON, or give --family NAME"):
        read_framework(str(tmp_path / "ds.json"), AT)


def test_a_hugging_face_config_is_the_model_of_that_name() -> None:
    assert replace(model_of_config(LLAMA), name="") == replace(family("llama3.1-8b"), name="")
    assert (
        model_of_config({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}).ffn
        == 3072
    )
    with pytest.raises(Unsupported, match="model_type 'mamba' is not predicted"):
        model_of_config({"model_type": "mamba"})
