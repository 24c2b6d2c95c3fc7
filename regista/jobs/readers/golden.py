"""Rows of megatron_ci_golden_values: Megatron-LM's functional tests, whose cells are empty where Megatron's default holds.

What a test does not say is Megatron's default, or that of its test suite: 8 devices (of the environment's name) where it has no nodes,
GPT-2's vocabulary padded to 128 x tp, tied embedding and head, feed-forward 4 x hidden, dropout 0.1, gradients in 32 bits.
Tests of the tunable schedule (tunable_overlap) perform all their micro-batches with one chunk before they take the next.
Attention where nothing is said: fused in the suite's current containers, unfused in the old ones (dracooci).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from planner.ir.errors import Unsupported
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.readers.cells import Row, count, given, truth
from regista.jobs.recipes import Recipe

__all__ = ["COLUMNS", "golden_job"]

COLUMNS = (
    *("case", "kind", "env", "nodes", "gpus_per_node", "layers", "hidden", "heads", "seq", "mbs", "gbs"),
    *("tp", "pp", "cp", "ep", "experts", "topk", "sp", "dist_opt", "bf16", "fp16", "attn"),
)
"""Without one of these a file is not of this kind."""


class _Latent(NamedTuple):
    """Widths of multi-latent attention."""

    latent: int
    rope: int
    head: int
    value: int


_OTHER_WORK = ("muon", "grpo", "distill")
_UNSTATED = {"mtp": "it predicts several tokens", "offloading": "it keeps activations on the host"}
_DEFERRED = 2
"""Micro-batches whose gradient of the embedding is deferred in the test of it: its peak is that of 2, whether a step has 4 or 8."""
_GPT2_VOCAB, _BERT_VOCAB, _T5_VOCAB = 50_257, 30_524, 29_056
_T5_LAYERS, _T5_SEQ = {768: 12, 4096: 24}, (512, 128)
"""Megatron-LM's T5 of 220 million (hidden 768) and 11 billion parameters (4,096): so many layers each in encoder (512 tokens) and decoder (128),
which the tests' rows leave out.  24 layers each of the latter have the 9.0 billion parameters that its measured bytes between steps speak of."""
_MLA = _Latent(latent=32, rope=64, head=192, value=128)
"""Megatron-LM's defaults of multi-latent attention: --kv-lora-rank, --qk-pos-emb-head-dim, with --qk-head-dim 128, --v-head-dim; no --q-lora-rank."""


