"""Megatron-LM's arguments -> a job.  Defaults are those of its argument parser (release 0.16)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.cluster import machine_and_devices
from regista.jobs.formats.megatron.layout_text import layers_of_layout
from regista.jobs.formats.megatron.model import Script, read_model
from regista.jobs.formats.settings import Settings
from regista.jobs.formats.values import Asked, Flags, Form, Reading
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.recipes import Recipe

__all__ = ["MAPPED", "read_megatron"]

_FILE = Path(__file__).parent.parent / "data" / "megatron.toml"
_ATTENTION = {
    "auto": Attention.FUSED,
    "fused": Attention.FUSED,
    "flash": Attention.FLASH,
    "unfused": Attention.UNFUSED,
    "local": Attention.UNFUSED,
}
RECIPES = {
    "delayed": Recipe.DELAYED,
    "tensorwise": Recipe.TENSORWISE,
    "blockwise": Recipe.BLOCKWISE,
    "mxfp8": Recipe.MX,
}
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_SHARDED = "optim_grads_params"
DEFERRED = 2
"""Micro-batches whose gradient of the embedding's weights is deferred without ``--wgrad-deferral-limit``. [from golden values of Megatron's tests]"""
MAPPED = (
    *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "group-query-attention", "kv-channels"),
    *("seq-length", "vocab-size", "swiglu", "untie-embeddings-and-output-weights", "num-experts", "moe-router-topk", "moe-ffn-hidden-size"),
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "expert-model-parallel-size"),
    *("expert-tensor-parallel-size", "num-layers-per-virtual-pipeline-stage", "micro-batch-size", "global-batch-size", "sequence-parallel"),
    *("recompute-granularity", "recompute-method", "recompute-num-layers", "use-distributed-optimizer", "overlap-grad-reduce"),
    *(
        "overlap-param-gather",
        "tp-comm-overlap",
        "attention-backend",
        "position-embedding-type",
        "bf16",
        "fp16",
        "fp8-format",
        "fp8-recipe",
    ),
)
"""The most usual of those that are mapped: what a slip of the pen may have meant."""


@cache
def _known() -> tuple[tuple[str, ...], tuple[str, ...]]:
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(data["without_effect"]), tuple(data["unmapped"])


def read_megatron(
    flags: Flags, form: Form, asked: Asked, *, name: str, script: Script = "gpt", shown: Flags | None = None, spelled: str = "--{}"
) -> Reading:
    """The job of arguments by name, without dashes.

    Args:
        script: what is trained.   shown: the settings in the file's own words, where these are others.

    Raises:
        RegistaError: a flag that is missing, unknown, impossible, or contradicts another.
    """
    if asked.cluster is None:
        raise InvalidFile("Megatron's arguments do not say on which devices they run; give --cluster, for example dgx-h100:16")
    machine, devices = machine_and_devices(asked.cluster)
    settings, assumed = Settings(flags, spelled=spelled), list[str]()
    model = read_model(settings, script, asked, assumed)
    layout = _layout(settings, model, devices, assumed)
    running = _running(settings, layout)
    quiet, unmapped = settings.rest(
        *_known(),
        MAPPED,
        asked.ignored,
        "correct it, or give --ignore NAME to have it named and not refused",
    )
    job = Job(name=name, machine=machine, devices=devices, model=model, layout=layout, running=running)
    return Reading(job=job, form=form, flags=shown or flags, unmapped=unmapped, without_effect=quiet, assumed=tuple(assumed))


def _layout(settings: Settings, model: Model, devices: int, assumed: list[str]) -> Layout:
    tp, pp = settings.count("tensor-model-parallel-size", 1, least=1), settings.count("pipeline-model-parallel-size", 1, least=1)
    cp = settings.count("context-parallel-size", 1, least=1)
    if devices % (tp * pp * cp):
        raise Unsupported(
            f"{settings.name('tensor-model-parallel-size')} {tp} x {settings.name('pipeline-model-parallel-size')} {pp} x "
            f"{settings.name('context-parallel-size')} {cp} does not divide the {devices} devices"
        )
    dp = devices // (tp * pp * cp)
    vp, chunks = _chunks(settings, model, pp)
    micro = settings.count("micro-batch-size", 1, least=1)
    if not settings.given("micro-batch-size"):
        assumed.append("micro-batch 1")
    group = settings.count("microbatch-group-size-per-virtual-pipeline-stage", pp, least=1)
    return Layout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=settings.count("expert-model-parallel-size", 1, least=1),
        etp=settings.count("expert-tensor-parallel-size", tp, least=1) if model.experts else 1,
        vp=vp,
        vp_group=group if vp > 1 and group != pp else None,
        layers_of_chunks=chunks,
        micro_batch=micro,
        global_batch=settings.count("global-batch-size", micro * dp, least=1),
        sequence_parallel=settings.truth("sequence-parallel") and tp > 1,
        fsdp=_fsdp(settings, dp * cp),
    )


def _chunks(settings: Settings, model: Model, pp: int) -> tuple[int, tuple[int, ...] | None]:
    """vp and layers_of_chunks."""
    ways = (
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "virtual-pipeline-model-parallel-size",
        "pipeline-model-parallel-layout",
    )
    given = [way for way in ways if settings.given(way)]
    if ways[3] in given and given[0] in ways[1:3] and len(given) == 2:
        stages = len(layers_of_layout(settings.text(ways[3])))
        if stages == pp * settings.count(given[0], least=1):  # both are said, and they agree
            given = [ways[3]]
    ends = [f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")]
    if len(given) > 1 or (ways[3] in given and any(map(settings.given, ends))):
        told = ", ".join(settings.name(way) for way in (*given, *(end for end in ends if settings.given(end))))
        raise Unsupported(f"{told} contradict each other: each says which layers a stage has; give one")
    if ways[3] in given:
        layers = layers_of_layout(settings.text(ways[3]))
        if len(layers) % pp or sum(layers) != model.layers:
            raise InvalidFile(
                f"{settings.name(ways[3])} has {sum(layers)} layers in {len(layers)} chunks; the model has {model.layers}, "
                f"and chunks come in multiples of {settings.name('pipeline-model-parallel-size')} {pp}"
            )
        return len(layers) // pp, layers
    first, last = (settings.count(end, 0) for end in ends)
    vp = max(settings.count(ways[1], 1, least=1), settings.count(ways[2], 1, least=1))
    if settings.given(ways[0]):
        each = settings.count(ways[0], least=1)
        if model.layers % (pp * each):
            raise InvalidFile(
                f"{settings.name(ways[0])} {each} x {settings.name('pipeline-model-parallel-size')} {pp} does not divide {model.layers} layers"
            )
        vp = model.layers // (pp * each)
    if pp == 1:
        return 1, None
    if not first and not last:
        return vp, _accounted(settings, model, pp * vp)
    return vp, _with_ends(model.layers, pp, vp, first, last)


def _accounted(settings: Settings, model: Model, chunks: int) -> tuple[int, ...] | None:
    """Layers where embedding and loss count as a layer each."""
    embedding, loss = settings.truth("account-for-embedding-in-pipeline-split"), settings.truth("account-for-loss-in-pipeline-split")
    layers = model.layers + model.encoder
    if (layers + embedding + loss) % chunks:
        raise InvalidFile(
            f"{layers} layers{' and the embedding' * embedding}{' and the loss' * loss} do not divide into {chunks} chunks; Megatron needs equal ones: "
            f"give {settings.name('pipeline-model-parallel-layout')}"
        )
    if not embedding and not loss:
        return None
    each = (layers + embedding + loss) // chunks
    if chunks == 1:
        return None
    return (each - embedding, *[each] * (chunks - 2), each - loss)


def _with_ends(layers: int, pp: int, vp: int, first: int, last: int) -> tuple[int, ...]:
    """Stages whose first and last have layers of their own number; each stage's are spread over its chunks."""
    between = pp - (first > 0) - (last > 0)
    rest = layers - first - last
    if rest < 0 or (between and rest % between) or (not between and rest):
        raise InvalidFile(f"first stage {first}, last stage {last}: the other {rest} layers do not divide among {between} stages")
    each = rest // between if between else 0
    stages = [each] * pp
    stages[0], stages[-1] = first or stages[0], last or stages[-1]
    if any(own % vp for own in stages):
        raise InvalidFile(f"stages of {stages} layers do not divide into {vp} chunks each")
    return tuple(stages[i % pp] // vp for i in range(pp * vp))


def _fsdp(settings: Settings, replicas: int) -> int:
    fsdp2 = settings.truth("use-torch-fsdp2")
    own = settings.truth("use-megatron-fsdp") or settings.truth("use-custom-fsdp")
    split = settings.text("data-parallel-sharding-strategy", "no_shard")
    if fsdp2 and own:
        raise Unsupported(f"{settings.name('use-torch-fsdp2')} and {settings.name('use-megatron-fsdp')} contradict each other; give one")
    if own and split not in (_SHARDED, "no_shard", "optim"):
        raise Unsupported(
            f"{settings.name('data-parallel-sharding-strategy')} {split!r} is not predicted; {_SHARDED} (ZeRO-3), optim and no_shard are"
        )
    return replicas if fsdp2 or (own and split == _SHARDED) else 1


def _running(settings: Settings, layout: Layout) -> Running:
    precision = _precision(settings)
    zero = settings.truth("use-distributed-optimizer") or settings.text("data-parallel-sharding-strategy") == "optim"
    overlap_grad, overlap_param = settings.truth("overlap-grad-reduce"), settings.truth("overlap-param-gather")
    for needed, there in (("use-distributed-optimizer", zero or layout.fsdp > 1), ("overlap-grad-reduce", overlap_grad)):
        if overlap_param and not there and settings.name("") == "--":
            raise Unsupported(f"{settings.name('overlap-param-gather')} without {settings.name(needed)}; Megatron needs both")
    if settings.choice("optimizer", {"adam": "adam", "adamw": "adam"}, "adam") != "adam":
        raise Unsupported(f"{settings.name('optimizer')}: Adam is predicted")
    recompute, layers = _recompute(settings)
    deferred = settings.truth("defer-embedding-wgrad-compute")
    recipe = settings.choice("fp8-recipe", RECIPES, Recipe.DELAYED)
    if precision is Precision.NVFP4:
        settings.choice("fp4-recipe", {"nvfp4": Recipe.NVFP4}, Recipe.NVFP4)
        recipe = Recipe.NVFP4
    elif precision is not Precision.FP8:
        recipe = Recipe.DELAYED
    dropout = settings.number("attention-dropout", 0.1) > 0, settings.number("hidden-dropout", 0.1) > 0
    graphs = settings.text("cuda-graph-impl", "none") != "none"
    settings.given("use-precision-aware-optimizer")  # alone it changes no byte; the dtypes below do
    return Running(
        precision=precision,
        recipe=recipe,
        low_params=settings.truth("fp8-param-gather") or settings.truth("fp4-param-gather"),
        recompute=recompute,
        recompute_layers=layers,
        distributed_optimizer=zero,
        grad_bytes=_grad_bytes(settings, precision),
        master_bytes=settings.choice("main-params-dtype", _BYTES, 4),
        moment_bytes=settings.choice("exp-avg-dtype", _BYTES, 4) + settings.choice("exp-avg-sq-dtype", _BYTES, 4),
        overlap_tp=settings.truth("tp-comm-overlap"),
        overlap_grad=overlap_grad,
        overlap_param=overlap_param,
        overlap_p2p=not settings.truth("no-overlap-p2p-communication") and settings.truth("overlap-p2p-comm", True) and layout.vp > 1,
        attention=_attention(settings),
        dropout=any(dropout),
        deferred_wgrad=settings.count("wgrad-deferral-limit", DEFERRED) if deferred else 0,
        fused_loss=settings.text("cross-entropy-fusion-impl", "native") == "te" and settings.truth("cross-entropy-loss-fusion"),
        graphs=graphs or settings.truth("enable-cuda-graph") or settings.truth("external-cuda-graph"),
    )


def _precision(settings: Settings) -> Precision:
    half = [name for name in ("bf16", "fp16") if settings.truth(name)]
    low = [name for name in ("fp8-format", "fp4-format") if settings.given(name)]
    if len(half) > 1 or len(low) > 1:
        raise Unsupported(
            f"{' and '.join(settings.name(name) for name in (half if len(half) > 1 else low))} contradict each other; give one"
        )
    if low and not half:
        raise Unsupported(f"{settings.name(low[0])} without {settings.name('bf16')}; Megatron needs both")
    if low:
        settings.choice(low[0], dict.fromkeys(("hybrid", "e4m3", "e2m1"), 1), 1)
        return Precision.FP8 if low[0] == "fp8-format" else Precision.NVFP4
    return {"bf16": Precision.BF16, "fp16": Precision.FP16}[half[0]] if half else Precision.FP32


def _grad_bytes(settings: Settings, precision: Precision) -> int:
    """Of a gradient while it is accumulated and reduced: bfloat16 trains with 32 bits unless it is told, float16 only if it is."""
    wide = settings.truth("accumulate-allreduce-grads-in-fp32", precision is not Precision.FP16)
    if settings.truth("grad-reduce-in-bf16"):
        if settings.given("accumulate-allreduce-grads-in-fp32") and wide:
            raise Unsupported(
                f"{settings.name('grad-reduce-in-bf16')} and {settings.name('accumulate-allreduce-grads-in-fp32')} contradict each other; give one"
            )
        return 2
    return 4 if wide else 2


def _recompute(settings: Settings) -> tuple[Recompute, int | None]:
    short = settings.truth("recompute-activations")
    kind = settings.choice(
        "recompute-granularity", {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "none": Recompute.NONE}, Recompute.NONE
    )
    if short and kind is Recompute.FULL:
        raise Unsupported(
            f"{settings.name('recompute-activations')} (selective) and {settings.name('recompute-granularity')} full contradict each other; give one"
        )
    method, layers = settings.text("recompute-method"), settings.count("recompute-num-layers", 1)
    if kind is not Recompute.FULL:
        return (Recompute.SELECTIVE if short else kind), None
    if method not in ("uniform", "block"):
        raise InvalidFile(
            f"{settings.name('recompute-granularity')} full with {settings.name('recompute-method')} {method!r}; uniform or block is needed"
        )
    return Recompute.FULL, layers if method == "block" else None


def _attention(settings: Settings) -> Attention:
    flash = settings.truth("use-flash-attn")
    local = settings.text("transformer-impl", "transformer_engine") == "local"
    given = settings.given("attention-backend")
    backend = settings.choice("attention-backend", _ATTENTION, Attention.FUSED)
    if flash and given and not backend.is_one_kernel:
        raise Unsupported(
            f"{settings.name('use-flash-attn')} and {settings.name('attention-backend')} {backend.value} contradict each other; give one"
        )
    if flash and not given:
        return Attention.FLASH
    return Attention.UNFUSED if local and not given else backend
