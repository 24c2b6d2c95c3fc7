"""A small GPT with a tied embedding that is not built yet, and plans of it, for what concerns values of state: drawn, saved, moved."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from planner.frontend import AdamW, Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import PlacedTensor, Plan, RegstKind
from planner.ir.sbp import NdSbp
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

TENSOR = (
    *tuple(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
    "h.*.attn.c_proj.weight={1}",
    "h.*.mlp.c_fc.weight={0}",
    "h.*.mlp.c_proj.weight={1}",
)
STATES_WHOLE = ("*:exp_avg*=B",)
SPLIT, WHOLE = ("input.0=S(0)", "out:h.?=S(0)"), ("input.0=B", "out:h.?=B")


def _tensor(first: str, second: str) -> tuple[str, ...]:
    return tuple(pin.format(first, second) for pin in TENSOR)


WAYS: dict[str, tuple[int, PlanOptions]] = {
    "one": (1, PlanOptions()),
    "data2": (2, PlanOptions(pins=(*SPLIT, *STATES_WHOLE))),
    "tensor2": (2, PlanOptions(pins=(*WHOLE, *_tensor("S(0)", "S(1)")))),
    "pipeline2": (2, PlanOptions(stages=2, micro_batches=4)),
    "zero3": (2, PlanOptions(zero=3, pins=SPLIT)),
    "data2_tensor2": (
        4,
        PlanOptions(mesh=(2, 2), pins=("input.0=S(0),B", "out:h.?=S(0),B", *_tensor("B,S(0)", "B,S(1)"), "*:exp_avg*=B,B")),
    ),
    "zero3_pipeline2": (4, PlanOptions(stages=2, micro_batches=4, zero=3, pins=SPLIT)),
}
"""Name -> (devices, options)."""


@cache
def program() -> Program:
    """eps is large: where a gradient is exactly 0 (the key's bias), m / (sqrt(v) + 1e-8) would turn rounding noise into full steps."""
    made = ZOO["gpt"](layers=2, width=32, heads=4, vocab=64, batch=16, seq=16, tied=1)
    assert made.factory is not None
    return Program(made.factory, made.example_inputs, made.loss, AdamW(lr=1e-2, eps=1e-3), name="gpt", data=made.data)


@cache
def plan_for(way: str) -> Plan:
    devices, options = WAYS[way]
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    cluster = Cluster(name=f"test-{devices}", source="", num_nodes=1, devices_per_node=devices, device=device, node=link)
    graph = program().graph(options.micro_batches or 1)
    return make_plan(graph, model="gpt", batch_size=program().batch_size, cluster=cluster, options=options)


def uneven3() -> Plan:
    """State on three ranks, split along its first dim where it has three or more rows: 64 rows lie as 22, 21, 21.

    Only its state has a meaning: the search gives no such plan, so the ops are those of another.
    """
    plan = plan_for("data2")

    def split(tensor: PlacedTensor) -> PlacedTensor:
        return replace(tensor, sbp=NdSbp.parse("S(0)" if tensor.shape and tensor.shape[0] >= 3 else "B"))

    regsts = tuple(replace(r, tensors=tuple(map(split, r.tensors))) if r.kind is RegstKind.STATE else r for r in plan.regsts)
    (placement,) = plan.placements
    return replace(plan, regsts=regsts, placements=(replace(placement, ranks=(0, 1, 2), mesh=(3,)),))
