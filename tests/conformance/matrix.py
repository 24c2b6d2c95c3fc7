"""The conformance matrix: {MLP, GPT with tied embedding, conv net with batch norm} x {ways to distribute it}, and what 'equal' means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from oracle import Outcome as Eager
from oracle import train_eagerly

from backend.outcome import Outcome
from planner.frontend import AdamW, Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import Plan, TaskKind
from planner.ir.sbp import NdSbp
from planner.lower import Schedule
from planner.make import PlanOptions, make_plan
from regista.zoo import ZOO

STEPS = 3

SMALL: Mapping[str, Mapping[str, int]] = {
    "mlp": {"batch": 64, "width": 16, "hidden": 32},
    "gpt": {"layers": 2, "width": 32, "heads": 4, "vocab": 64, "batch": 16, "seq": 16, "tied": 1},
    "convnet": {"batch": 16, "channels": 8, "size": 8},
}

# Column, then row: the first weight of each pair is cut by output features, the second by input features.
TENSOR_PARALLEL: Mapping[str, tuple[str, ...]] = {
    "mlp": ("blocks.*.up.weight={0}", "blocks.*.up.bias={0}", "blocks.*.down.weight={1}"),
    "gpt": (
        *tuple(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
        "h.*.attn.c_proj.weight={1}",
        "h.*.mlp.c_fc.weight={0}",
        "h.*.mlp.c_proj.weight={1}",
    ),
    "convnet": ("stage*.conv1.weight={0}", "stage*.conv2.weight={1}"),
}

BODY: Mapping[str, tuple[str, ...]] = {"mlp": ("blocks.?",), "gpt": ("h.?",), "convnet": ("stage?", "stage?.conv?", "stage?.bn?")}
"""The modules whose results carry the batch."""

QUARTERS: Mapping[str, tuple[str, ...]] = {
    "mlp": ("blocks.0.down", "blocks.1", "blocks.1.down"),
    "gpt": ("h.0.ln_2", "h.1", "h.1.ln_2"),
    "convnet": ("stage2", "stage3", "stage3.conv2"),
}
"""Cuts into four stages, finer than the even ones, for two stages per placement."""


@dataclass(frozen=True)
class Way:
    """One way to distribute.  zero: ZeRO level.  proof: boxing labels that show that the plan is what its name says."""

    devices: int
    stages: int = 1
    mesh: tuple[int, ...] | None = None
    micro_batches: int = 1
    data: str = ""
    tensor: tuple[str, str] | None = None
    zero: int | None = None
    schedule: Schedule = Schedule.ONE_F_ONE_B
    interleave: int = 1
    proof: tuple[str, ...] = field(default=())


WAYS: Mapping[str, Way] = {
    "data2": Way(devices=2, data="S(0)", proof=("all_reduce.grad",)),
    "tensor2": Way(devices=2, data="B", tensor=("S(0)", "S(1)"), proof=(".fwd",)),
    "data2_tensor2": Way(devices=4, mesh=(2, 2), data="S(0),B", tensor=("B,S(0)", "B,S(1)"), proof=(".axis0.", ".axis1.")),
    "pipeline2": Way(devices=2, stages=2, micro_batches=4, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "pipeline2_data2": Way(
        devices=4, stages=2, micro_batches=2, data="S(0)", proof=("s0-s1.fwd", "s0.all_reduce.grad", "s1.all_reduce.grad")
    ),
    "zero1": Way(devices=2, data="S(0)", zero=1, proof=("reduce_scatter.grad", "all_gather.param")),
    "zero2": Way(devices=2, data="S(0)", zero=2, micro_batches=2, proof=("reduce_scatter.bwd", "all_gather.param")),
    "zero3": Way(devices=2, data="S(0)", zero=3, proof=("all_gather.param.again", "reduce_scatter.grad")),
    "zero3_accumulated": Way(devices=2, data="S(0)", zero=3, micro_batches=4, proof=("all_gather.param.again", "reduce_scatter.bwd")),
    "zero3_pipeline2": Way(
        devices=4,
        stages=2,
        micro_batches=4,
        data="S(0)",
        zero=3,
        proof=("s0.all_gather.param.again", "s1.all_gather.param.again", "s0-s1.fwd"),
    ),
    "interleaved2": Way(
        devices=2,
        stages=2,
        micro_batches=4,
        schedule=Schedule.INTERLEAVED,
        interleave=2,
        proof=("s0-s1.fwd.1", "s1-s0.fwd.0", "s0-s1.bwd.0"),
    ),
    "interleaved2_data2": Way(
        devices=4, stages=2, micro_batches=4, data="S(0)", schedule=Schedule.INTERLEAVED, interleave=2, proof=("s0-s1.fwd.1", "s1-s0.fwd.0")
    ),
    "zb_h1_tensor2": Way(
        devices=4, stages=2, micro_batches=4, data="B", tensor=("S(0)", "S(1)"), schedule=Schedule.ZB_H1, proof=("s0-s1.fwd", ".fwd")
    ),
    "zb_h1": Way(devices=2, stages=2, micro_batches=4, schedule=Schedule.ZB_H1, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "zb_h2": Way(devices=2, stages=2, micro_batches=8, schedule=Schedule.ZB_H2, proof=("s0-s1.fwd", "s1-s0.bwd")),
    "zb_auto_data2": Way(
        devices=4, stages=2, micro_batches=4, data="S(0)", schedule=Schedule.ZB_AUTO, proof=("s0-s1.fwd", "s0.all_reduce.grad")
    ),
}


def roomy_cluster(num_devices: int) -> Cluster:
    """A cluster scaled down with the models (10 flop per byte of link, hardly any latency): distributing them pays, so pins are not undone."""
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"test-{num_devices}", source="", num_nodes=1, devices_per_node=num_devices, device=device, node=link)


@cache
def program(model: str) -> Program:
    """The small model with AdamW.

    eps is large on purpose: where a gradient is exactly 0 (the key's bias), m / (sqrt(v) + 1e-8) would turn rounding noise into full steps.
    """
    made = ZOO[model](**SMALL[model])
    return Program(made.module, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name=model, data=made.data)


@cache
def expected(model: str, micro_batches: int) -> Eager:
    return train_eagerly(program(model), micro_batches, STEPS)


def pins_of(model: str, way: Way) -> tuple[str, ...]:
    pins = (f"input.0={way.data}", *(f"out:{modules}={way.data}" for modules in BODY[model])) if way.data else ()
    if way.tensor is not None:
        pins += tuple(pin.format(*way.tensor) for pin in TENSOR_PARALLEL[model])
    if way.data and way.tensor is None and way.zero is None:
        # Left to itself the search shards the update wherever data is parallel: same bytes, less work.
        pins += (f"*:exp_avg*={NdSbp.broadcast(len(NdSbp.parse(way.data)))}",)
    return pins


@cache
def plan_for(model: str, name: str) -> Plan:
    way = WAYS[name]
    source = program(model)
    options = PlanOptions(
        stages=way.stages,
        mesh=way.mesh,
        micro_batches=way.micro_batches,
        pins=pins_of(model, way),
        zero=way.zero,
        schedule=way.schedule,
        interleave=way.interleave,
        cuts=QUARTERS[model] if way.interleave > 1 else (),
    )
    return make_plan(
        source.graph(way.micro_batches), model=model, batch_size=source.batch_size, cluster=roomy_cluster(way.devices), options=options
    )


def assert_is_what_it_says(plan: Plan, name: str) -> None:
    """The plan distributes in the way that it is named after."""
    communications = [task.id for task in plan.tasks if task.kind in (TaskKind.BOXING, TaskKind.TRANSFER)]
    for label in WAYS[name].proof:
        assert any(label in task for task in communications), f"{name}: no {label} among {communications}"


def assert_transparent(outcome: Outcome, eager: Eager) -> None:
    """SEMANTICS 6.1: losses, gradients, parameters and buffers equal those of one device, to the rounding of float32."""
    torch.testing.assert_close(torch.tensor(outcome.losses), torch.tensor(eager.losses), rtol=1e-5, atol=1e-6)
    assert set(outcome.gradients) == set(eager.gradients_of_last_step)
    for name, gradient in eager.gradients_of_last_step.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            outcome.gradients[name], gradient, rtol=1e-4, atol=1e-5 * scale + 1e-7, msg=lambda m, n=name: f"gradient {n}: {m}"
        )
    for name, parameter in {**eager.parameters, **eager.buffers}.items():
        torch.testing.assert_close(outcome.states[name], parameter, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"state {n}: {m}")
