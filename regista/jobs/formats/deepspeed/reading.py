"""DeepSpeed's settings -> a job: data parallel with ZeRO, as its JSON says it.

train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x replicas
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.cluster import machine_and_devices
from regista.jobs.formats.deepspeed.hugging_face import hugging_face_model
from regista.jobs.formats.settings import Settings
from regista.jobs.formats.values import Asked, Flags, Form, Reading
from regista.jobs.job import Job, Layout, Precision, Recompute, Running

__all__ = ["BUCKETS", "is_deepspeed", "read_deepspeed"]

_FILE = Path(__file__).parent.parent / "data" / "deepspeed.toml"
_MARKS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BUCKET = 500_000_000
BUCKETS = 2 * 2 * _BUCKET
"""Bytes of reduce_bucket_size and allgather_bucket_size in 16 bits, where nothing else is set."""
_MAPPED = (*_MARKS[1:], "bf16.enabled", "fp16.enabled", "zero_optimization.stage", "zero_optimization.overlap_comm", "optimizer.type")


@cache
def _known() -> Mapping[str, list[str]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def is_deepspeed(data: Mapping[str, object]) -> bool:
    return any(mark in data for mark in _MARKS)


def read_deepspeed(flags: Flags, asked: Asked, *, name: str, folder: Path) -> Reading:
    """The job of settings by name (zero_optimization.stage).

    Args:
        folder: where config.json lies.

    Raises:
        RegistaError: a setting that is missing, unknown, impossible, or contradicts another.
    """
    if asked.cluster is None:
        raise InvalidFile("DeepSpeed's JSON does not say on which devices it runs; give --cluster, for example dgx-h100:16")
    machine, devices = machine_and_devices(asked.cluster)
    settings, assumed = Settings(flags), list[str]()
    model = asked.family or hugging_face_model(folder / "config.json")
    if asked.seq is None:
        assumed.append(f"sequences of {model.seq:,} tokens, the longest of the model (--seq)")
    model = replace(model, seq=asked.seq or model.seq, vocab=asked.vocab or model.vocab)
    micro, batch = _batch(settings, devices)
    stage = settings.choice("zero_optimization.stage", {"0": 0, "1": 1, "2": 2, "3": 3}, 0)
    if stage == 2:
        assumed.append("ZeRO-2 is predicted as ZeRO-1: gradients whole until the step's end")
    half = [word for word in ("bf16", "fp16") if _enabled(settings, word)]
    if len(half) > 1:
        raise Unsupported("bf16.enabled and fp16.enabled contradict each other; give one")
    if settings.text("optimizer.type", "AdamW").lower() not in ("adam", "adamw", "fusedadam", "deepspeedcpuadam"):
        raise Unsupported(f"optimizer.type {settings.text('optimizer.type')!r}: Adam and AdamW are predicted")
    again = any(key.startswith("activation_checkpointing.") for key in flags)
    if again:
        assumed.append("activation_checkpointing says that the model's code recomputes every layer")
    layout = Layout(
        dp=devices, micro_batch=micro, global_batch=batch, fsdp=devices if stage == 3 else 1, direct_gather=stage == 3 and devices > 1
    )
    wide = settings.text("data_types.grad_accum_dtype", "bf16" if half else "fp32") == "fp32"
    running = Running(
        precision={"bf16": Precision.BF16, "fp16": Precision.FP16}[half[0]] if half else Precision.FP32,
        recompute=Recompute.FULL if again else Recompute.NONE,
        distributed_optimizer=stage in (1, 2),
        grad_bytes=4 if wide else 2,
        overlap_grad=settings.truth("zero_optimization.overlap_comm", stage == 3),
        overlap_param=stage == 3,
        bucket_bytes=_buckets(settings) if stage in (1, 2) else 0,
    )
    quiet, unmapped = settings.rest(
        _known()["without_effect"],
        _known()["unmapped"],
        _MAPPED,
        asked.ignored,
        "correct it, or give --ignore NAME to have it named and not refused",
    )
    job = Job(name=name, machine=machine, devices=devices, model=model, layout=layout, running=running)
    return Reading(job=job, form=Form.DEEPSPEED, flags=flags, unmapped=unmapped, without_effect=quiet, assumed=tuple(assumed))


def _enabled(settings: Settings, word: str) -> bool:
    name = f"{word}.enabled"
    return word == "bf16" if settings.text(name) == "auto" else settings.truth(name)


def _batch(settings: Settings, devices: int) -> tuple[int, int]:
    """Micro-batch and global batch; two of the three settings give the third."""
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    if left := [name for name in names if settings.text(name) == "auto"]:
        raise InvalidFile(f"{', '.join(left)}: 'auto' is filled in by the trainer that reads this file; write the numbers")
    micro, steps, batch = (settings.count(name, 0) for name in names)
    if not micro and not batch:
        raise InvalidFile(f"{names[0]} and {names[2]} are missing; give one of them")
    if not micro:
        micro = batch // devices // (steps or 1)
    if not batch:
        batch = micro * (steps or 1) * devices
    if micro < 1 or batch % (micro * devices) or (steps and batch != micro * steps * devices):
        raise InvalidFile(
            f"{names[2]} {batch} is not {names[0]} {micro} x {names[1]} {steps or 'any'} x {devices} devices; make the three agree"
        )
    return micro, batch


def _buckets(settings: Settings) -> int:
    """Bytes of both buckets."""
    both = 0
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        where = f"zero_optimization.{name}"
        both += 2 * (_BUCKET if settings.text(where, "auto") == "auto" else int(settings.number(where, _BUCKET)))
    return both
