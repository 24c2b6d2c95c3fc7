"""The conformance matrix: small models of the zoo x ways to distribute them, and what 'equal' means.

          data  tensor  sequence  gpipe  1f1b  interleaved  zero-bubble  2x2  2x2x2  ZeRO 1 2 3  recompute
gpt         .      .        .       .      .        .            .        .     .       . . .        .       one Plan per cell;
...                                                                                                       REFUSED: what cannot be, and why

Sequence: what lies between two tensor parallel regions is split along the sequence (Korthikanti et al. 2022); an image is split by rows
instead, and a vector, which has neither, by features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isnan, sqrt

import torch
from committed import read_plan
from oracle import Outcome as Eager
from oracle import train_eagerly

from backend.layout.boxing import BOXING
from backend.run_folder.outcome import Outcome
from planner.frontend import AdamW, Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import Fragment, Plan, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower import Schedule
from planner.opset import is_creation, is_view
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

STEPS = 3
OPTIMIZER = AdamW(lr=1e-2, eps=1e-3)


@dataclass(frozen=True)
class Model:
    """A small model of the zoo and where it can be cut.

    sizes: arguments of the factory; a seed is given where with seed 0 some relu lies nearer to its kink than rounding can tell, so that
    two right trainings differ (the same plan in float64 does not, see test_transparency_laws).  body: modules whose results carry the batch in dim 0.
    tensor: pins of the weights; {0} is the layout of a column's weight (cut by output features), {1} that of a row's (by input features).
    columns: modules whose results are cut by ``features``, and between: modules whose results are cut by ``sequence`` (dims), under a
    sequence split.
    half, quarters: modules at which the 2nd of two stages, and the 2nd to 4th of four, begin ("" cuts where the work is even).
    """

    sizes: Mapping[str, int]
    body: tuple[str, ...]
    tensor: tuple[str, ...]
    columns: tuple[str, ...]
    between: tuple[str, ...]
    quarters: tuple[str, ...]
    half: str = ""
    sequence: int = 1
    features: int = 1


MODELS: Mapping[str, Model] = {
    "mlp": Model(
        sizes={"batch": 64, "width": 16, "hidden": 32},
        body=("blocks.?",),
        tensor=("blocks.*.up.weight={0}", "blocks.*.up.bias={0}", "blocks.*.down.weight={1}"),
        columns=("blocks.?.up",),
        between=("blocks.?",),
        quarters=("blocks.0.down", "blocks.1", "blocks.1.down"),
    ),
    "gpt": Model(
        sizes={"layers": 2, "width": 32, "heads": 4, "vocab": 64, "batch": 16, "seq": 16, "tied": 1},
        body=("h.?",),
        tensor=(
            *(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
            "h.*.attn.c_proj.weight={1}",
            "h.*.mlp.c_fc.weight={0}",
            "h.*.mlp.c_proj.weight={1}",
        ),
        columns=("h.?.attn.[qkv]", "h.?.mlp.c_fc"),
        between=("h.?", "h.?.ln_?"),
        features=2,
        quarters=("h.0.ln_2", "h.1", "h.1.ln_2"),
    ),
    "convnet": Model(
        sizes={"batch": 16, "channels": 8, "size": 8},
        body=("stage?", "stage?.conv?", "stage?.bn?"),
        tensor=("stage*.conv1.weight={0}", "stage*.conv2.weight={1}"),
        columns=("stage?.conv1",),
        between=("stage?",),
        quarters=("stage2", "stage3", "stage3.conv2"),
        sequence=2,
    ),
    "bert": Model(
        sizes={"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 16, "seq": 8},
        body=("layers.?",),
        tensor=(
            *(f"layers.*.attention.{n}.weight={{0}}" for n in ("query", "key", "value")),
            "layers.*.attention.dense.weight={1}",
            "layers.*.intermediate.weight={0}",
            "layers.*.output.weight={1}",
        ),
        columns=("layers.?.attention.query", "layers.?.attention.key", "layers.?.attention.value", "layers.?.intermediate"),
        between=("layers.?", "layers.?.ln_attention"),
        features=2,
        quarters=("layers.0.intermediate", "layers.1", "layers.1.intermediate"),
    ),
    "t5": Model(
        sizes={"layers": 1, "width": 16, "heads": 2, "hidden": 32, "vocab": 32, "batch": 16, "seq": 8, "target_seq": 8},
        body=("encoder.blocks.?", "decoder.blocks.?"),
        tensor=(
            *(f"*_attention.{n}.weight={{0}}" for n in "qkv"),
            "*_attention.o.weight={1}",
            "*.ff.wi.weight={0}",
            "*.ff.wo.weight={1}",
        ),
        half="decoder.relative",
        columns=("*_attention.[qkv]", "*.ff.wi"),
        between=("*.blocks.?", "*.norm_*"),
        features=2,
        quarters=("encoder.blocks.0.norm_ff", "decoder.relative", "decoder.blocks.0.norm_ff"),
    ),
    "resnet50": Model(
        sizes={"batch": 16, "image": 16, "classes": 8, "layers": 8, "width": 4, "seed": 7},
        body=("blocks.?", "blocks.?.conv?", "blocks.?.bn?"),
        tensor=("blocks.*.conv1.weight={0}", "blocks.*.conv2.weight={1}"),
        columns=("blocks.?.conv1",),
        between=("blocks.?",),
        half="blocks.1",
        quarters=("blocks.0", "blocks.1", "blocks.1.conv3"),
        sequence=2,
    ),
    "unet": Model(
        sizes={"batch": 16, "image": 8, "channels": 1, "classes": 2, "layers": 2, "width": 4, "norm": 1},
        body=("down.?", "up.?"),
        tensor=("*.conv1.weight={0}", "*.conv2.weight={1}"),
        half="up.0",
        columns=("*.conv1",),
        between=("down.?", "up.?"),
        quarters=("down.1", "up.0", "up.1"),
        sequence=2,
    ),
    "moe": Model(
        sizes={"layers": 2, "width": 32, "heads": 2, "experts": 4, "hidden": 32, "vocab": 32, "batch": 16, "seq": 4},
        body=("h.?.attn", "h.?.ln_2"),
        tensor=(
            *(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
            "h.*.attn.c_proj.weight={1}",
            "h.0.mlp.c_fc.weight={0}",
            "h.0.mlp.c_proj.weight={1}",
            "h.1.mlp.w_*={0}",  # experts
        ),
        columns=("h.?.attn.[qkv]", "h.0.mlp.c_fc"),
        between=("h.?.ln_?",),
        features=2,
        quarters=("h.0.ln_2", "h.1", "h.1.ln_2"),
    ),
    "wide_deep": Model(
        sizes={"batch": 16, "vocab": 32, "embedding": 4, "layers": 4, "width": 32, "seed": 4},
        body=("deep", "hidden.?"),
        tensor=("deep.weight={0}", "hidden.0.weight={0}", "hidden.1.weight={1}", "hidden.2.weight={0}", "hidden.3.weight={1}"),
        columns=("hidden.0", "hidden.2"),
        between=("hidden.1", "hidden.3"),
        quarters=("hidden.0", "hidden.2", "head"),
    ),
}


@dataclass(frozen=True)
class Way:
    """One way to distribute.

    data: layout of what carries the batch.  tensor: layouts of a column's and of a row's weight.  sequence: layouts of what lies between
    tensor parallel regions and inside of them, {} standing for the model's dim.  zero: ZeRO level.  proof: boxing labels that show that
    the plan is what its name says ('a|b': either).
    """

    devices: int
    stages: int = 1
    mesh: tuple[int, ...] | None = None
    micro_batches: int = 1
    data: str = ""
    tensor: tuple[str, str] | None = None
    sequence: tuple[str, str] | None = None
    zero: int | None = None
    schedule: Schedule = Schedule.ONE_F_ONE_B
    interleave: int = 1
    recompute: bool | None = None
    proof: tuple[str, ...] = field(default=())


COMMON_WAYS: Mapping[str, Way] = {
    "data2": Way(devices=2, data="S(0)", proof=("all_reduce.grad",)),
    "tensor2": Way(devices=2, data="B", tensor=("S(0)", "S(1)"), proof=(".fwd",)),
    "sequence2": Way(devices=2, tensor=("S(0)", "S(1)"), sequence=("S({})", "S({})"), proof=("reduce_scatter.fwd", "all_gather.fwd")),
    "data2_tensor2": Way(devices=4, mesh=(2, 2), data="S(0),B", tensor=("B,S(0)", "B,S(1)"), proof=(".axis0.", ".axis1.")),
    "data2_sequence2": Way(
        devices=4,
        mesh=(2, 2),
        tensor=("B,S(0)", "B,S(1)"),
        sequence=("S(0),S({})", "S(0),S({})"),
        proof=(".axis0.grad", "reduce_scatter.axis1.fwd", "all_gather.axis1.fwd"),
    ),
    "pipeline2": Way(devices=2, stages=2, micro_batches=4, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "gpipe2": Way(devices=2, stages=2, micro_batches=4, schedule=Schedule.GPIPE, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "pipeline2_data2": Way(
        devices=4, stages=2, micro_batches=2, data="S(0)", proof=("s0-s1.fwd", "s0.all_reduce.grad|s0.all_reduce.bwd", "s1.all_reduce.grad")
    ),
    "pipeline2_data2_tensor2": Way(
        devices=8,
        stages=2,
        mesh=(2, 2),
        micro_batches=2,
        data="S(0),B",
        tensor=("B,S(0)", "B,S(1)"),
        proof=("s0-s1.fwd", "s1-s0.bwd", ".axis0.", ".axis1."),
    ),
    "zero1": Way(devices=2, data="S(0)", zero=1, proof=("reduce_scatter.grad", "all_gather.param")),
    "zero2": Way(devices=2, data="S(0)", zero=2, micro_batches=2, proof=("reduce_scatter.bwd", "all_gather.param")),
    "zero3": Way(devices=2, data="S(0)", zero=3, proof=("all_gather.param.again", "reduce_scatter.grad")),
    "recompute_data2": Way(devices=2, data="S(0)", recompute=True, proof=("all_reduce.grad",)),
    "recompute_pipeline2": Way(devices=2, stages=2, micro_batches=4, recompute=True, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "interleaved2": Way(
        devices=2,
        stages=2,
        micro_batches=4,
        schedule=Schedule.INTERLEAVED,
        interleave=2,
        proof=("s0-s1.fwd.1", "s1-s0.fwd.0", "s0-s1.bwd.0"),
    ),
    "zb_h1": Way(devices=2, stages=2, micro_batches=4, schedule=Schedule.ZB_H1, proof=("s0-s1.fwd", "s1-s0.bwd")),
}
"""Every model goes every way."""

RARE_WAYS: Mapping[str, Way] = {
    "data2_data2_tensor2": Way(
        devices=8, mesh=(2, 2, 2), data="S(0),S(0),B", tensor=("B,B,S(0)", "B,B,S(1)"), proof=(".axis0.", ".axis1.", ".axis2.")
    ),
    "data2_experts2": Way(devices=2, data="S(0)", tensor=("S(0)", "S(0)"), proof=("all_to_all.fwd", "all_reduce.grad|reduce_scatter.grad")),
    "zero3_accumulated": Way(devices=2, data="S(0)", zero=3, micro_batches=4, proof=("all_gather.param.again", "reduce_scatter.bwd")),
    "zero3_pipeline2": Way(
        devices=4,
        stages=2,
        micro_batches=4,
        data="S(0)",
        zero=3,
        proof=("s0.all_gather.param.again", "s1.all_gather.param.again", "s0-s1.fwd"),
    ),
    "interleaved2_data2": Way(
        devices=4, stages=2, micro_batches=4, data="S(0)", schedule=Schedule.INTERLEAVED, interleave=2, proof=("s0-s1.fwd.1", "s1-s0.fwd.0")
    ),
    "zb_h1_tensor2": Way(
        devices=4, stages=2, micro_batches=4, data="B", tensor=("S(0)", "S(1)"), schedule=Schedule.ZB_H1, proof=("s0-s1.fwd", ".fwd")
    ),
    "zb_h2": Way(devices=2, stages=2, micro_batches=8, schedule=Schedule.ZB_H2, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "zb_auto_data2": Way(
        devices=4, stages=2, micro_batches=4, data="S(0)", schedule=Schedule.ZB_AUTO, proof=("s0-s1.fwd", "s0.all_reduce.grad")
    ),
}
"""Combinations of these, for some models."""

WAYS: Mapping[str, Way] = {**COMMON_WAYS, **RARE_WAYS}

_OLDEST = ("mlp", "gpt", "convnet")
_RARE: Mapping[str, tuple[str, ...]] = {"data2_data2_tensor2": ("mlp", "gpt", "wide_deep"), "data2_experts2": ("moe",)}

REFUSED: Mapping[tuple[str, str], str] = {
    (model, way): "none of the .* modules of this model keeps anything inside of one"
    for model in ("convnet", "wide_deep")  # no numbered blocks; layers whose relu stands outside of them
    for way in ("recompute_data2", "recompute_pipeline2")
}
"""Cells that cannot be, and what the planner says of them."""

CELLS: Sequence[tuple[str, str]] = tuple(
    (model, way) for way in WAYS for model in (MODELS if way in COMMON_WAYS else _RARE.get(way, _OLDEST)) if (model, way) not in REFUSED
)

BF16_WAYS = ("data2", "sequence2", "zb_h1", "pipeline2", "pipeline2_data2_tensor2", "zero3")
"""The ways that the tests go in bfloat16 too."""

COMMITTED: Sequence[tuple[str, str, str]] = (
    *((model, way, "fp32") for model, way in CELLS),
    *((model, way, "bf16") for model, way in CELLS if way in BF16_WAYS),
    *((model, "data2", "fp64") for model in MODELS),
)
"""(model, way, dtype) of the Plans that are read, not searched."""


def roomy_cluster(num_devices: int) -> Cluster:
    """A cluster scaled down with the models (10 flop per byte of link, hardly any latency): distributing them pays, so pins are not undone."""
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"test-{num_devices}", source="", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


@cache
def program(model: str, dtype: str = "fp32") -> Program:
    """The small model with AdamW.

    eps is large on purpose: where a gradient is exactly 0 (the key's bias), m / (sqrt(v) + 1e-8) would turn rounding noise into full steps.

    Args:
        dtype: of parameters, optimizer state and inputs: "fp32", "bf16", or "fp64" (the fp32 values, exactly).
    """
    made = ZOO[model](**MODELS[model].sizes, dtype="fp32" if dtype == "fp64" else dtype)
    return trained(made, model) if dtype != "fp64" else widened(made, model, torch.float64)


def trained(made: Program, name: str) -> Program:
    return Program(made.module, made.example_inputs, made.loss, OPTIMIZER, name=name, data=made.data)


def widened(made: Program, name: str, dtype: torch.dtype) -> Program:
    """The program whose weights and inputs are the same numbers in a wider format."""

    def data(step: int) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in made.batch(step))

    return Program(copy.deepcopy(made.module).to(dtype), data(0), made.loss, OPTIMIZER, name=name, data=data)


@cache
def expected(model: str, micro_batches: int, dtype: str = "fp32") -> Eager:
    return train_eagerly(program(model, dtype), micro_batches, STEPS)


def pins_of(model: str, name: str) -> tuple[str, ...]:
    spec, way = MODELS[model], WAYS[name]
    pins = (f"input.0={way.data}", *(f"out:{modules}={way.data}" for modules in spec.body)) if way.data else ()
    if way.sequence is not None:
        between, inside = way.sequence[0].format(spec.sequence), way.sequence[1].format(spec.features)
        pins += tuple(f"out:{modules}={between}" for modules in spec.between)
        pins += tuple(f"out:{modules}={inside}" for modules in spec.columns)
    if name == "data2_experts2":
        pins += ("h.1.mlp.w_*=S(0)",)
    elif way.tensor is not None:
        pins += tuple(pin.format(*way.tensor) for pin in spec.tensor)
    if way.data and way.tensor is None and way.zero is None:
        # Left to itself the search shards the update wherever data is parallel: same bytes, less work.
        pins += (f"*:exp_avg*={NdSbp.broadcast(len(NdSbp.parse(way.data)))}",)
    return pins


def options_for(model: str, name: str) -> PlanOptions:
    way, spec = WAYS[name], MODELS[model]
    half = (spec.half,) if spec.half and way.stages == 2 else ()
    return PlanOptions(
        stages=way.stages,
        mesh=way.mesh,
        micro_batches=way.micro_batches,
        pins=pins_of(model, name),
        zero=way.zero,
        schedule=way.schedule,
        interleave=way.interleave,
        recompute=way.recompute,
        cuts=spec.quarters if way.interleave > 1 else half,
    )


@cache
def plan_for(model: str, name: str, dtype: str = "fp32") -> Plan:
    """The cell's Plan: the committed one where there is one."""
    return read_plan(model, name, dtype) if (model, name, dtype) in COMMITTED else searched_plan(model, name, dtype)


def searched_plan(model: str, name: str, dtype: str = "fp32") -> Plan:
    """The cell's Plan as the planner makes it now."""
    way, source = WAYS[name], program(model, dtype)
    return make_plan(
        source.graph(way.micro_batches),
        model=model,
        batch_size=source.batch_size,
        cluster=roomy_cluster(way.devices),
        options=options_for(model, name),
    )


def assert_is_what_it_says(plan: Plan, name: str) -> None:
    """The plan distributes in the way that it is named after."""
    communications = [task.id for task in plan.tasks if task.kind in (TaskKind.BOXING, TaskKind.TRANSFER)]
    for label in WAYS[name].proof:
        assert any(part in task for task in communications for part in label.split("|")), f"{name}: no {label} among {communications}"
    if WAYS[name].recompute:
        backward = [op for task in plan.tasks if isinstance(task.body, Fragment) and task.kind is TaskKind.BACKWARD for op in task.body.ops]
        again = [op for op in backward if "~" in op.id and op.target != BOXING and not is_view(op) and not is_creation(op)]
        assert again, f"{name}: the backward part makes nothing again"


def assert_transparent(outcome: Outcome, eager: Eager, *, factor: float = 1.0) -> None:
    """SEMANTICS 6.1: losses, gradients, parameters and buffers equal those of one device, to the rounding of float32.

    Args:
        factor: how much tighter (or wider) than float32's the tolerance is.
    """
    worst = errors(outcome, eager, factor=factor)
    told = {what: f"{error:.3g} times what rounding allows, at {name}" for what, (error, name) in worst.items() if not error <= 1}
    assert not told, told


def errors(outcome: Outcome, eager: Eager, *, factor: float = 1.0) -> dict[str, tuple[float, str]]:
    """'loss', 'gradient', 'state' -> largest |difference| as a multiple of what is allowed, and where; more than 1 is a difference.

    Allowed of value x: 1e-6 + 1e-5 |x| for losses, 1e-7 + 1e-5 max |g| + 1e-4 |x| for a gradient g, 2e-5 + 1e-4 |x| for a state; all
    times ``factor``.
    """
    assert set(outcome.gradients) == set(eager.gradients_of_last_step)
    found = {"loss": max((_beyond(a, b, 1e-6, 1e-5, factor), f"step {n}") for n, (a, b) in enumerate(_losses(outcome, eager)))}
    assert len(outcome.losses) == len(eager.losses)
    slopes = eager.gradients_of_last_step
    found["gradient"] = max(
        (_beyond(outcome.gradients[n], g, 1e-7 + 1e-5 * float(g.abs().max()), 1e-4, factor), n) for n, g in slopes.items()
    )
    states = {**eager.parameters, **eager.buffers}
    found["state"] = max((_beyond(outcome.states[n], value, 2e-5, 1e-4, factor), n) for n, value in states.items())
    return found


def _losses(outcome: Outcome, eager: Eager) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = zip(outcome.losses, eager.losses, strict=True)
    return [(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)) for a, b in pairs]


