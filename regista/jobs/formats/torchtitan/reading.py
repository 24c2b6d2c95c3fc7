"""torchtitan's settings -> a job.  Defaults are those of its configuration classes (releases 0.1 to 0.3).

dp = replicate x shard        parameters lie split over shard x cp; with a pipeline they stay gathered for the whole step (its default)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.cluster import machine_and_devices
from regista.jobs.formats.settings import Settings
from regista.jobs.formats.torchtitan.models import known, model_of, stage_layers
from regista.jobs.formats.values import Asked, Flags, Form, Reading
from regista.jobs.job import Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.recipes import Recipe

__all__ = ["CONVERTERS", "flat", "preset_flags", "read_torchtitan"]

CONVERTERS: Mapping[str, tuple[Precision, Recipe]] = {
    "quantize.linear.float8": (Precision.FP8, Recipe.TENSORWISE),
    "quantize.dense.float8": (Precision.FP8, Recipe.TENSORWISE),
    "float8": (Precision.FP8, Recipe.TENSORWISE),
    "quantize.linear.mx": (Precision.FP8, Recipe.MX),
    "mx": (Precision.FP8, Recipe.MX),
}
"""Products of what kind a converter makes; the first names are those that are written."""
_ROWWISE = ("rowwise", "rowwise_with_gw_hp")
_INTERLEAVED = {"1F1B": False, "Interleaved1F1B": True}
_LAYER = re.compile(r"layers\.\d+")
MAPPED = (
    *(f"training.{n}" for n in ("local_batch_size", "global_batch_size", "seq_len", "dtype", "mixed_precision_param")),
    *(f"parallelism.{n}_parallel_degree" for n in ("tensor", "pipeline", "context", "expert")),
    *(f"parallelism.data_parallel_{n}_degree" for n in ("shard", "replicate")),
    *("parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_microbatch_size", "activation_checkpoint.mode"),
)


def flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Tables in tables as names with dots."""
    made: dict[str, object] = {}
    for key, value in data.items():
        made |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return made


def preset_flags(name: str) -> dict[str, object]:
    """What a configuration of torchtitan's own sets (--config NAME).

    Raises:
        Unsupported: no such configuration is known here.
    """
    configs = known()["configs"]
    if name not in configs:
        raise Unsupported(f"--config {name!r} is unknown; known are {', '.join(configs)}; write its settings into a TOML")
    return flat(configs[name])


def read_torchtitan(flags: Flags, asked: Asked, *, name: str) -> Reading:
    """The job of settings by name (parallelism.tensor_parallel_degree).

    Raises:
        RegistaError: a setting that is missing, unknown, impossible, or contradicts another.
    """
    if asked.cluster is None:
        raise InvalidFile("torchtitan's settings do not say on which devices they run; give --cluster, for example dgx-h100:16")
    machine, devices = machine_and_devices(asked.cluster)
    settings, assumed = Settings(flags), list[str]()
    model = _model(settings, asked)
    layout, sharded = _layout(settings, model, devices, assumed)
    running = _running(settings, model, layout, sharded, assumed)
    quiet, unmapped = settings.rest(
        known()["without_effect"],
        known()["unmapped"],
        MAPPED,
        asked.ignored,
        "correct it, or give --ignore NAME to have it named and not refused",
    )
    job = Job(name=name, machine=machine, devices=devices, model=model, layout=layout, running=running)
    return Reading(job=job, form=Form.TORCHTITAN, flags=flags, unmapped=unmapped, without_effect=quiet, assumed=tuple(assumed))


def _model(settings: Settings, asked: Asked) -> Model:
    seq = settings.count("training.seq_len", asked.seq or 2048, least=1)
    if asked.family is not None:
        return replace(asked.family, seq=seq)
    settings.need("model.name", "model.flavor")
    return model_of(settings.text("model.name"), settings.text("model.flavor"), seq)


