"""Twenty jobs that are known to be bad, in the words of their frameworks, and the fault that the first line must name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regista.jobs.advice import Advice, Limits, advise
from regista.jobs.advice.faults import Fault
from regista.jobs.families import family
from regista.jobs.formats import Asked, flags_text, read_framework
from regista.jobs.predict import predict

__all__ = ["BAD", "Bad", "judged", "row_of"]

LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192 --vocab-size 128256 --swiglu --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 "
    "--attention-dropout 0 --hidden-dropout 0"
)
LLAMA_70B = LLAMA_8B.replace("--num-layers 32", "--num-layers 80").replace("4096 --ffn-hidden-size 14336", "8192 --ffn-hidden-size 28672")
LLAMA_70B = LLAMA_70B.replace("--num-attention-heads 32", "--num-attention-heads 64")
GPT_175B = "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 50257 --bf16"
GPT_1B = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50257 --bf16"
QWEN_30B = (
    "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 --group-query-attention --num-query-groups 4 "
    "--seq-length 4096 --vocab-size 151936 --swiglu --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 "
    "--attention-dropout 0 --hidden-dropout 0 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768"
)
ZERO = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
H100, A100 = "dgx-h100", "dgx-a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """job: the text of a file, of which ``suffix`` says the kind.   family: of which the model is where the file does not say."""

    job: str
    cluster: str
    fault: Fault
    suffix: str = ".args"
    family: str | None = None
    seq: int | None = None


def _titan(flavor: str, batch: int, more: str, recompute: str = "none", training: str = "") -> str:
    return (
        f'[model]\nname = "llama3"\nflavor = "{flavor}"\n[training]\nlocal_batch_size = {batch}\nseq_len = 8192\n{training}\n'
        f'[parallelism]\n{more}\n[activation_checkpoint]\nmode = "{recompute}"\n'
    )


def _zero(stage: int, micro: int, steps: int, **more: object) -> str:
    own = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps, "bf16": {"enabled": True}}
    return json.dumps(own | {"zero_optimization": {"stage": stage, "overlap_comm": True}} | more)


_BRIDGE = """
model: {{num_layers: 32, hidden_size: 6144, ffn_hidden_size: 24576, num_attention_heads: 48, num_query_groups: 8, seq_length: 4096, vocab_size: 256000,
  share_embeddings_and_output_weights: false, position_embedding_type: rope, attention_dropout: 0.0, hidden_dropout: 0.0, {model}}}
