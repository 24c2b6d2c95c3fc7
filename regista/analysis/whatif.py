"""The same program and options on a changed cluster: what the old decisions would cost there, and what a new search finds."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any, TypeVar

import simulator
from planner.ir.actors.verify import device_bytes
from planner.ir.cluster import Cluster, cluster_toml, parse_cluster
from planner.ir.collector import collector_paused
from planner.ir.errors import InvalidCluster, Mismatch, Unsupported
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.parallelism.make import make_plan
from planner.parallelism.memory import Decided, SearchMemory
from planner.parallelism.proof import SEARCH_RESULTS
from planner.search.model import SearchModel, Standing
from planner.solve.beside import Beside, has_second_core
from regista.analysis.diff import Difference, diff, side_of, signatures_of
from regista.analysis.planned import decisions, options_of, retrace, step_of
from regista.schedules.compared import RECORD
from regista.trust.constants import search_cluster

__all__ = ["WhatIf", "changed_cluster", "whatif"]

T = TypeVar("T")

_PREFIX = "cluster."
_WORTH_OPS = 1_000
"""The old Plan of fewer ops is priced before a second process would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """sets: what was changed.   old_s: the old decisions on the new cluster, seconds per step; infinite if it does not allow them, None where
    the devices are other ones, so that no decision carries over.   old_fits: the old plan fits the memory there.
    seconds: trace, search (and lowering), price: until the old decisions are priced, which a second process does meanwhile where a core is free.
    """

    sets: tuple[str, ...]
    plan: Plan
    old_s: float | None
    old_fits: bool
    difference: Difference
    seconds: Mapping[str, float]


def changed_cluster(cluster: Cluster, sets: Sequence[str]) -> Cluster:
    """The cluster with some keys of its TOML set anew: ``cluster.links.nic.bandwidth_GBps=50``.

    All are set before any law is checked, so a whole link can be added.  What is not named stays the very same number.

    Raises:
        Unsupported: not KEY=VALUE, or no TOML value.   InvalidCluster: a key or value that a cluster file may not have either.
    """
    before, data = tomllib.loads(cluster_toml(cluster)), tomllib.loads(cluster_toml(cluster))
    for text in sets:
        key, equals, value = text.partition("=")
        path = key.strip().split(".")
        if not equals or path[0] + "." != _PREFIX or len(path) < 2 or not all(path):
            raise Unsupported(f"--set {text!r}: write cluster.SECTION.KEY=VALUE as in the cluster's TOML; {_known(before)}")
        _put(data, path[1:], _value(text, value), text, before)
    if data["device"].get("kernels") == "" and data["device"].get("fusion") == before["device"].get("fusion"):
        data["device"].pop("fusion", None)  # it says how the kernels of a table are made, and there is none any more
    after = parse_cluster(data, "--set", cluster.name)
    same = parse_cluster(before, "--set", cluster.name)
    changed = _carried(cluster, same, after)
    if changed == cluster:
        return cluster
    rates = [(d.rate_flop_per_s, d.memory_bandwidth_bytes_per_s, d.rates) for d in (cluster.device, changed.device)]
    if changed.device.kernels and rates[0] != rates[1]:
        raise Unsupported(
            f"--set {', '.join(sets)}: kernels of {changed.device.kernels} are priced by their tables, so the rates of the cluster's file change "
            f"nothing; set cluster.device.kernels to another device, or to an empty text and the rates with it"
        )
    return replace(changed, source=f"{changed.source}; changed: {', '.join(sets)}".removeprefix("; "))


def _value(text: str, value: str) -> object:
    try:
        data = tomllib.loads(f"value = {value}")
    except ValueError:
        data = {}
    if set(data) != {"value"}:
        raise Unsupported(f"--set {text!r}: {value.strip()!r} is no TOML value; write a number, or a text in double quotes")
    parsed: object = data["value"]
    return parsed


def _put(data: dict[str, Any], path: list[str], value: object, text: str, before: Mapping[str, object]) -> None:
    section = data
    for name in path[:-1]:
        inner = section.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidCluster(f"--set {text!r}: {name} is a value, not a section; {_known(before)}")
        section = inner
    if isinstance(section.get(path[-1]), dict):
        raise InvalidCluster(f"--set {text!r}: {path[-1]} is a section, set one of its keys; {_known(before)}")
    section[path[-1]] = value


def _known(data: Mapping[str, object]) -> str:
    return f"this cluster has {', '.join(sorted(_keys(_PREFIX.rstrip('.'), data)))}"


def _keys(prefix: str, data: Mapping[str, object]) -> list[str]:
    keys = []
    for name, value in data.items():
        if isinstance(value, dict):
            keys += _keys(f"{prefix}.{name}", value)
        elif name != "schema":
            keys.append(f"{prefix}.{name}")
    return keys


def _carried(original: T, before: T, after: T) -> T:
    """``original`` with what differs between ``before`` and ``after``, which went through text and its rounding."""
    if before == after:
        return original
    if dataclasses.is_dataclass(before) and dataclasses.is_dataclass(after) and not isinstance(before, type):
        names = [f.name for f in dataclasses.fields(before)]
        fields = {name: _carried(getattr(original, name), getattr(before, name), getattr(after, name)) for name in names}
        return replace(original, **fields)  # type: ignore[type-var]
    return after


