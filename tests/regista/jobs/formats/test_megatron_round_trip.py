"""Megatron's settings: a job is written as flags and read back as the same job; what flags cannot say, or are not mapped to, is named."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from planner.ir.errors import RegistaError, Unsupported
from regista.jobs.families import family
from regista.jobs.formats import Asked, Form, Reading, flags_text, read_framework, write_flags
from regista.jobs.formats.canonical import differences
from regista.jobs.formats.megatron.layout_text import layers_of_layout, layout_of_layers
from regista.jobs.job import Attention, Job, Layout, Precision, Recompute, Running
from regista.jobs.readers import read_jobs
from regista.jobs.recipes import Recipe

PAPER = Path(__file__).parents[4] / "experiments/paper_numbers"
FORMS = (Form.MEGATRON, Form.MEGATRON_YAML, Form.BRIDGE, Form.NEMO, Form.REGISTA)
FILES = {
    Form.MEGATRON: "job.sh",
    Form.MEGATRON_YAML: "gpt/case/model_config.yaml",
    Form.BRIDGE: "recipe.yaml",
    Form.NEMO: "nemo.yaml",
    Form.REGISTA: "job.toml",
}
CLUSTER = "dgx-h100:8"


def job(model: str = "llama3.1-70b", run: Running | None = None, **layout: object) -> Job:
    given = {"tp": 4, "pp": 4, "dp": 4, "vp": 5, "micro_batch": 1, "global_batch": 128, "sequence_parallel": True} | layout
    at = Layout(**given)  # type: ignore[arg-type]
    own = run or Running(distributed_optimizer=True, overlap_grad=True, overlap_param=True, overlap_p2p=True)
    return Job(name="job", machine="h100", devices=at.devices, model=family(model), layout=at, running=own)


def through(one: Job, form: Form, folder: Path) -> Reading:
    """The job written in a form and read again."""
    path = folder / FILES[form]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(flags_text(write_flags(one, form, CLUSTER), one, form))
    return read_framework(str(path), Asked(cluster=CLUSTER))


JOBS = {
    "interleaved": job(),
    "layers": job("llama3.1-405b", pp=8, vp=1, dp=2, layers_of_chunks=(15, *[16] * 6, 15)),
    "accounted": job("llama3.1-405b", pp=4, vp=8, global_batch=64),
    "experts": job("qwen3-235b-a22b", tp=2, pp=1, vp=1, dp=32, ep=32, etp=1),
    "latent": job("deepseek-v3", tp=1, pp=8, vp=1, dp=8, ep=8, layers_of_chunks=(7, *[8] * 6, 6)),
    "fsdp": job("llama3.1-8b", tp=1, pp=1, vp=1, dp=64, fsdp=64, sequence_parallel=False),
    "context": job(cp=2, dp=2, run=Running(recompute=Recompute.FULL, recompute_layers=2)),
}
RUNS = {
    "fp8": Running(precision=Precision.FP8, recipe=Recipe.TENSORWISE, low_params=True, overlap_tp=True),
    "nvfp4": Running(precision=Precision.NVFP4, recipe=Recipe.NVFP4, fused_loss=True),
    "fp16": Running(precision=Precision.FP16, attention=Attention.UNFUSED, dropout=True, recompute=Recompute.SELECTIVE),
    "small optimizer": Running(grad_bytes=2, master_bytes=2, moment_bytes=4, distributed_optimizer=True, overlap_p2p=True),
    "graphs": Running(graphs=True, deferred_wgrad=22, attention=Attention.FLASH, recompute=Recompute.FULL),
}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name.lower())
@pytest.mark.parametrize("one", [*JOBS.values(), *(job(run=run) for run in RUNS.values())], ids=[*JOBS, *RUNS])
def test_a_job_is_written_and_read_back_as_itself(one: Job, form: Form, tmp_path: Path) -> None:
    lost = write_flags(one, form, CLUSTER).lost
    try:
        changed = differences(one, through(one, form, tmp_path).job)
    except RegistaError as error:
        changed = (str(error),)
    assert (changed == ()) is not bool(lost), changed


def test_what_megatron_cannot_say_is_named() -> None:
    run = Running(jax=True, frozen=True, recompute=Recompute.QKV, moment_bytes=6, attention=Attention.STEPWISE)
    lost = " ".join(write_flags(job(run=run), Form.MEGATRON, CLUSTER).lost)
    for word in ("XLA", "adapters", "recompute qkv", "6 bytes of moments", "stepwise"):
        assert word in lost


def _golden(step: int) -> list[Job]:
    entries = (entry.job for entry in read_jobs(PAPER / "megatron_ci_golden_values.csv"))
    return [one for one in islice(entries, 0, None, step) if not isinstance(one, RegistaError)]


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.thorough)])
def test_each_of_megatrons_tests_is_written_as_its_own_yaml_and_read_back_as_itself(step: int, tmp_path: Path) -> None:
    kinds = {"t5": "t5", "bert": "bert"}
    for number, one in enumerate(_golden(step)):
        written = write_flags(one, Form.MEGATRON_YAML, CLUSTER)
        kind = one.name.split("/")[0]
        path = tmp_path / kinds.get(kind, "gpt") / str(number) / "model_config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(flags_text(written, one, Form.MEGATRON_YAML))
        back = read_framework(str(path), Asked(cluster=f"gh200:{one.devices // 4}"))
        assert written.lost == ()
        assert differences(replace(one, machine="gh200"), back.job) == (), one.name


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Ett|tt|tt|ttL", (2, 2, 2, 2)),
        ("E|(t|)*3,L", (0, 1, 1, 1, 0)),
        ("Et*3|(tt|)*2mL", (3, 2, 2, 0)),
        ("E(tt|t)*2L", (2, 3, 1)),
        ("EtttL", (3,)),
        (r"Et*3\|\(tt\|\)*2mL", (3, 2, 2, 0)),
    ],
)
def test_a_pipeline_layout_says_the_layers_of_each_chunk(text: str, layers: tuple[int, ...]) -> None:
    assert layers_of_layout(text) == layers
    assert layers_of_layout(layout_of_layers(layers)) == layers


def test_flags_are_mapped_without_effect_or_named(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py \\\n  --num-layers 4 --hidden-size 1024 --num-attention-heads 16 \\\n"
        "  --seq-length=2048 --bf16 --lr 3e-4 --save /data/out --qk-layernorm --moe-token-dispatcher-type alltoall --our-own 3  # tests\n"
    )
    read = read_framework(str(tmp_path / "run.sh"), Asked(cluster="dgx-h100:1", ignored=("our-own",)))
    assert (read.job.model.layers, read.job.model.seq, read.job.layout.dp, read.job.running.precision) == (4, 2048, 8, Precision.BF16)
    assert read.unmapped == ("--qk-layernorm", "--moe-token-dispatcher-type", "--our-own")
    assert read.without_effect == ("--lr", "--save")
    assert len(read.assumed) == 2 and read.job.running.dropout  # the vocabulary and the micro-batch; Megatron's default is 0.1


def test_a_recipe_of_nemo_is_read_as_its_documentation_has_it(tmp_path: Path) -> None:
    (tmp_path / "nemo.yaml").write_text(
        "name: megatron_gpt\ntrainer: {devices: 8, num_nodes: 8, precision: bf16-mixed, max_steps: 100}\nexp_manager: {name: x}\n"
        "model:\n  mcore_gpt: true\n  micro_batch_size: 1\n  global_batch_size: 128\n  tensor_model_parallel_size: 4\n"
        "  pipeline_model_parallel_size: 4\n  virtual_pipeline_model_parallel_size: 5\n  encoder_seq_length: 4096\n  num_layers: 80\n"
        "  hidden_size: 8192\n  ffn_hidden_size: 28672\n  num_attention_heads: 64\n  num_query_groups: 8\n  activation: fast-swiglu\n"
        "  share_embeddings_and_output_weights: false\n  position_embedding_type: rope\n  normalization: rmsnorm\n  fp8: true\n"
        "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: block\n  activations_checkpoint_num_layers: 2\n"
        "  sequence_parallel: true\n  vocab_size: 32000\n  optim: {name: distributed_fused_adam, lr: 1e-4, overlap_grad_sync: true}\n"
    )
    read = read_framework(str(tmp_path / "nemo.yaml"), Asked(cluster=CLUSTER))
    at, run = read.job.layout, read.job.running
    assert (at.tp, at.pp, at.vp, at.dp, read.job.model.kv_heads, read.job.model.gated) == (4, 4, 5, 4, 8, True)
    assert (run.precision, run.recompute, run.recompute_layers, run.overlap_grad) == (Precision.FP8, Recompute.FULL, 2, True)
    assert read.unmapped == ("normalization",)
    with pytest.raises(Unsupported, match="trainer has 8 nodes of 8 devices, the cluster 16"):
        read_framework(str(tmp_path / "nemo.yaml"), Asked(cluster="dgx-h100:2"))


def test_a_recipe_that_a_program_wrote_is_read_with_all_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "deepseek.yaml").write_text(
        "_target_: megatron.bridge.training.config.ConfigContainer\ncheckpoint: {save: null, ckpt_format: torch_dist}\n"
        "comm_overlap: {overlap_grad_reduce: false, overlap_p2p_comm: null, tp_comm_overlap: false}\n"
        "ddp: {use_distributed_optimizer: true, overlap_grad_reduce: false, overlap_param_gather: true, grad_reduce_in_fp32: false}\n"
        "mixed_precision: {bf16: true, fp8: hybrid, fp8_recipe: blockwise, fp4: null, grad_reduce_in_fp32: false}\n"
        "optimizer: {use_precision_aware_optimizer: true, exp_avg_dtype: {_call_: false, _target_: torch.bfloat16},\n"
        "  exp_avg_sq_dtype: {_call_: false, _target_: torch.bfloat16}, lr: 1.0e-4}\n"
        "train: {micro_batch_size: 1, global_batch_size: 512, iterations_to_skip: [], train_iters: 50}\n"
        "model: {num_layers: 8, hidden_size: 7168, ffn_hidden_size: 18432, num_attention_heads: 128, num_query_groups: 128, kv_channels: 64,\n"
        "  bf16: true, fp8: null, fp8_recipe: delayed, multi_latent_attention: true, kv_lora_rank: 512, q_lora_rank: 1536, qk_head_dim: 128,\n"
        "  qk_pos_emb_head_dim: 64, v_head_dim: 128, num_moe_experts: 256, moe_router_topk: 8, moe_ffn_hidden_size: 2048,\n"
        "  moe_layer_freq: [0, 0, 1, 1, 1, 1, 1, 1], moe_shared_expert_intermediate_size: 2048, gated_linear_unit: true,\n"
        "  position_embedding_type: rope,\n"
        "  share_embeddings_and_output_weights: false, seq_length: 4096, vocab_size: 129280, pipeline_model_parallel_size: 2,\n"
        "  virtual_pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: Ett|(tt|)*2ttmL, expert_model_parallel_size: 16,\n"
        "  expert_tensor_parallel_size: 1, tensor_model_parallel_size: 2, sequence_parallel: true, cross_entropy_loss_fusion: true,\n"
        "  cross_entropy_fusion_impl: te, attention_dropout: 0.0, hidden_dropout: 0.0, recompute_granularity: selective,\n"
        "  recompute_modules: [mla_up_proj, mlp], activation_func: {_call_: false, _target_: torch.nn.functional.silu}, overlap_p2p_comm: false}\n"
    )
    read = read_framework(str(tmp_path / "deepseek.yaml"), Asked(cluster=CLUSTER))
    at, run, model = read.job.layout, read.job.running, read.job.model
    assert (at.tp, at.pp, at.vp, at.ep, at.etp, at.dp, at.layers_of_chunks) == (2, 2, 2, 16, 1, 16, (2, 2, 2, 2))
    assert (run.precision, run.recipe, run.grad_bytes, run.moment_bytes, run.fused_loss) == (Precision.FP8, Recipe.BLOCKWISE, 2, 4, True)
    assert (model.dense_layers, model.experts, model.kv_latent, model.head_dim, model.tied) == (2, 256, 512, 192, False)
    assert read.unmapped == ("recompute-modules",)