train: {{micro_batch_size: 1, global_batch_size: 256}}
ddp: {{use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}}
mixed_precision: bf16_mixed
"""

BAD: Mapping[str, Bad] = {
    # out of memory
    "8B, nothing split": Bad(job=f"{LLAMA_8B} --micro-batch-size 4 --global-batch-size 64", cluster=f"{H100}:1", fault=Fault.MEMORY),
    "70B on one node": Bad(
        job=f"{LLAMA_70B} --tensor-model-parallel-size 8 --sequence-parallel --global-batch-size 64 {ZERO}",
        cluster=f"{H100}:4",
        fault=Fault.MEMORY,
    ),
    "175B, micro-batches of 8": Bad(
        job=f"{GPT_175B} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 --micro-batch-size 8 --global-batch-size 512 {ZERO}",
        cluster=f"{A100}:16",
        fault=Fault.MEMORY,
    ),
    "70B, nothing recomputed, torchtitan": Bad(
        job=_titan("70B", 8, "tensor_parallel_degree = 8"), cluster=f"{H100}:4", fault=Fault.MEMORY, suffix=".toml"
    ),
    "8B, ZeRO-1 with long micro-batches, DeepSpeed": Bad(
        job=_zero(1, 4, 2), cluster=f"{H100}:2", fault=Fault.MEMORY, suffix=".json", family="llama3.1-8b", seq=8192
    ),
    # needless recompute
    "8B, all recomputed": Bad(
        job=f"{LLAMA_8B} --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 64 {ZERO} {FULL}",
        cluster=f"{H100}:1",
        fault=Fault.RECOMPUTE,
    ),
    "70B, all recomputed": Bad(
        job=f"{LLAMA_70B} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 5 --sequence-parallel "
        f"--global-batch-size 256 {ZERO} {FULL}",
        cluster=f"{H100}:8",
        fault=Fault.RECOMPUTE,
    ),
    "8B, all recomputed, torchtitan": Bad(
        job=_titan("8B", 1, "data_parallel_shard_degree = -1", "full"), cluster=f"{H100}:4", fault=Fault.RECOMPUTE, suffix=".toml"
    ),
    "15B, all recomputed, Megatron-Bridge": Bad(
        job=_BRIDGE.format(
            model="tensor_model_parallel_size: 4, sequence_parallel: true, recompute_granularity: full, recompute_method: uniform, "
            "recompute_num_layers: 1"
        ),
        cluster=f"{H100}:4",
        fault=Fault.RECOMPUTE,
        suffix=".yaml",
    ),
    "8B, all recomputed, DeepSpeed": Bad(
        job=_zero(1, 1, 4, activation_checkpointing={"partition_activations": False}),
        cluster=f"{H100}:4",
        fault=Fault.RECOMPUTE,
        suffix=".json",
        family="llama3.1-8b",
        seq=4096,
    ),
    # tensor parallel across nodes
    "175B, tensor 16": Bad(
        job=f"{GPT_175B} --tensor-model-parallel-size 16 --pipeline-model-parallel-size 8 --sequence-parallel --global-batch-size 256 {ZERO}",
        cluster=f"{H100}:16",
        fault=Fault.TENSOR_ACROSS_NODES,
    ),
    "70B, tensor 16": Bad(
        job=f"{LLAMA_70B} --tensor-model-parallel-size 16 --sequence-parallel --global-batch-size 64 {ZERO}",
        cluster=f"{H100}:4",
        fault=Fault.TENSOR_ACROSS_NODES,
    ),
    "405B, tensor 16, torchtitan": Bad(
        job=_titan("405B", 1, "tensor_parallel_degree = 16", "full"), cluster=f"{H100}:32", fault=Fault.TENSOR_ACROSS_NODES, suffix=".toml"
    ),
    "15B, tensor 16, Megatron-Bridge": Bad(
        job=_BRIDGE.format(model="tensor_model_parallel_size: 16, sequence_parallel: true"),
        cluster=f"{A100}:4",
        fault=Fault.TENSOR_ACROSS_NODES,
        suffix=".yaml",
    ),
    # bubbles
    "8B, 8 stages and 8 micro-batches": Bad(
        job=f"{LLAMA_8B} --pipeline-model-parallel-size 8 --global-batch-size 16 {ZERO}", cluster=f"{H100}:2", fault=Fault.BUBBLE
    ),
    "175B, 16 stages and 16 micro-batches": Bad(
        job=f"{GPT_175B} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --sequence-parallel --global-batch-size 32 {ZERO}",
        cluster=f"{H100}:32",
        fault=Fault.BUBBLE,
    ),
    "70B, 8 stages and 8 micro-batches, torchtitan": Bad(
        job=_titan("70B", 8, "pipeline_parallel_degree = 8\ntensor_parallel_degree = 4"),
        cluster=f"{H100}:8",
        fault=Fault.BUBBLE,
        suffix=".toml",
    ),
    # and others
    "1.3B, tensor 8": Bad(
        job=f"{GPT_1B} --tensor-model-parallel-size 8 --sequence-parallel --global-batch-size 64 {ZERO}",
        cluster=f"{A100}:1",
        fault=Fault.TENSOR_TOO_WIDE,
    ),
    "30B of experts, experts by 64": Bad(
        job=f"{QWEN_30B} --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 --global-batch-size 512 {ZERO}",
        cluster=f"{H100}:8",
        fault=Fault.EXCHANGE,
    ),
    "8B, unfused attention": Bad(
        job=f"{LLAMA_8B} --tensor-model-parallel-size 4 --sequence-parallel --global-batch-size 64 --attention-backend unfused {ZERO}",
        cluster=f"{H100}:1",
        fault=Fault.ATTENTION,
    ),
}


def judged(name: str, folder: Path, limits: Limits) -> Advice:
    """The advice on one of them, read from a file in ``folder``."""
    bad = BAD[name]
    path = folder / f"job{bad.suffix}"
    path.write_text(bad.job)
    asked = Asked(cluster=bad.cluster, family=family(bad.family) if bad.family else None, seq=bad.seq)
    return advise(read_framework(str(path), asked), bad.cluster, limits)


def row_of(name: str, advice: Advice, folder: Path) -> dict[str, object]:
    """What the first line says, what is claimed, and what the written settings take when they are read and simulated again."""
    bad, better = BAD[name], advice.better
    row: dict[str, object] = {
        "job": name,
        "form": advice.form.value,
        "cluster": bad.cluster,
        "fault": bad.fault.value,
        "named": advice.verdict.startswith(bad.fault.value),
        "first_line": advice.verdict,
        "step_s": advice.prediction.step_s,
        "fits": advice.prediction.fits,
        "predicted": advice.found.predicted,
        "considered": advice.found.considered,
        "kind": "sim",
    }
    if better is None:
        return row | {"better": "", "better_step_s": "", "claimed_gain": "", "gain_again": ""}
    path = folder / f"better{bad.suffix}"
    path.write_text(flags_text(better.written, better.job, advice.form))
    asked = Asked(cluster=bad.cluster, family=family(bad.family) if bad.family else None, seq=bad.seq)
    again = predict(read_framework(str(path), asked).job)
    gain = 1 - again.step_s / advice.prediction.step_s if advice.prediction.fits else ""
    return row | {
        "better": " ".join(path.read_text().split()) if advice.form.is_megatron else json.dumps(dict(better.written.flags)),
        "better_step_s": again.step_s,
        "claimed_gain": "" if better.gain is None else better.gain,
        "gain_again": gain,
    }
