"""A cell of the matrix: its program, what plain training makes of it, and its Plan."""

from __future__ import annotations

import copy
from functools import cache

import torch
from oracle import Outcome as Eager
from oracle import train_eagerly

from backend.layout.boxing import BOXING
from planner.frontend import AdamW, Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import Fragment, Plan, TaskKind
from planner.ir.sbp import NdSbp
from planner.opset import is_creation, is_view
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

from .committed import read_plan
from .models import MODELS
from .ways import COMMITTED, WAYS

STEPS = 3
OPTIMIZER = AdamW(lr=1e-2, eps=1e-3)


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
        dtype: of parameters, optimizer state and inputs: "fp32", "bf16", or "fp64" (the fp32 values, exactly); or a mixed precision.
    """
    if dtype.endswith("-mixed"):
        return program(model).in_formats(dtype, None)
    made = ZOO[model](**MODELS[model].sizes, dtype="fp32" if dtype == "fp64" else dtype)
    return trained(made, model) if dtype != "fp64" else widened(made, model, torch.float64)


def drawn_anew(model: str, seed: int) -> Program:
    """The small model in float32 with other first weights and other data."""
    return trained(ZOO[model](**MODELS[model].sizes, dtype="fp32", seed=seed), model)


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
        context=way.context,
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
