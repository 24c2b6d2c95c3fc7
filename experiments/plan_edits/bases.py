"""The Plans that are edited: small models of the zoo, in all ways to distribute them, as ``regista plan`` makes them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import regista
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.plan import Plan
from regista.update_options import UpdateOptions

__all__ = ["BASES", "base_plan"]

_MLP = "zoo:mlp?batch=16&width=16&hidden=32&optimizer=adamw"
_WIDE = "zoo:mlp?batch=32&width=16&hidden=16&depth=4&optimizer=adamw"
_GPT = "zoo:gpt?layers=2&width=16&heads=2&vocab=32&batch=8&seq=8"
_MOE = "zoo:moe?layers=2&width=16&heads=2&experts=4&hidden=16&vocab=16&batch=8&seq=4"
_CONV = "zoo:convnet?batch=8&channels=4&size=8&optimizer=adamw"
_LLAMA = "zoo:llama3?layers=2&width=16&heads=4&kv_heads=2&hidden=32&vocab=16&batch=8&seq=8"

_DATA = ("input.0=S(0)", "*:exp_avg*=B")
_MLP_TENSOR = ("blocks.*.up.weight=S(0)", "blocks.*.up.bias=S(0)", "blocks.*.down.weight=S(1)")
_GPT_TENSOR = (
    *(f"h.*.attn.{n}.weight=S(0)" for n in "qkv"),
    *("h.*.attn.c_proj.weight=S(1)", "h.*.mlp.c_fc.weight=S(0)", "h.*.mlp.c_proj.weight=S(1)"),
)
_LLAMA_TENSOR = (
    *(f"layers.*.attention.{n}_proj.weight=S(0)" for n in "qkv"),
    *("layers.*.attention.o_proj.weight=S(1)", "layers.*.mlp.down_proj.weight=S(1)"),
    *(f"layers.*.mlp.{n}_proj.weight=S(0)" for n in ("gate", "up")),
)


def _on_two_axes(pins: tuple[str, ...]) -> tuple[str, ...]:
    """Pins of the second axis of a mesh whose first one carries the batch."""
    return ("input.0=S(0),B", *(f"{name}=B,{layout}" for name, layout in (pin.split("=") for pin in pins)))


BASES: Mapping[str, tuple[str, int, Mapping[str, Any]]] = MappingProxyType(
    {
        "one device": (_MLP, 1, {"micro_batches": 2}),
        "data": (_MLP, 2, {"pins": _DATA}),
        "data, accumulated": (_MLP, 2, {"pins": _DATA, "micro_batches": 4}),
        "tensor": (_MLP, 2, {"pins": ("input.0=B", *_MLP_TENSOR)}),
        "tensor of gpt": (_GPT, 2, {"pins": ("input.0=B", *_GPT_TENSOR)}),
        "data x tensor": (_GPT, 4, {"mesh": (2, 2), "pins": _on_two_axes(_GPT_TENSOR)}),
        "sequence": (_GPT, 2, {"pins": (*_GPT_TENSOR, "out:h.?=S(1)", "out:h.?.ln_?=S(1)", "out:h.?.mlp.c_fc=S(2)")}),
        "searched": (_GPT, 2, {}),
        "pipeline": (_MLP, 2, {"stages": 2, "micro_batches": 4}),
        "gpipe": (_GPT, 2, {"stages": 2, "micro_batches": 2, "schedule": "gpipe"}),
        "pipeline x data": (_MLP, 4, {"stages": 2, "micro_batches": 2, "pins": ("input.0=S(0)",)}),
        "pipeline x data x tensor": (_LLAMA, 8, {"stages": 2, "mesh": (2, 2), "micro_batches": 2, "pins": _on_two_axes(_LLAMA_TENSOR)}),
        "ZeRO 1": (_MLP, 2, {"pins": ("input.0=S(0)",), "zero": 1}),
        "ZeRO 2": (_GPT, 2, {"pins": ("input.0=S(0)",), "zero": 2, "micro_batches": 2}),
        "ZeRO 3": (_GPT, 2, {"pins": ("input.0=S(0)",), "zero": 3}),
        "ZeRO 3 in a pipeline": (_MLP, 4, {"pins": ("input.0=S(0)",), "zero": 3, "stages": 2, "micro_batches": 4}),
        "recompute x data": (_GPT, 2, {"pins": _DATA, "recompute": True}),
        "recompute in a pipeline": (_WIDE, 2, {"stages": 2, "micro_batches": 4, "recompute": True}),
        "experts": (_MOE, 2, {"pins": ("input.0=S(0)", "h.1.mlp.w_*=S(0)")}),
        "interleaved": (_WIDE, 2, {"stages": 2, "micro_batches": 4, "schedule": "interleaved", "interleave": 2}),
        "interleaved x data": (
            _WIDE,
            4,
            {"stages": 2, "micro_batches": 2, "schedule": "interleaved", "interleave": 2, "pins": ("input.0=S(0)",)},
        ),
        "zero-bubble h1": (_MLP, 2, {"stages": 2, "micro_batches": 4, "schedule": "zb-h1"}),
        "zero-bubble, automatic": (_MLP, 2, {"stages": 2, "micro_batches": 4, "schedule": "zb-auto"}),
        "zero-bubble x tensor": (_MLP, 4, {"stages": 2, "micro_batches": 4, "schedule": "zb-h1", "pins": ("input.0=B", *_MLP_TENSOR)}),
        "dropout": (f"{_GPT}&dropout=0.2", 2, {"pins": _DATA, "micro_batches": 2}),
        "dropout in a pipeline, recomputed": (f"{_GPT}&dropout=0.2", 2, {"stages": 2, "micro_batches": 2, "recompute": True}),
        "bf16-mixed": (_GPT, 2, {"pins": ("input.0=S(0)",), "precision": "bf16-mixed"}),
        "fp16-mixed": (_MLP, 2, {"pins": _DATA, "precision": "fp16-mixed", "micro_batches": 2}),
        "batch norm": (_CONV, 2, {"pins": _DATA}),
        "batch norm, local": (_CONV, 2, {"pins": _DATA, "batch_norm": "local"}),
        "batch norm in a pipeline": (_CONV, 2, {"stages": 2, "micro_batches": 2}),
        "clipped, by a schedule, averaged": (
            *(_MLP, 2),
            {"pins": _DATA, "update": UpdateOptions(clip_norm=0.5, lr_schedule="linear:0.01?warmup=2&steps=10", ema=0.9)},
        ),
        "clipped in a pipeline": (_MLP, 2, {"stages": 2, "micro_batches": 2, "update": UpdateOptions(clip_norm=0.5)}),
        "evaluation": (_GPT, 2, {"mode": "eval", "outputs": True, "pins": ("input.0=S(0)",), "micro_batches": 2}),
        "evaluation in a pipeline": (_MLP, 2, {"mode": "eval", "outputs": True, "stages": 2, "micro_batches": 2}),
        "padded batch": ("zoo:mlp?batch=15&width=16&hidden=32&optimizer=adamw", 2, {"pins": ("input.0=S(0)",), "micro_batches": 2}),
        "SGD": ("zoo:wide_deep?batch=16&vocab=32&embedding=4&layers=2&width=16&optimizer=sgd", 2, {"pins": ("input.0=S(0)",)}),
        "encoder and decoder": (
            "zoo:t5?layers=1&width=16&heads=2&hidden=16&vocab=16&batch=8&seq=4&target_seq=4",
            2,
            {"stages": 2, "micro_batches": 2},
        ),
        "skipping connections": ("zoo:unet?batch=8&image=8&channels=1&classes=2&layers=2&width=4&norm=1", 2, {"pins": ("input.0=S(0)",)}),
        "rows of an image": (_CONV, 2, {"pins": ("out:stage?=S(2)", "stage*.conv1.weight=S(0)", "stage*.conv2.weight=S(1)")}),
        "fused attention": (f"{_GPT}&attention=fused", 2, {"pins": _DATA, "micro_batches": 2}),
    }
)
"""Name -> model, devices, and what is asked of the planner."""


def base_plan(name: str) -> Plan:
    """One of the Plans.  Distributing it pays: links are quick and latencies short for so small a model."""
    model, num_devices, options = BASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regista.plan(model, _cluster(num_devices), **options)


def _cluster(num_devices: int) -> Cluster:
    device = DeviceSpec(kind="cpu", memory_bytes=8 * 10**9, rate_flop_per_s=1e9, memory_bandwidth_bytes_per_s=1e9)
    link = LinkSpec(latency_s=1e-6, bandwidth_bytes_per_s=1e8)
    return Cluster(name=f"roomy-{num_devices}", source="", num_nodes=1, devices_per_node=num_devices, device=device, node=link)
