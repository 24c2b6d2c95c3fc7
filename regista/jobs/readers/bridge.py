"""Rows of megatron_bridge_performance_summary: published tokens per second and device of Megatron-Bridge's performance recipes.

A row names its model, system, precision and degrees.  What it does not say is what the recipes have: sequence parallelism and overlapped collectives
where there is tensor parallelism, the distributed optimizer with gradients in 16 bits, a fused loss, experts on whole devices (expert tensor
parallelism 1), FP8 with one scale per tensor from its own values, MXFP8 with scales of 32 elements; and for mixtures of experts
what bridge_recipes.py has.
"""

from __future__ import annotations

from dataclasses import fields, replace

from planner.ir.errors import Unsupported
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Model, Precision, Running
from regista.jobs.machines import machine_names
from regista.jobs.readers.bridge_recipes import NEWEST, ExpertRecipe, Release, expert_recipe
from regista.jobs.readers.cells import Row, count
from regista.jobs.recipes import Recipe

__all__ = ["COLUMNS", "bridge_job"]

COLUMNS = ("phase", "model", "system", "gpus", "precision", "gbs", "mbs", "seq", "fsdp", "tp", "pp", "cp", "vp", "ep")
"""Without one of these a file is not of this kind."""

FAMILIES = {
    "LLAMA3_8B": "llama3.1-8b",
    "LLAMA3_70B": "llama3.1-70b",
    "LLAMA3.1_405B": "llama3.1-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "GPT OSS 120B": "gpt-oss-120b",
    "DeepSeekV3": "deepseek-v3",
    "Kimi_K2": "kimi-k2",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
    "Nemotron_3_Ultra": "nemotron-3-ultra-550b-a55b",
}
PRECISIONS = {
    "BF16": (Precision.BF16, Recipe.DELAYED),
    "FP8": (Precision.FP8, Recipe.TENSORWISE),
    "MXFP8": (Precision.FP8, Recipe.MX),
    "NVFP4": (Precision.NVFP4, Recipe.NVFP4),
}
_PACKED_TOKENS = 300
"""Tokens of a SQuAD question with its paragraph, which fine-tuning packs into sequences. [assumed: 100 to 400]"""


def bridge_job(row: Row) -> Job:
    """The job of a row.

    Raises:
        RegistaError: a cell that is impossible, or a model, system or precision that predictions do not know.
    """
    machine = row["system"].strip().lower().removeprefix("dgx-")
    if machine not in machine_names():
        raise Unsupported(f"system {row['system']!r} is unknown; known are DGX- and one of {', '.join(machine_names())}")
    precision, recipe = _precision(row)
    model = _model(row)
    tp, pp, cp = count(row, "tp", 1), count(row, "pp", 1), count(row, "cp", 1)
    if min(tp, pp, cp) < 1:
        raise Unsupported(f"tp = {tp}, pp = {pp}, cp = {cp}; each is at least 1")
    devices, experts, name = count(row, "gpus"), model.experts > 0, row["model"].strip()
    layout = Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=max(1, devices // (tp * pp * cp)),
        ep=count(row, "ep", 1) if experts else 1,
        vp=max(1, count(row, "vp", 1)),
        micro_batch=count(row, "mbs"),
        global_batch=count(row, "gbs"),
        sequence_parallel=tp > 1,
        fsdp=max(1, count(row, "fsdp", 1)),
    )
    running = Running(
        precision=precision,
        recipe=recipe,
        low_params=recipe is Recipe.MX,
        distributed_optimizer=True,
        grad_bytes=2,
        overlap_tp=tp > 1 and not experts,
        overlap_grad=True,
        overlap_param=True,
        overlap_p2p=True,
        frozen="lora" in row["phase"].lower(),
        fused_loss=True,
    )
    if experts:
        recipe_of = expert_recipe(name, machine, precision, _release(row))
        running = replace(running, **{field.name: getattr(recipe_of, field.name) for field in fields(ExpertRecipe)})
    return Job(
        name=f"{row['model']} {row['system']} {row['precision']}",
        machine=machine,
        devices=devices,
        model=model,
        layout=layout,
        running=running,
    )


def _release(row: Row) -> Release:
    """Of the container in which the row was measured; a row without one is of today's recipes."""
    words = (row.get("container") or "").split()
    parts = words[0].split(".")[:2] if words else []
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else NEWEST


def _precision(row: Row) -> tuple[Precision, Recipe]:
    known = PRECISIONS.get(row["precision"].strip().upper())
    if known is None:
        raise Unsupported(f"precision {row['precision']!r} is unknown here; {', '.join(PRECISIONS)} are known")
    return known


def _model(row: Row) -> Model:
    name = FAMILIES.get(row["model"].strip())
    if name is None:
        raise Unsupported(f"model {row['model']!r} is not predicted: {', '.join(FAMILIES)} are")
    tuned = row["phase"].lower().startswith(("sft", "lora"))
    return replace(family(name), name=row["model"], seq=count(row, "seq"), attended=_PACKED_TOKENS if tuned else 0)