def _fits(plan: Plan, cluster: Cluster, live_bytes: Mapping[int, int] | None) -> bool:
    """As planner.ir.actors.verify judges it: all blocks at once, or what is live at the worst moment.   live_bytes: then; None: not known."""
    limit = cluster.device.memory_bytes
    if live_bytes is not None and max(live_bytes.values()) <= limit:
        return True
    return max(device_bytes(plan).values()) <= limit or (live_bytes is None and max(simulator.dry_run(plan).values()) <= limit)


@collector_paused()
def whatif(plan: Plan, sets: Sequence[str], graph: LogicalGraph | None = None, memory: SearchMemory | None = None) -> WhatIf:
    """Plan anew on a changed cluster, with the Plan's options, shape (stages, mesh, micro-batches) and search method.

    The old layouts stay where they fit and cost no more there than what the search finds, so what differs is worth its change.

    Args:
        sets: see changed_cluster.
        graph: the step, for a program that no file holds; None: trace the program that the Plan names.
        memory: what searches of the program have worked out; what it may change, regista.PlannerSession says.

    Raises:
        Mismatch: the program is another one by now.   RegistaError: see changed_cluster and make_plan.
    """
    if not sets:
        raise Unsupported("nothing to change: give at least one --set cluster.SECTION.KEY=VALUE")
    cluster = changed_cluster(plan.cluster, sets)
    robust = plan.options.get("robust", "")
    priced_on = search_cluster(cluster, robust)
    began = perf_counter()
    kept = SearchMemory() if memory is None else memory
    step = step_of(plan, graph, kept)
    traced = perf_counter()
    is_as_large, options = cluster.num_devices == plan.cluster.num_devices, options_of(plan)
    if not is_as_large and len(plan.placements[0].mesh) == 1:
        options = replace(options, mesh=None)
    elif not is_as_large:
        mesh = "x".join(map(str, plan.placements[0].mesh))
        raise Unsupported(
            f"plan {plan.plan_id} has mesh {mesh} for {plan.cluster.num_devices} devices, the changed cluster has {cluster.num_devices}; "
            f"use 'regista plan {plan.model} --cluster FILE', which searches the mesh too"
        )
    standing = _Standing(plan, kept.decided(plan, search_cluster(plan.cluster, robust)))
    known = standing.known
    live_bytes = None if known is None else known.live_bytes
    beside = Beside(
        lambda: (_fits(plan, cluster, live_bytes), side_of(plan, live_bytes)),
        allowed=lambda: live_bytes is None and len(step.ops) >= _WORTH_OPS and has_second_core(),
        until_s=lambda began_s: inf,  # how long it takes is not known before
    )
    beside.start()
    try:
        new = make_plan(
            step,
            model=plan.model,
            batch_size=plan.batch_size,
            cluster=priced_on,
            options=options,
            dry_run=simulator.dry_run,
            memory=kept,
            standing=standing.on if is_as_large else None,
        )
        searched = perf_counter()
        old_fits, side = beside.result()
    finally:
        beside.stop()
    old_s, signatures = standing.priced()
    if signatures is None:
        retraced = retrace(plan, step, kept)
        old_s = retraced.model_on(priced_on).step_s(retraced.choice) if is_as_large else None
        signatures = signatures_of(retraced.model, retraced.choice)
    priced = perf_counter()
    # What was asked of the program (its precision, for example) is asked of the new plan too; what the old search found is not.
    asked = {option: said for option, said in plan.options.items() if option not in SEARCH_RESULTS | {RECORD}}
    new = replace(new, cluster=cluster, options={**asked, **new.options})
    if replace(new, search=plan.search) == plan:
        new = plan  # the same plan; its record may say more, for example that no other shape is cheaper
    return WhatIf(
        sets=tuple(sets),
        plan=new,
        old_s=old_s,
        old_fits=old_fits,
        difference=diff(plan, new, step, side=side, signatures=signatures, memory=kept),
        seconds={"trace": traced - began, "search": searched - traced, "price": priced - searched},
    )


@dataclass(slots=True)
class _Standing:
    """The old Plan's choice on the choice problem of the new search.   known: what the Plan was made of; None: it is read out of the Plan."""

    plan: Plan
    known: Decided | None
    _on: tuple[SearchModel, Standing | None] | None = None

    def on(self, model: SearchModel) -> Standing | None:
        """The old choice as one of the new problem; None: that has no such choice, for example if only one of the two was limited in memory."""
        if self._on is None or not model.has_choices_of(self._on[0]):
            self._on = model, self._choice(model)
        return self._on[1]

    def _choice(self, model: SearchModel) -> Standing | None:
        taken = None if self.known is None else self.known.taken
        if taken is not None and model.has_choices_of(taken.model):
            return Standing(taken.choice, taken.multipliers)
        try:
            return Standing(decisions(self.plan, model))
        except Mismatch:
            return None

    def priced(self) -> tuple[float | None, Mapping[str, str] | None]:
        """(its step there in seconds, its signatures); None: there is no such choice."""
        model, standing = self._on or (None, None)
        if model is None or standing is None:
            return None, None
        return model.step_s(standing.choice), signatures_of(model, standing.choice)
