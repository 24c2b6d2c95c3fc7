"""Rows of nvidia_dgxc_step_times: published seconds per step of NVIDIA's dgxc-benchmarking, with what each run really was in eff_ columns."""

from __future__ import annotations

from planner.ir.errors import Unsupported
from regista.jobs.families import family
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.machines import machine_names
from regista.jobs.readers.cells import Row, count, given, truth
from regista.jobs.recipes import Recipe

__all__ = ["COLUMNS", "dgxc_job"]

COLUMNS = (
    *("title", "hardware", "precision", "hidden", "ffn", "heads", "kv_heads", "vocab"),
    *(f"eff_{name}" for name in ("gpus", "layers", "seq", "tp", "pp", "cp", "dp", "mbs", "gbs")),
)
"""Without one of these a file is not of this kind."""

_PACKED_TOKENS = 300
"""Tokens of a SQuAD question with its paragraph, which fine-tuning packs into sequences. [assumed: 100 to 400]"""
_BYTES = {"bf16": 2, "fp32": 4, "fp16": 2}


def dgxc_job(row: Row) -> Job:
    """The job of a row.

    Raises:
        RegistaError: a cell that is impossible, or a knob that predictions do not know.
    """
    hardware = row["hardware"].strip().lower()
    if hardware not in machine_names():
        raise Unsupported(f"hardware {row['hardware']!r} is unknown; known are {', '.join(machine_names())}")
    model = _model(row)
    tp, pp, cp, dp = (count(row, f"eff_{name}") for name in ("tp", "pp", "cp", "dp"))
    experts = model.experts > 0
    ep = count(row, "eff_ep", 1)
    layout = Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep if experts else 1,
        etp=count(row, "eff_etp", tp) if experts else 1,
        vp=count(row, "eff_vp", 1),
        micro_batch=count(row, "eff_mbs"),
        global_batch=count(row, "eff_gbs"),
        sequence_parallel=tp > 1 and truth(row, "sequence_parallel"),
        fsdp=count(row, "eff_fsdp", 1),
    )
    return Job(
        name=row["title"],
        machine=hardware,
        devices=count(row, "eff_gpus"),
        model=model,
        layout=layout,
        running=_running(row, layout),
    )


def _model(row: Row) -> Model:
    title = row["title"].lower()
    hidden, heads = count(row, "hidden"), count(row, "heads")
    mixture = family("grok1-314b") if "grok" in title else None
    if mixture is None and count(row, "eff_ep", 1) > 1:
        raise Unsupported(f"eff_ep {row['eff_ep']}: the row has no column of experts, and {row['title']!r} is no known mixture of experts")
    if heads < 1:
        raise Unsupported(f"heads = {heads}; at least 1 is needed")
    return Model(
        name=row["title"],
        layers=count(row, "eff_layers"),
        hidden=hidden,
        ffn=count(row, "ffn"),
        heads=heads,
        kv_heads=count(row, "kv_heads"),
        head_dim=hidden // heads,
        vocab=count(row, "vocab"),
        seq=count(row, "eff_seq"),
        gated=truth(row, "gated"),
        tied=truth(row, "tied"),
        experts=mixture.experts if mixture else 0,
        top_k=mixture.top_k if mixture else 0,
        expert_ffn=count(row, "ffn") if mixture else 0,
        attended=_PACKED_TOKENS if "squad" in (row.get("dataset") or "").lower() else 0,
        learned_positions="megatron" in title and "gpt" in title,
    )


def _running(row: Row, layout: Layout) -> Running:
    precision = row["precision"].strip().lower()
    if precision not in ("bf16", "fp8"):
        raise Unsupported(f"precision {row['precision']!r} is unknown here; BF16 and FP8 are known")
    fsdp = layout.fsdp > 1
    masters = (row.get("main_param_dtype") or "").strip().lower()
    master_bytes = 0 if masters.startswith("none") else 2 if masters.startswith("bf16") or "int16 remainder" in masters else 4
    dropout = (row.get("dropout") or "").replace("hidden", "").replace("attention", "").split()
    return Running(
        precision=Precision(precision),
        recipe=_recipe(row),
        low_params=truth(row, "fp8_params"),
        deferred_wgrad=_deferred(row),
        recompute=_recompute(row),
        distributed_optimizer=fsdp or truth(row, "dist_opt", True) if (row.get("dist_opt") or "").strip().lower() != "fsdp" else True,
        grad_bytes=_BYTES.get((row.get("grad_dtype") or "fp32").strip().lower(), 4),
        master_bytes=master_bytes,
        moment_bytes=2 * _BYTES.get((row.get("opt_state_dtype") or "fp32").strip().lower(), 4),
        overlap_tp=truth(row, "overlap_tp"),
        overlap_grad=fsdp or truth(row, "overlap_grad"),
        overlap_param=fsdp or truth(row, "overlap_param"),
        overlap_p2p=truth(row, "overlap_p2p"),
        attention=Attention.FLASH if (row.get("attention") or "").strip().lower() == "flash" else Attention.FUSED,
        dropout=any(part.replace(".", "").strip("0") for part in dropout if part[:1].isdigit()),
        frozen="lora" in (row.get("peft") or "").lower(),
        jax="jax" in (row.get("framework") or "").lower(),
        graphs=truth(row, "cuda_graphs"),
        fused_loss=(row.get("framework") or "").strip() == "NeMo2",
        environment=next((name for name in ("paxml", "maxtext") if name in (row.get("framework") or "").lower()), ""),
    )


def _deferred(row: Row) -> int:
    """Micro-batches: ``true limit 22`` says 22."""
    words = (row.get("defer_embedding_wgrad") or "").lower().split()
    return int(words[-1]) if words[:2] == ["true", "limit"] and words[-1].isdigit() else 0


def _recipe(row: Row) -> Recipe:
    """By the first word of its cell; where nothing is said, the one of the years of these rows."""
    words = (row.get("fp8_recipe") or "").lower().split()
    return next((recipe for recipe in Recipe if words and words[0].startswith(recipe.value)), Recipe.DELAYED)


def _recompute(row: Row) -> Recompute:
    kind = (row.get("recompute_granularity") or "none").strip().lower()
    if kind in ("none", "", "na"):
        return Recompute.NONE
    if kind in ("selective", "full"):
        return Recompute(kind)
    if kind == "policy":
        saved = (row.get("recompute_method") or "").lower() if given(row, "recompute_method") else ""
        return Recompute.DOTS if "dots" in saved or ("mlpwo" in saved and "wi" in saved) else Recompute.QKV
    raise Unsupported(f"recompute_granularity {kind!r} is unknown; none, selective, full and policy are known")
