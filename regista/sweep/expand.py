"""Expands a manifest's sections to points: the full product of their lists, in which the last list varies fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import product
from math import prod
from typing import Any
from urllib.parse import urlencode

from planner.ir.errors import InvalidFile
from regista.sweep.keys import known_keys
from regista.sweep.point import PLAN_KEYS, RUN_KEYS, SIM_KEYS, Performer, Point, Scalar, plan_options
from zoo import ZOO

__all__ = ["expand"]

_POINT = ("label", "tags", "paper", "model", "cluster", "plan", "simulate", "run")
MOST_POINTS = 10_000
"""More points than any committed manifest has by a factor of a hundred; each takes a second or more."""
_UNITS = ("_s", "_bytes", "_per_s", "_flop", "_share", "_ratio", "_count")

Sections = Mapping[str, Mapping[str, Any]]


def expand(base: Sections, overrides: Sequence[Mapping[str, Any]], performer: Performer, *, unique: bool = False) -> tuple[Point, ...]:
    """All points of the base with each of the overrides.

    Args:
        unique: of points that ask for the same the first stays; else they are refused.

    Raises:
        InvalidFile: an unknown key, a value that cannot be, two points that are the same, or none.
    """
    points: list[Point] = []
    for override in overrides:
        known_keys(override, _POINT, "a point")
        sections = {name: {**base[name], **override.get(name, {})} for name in ("model", "cluster", "plan", "simulate", "run")}
        points += _product(sections, override, performer)
    if not points:
        raise InvalidFile("there is no point; a list of the manifest is empty")
    if unique:
        firsts: dict[str, Point] = {}
        for point in points:
            firsts.setdefault(point.point_id, point)
        return tuple(firsts.values())
    seen: dict[str, str] = {}
    for point in points:
        if point.point_id in seen:
            raise InvalidFile(f"the points {seen[point.point_id]!r} and {point.label!r} ask for the very same; keep one of them")
        seen[point.point_id] = point.label
    return tuple(points)


def _product(sections: Sections, override: Mapping[str, Any], performer: Performer) -> list[Point]:
    flat: list[tuple[str, str, list[Scalar]]] = []
    for section, values in sections.items():
        for key, value in values.items():
            if section == "cluster" and key == "set":
                if not isinstance(value, Mapping):
                    raise InvalidFile('cluster.set must be a table, for example {"links.nic.bandwidth_GBps" = [12.5, 25]}')
                flat += [("set", path, _choices(f"cluster.set.{path}", choice)) for path, choice in value.items()]
            else:
                flat.append((section, key, _choices(f"{section}.{key}", value)))
    paper, tags = override.get("paper", {}), override.get("tags", {})
    if not isinstance(paper, Mapping) or not isinstance(tags, Mapping) or not all(isinstance(v, str | int | float) for v in tags.values()):
        raise InvalidFile('a point\'s paper and tags are tables, for example paper = {step_s = 0.1}, tags = {way = "data"}')
    for name, number in paper.items():
        if not name.endswith(_UNITS):
            raise InvalidFile(f"paper.{name}: the name must end with its unit, one of {', '.join(_UNITS)}")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidFile(f"paper.{name} = {number!r}: a number is needed; leave it out where the source has none")
    swept = [(section, key) for section, key, choices in flat if len(choices) > 1]
    number = prod(len(choices) for _, _, choices in flat)
    if number > MOST_POINTS:
        lists = ", ".join(f"{key} ({len(choices)})" for _, key, choices in flat if len(choices) > 1)
        raise InvalidFile(f"the product of the lists {lists} is {number} points, more than {MOST_POINTS}; sweep them in several manifests")
    points = []
    for combination in product(*(choices for _, _, choices in flat)):
        chosen = {(section, key): value for (section, key, _), value in zip(flat, combination, strict=True)}
        own = " ".join(f"{key}={chosen[section, key]}" for section, key in swept)
        label = " ".join(part for part in (str(override.get("label", "")), own) if part)
        points.append(_point(chosen, label, override.get("tags", {}), paper, performer))
    return points


def _choices(where: str, value: Any) -> list[Scalar]:
    choices = value if isinstance(value, list) else [value]
    for choice in choices:
        if not isinstance(choice, str | int | float | bool):
            raise InvalidFile(f"{where} = {choice!r}: texts and numbers can be swept; write a mesh as '2x4', several pins as 'a=S(0); b=B'")
    return choices


def _point(
    chosen: Mapping[tuple[str, str], Scalar], label: str, tags: Mapping[str, Scalar], paper: Mapping[str, float], performer: Performer
) -> Point:
    parts: dict[str, dict[str, Scalar]] = {name: {} for name in ("model", "cluster", "set", "plan", "simulate", "run")}
    for (section, key), value in chosen.items():
        parts[section][key] = value
    name, cluster = _named(parts["model"], "model", "zoo:gpt"), _named(parts["cluster"], "cluster", "dgx-a100:1")
    known_keys(parts["cluster"], ("name", "set"), "[cluster]")
    known_keys(parts["plan"], PLAN_KEYS, "[plan]")
    known_keys(parts["simulate"], SIM_KEYS, "[simulate]")
    known_keys(parts["run"], RUN_KEYS, "[run]")
    for section, keys in (("simulate", SIM_KEYS), ("run", RUN_KEYS)):
        for key, value in parts[section].items():
            keys[key](f"{section}.{key}", value)
    options = {key: value for key, value in parts["model"].items() if key != "name"}
    zoo_name = name.removeprefix("zoo:").partition("?")[0]
    if name.startswith("zoo:") and zoo_name in ZOO:
        known_keys(options, signature(ZOO[zoo_name]).parameters, f"model {name}")
    elif options and not name.startswith("zoo:"):
        raise InvalidFile(f"model {name!r} takes no options ({', '.join(options)}); only factories of the zoo do")
    model = name + ("?" + urlencode({k: int(v) if isinstance(v, bool) else v for k, v in options.items()}) if options else "")
    point = Point(
        label=label or name,
        model=model,
        cluster=cluster,
        performer=performer,
        sets=tuple(f"cluster.{path}={_toml(value)}" for path, value in parts["set"].items()),
        plan=parts["plan"],
        simulate=parts["simulate"],
        run=parts["run"],
        paper={key: float(value) for key, value in paper.items()},
        fields=_fields(name, cluster, tags, options, parts),
    )
    plan_options(point)
    return point


def _named(section: Mapping[str, Scalar], what: str, example: str) -> str:
    name = section.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidFile(f'[{what}] needs a name, for example name = "{example}"')
    return name


def _toml(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _fields(
    name: str, cluster: str, tags: Mapping[str, Scalar], options: Mapping[str, Scalar], parts: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, Scalar]:
    fields: dict[str, Scalar] = {"model": name, "cluster": cluster}
    named = [
        *tags.items(),
        *options.items(),
        *((path.replace(".", "_"), value) for path, value in parts["set"].items()),
        *parts["plan"].items(),
        *((f"simulate_{key}", value) for key, value in parts["simulate"].items()),
        *((f"run_{key}_asked", value) for key, value in parts["run"].items()),
    ]
    for key, value in named:
        if key in fields:
            raise InvalidFile(f"two fields of a point are called {key!r}; leave one at its default")
        fields[key] = value
    return fields