def _beyond(value: torch.Tensor, wanted: torch.Tensor, absolute: float, relative: float, factor: float) -> float:
    """Largest multiple of factor (absolute + relative |wanted|) by which the two differ; infinite where a number is missing.

    Raises:
        AssertionError: another shape or dtype.
    """
    assert value.shape == wanted.shape and value.dtype == wanted.dtype, (value.shape, value.dtype, wanted.shape, wanted.dtype)
    if value.dtype == torch.bool:
        return 0.0 if torch.equal(value, wanted) else inf
    if value.numel() == 0:
        return 0.0
    here, there = value.double(), wanted.double()
    gap = (here - there).abs() / (factor * (absolute + relative * there.abs()))
    gap = torch.where(here == there, 0.0, gap)  # two infinities are equal
    return float(gap.nan_to_num(nan=inf, posinf=inf).max())


@dataclass(frozen=True)
class Bf16Error:
    """Relative distances |x - x32| / |x32| of all tensors of a kind together, and of losses (largest), from the float32 training."""

    loss: float
    gradient: float
    parameter: float
    buffer: float


@cache
def float32_training(model: str, micro_batches: int) -> Eager:
    """The bfloat16 model's numbers, trained in float32."""
    return train_eagerly(widened(program(model, "bf16"), model, torch.float32), micro_batches, STEPS)


