"""Regista's own TOML of a job: read, and written with the knobs that differ from their usual values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from planner.ir.errors import InvalidFile
from regista.jobs.cluster import machine_and_devices
from regista.jobs.formats.canonical import canonical
from regista.jobs.formats.values import EXPERT_KNOBS, Asked, Form, Reading, Written
from regista.jobs.job import Job, Layout, Model
from regista.jobs.readers.toml_job import toml_job

__all__ = ["read_regista", "regista_flags"]

_SAID = ("precision", "recipe", "recompute", "attention")
_PLAIN = ("low_params", "graphs", "dropout", "overlap_tp", "overlap_grad", "overlap_param", "overlap_p2p")
_UNSAID = {
    "grad_bytes": 4,
    "master_bytes": 4,
    "moment_bytes": 8,
    "frozen": False,
    "deferred_wgrad": 0,
    "fused_loss": False,
    "jax": False,
    "bucket_bytes": 0,
}
"""Knobs of Running that the TOML does not have, with the values that it means."""


def read_regista(data: Mapping[str, object], asked: Asked, *, name: str) -> Reading:
    """The job of a TOML; ``--cluster`` is in place of its own.

    Raises:
        RegistaError: see toml_job; a family, vocabulary or length beside a TOML that has them.
    """
    if asked.family or asked.seq or asked.vocab:
        raise InvalidFile("--family, --seq and --vocab are for files without a model; write them into [model]")
    job = toml_job(data, name)
    if asked.cluster is not None:
        machine, devices = machine_and_devices(asked.cluster)
        job = replace(job, machine=machine, devices=devices)
    flags = {f"{section}.{key}": value for section, table in data.items() if isinstance(table, dict) for key, value in table.items()}
    return Reading(job=job, form=Form.REGISTA, flags=flags, unmapped=(), without_effect=(), assumed=())


def regista_flags(job: Job, cluster: str) -> Written:
    """The TOML's settings of a job.

    Args:
        cluster: its name, which a job does not know.
    """
    load = job.running.load
    job = canonical(job)
    run = job.running
    flags: dict[str, object] = {f"model.{f.name}": getattr(job.model, f.name) for f in fields(Model) if f.name not in ("name", "part")}
    flags = {name: value for name, value in flags.items() if value not in (0, "", False) or name == "model.causal"}
    flags["cluster.name"] = cluster
    usual = Layout()
    for field in fields(Layout):
        value = getattr(job.layout, field.name)
        if value != getattr(usual, field.name) or field.name in ("tp", "pp", "dp", "micro_batch", "global_batch"):
            flags[f"layout.{field.name}"] = list(value) if isinstance(value, tuple) else value
    if run.distributed_optimizer:
        flags["layout.zero"] = 1
    for name in _SAID:
        if name != "recipe" or run.precision.is_low:
            flags[f"layout.{name}"] = getattr(run, name).value
    if run.recompute_layers is not None:
        flags["layout.recompute_layers"] = run.recompute_layers
    if load is not None:
        flags |= {"layout.routing": str(load.routing), "layout.routing_quantile": load.quantile}
        if load.capacity_factor is not None:
            flags["layout.capacity_factor"] = load.capacity_factor
    flags |= {f"layout.{name}": getattr(run, name) for name in _PLAIN}
    flags |= {f"layout.{name}": True for name in EXPERT_KNOBS if getattr(run, name)}
    lost = tuple(f"{name} {getattr(run, name)}" for name, value in _UNSAID.items() if getattr(run, name) != value)
    return Written(flags=flags, lost=lost)
