"""Manifests: an experiment as one TOML file.

    claim = "what the source says, in words"          [model]     name = "zoo:gpt"          and the factory's own keys
    source = "where it says so"                        [cluster]   name = "dgx-a100:1"       set = {"links.nic.bandwidth_GBps" = 25}
    performer = "sim" | "run"                          [plan]      stages, mesh, micro_batches, ...: as 'regista plan'
    axes = ["stages"]                                  [simulate]  steps, engine             [run] steps, rounds, timeout_s
    expect = ["throughput[stages == 2] > throughput[stages == 1]"]

    [[points]]   explicit points: sections as above that replace the manifest's, with a label,
                 tags = {way = "data"} (columns of one's own) and paper = {throughput_per_s = 12.3}
    [paper]      or the points of a table: file, where, label, points = {"plan.mesh" = "{dp}x{tp}"}, columns = {step_s = "..."}
    [[broken]]   relations that are known not to hold, and why; one that holds after all is an error
    [[figure]]   kind, x, y, by, output        [smoke]  what replaces the above at smoke size

A list in a section is swept: all lists together give the full product, the last one runs fastest.  An unknown key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.reading import read_toml
from regista.sweep.columns import all_columns, column_of
from regista.sweep.expand import expand
from regista.sweep.keys import known_keys, nearest
from regista.sweep.papers import paper_points
from regista.sweep.point import Performer, Point
from regista.sweep.relation import Condition, Relation, parse_conditions, parse_relation

__all__ = ["FigureSpec", "Manifest", "load_manifest", "parse_manifest"]

_TOP = (
    *("claim", "source", "performer", "axes", "expect", "model", "cluster", "plan", "simulate", "run"),
    *("points", "paper", "broken", "figure", "smoke"),
)
_FIGURE = ("kind", "x", "y", "by", "output", "title", "log", "where")
_KINDS = ("line", "bar", "scatter")
_DRAWN = ("sim", "run", "theory", "paper", "error")
_SMOKE = ("points", "expect", "model", "cluster", "plan", "simulate", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """A figure of the CSV.  y: columns, each drawn in its own way; by: one colour per value.   log: axes with a logarithmic scale."""

    kind: str
    x: str
    y: tuple[str, ...]
    by: str
    output: str
    title: str
    log: tuple[str, ...]
    where: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """See the module's text.  broken: (relation, why it is known not to hold).   axes: the columns that tell the points apart."""

    name: str
    claim: str
    source: str
    performer: Performer
    points: tuple[Point, ...]
    axes: tuple[str, ...]
    expect: tuple[Relation, ...]
    broken: tuple[tuple[Relation, str], ...]
    figures: tuple[FigureSpec, ...]


def load_manifest(path: str | Path, *, smoke: bool = False) -> Manifest:
    """Read a manifest.

    Args:
        smoke: with the replacements of its [smoke], and without the relations that hold at full size only.

    Raises:
        InvalidFile: no such file, no TOML, an unknown key (with the nearest known one), or values that cannot be.
    """
    where = Path(path)
    data = read_toml(where, "give a manifest (TOML)")
    try:
        return parse_manifest(data, where.stem, where.parent, smoke=smoke)
    except RegistaError as error:
        raise InvalidFile(f"{where}: {error}") from error