def _layout(settings: Settings, model: Model, devices: int, assumed: list[str]) -> tuple[Layout, bool]:
    """The layout, and whether parameters are sharded at all."""

    def degree(name: str) -> int:
        return settings.count(f"parallelism.{name}_degree", 1, least=1)

    tp, pp, cp, replicate = (
        degree(name) for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel_replicate")
    )
    held = tp * pp * cp * replicate
    if devices % held:
        raise Unsupported(
            f"tensor {tp} x pipeline {pp} x context {cp} x data_parallel_replicate_degree {replicate} does not divide the {devices} devices"
        )
    told = settings.text("parallelism.data_parallel_shard_degree", "-1")
    shard = devices // held if told == "-1" else settings.count("parallelism.data_parallel_shard_degree", least=1)
    if held * shard != devices:
        raise Unsupported(
            f"data_parallel_shard_degree {shard} x tensor {tp} x pipeline {pp} x context {cp} x data_parallel_replicate_degree {replicate} "
            f"= {held * shard} is not the {devices} devices; -1 takes all that are left"
        )
    dp = replicate * shard
    micro, batch = _batch(settings, dp, pp, assumed)
    vp, layers = _stages(settings, model, pp)
    at = Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=degree("expert_parallel") if model.experts else 1,
        etp=settings.count("parallelism.expert_tensor_parallel_degree", 1, least=1) if model.experts else 1,
        vp=vp,
        layers_of_chunks=layers,
        micro_batch=micro,
        global_batch=batch,
        sequence_parallel=tp > 1 and settings.truth("parallelism.enable_sequence_parallel", True),
        fsdp=shard * cp if pp == 1 else 1,
    )
    if pp > 1 and replicate > 1 and shard * cp > 1:
        assumed.append(f"the optimizer's state lies split over all {dp * cp} replicas, not over {shard * cp} of them")
    for unused in ("expert_parallel_degree", "expert_tensor_parallel_degree"):
        settings.given(f"parallelism.{unused}")
    # Experts lie on ranks of the tensor group, too, and are split over those that are left.
    return at, shard * cp * (tp if model.experts else 1) > 1


def _batch(settings: Settings, dp: int, pp: int, assumed: list[str]) -> tuple[int, int]:
    """Micro-batch and global batch."""
    old = settings.given("training.batch_size")
    if old and settings.given("training.local_batch_size"):
        raise Unsupported("training.batch_size and training.local_batch_size are one setting of two releases; give one")
    local = settings.count("training.batch_size" if old else "training.local_batch_size", 8, least=1)
    told = settings.text("training.global_batch_size", "-1")
    batch = local * dp if told == "-1" else settings.count("training.global_batch_size", least=1)
    each = settings.count("parallelism.pipeline_parallel_microbatch_size", 1, least=1)
    if batch % (local * dp):
        raise Unsupported(f"training.global_batch_size {batch} is no multiple of local_batch_size {local} x {dp} replicas")
    if pp == 1:
        return local, batch
    if local % each:
        raise Unsupported(f"parallelism.pipeline_parallel_microbatch_size {each} does not divide training.local_batch_size {local}")
    if batch > local * dp:
        assumed.append(f"{batch // (local * dp)} accumulations go through the pipeline as one; torchtitan empties it between them")
    return each, batch