def bf16_errors(model: str, outcome: Outcome, micro_batches: int) -> tuple[Bf16Error, Bf16Error]:
    """(of the plan, of plain bfloat16 training: the largest over 1, 2 and 4 micro-batches, which round in another order each)."""
    mine = _bf16_error(outcome.losses, outcome.gradients, outcome.states, float32_training(model, micro_batches))
    plain = [_plain_bf16_error(model, count) for count in {1, 2, 4, micro_batches}]
    return mine, Bf16Error(
        loss=max(e.loss for e in plain),
        gradient=max(e.gradient for e in plain),
        parameter=max(e.parameter for e in plain),
        buffer=max(e.buffer for e in plain),
    )


@cache
def _plain_bf16_error(model: str, micro_batches: int) -> Bf16Error:
    truth, plain = float32_training(model, micro_batches), expected(model, micro_batches, "bf16")
    return _bf16_error(plain.losses, plain.gradients_of_last_step, {**plain.parameters, **plain.buffers}, truth)


def _bf16_error(losses: Sequence[float], slopes: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor], truth: Eager) -> Bf16Error:
    return Bf16Error(
        loss=max(abs(a - b) / abs(b) for a, b in zip(losses, truth.losses, strict=True)),
        gradient=_distance(slopes, truth.gradients_of_last_step),
        parameter=_distance(states, truth.parameters),
        buffer=_distance(states, truth.buffers),
    )


