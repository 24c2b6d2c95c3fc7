"""A job as TOML.

[model]    family = "llama3.1-8b", and any of its numbers in place of the family's; or all numbers: layers hidden ffn heads vocab seq
[cluster]  name = "dgx-h100:16"                     a preset with its number of nodes
[layout]   tp pp cp ep etp vp dp zero fsdp direct_gather micro_batch global_batch sequence_parallel layers_of_chunks vp_group
           precision recipe low_params recompute recompute_layers attention dropout graphs overlap_tp overlap_grad overlap_param overlap_p2p
            overlap_experts expert_once host_experts fused_experts sort_experts
            routing routing_quantile capacity_factor
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from planner.cost.routing import ExpertLoad, Routing
from planner.ir.errors import InvalidFile, Unsupported
from regista.jobs.cluster import machine_and_devices
from regista.jobs.families import family
from regista.jobs.job import Attention, Job, Layout, Model, Precision, Recompute, Running
from regista.jobs.recipes import Recipe

__all__ = ["toml_job"]

_LAYOUT = {f.name for f in fields(Layout)}
_OVERLAPS = {
    "overlap_tp",
    "overlap_grad",
    "overlap_param",
    "overlap_p2p",
    "overlap_experts",
    "expert_once",
    "host_experts",
    "fused_experts",
    "sort_experts",
}
_LOW = {"fp8-mixed": Precision.FP8, "nvfp4-mixed": Precision.NVFP4}
"""Names that other frameworks have for precisions."""
_ROUTED = {"routing", "routing_quantile", "capacity_factor"}
_RUNNING = {
    *(
        "precision",
        "recipe",
        "low_params",
        "graphs",
        "recompute",
        "recompute_layers",
        "attention",
        "dropout",
        "zero",
        "kernels",
        "schedule",
    ),
    *_OVERLAPS,
    *_ROUTED,
}
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("name", "pattern", "predicted_pattern"), str),
    **dict.fromkeys(("gated", "tied", "causal", "learned_positions", "predicted_alike", "expert_bias", "clamped"), bool),
}
"""Of the numbers of a model those that are none."""
_EXAMPLES = {"model": 'for example family = "llama3-8b"', "cluster": 'for example name = "dgx-h100:16"', "layout": "for example tp = 2"}
Table = Mapping[str, object]


def toml_job(data: Table, name: str) -> Job:
    """The job of a TOML's data.

    Raises:
        RegistaError: a section or key that is missing, unknown, or impossible.
    """
    for section in ("model", "cluster", "layout"):
        if section in data and not isinstance(data[section], dict):
            raise InvalidFile(
                f"{section} = {data[section]!r}; a section is needed: [{section}], and below it its keys, {_EXAMPLES[section]}"
            )
        if section not in data:
            raise InvalidFile(f"section [{section}] is missing; a job has [model], [cluster] and [layout]")
    if unknown := sorted(set(data) - {"model", "cluster", "layout"}):
        raise InvalidFile(f"unknown sections {unknown}; a job has [model], [cluster] and [layout]")
    model, (machine, devices) = _model(data["model"]), _cluster(data["cluster"])  # type: ignore[arg-type]
    table: Table = data["layout"]  # type: ignore[assignment]
    if unknown := sorted(set(table) - _LAYOUT - _RUNNING):
        raise InvalidFile(f"[layout] has unknown keys {unknown}; known are {sorted(_LAYOUT | _RUNNING)}")
    layout = _layout(table, devices, model)
    return Job(name=name, machine=machine, devices=devices, model=model, layout=layout, running=_running(table, model))


def _number(table: Table, key: str, where: str, default: int | None = None) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidFile(f"[{where}] {key} = {value!r}; a whole number is needed")
    return value


def _flag(table: Table, key: str, default: bool = False) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise InvalidFile(f"[layout] {key} = {value!r}; write true or false")
    return value


def _model(table: Table) -> Model:
    known = {f.name for f in fields(Model)} - {"part"}
    if unknown := sorted(set(table) - known - {"family"}):
        raise InvalidFile(f"[model] has unknown keys {unknown}; known are family, {', '.join(sorted(known))}")
    own = {key: value for key, value in table.items() if key != "family"}
    for key, value in own.items():
        wanted = _KINDS.get(key, int)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise InvalidFile(f"[model] {key} = {value!r}; {'a whole number' if wanted is int else wanted.__name__} is needed")
    if "family" in table:
        return replace(family(str(table["family"])), **own)  # type: ignore[arg-type]
    missing = sorted({"layers", "hidden", "ffn", "heads", "vocab", "seq"} - set(own))
    if missing:
        raise InvalidFile(f"[model] lacks {missing}; give a family, or layers, hidden, ffn, heads, vocab and seq")
    heads, hidden = _number(table, "heads", "model"), _number(table, "hidden", "model")
    if heads < 1:
        raise Unsupported(f"[model] heads = {heads}; at least 1 is needed")
    made: dict[str, object] = {"name": "model", "kv_heads": heads, "head_dim": hidden // heads} | own
    return Model(**made)  # type: ignore[arg-type]


def _cluster(table: Table) -> tuple[str, int]:
    name = table.get("name")
    if not isinstance(name, str):
        raise InvalidFile(f"[cluster] name = {name!r}; write the name of a cluster, for example dgx-h100:16")
    return machine_and_devices(name)


def _layout(table: Table, devices: int, model: Model) -> Layout:
    own = {key: _number(table, key, "layout") for key in _LAYOUT & set(table) - {"sequence_parallel", "layers_of_chunks", "direct_gather"}}
    chunks = table.get("layers_of_chunks")
    if chunks is not None and not (isinstance(chunks, list) and all(isinstance(c, int) for c in chunks)):
        raise InvalidFile(f"[layout] layers_of_chunks = {chunks!r}; a list of whole numbers is needed")
    held = own.get("tp", 1) * own.get("cp", 1) * own.get("pp", 1)
    if "dp" not in own and held > 0:
        own["dp"] = max(1, devices // held)
    zero = _number(table, "zero", "layout", 0)
    if zero == 3 and "fsdp" not in own:
        own["fsdp"] = own.get("dp", 1) * own.get("cp", 1)
    own.setdefault("global_batch", own.get("dp", 1) * own.get("micro_batch", 1))
    if model.experts:
        own.setdefault("etp", 1)
    return Layout(
        **own,
        sequence_parallel=_flag(table, "sequence_parallel"),
        direct_gather=_flag(table, "direct_gather", zero == 3 and "fsdp" not in table),
        layers_of_chunks=None if chunks is None else tuple(chunks),
    )


def _load(table: Table, model: Model) -> ExpertLoad | None:
    given = table.get("routing")
    if given is None:
        if alone := sorted(_ROUTED & set(table)):
            raise Unsupported(f'[layout] {", ".join(alone)} without routing; add routing, for example routing = "zipf:1.2"')
        return None
    if not isinstance(given, str):
        raise InvalidFile(f'[layout] routing = {given!r}; write text, for example "zipf:1.2"')
    room = None if "capacity_factor" not in table else _real(table, "capacity_factor", 1.0)
    quantile = _real(table, "routing_quantile", 0.9)
    return ExpertLoad(routing=Routing.parse(given), top_k=max(1, model.top_k), capacity_factor=room, quantile=quantile)


def _real(table: Table, key: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidFile(f"[layout] {key} = {value!r}; a number is needed")
    return float(value)


def _running(table: Table, model: Model) -> Running:
    def choice(key: str, default: str, known: list[str]) -> str:
        value = table.get(key, default)
        if value not in known:
            raise Unsupported(f"[layout] {key} = {value!r} is unknown; known are {', '.join(known)}")
        return str(value)

    choice("schedule", "1f1b", ["1f1b", "interleaved"])
    choice("kernels", "fused", ["fused"])
    zero = _number(table, "zero", "layout", 0)
    if zero not in (0, 1, 2, 3):
        raise Unsupported(f"[layout] zero = {zero}; 0 to 3 are known")
    again = table.get("recompute_layers")
    said = choice("precision", "bf16", [*(p.value for p in Precision), *_LOW])
    precision = _LOW.get(said) or Precision(said)
    usual = Recipe.NVFP4 if precision is Precision.NVFP4 else Recipe.DELAYED
    if "recipe" in table and not precision.is_low:
        raise Unsupported(f"[layout] recipe = {table['recipe']!r} with precision {said}; recipes are of fp8 and nvfp4")
    return Running(
        precision=precision,
        recipe=Recipe(choice("recipe", usual.value, [r.value for r in Recipe])),
        low_params=_flag(table, "low_params"),
        graphs=_flag(table, "graphs"),
        recompute=Recompute(choice("recompute", "none", [r.value for r in Recompute])),
        recompute_layers=None if again is None else _number(table, "recompute_layers", "layout"),
        distributed_optimizer=zero >= 1,
        attention=Attention(choice("attention", "fused", [a.value for a in Attention])),
        dropout=_flag(table, "dropout"),
        overlap_tp=_flag(table, "overlap_tp"),
        overlap_grad=_flag(table, "overlap_grad", zero >= 1),
        overlap_param=_flag(table, "overlap_param", zero >= 1),
        overlap_p2p=_flag(table, "overlap_p2p", True),
        overlap_experts=_flag(table, "overlap_experts"),
        expert_once=_flag(table, "expert_once"),
        load=_load(table, model),
        host_experts=_flag(table, "host_experts"),
        fused_experts=_flag(table, "fused_experts"),
        sort_experts=_flag(table, "sort_experts"),
    )