def parse_manifest(data: Mapping[str, Any], name: str, folder: Path, *, smoke: bool = False) -> Manifest:
    """A manifest from TOML's data.   folder: what [paper].file is relative to.   Raises as load_manifest."""
    known_keys(data, _TOP, "the manifest")
    for key in ("claim", "source"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise InvalidFile(f"{key} is missing; say in words what the experiment {'claims' if key == 'claim' else 'goes back to'}")
    base = {section: dict(_table(data, section)) for section in ("model", "cluster", "plan", "simulate", "run")}
    performer = _performer(data.get("performer", "sim"))
    small = _table(data, "smoke")
    known_keys(small, _SMOKE, "[smoke]")
    overrides = _overrides(data, folder)
    if smoke:
        overrides = [_merged(override, {k: v for k, v in small.items() if k in base}) for override in overrides]
    points = expand(base, overrides, performer, unique=smoke)
    if smoke:
        points = points[: int(small.get("points", 2))]
    columns = all_columns(points)
    axes = _axes(data.get("axes"), points, columns)
    texts = data.get("expect", []) if not smoke else small.get("expect", [])
    expect = tuple(_relation(text, columns) for text in _texts(texts, "expect"))
    broken = []
    for section in () if smoke else _tables(data, "broken"):
        known_keys(section, ("relation", "why"), "[[broken]]")
        broken.append((_relation(str(section.get("relation", "")), columns), str(section.get("why", ""))))
    return Manifest(
        name=name,
        claim=data["claim"].strip(),
        source=data["source"].strip(),
        performer=performer,
        points=points,
        axes=axes,
        expect=expect,
        broken=tuple(broken),
        figures=tuple(_figure(section, columns) for section in _tables(data, "figure")),
    )


def _performer(value: object) -> Performer:
    if value not in [p.value for p in Performer]:
        raise InvalidFile(f"performer = {value!r}: choose from {', '.join(p.value for p in Performer)}")
    return Performer(value)


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = data.get(key, {})
    if not isinstance(section, Mapping):
        raise InvalidFile(f"{key} must be a section, [{key}]")
    return section


def _tables(data: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    sections = data.get(key, [])
    if not isinstance(sections, list) or not all(isinstance(section, Mapping) for section in sections):
        raise InvalidFile(f"{key} must be a list of sections, [[{key}]]")
    return sections


def _texts(value: object, key: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidFile(f"{key} must be a list of texts")
    return value


def _overrides(data: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    points = [dict(section) for section in _tables(data, "points")]
    if "paper" not in data:
        return points or [{}]
    if points:
        raise InvalidFile("[paper] gives the points of a table and [[points]] gives others; keep one of them")
    return paper_points(_table(data, "paper"), folder)


def _merged(override: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    merged = deepcopy(dict(override))
    for section, values in small.items():
        merged[section] = {**merged.get(section, {}), **values}
    return merged


def _axes(given: object, points: Sequence[Point], columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that tell points apart: the given ones, or else those with more than one value."""
    names = tuple(points[0].fields) if points else ()
    names = ("label", *names)
    if given is not None:
        axes = tuple(_texts(given, "axes"))
        for name in axes:
            if name not in names:
                raise InvalidFile(f"axes: {name!r} is no column of a point{nearest(name, names)}")
    else:
        axes = tuple(n for n in names[1:] if len({point.fields.get(n) for point in points}) > 1)
        if len({tuple(point.fields.get(n) for n in axes) for point in points}) < len(points):
            axes = ("label",)
    seen: dict[tuple[object, ...], str] = {}
    for point in points:
        key = tuple(point.label if n == "label" else point.fields.get(n) for n in axes)
        if key in seen:
            raise InvalidFile(
                f"two points have the same {', '.join(axes) or 'fields'} ({', '.join(map(str, key))}); give them labels, or say which axes differ"
            )
        seen[key] = point.point_id
    return axes


def _relation(text: str, columns: Sequence[str]) -> Relation:
    relation = parse_relation(text)
    for name in relation.names:
        try:
            column_of(name, columns)
        except InvalidFile as error:
            raise InvalidFile(f"relation {text!r}: {error}") from None
    return relation


def _figure(section: Mapping[str, Any], columns: Sequence[str]) -> FigureSpec:
    known_keys(section, _FIGURE, "[[figure]]")
    y = section.get("y", [])
    spec = FigureSpec(
        kind=str(section.get("kind", "line")),
        x=column_of(str(section.get("x", "label")), columns),
        y=tuple(column_of(name, columns) for name in ([y] if isinstance(y, str) else _texts(y, "figure.y"))),
        by=column_of(str(section["by"]), columns) if section.get("by") else "",
        output=str(section.get("output", "")),
        title=str(section.get("title", "")),
        log=tuple(_texts(section.get("log", []), "figure.log")),
        where=parse_conditions(str(section.get("where", ""))),
    )
    if strange := [name for name in spec.y if name.partition("_")[0] not in _DRAWN]:
        raise InvalidFile(
            f"figure: y = {strange[0]!r} says nothing that was measured or predicted; columns to draw begin with {', '.join(_DRAWN)}"
        )
    if spec.kind not in _KINDS:
        raise InvalidFile(f"figure: kind = {spec.kind!r}{nearest(spec.kind, _KINDS)}; choose from {', '.join(_KINDS)}")
    if not spec.y or not spec.output.endswith((".svg", ".png")) or Path(spec.output).name != spec.output:
        raise InvalidFile(f"figure: y needs a column and output a file name without folder, .svg or .png (now {spec.output!r})")
    return spec
