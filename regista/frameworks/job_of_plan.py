"""A Plan of a transformer as a job of Megatron-LM, torchtitan or DeepSpeed: degrees, micro-batches, stages, ZeRO, recomputation, precision.

These frameworks cut matrices in one way each: queries, keys, values and what widens by their outputs, what narrows by its inputs.  A Plan that cuts
one otherwise is refused by the matrix's name.  Where biases, norms and embeddings lie is the framework's own choice, and is named as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind
from planner.ir.plan import Plan
from planner.ir.sbp import Broadcast, NdSbp, Sbp, Split
from planner.ir.tensor import DType
from regista.analysis.answer import Role, answer
from regista.jobs.formats import BUCKETS, Form
from regista.jobs.job import Job, Layout, Model, Precision, Recompute, Running
from zoo.language.numbers import LanguageNumbers, language_numbers

__all__ = ["PlannedJob", "job_for", "planned_job"]

_LAYER = re.compile(r"(?:^|\.)(?:h|layers)\.(\d+)\.")
_BY_OUTPUTS = re.compile(r"\.(?:[qkv]|[qkv]_proj|c_fc|gate_proj|up_proj)\.weight$")
_BY_INPUTS = re.compile(r"\.(?:c_proj|o_proj|down_proj)\.weight$")
_SCHEDULES = {"1f1b": 1, "interleaved": 2}
_PRECISIONS = {"fp32": Precision.FP32, "bf16-mixed": Precision.BF16, "fp16-mixed": Precision.FP16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """otherwise: parameters that the frameworks lay out in their own way and the Plan in another, with both; in sentences."""

    job: Job
    otherwise: tuple[str, ...]


def planned_job(plan: Plan, model: str | None = None) -> PlannedJob:
    """The job that a Plan performs.

    Args:
        model: ``zoo:...``, where the Plan does not name it.

    Raises:
        Unsupported: no transformer whose numbers are known, or a layout, schedule or precision that no framework has a setting for.
    """
    numbers = language_numbers(model or plan.model)
    if numbers is None:
        raise Unsupported(
            f"the plan is of {model or plan.model}; frameworks have settings for transformers, and numbers are known of zoo:gpt, gpt2, gpt3 and "
            "llama3: name one with --model; regista plan says the split in words, --to torch and --to dtensor take any model"
        )
    if not plan.gradients:
        raise Unsupported("the plan is an evaluation; settings of training jobs are written")
    degrees = _degrees(plan)
    _check_matrices(plan, degrees)
    return PlannedJob(job=_job(plan, numbers, degrees), otherwise=tuple(_otherwise(plan, degrees)))


def job_for(form: Form, job: Job) -> Job:
    """The same job, run in the way that a framework has no choice about: what it always does beside computing, and how it gathers.

    Raises:
        Unsupported: the framework does something else under the settings that come nearest.
    """
    match form:
        case Form.TORCHTITAN:
            if job.layout.pp > 1 and job.layout.fsdp > 1:
                raise Unsupported(
                    f"parameters split over {job.layout.fsdp} replicas and {job.layout.pp} pipeline stages: torchtitan gathers them once per step "
                    "there, a Plan of ZeRO-3 again for each micro-batch; plan with --zero 1"
                )
            masters = 2  # torchtitan holds parameters in float32 alone, which are 2 bytes more than bfloat16's
            return replace(job, running=replace(job.running, overlap_p2p=job.layout.pp > 1, master_bytes=masters))
        case Form.DEEPSPEED:
            buckets = BUCKETS if job.running.distributed_optimizer else 0
            layout = replace(job.layout, direct_gather=job.layout.fsdp > 1)
            return replace(job, layout=layout, running=replace(job.running, bucket_bytes=buckets))
        case _:
            return replace(job, running=replace(job.running, overlap_param=job.layout.fsdp > 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degrees:
    """axes: axis -> what it is for, of every placement."""

    axes: tuple[Role, ...]
    of: Mapping[Role, int]
    zero: int


def _degrees(plan: Plan) -> _Degrees:
    found = answer(plan)
    ways = {(found.roles[placement.id], placement.mesh) for placement in plan.placements}
    if len(ways) > 1:
        raise Unsupported(
            f"the stages are split in different ways ({found.split_text}); frameworks have one tensor and data degree for all stages"
        )
    ((roles, mesh),) = ways
    of = dict.fromkeys(Role, 1)
    for role, extent in zip(roles, mesh, strict=True):
        of[role] *= extent
    if of[Role.COPIES] > 1:
        raise Unsupported(f"{of[Role.COPIES]} devices compute alike ({found.split_text}); no framework has a setting for copies")
    return _Degrees(axes=roles, of=of, zero=found.zero)


def _parameters(plan: Plan) -> Iterator[tuple[str, str, NdSbp]]:
    """Placement, name, layout; a tied one on each of its stages."""
    for state in plan.states:
        if state.kind is InputKind.PARAMETER:
            regst = plan.regst[state.regst]
            yield regst.placement, state.name, regst.tensors[state.index].sbp


def _own_layout(name: str) -> Sbp:
    """How Megatron and torchtitan lay a parameter out along the axis of tensor parallelism."""
    by_inputs = _BY_INPUTS.search(name)
    if by_inputs or (not _LAYER.search(name) and ("wpe" in name or "norm" in name or "ln_" in name)):
        return Split(1) if by_inputs else Broadcast()
    if _BY_OUTPUTS.search(name) or (not _LAYER.search(name) and name.endswith("weight")):
        return Split(0)
    return Split(0) if _BY_OUTPUTS.search(name.replace(".bias", ".weight")) else Broadcast()


def _check_matrices(plan: Plan, degrees: _Degrees) -> None:
    wrong = []
    for _, name, sbp in _parameters(plan):
        if _BY_OUTPUTS.search(name) or _BY_INPUTS.search(name):
            wrong += [
                f"{name} {part} in place of {_own_layout(name)}"
                for part, role in zip(sbp.entries, degrees.axes, strict=True)
                if role is Role.TENSOR and part != _own_layout(name)
            ]
    if wrong:
        shown = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        raise Unsupported(
            f"along the axis of tensor parallelism the plan lays out {shown}; frameworks cut matrices in their own way alone: plan with pins of it "
            "(README, pins), or take --to torch"
        )


def _otherwise(plan: Plan, degrees: _Degrees) -> Iterator[str]:
    seen = set()
    for _, name, sbp in _parameters(plan):
        pattern = _LAYER.sub(lambda found: found[0].replace(found[1], "*"), name)
        for part, role in zip(sbp.entries, degrees.axes, strict=True):
            if role is Role.TENSOR and part != _own_layout(name) and pattern not in seen:
                seen.add(pattern)
                yield f"{pattern}: {part} in the plan, {_own_layout(name)} in the frameworks"


def _layers(plan: Plan, numbers: LanguageNumbers) -> tuple[int, ...]:
    """Layers of each stage, in the order of the model."""
    held: dict[str, set[int]] = {placement.id: set() for placement in plan.placements}
    for placement, name, _ in _parameters(plan):
        if found := _LAYER.search(name):
            held[placement].add(int(found[1]))
    counts = tuple(len(own) for own in held.values())
    if sum(counts) != numbers.layers:
        raise Unsupported(
            f"stages hold {', '.join(map(str, counts))} layers of {numbers.layers}: a layer is cut in its midst, and frameworks cut between"
        )
    return counts


def _chunks(plan: Plan, numbers: LanguageNumbers) -> tuple[int, tuple[int, ...] | None]:
    """Chunks per stage, and the layers of each where they differ."""
    schedule, stages = plan.options.get("schedule", "1f1b"), len(plan.placements)
    if stages == 1:
        return 1, None
    if schedule not in _SCHEDULES:
        raise Unsupported(f"schedule {schedule}: settings are written for {' and '.join(_SCHEDULES)}")
    layers, chunks = _layers(plan, numbers), int(plan.options.get("interleave", "1"))
    if chunks > 1 and (len(set(layers)) > 1 or plan.options.get("cuts")):
        raise Unsupported(f"interleaved stages with cuts of their own ({plan.options.get('cuts') or layers}): even ones have settings")
    return chunks, None if len(set(layers)) == 1 else layers


def _precision(plan: Plan, numbers: LanguageNumbers) -> Precision:
    asked = plan.options.get("precision", "")
    if asked in _PRECISIONS:
        return _PRECISIONS[asked]
    dtypes = {plan.regst[state.regst].tensors[state.index].dtype for state in plan.states if state.kind is InputKind.PARAMETER}
    if asked or dtypes != {DType.FLOAT32}:
        raise Unsupported(
            f"parameters in {', '.join(sorted(dtype.value for dtype in dtypes))} without float32 copies; frameworks have float32 and mixed "
            "precision: plan with --precision bf16-mixed"
        )
    return Precision.FP32


def _job(plan: Plan, numbers: LanguageNumbers, degrees: _Degrees) -> Job:
    dp, cp, zero = degrees.of[Role.DATA], degrees.of[Role.CONTEXT], degrees.zero
    chunks, layers = _chunks(plan, numbers)
    recompute = plan.options.get("recompute", "")
    if recompute not in ("", "none", "blocks"):
        raise Unsupported(f"recompute {recompute}: all blocks or none have a setting here")
    if plan.batch_size % (dp * plan.micro_batches):
        raise Unsupported(f"a batch of {plan.batch_size} in {plan.micro_batches} micro-batches on {dp} replicas leaves ragged parts")
    return Job(
        name=numbers.name,
        machine="h100",
        devices=plan.num_ranks,
        model=_model(numbers),
        layout=Layout(
            tp=degrees.of[Role.TENSOR],
            cp=cp,
            dp=dp,
            pp=len(plan.placements),
            vp=chunks,
            micro_batch=plan.batch_size // (dp * plan.micro_batches),
            global_batch=plan.batch_size,
            sequence_parallel=_splits_sequence(plan, degrees, numbers),
            fsdp=_gathered(plan, degrees) if zero == 3 else 1,
            layers_of_chunks=layers,
        ),
        running=Running(
            precision=_precision(plan, numbers),
            recompute=Recompute.FULL if recompute == "blocks" else Recompute.NONE,
            distributed_optimizer=zero in (1, 2),
            overlap_grad=dp * cp > 1,
            overlap_param=zero == 3,
            overlap_p2p=len(plan.placements) > 1 and chunks > 1,
            dropout=numbers.dropout > 0,
        ),
    )


def _gathered(plan: Plan, degrees: _Degrees) -> int:
    """Over how many replicas parameters lie split: along the axes of data where most of their layouts are a split."""
    layouts = [sbp for _, name, sbp in _parameters(plan) if name.endswith("weight")]
    extent = 1
    for axis, role in enumerate(degrees.axes):
        if role in (Role.DATA, Role.CONTEXT) and 2 * sum(isinstance(sbp[axis], Split) for sbp in layouts) >= len(layouts):
            extent *= plan.placements[0].mesh[axis]
    return extent


def _splits_sequence(plan: Plan, degrees: _Degrees, numbers: LanguageNumbers) -> bool:
    """Whether what goes from layer to layer lies split by the sequence along the axis of tensor parallelism."""
    axes = [axis for axis, role in enumerate(degrees.axes) if role is Role.TENSOR]
    wide = [t for regst in plan.regsts for t in regst.tensors if len(t.shape) == 3 and t.shape[1:] == (numbers.seq, numbers.width)]
    return any(t.sbp[axis] == Split(1) for t in wide for axis in axes)


def _model(numbers: LanguageNumbers) -> Model:
    return Model(
        name=numbers.name,
        layers=numbers.layers,
        hidden=numbers.width,
        ffn=numbers.inner,
        heads=numbers.heads,
        kv_heads=numbers.kv_heads,
        head_dim=numbers.width // numbers.heads,
        vocab=numbers.vocab,
        seq=numbers.seq,
        gated=numbers.gated,
        tied=numbers.tied,
        learned_positions=not numbers.gated,
    )