def _distance(values: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    floats = {name: value.double() for name, value in wanted.items() if value.is_floating_point()}
    gap = sum(float((values[name].double() - value).square().sum()) for name, value in floats.items())
    size = sum(float(value.square().sum()) for value in floats.values())
    return sqrt(gap / size) if size else 0.0


BF16_FACTOR, BF16_FACTOR_OF_ONE = 2.0, 6.0
"""A plan rounds the same values as plain training does, and now and then a partial sum more (P(sum) is added up in bfloat16), so its error is
of the same size; two roundings instead of one bound it by twice.  A single tensor has few numbers, so luck may make plain training's error
small there: 6.  [measured over all cells: all gradients 1.5, parameters 1.3, buffers 1.0; one gradient 4.2]"""


def assert_transparent_in_bf16(model: str, outcome: Outcome, micro_batches: int) -> None:
    """SEMANTICS 6.1 in bfloat16: no further from float32 training than a small multiple of what plain bfloat16 training is."""
    worst = errors_in_bf16(model, outcome, micro_batches)
    told = {what: f"{error:.3g} times what is allowed ({where})" for what, (error, where) in worst.items() if not error <= 1}
    assert not told, told


def errors_in_bf16(model: str, outcome: Outcome, micro_batches: int) -> dict[str, tuple[float, str]]:
    """'loss', 'gradient', 'state' -> distance from float32 training as a multiple of what is allowed, and where; 1 at most is right.

    Allowed is BF16_FACTOR times the distance of plain bfloat16 training.  A loss is one number; so half a unit in its last place, 2^-9, is
    allowed besides for each rounding on its way: the sum over the batch, the mean, and the mean over the micro-batches.  A single
    gradient may be off by BF16_FACTOR_OF_ONE times as much, and a unit, 2^-7 of its size, besides.
    """
    plan, plain = bf16_errors(model, outcome, micro_batches)
    truth = float32_training(model, micro_batches).gradients_of_last_step
    eager = expected(model, micro_batches, "bf16").gradients_of_last_step
    slopes = [(_over(plan.gradient, BF16_FACTOR * plain.gradient), "all")]
    for name, slope in truth.items():
        mine, theirs = (float((values[name].double() - slope.double()).norm()) for values in (outcome.gradients, eager))
        slopes.append((_over(mine, BF16_FACTOR_OF_ONE * theirs + 2**-7 * float(slope.double().norm())), name))
    states = [
        (_over(plan.parameter, BF16_FACTOR * plain.parameter), "parameters"),
        (_over(plan.buffer, BF16_FACTOR * plain.buffer), "buffers"),
    ]
    return {"loss": (_over(plan.loss, BF16_FACTOR * plain.loss + 3 * 2**-9), "all"), "gradient": max(slopes), "state": max(states)}


def _over(error: float, allowed: float) -> float:
    """error / allowed; infinite where there is no number."""
    if isnan(error):
        return inf
    return error / allowed if allowed else (inf if error else 0.0)
