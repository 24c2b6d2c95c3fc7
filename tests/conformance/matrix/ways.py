"""The ways to distribute, the cells that are planned, and those that cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.schedule import Schedule
from planner.search.context import Context

from .models import MODELS


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
    context: Context | None = None
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
    "context_gathered4": Way(
        devices=4,
        micro_batches=16,
        data="S(1)",
        sequence=("S({})", "S(1)"),
        context=Context.GATHERED,
        proof=("all_gather.fwd", "reduce_scatter.bwd", ".grad"),
    ),
    "context_ring4": Way(
        devices=4,
        micro_batches=16,
        data="S(1)",
        sequence=("S({})", "S(1)"),
        context=Context.RING,
        proof=("shift.fwd.2", "shift.bwd.2", ".grad"),
    ),
    "context_heads2": Way(
        devices=2,
        micro_batches=16,
        data="S(1)",
        sequence=("S({})", "S(1)"),
        context=Context.HEADS,
        proof=("all_to_all.fwd", "all_to_all.bwd", ".grad"),
    ),
}
"""Combinations of these, for some models."""

WAYS: Mapping[str, Way] = {**COMMON_WAYS, **RARE_WAYS}

_OLDEST = ("mlp", "gpt", "convnet")
_RARE: Mapping[str, tuple[str, ...]] = {"data2_data2_tensor2": ("mlp", "gpt", "wide_deep"), "data2_experts2": ("moe",)} | dict.fromkeys(
    ("context_gathered4", "context_heads2", "context_ring4"), ("llama3",)
)

REFUSED: Mapping[tuple[str, str], str] = {
    (model, way): "none of the .* modules of this model keeps anything inside of one"
    for model in ("convnet", "wide_deep")  # no numbered blocks; layers whose relu stands outside of them
    for way in ("recompute_data2", "recompute_pipeline2")
}
"""Cells that cannot be, and what the planner says of them."""

CELLS: Sequence[tuple[str, str]] = tuple(
    (model, way) for way in WAYS for model in (MODELS if way in COMMON_WAYS else _RARE.get(way, _OLDEST)) if (model, way) not in REFUSED
)


def _covering() -> Iterator[tuple[str, str]]:
    """Every way with one model; the models in turn, so that each has its share."""
    waiting = list(MODELS)
    for way in WAYS:
        model = next(model for model in waiting if (model, way) in CELLS)
        waiting.remove(model)
        waiting.append(model)
        yield model, way


COVERING: Sequence[str] = tuple(f"{model}-{way}" for model, way in _covering())
"""Every model once and every way once, as ids of tests."""

BF16_WAYS = ("data2", "sequence2", "zb_h1", "pipeline2", "pipeline2_data2_tensor2", "zero3")
"""The ways that the tests go in bfloat16 too."""

COMMITTED: Sequence[tuple[str, str, str]] = (
    *((model, way, "fp32") for model, way in CELLS),
    *((model, way, "bf16") for model, way in CELLS if way in BF16_WAYS),
    *((model, "data2", "fp64") for model in MODELS),
)
"""(model, way, dtype) of the Plans that are read, not searched."""