def _stages(settings: Settings, model: Model, pp: int) -> tuple[int, tuple[int, ...] | None]:
    """Chunks per stage, and their layers."""
    where = "parallelism.pipeline_parallel_"
    schedule = settings.text(f"{where}schedule", "1F1B")
    names = settings.items("parallelism.module_fqns_per_model_part")
    each = settings.count(f"{where}layers_per_stage", 0)
    less = settings.count(f"{where}first_stage_less_layers", 1), settings.count(f"{where}last_stage_less_layers", 1)
    if pp == 1:
        return 1, None
    interleaved = settings.choice(f"{where}schedule", _INTERLEAVED, False)
    if names:
        layers = tuple(sum(bool(_LAYER.fullmatch(str(item))) for item in part) for part in names if isinstance(part, list))
        if sum(layers) != model.layers:
            raise InvalidFile(f"parallelism.module_fqns_per_model_part names {sum(layers)} layers; the model has {model.layers}")
    else:
        total = model.layers + sum(less)
        stages = -(-total // each) if each else pp * (2 if interleaved else 1)
        layers = stage_layers(model.layers, stages, *less) if stages <= total else ()
    if not layers or len(layers) % pp or (len(layers) > pp) != interleaved:
        raise Unsupported(
            f"schedule {schedule} on {pp} ranks with {len(layers)} stages: 1F1B has one stage per rank, Interleaved1F1B several; "
            f"set {where}layers_per_stage, or another schedule"
        )
    return len(layers) // pp, layers


def _running(settings: Settings, model: Model, at: Layout, sharded: bool, assumed: list[str]) -> Running:
    dtype = settings.choice("training.dtype", {"float32": 4, "bfloat16": 2}, 4)
    half = settings.choice("training.mixed_precision_param", {"bfloat16": True, "float32": False}, True) or dtype == 2
    settings.choice("optimizer.name", {"AdamW": 1, "Adam": 1}, 1)
    precision, recipe = (Precision.BF16 if half else Precision.FP32), Recipe.DELAYED
    asked = [name.strip() for item in settings.items("model.converters") for name in str(item).split(",") if name.strip()]
    low = [name for name in asked if name in CONVERTERS]
    if unknown := [name for name in asked if name not in CONVERTERS and not name.startswith("quantize.")]:
        raise Unsupported(f"model.converters {unknown} are not predicted; known are {', '.join(CONVERTERS)}")
    if len(low) > 1:
        raise Unsupported(f"model.converters {low} contradict each other; give one")
    if others := [name for name in asked if name not in CONVERTERS]:
        assumed.append(f"{', '.join(others)}: what it converts is predicted as it was")
    gather = False
    if low:
        precision, recipe = CONVERTERS[low[0]]
        recipe = Recipe.ROWWISE if settings.text(f"{low[0]}.recipe_name") in _ROWWISE else recipe
        gather = settings.truth(f"{low[0]}.enable_fsdp_float8_all_gather")
    recompute, layers = _recompute(settings, model, at)
    asynchronous = settings.truth("parallelism.enable_async_tensor_parallel") or settings.truth("compile.enable_async_tensor_parallel")
    if recompute is Recompute.DOTS:
        assumed.append("of selective checkpointing by operations the time is predicted, its memory as if nothing were recomputed")
    if at.pp > 1 and sharded:
        assumed.append("with a pipeline parameters stay gathered for the whole step: ZeRO-1 is predicted")
    return Running(
        precision=precision,
        recipe=recipe,
        low_params=gather,
        recompute=recompute,
        recompute_layers=layers,
        distributed_optimizer=sharded and at.fsdp == 1,
        # Parameters are held once, in 32 bits: 2 bytes of them count as parameters, 2 as their masters.
        grad_bytes=4 if dtype == 4 else 2,
        master_bytes=2 if dtype == 4 else 0,
        moment_bytes=8 if dtype == 4 else 4,
        overlap_tp=asynchronous and at.tp > 1,
        overlap_grad=True,
        overlap_param=sharded,
        overlap_p2p=at.pp > 1,
    )


def _recompute(settings: Settings, model: Model, at: Layout) -> tuple[Recompute, int | None]:
    mode = settings.choice("activation_checkpoint.mode", {"none": 0, "full": 1, "selective": 2}, 2)
    option = settings.text("activation_checkpoint.selective_ac_option", "op")
    if mode < 2:
        return (Recompute.FULL if mode else Recompute.NONE), None
    if option == "op":
        return Recompute.DOTS, None
    if not option.isdigit() or int(option) < 1:
        raise InvalidFile(f"activation_checkpoint.selective_ac_option = {option!r}; 'op' or a whole number of at least 1 is needed")
    return Recompute.FULL, max(1, model.layers // at.chunks // int(option)) if int(option) > 1 else None