def golden_job(row: Row) -> Job:
    """The job of a row.

    Raises:
        RegistaError: a cell that is impossible, or a knob that predictions do not know.
    """
    kind = row["kind"].strip()
    if "inference" in row["case"]:
        raise Unsupported(f"case {row['case']}: it is inference; training steps are predicted")
    for word in _OTHER_WORK:
        if word in row["case"]:
            raise Unsupported(f"case {row['case']}: {word} is more than a training step with Adam; leave out the row")
    if kind not in ("gpt", "moe", "bert", "mixtral", "nemotron", "t5"):
        raise Unsupported(f"kind {kind!r} is unknown; gpt, moe, mixtral, nemotron, bert and t5 are known")
    for word, what in _UNSTATED.items():
        if word in row["case"]:
            raise Unsupported(f"case {row['case']}: {what}, whose sizes no column has; leave out the row")
    if truth(row, "mla") and count(row, "experts", 0):
        raise Unsupported(
            "mla with experts: widths of latents and of the shared expert are not in the row's columns; write the job as a TOML"
        )
    machine, environment = _machine(row)
    model = _model(row, kind)
    tp, pp, cp = count(row, "tp", 1), count(row, "pp", 1), count(row, "cp", 1)
    if min(tp, pp, cp) < 1:
        raise Unsupported(f"tp = {tp}, pp = {pp}, cp = {cp}; each is at least 1")
    if "_release" in row["case"] and not given(row, "nodes") and tp * pp * cp < 16:
        raise Unsupported(f"nodes is empty, and release tests run on several: with tp {tp}, pp {pp}, cp {cp} nothing says on how many")
    devices = _devices(row, machine, tp * pp * cp)
    per_stage = count(row, "layers_per_vstage", 0)
    vp = count(row, "vpp", 0) or (model.layers // (pp * per_stage) if per_stage and pp > 1 else 1)
    dp = max(1, devices // (tp * pp * cp))
    ep = count(row, "ep", 1)
    micro = count(row, "mbs", 1)
    gbs = count(row, "gbs")
    layout = Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep if model.experts else 1,
        etp=count(row, "etp", tp) if model.experts else 1,
        vp=max(1, vp) if pp > 1 else 1,
        vp_group=max(1, gbs // max(1, dp * micro)) if "tunable_overlap" in row["case"] and vp > 1 else None,
        micro_batch=micro,
        global_batch=gbs,
        fsdp=_fsdp(row, dp * cp),
        sequence_parallel=tp > 1 and truth(row, "sp"),
    )
    return Job(
        name=f"{row['case']} {row['env']}",
        machine=machine,
        devices=layout.devices if dp * tp * pp * cp == devices else devices,
        model=model,
        layout=layout,
        running=_running(row, environment),
    )


def _fsdp(row: Row, replicas: int) -> int:
    """Devices over which parameters lie split."""
    if not (truth(row, "fsdp") or truth(row, "torch_fsdp2")):
        return 1
    split = (row.get("dp_shard") or "").strip() or "optim_grads_params"
    if split != "optim_grads_params":
        raise Unsupported(f"fsdp that splits {split}: only optim_grads_params (ZeRO-3) is predicted; leave out the row")
    return replicas


def _machine(row: Row) -> tuple[str, str]:
    env = row["env"].strip()
    machine = "gb200" if "gb200" in env else "h100" if "h100" in env else "a100"
    single = row["case"].endswith("_1node")
    return machine, f"ci.{env}.one_node" if single else f"ci.{env}"


def _devices(row: Row, machine: str, product: int) -> int:
    if given(row, "nodes") and given(row, "gpus_per_node"):
        return count(row, "nodes") * count(row, "gpus_per_node")
    if row["case"].endswith("_1node") and machine == "gb200":
        return max(4, product)
    return max(8, -(-product // 8) * 8)


def _model(row: Row, kind: str) -> Model:
    hidden, heads = count(row, "hidden"), count(row, "heads")
    if heads < 1 or hidden < 1:
        raise Unsupported(f"hidden = {hidden}, heads = {heads}; both are at least 1")
    experts = count(row, "experts", 0)
    ffn = count(row, "ffn", 4 * hidden)
    vocab = {"bert": _BERT_VOCAB, "t5": _T5_VOCAB}.get(kind, _GPT2_VOCAB)
    t5_layers = _T5_LAYERS.get(hidden, 0) if kind == "t5" else 0
    plain = Model(
        name=row["case"],
        layers=count(row, "layers", t5_layers or None),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=count(row, "kv_groups", heads),
        vocab=count(row, "vocab", vocab),
        seq=count(row, "seq", _T5_SEQ[1] if kind == "t5" else None),
        encoder=t5_layers,
        encoder_seq=_T5_SEQ[0] if t5_layers else 0,
        gated=truth(row, "swiglu"),
        tied=not truth(row, "untied"),
        experts=experts,
        top_k=count(row, "topk", 2) if experts else 0,
        expert_ffn=count(row, "moe_ffn", ffn) if experts else 0,
        causal=kind != "bert",
        learned_positions="rope" not in row["case"] and kind != "mixtral",
        head_dim=hidden // heads,
    )
    if not truth(row, "mla"):
        return plain
    return replace(plain, kv_latent=_MLA.latent, rope_dim=_MLA.rope, head_dim=_MLA.head, value_dim=_MLA.value)


def _running(row: Row, environment: str) -> Running:
    half = truth(row, "bf16") or truth(row, "fp16")
    precision = Precision.FP8 if given(row, "fp8") else Precision.BF16 if truth(row, "bf16") else Precision.FP16 if half else Precision.FP32
    again = row["recompute"].strip().lower() if given(row, "recompute") else "none"
    if again not in ("none", "selective", "full"):
        raise Unsupported(f"recompute {again!r} is unknown here; selective and full are known")
    stated = (row.get("attn") or "").strip().lower()
    old = "dracooci" in row["env"]
    unfused = stated in ("unfused", "local") or (not stated and (old or row.get("impl") == "local"))
    return Running(
        precision=precision,
        recipe=Recipe.TENSORWISE if "current_scaling" in row["case"] else Recipe.DELAYED,
        deferred_wgrad=_DEFERRED if "defer_embedding_wgrad" in row["case"] else 0,
        low_params="native_fp8" in row["case"],
        recompute=Recompute(again),
        distributed_optimizer=truth(row, "dist_opt"),
        grad_bytes=4,
        overlap_grad=truth(row, "overlap_grad"),
        overlap_param=truth(row, "overlap_param"),
        attention=Attention.UNFUSED if unfused else Attention.FUSED,
        dropout=True,
        environment=environment,
    )
