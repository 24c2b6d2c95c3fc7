"""One point of a sweep: everything that says what is planned and who performs it, and the columns that it fills."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from planner.ir.errors import Unsupported
from planner.ir.text import content_id
from planner.stages.recompute import Recompute, recompute_of

__all__ = ["PLAN_KEYS", "RUN_KEYS", "SIM_KEYS", "Performer", "Point", "Scalar", "plan_options"]

Scalar = str | int | float | bool


class Performer(Enum):
    """What is done with a point's Plan: it is simulated, or calibrated, predicted and then run on this machine."""

    SIM = "sim"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point.  Each mapping is a section of the manifest with one value per key; a list is what makes several points.

    model: with its options, ``zoo:gpt?layers=2``.   sets: keys of the cluster's TOML set anew, ``cluster.links.nic.bandwidth_GBps=50``.
    fields: column -> value, as it stands in the CSV.   paper: column without ``paper_`` -> number, in the unit that the column's name ends with.
    """

    label: str
    model: str
    cluster: str
    performer: Performer
    sets: tuple[str, ...] = ()
    plan: Mapping[str, Scalar] = field(default_factory=dict)
    simulate: Mapping[str, Scalar] = field(default_factory=dict)
    run: Mapping[str, Scalar] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def point_id(self) -> str:
        """Content id of what is asked for; the label, tags and the paper's numbers are not part of it."""
        asked: dict[str, object] = {"model": self.model, "cluster": self.cluster, "sets": list(self.sets), "plan": dict(self.plan)}
        asked |= {"simulate": dict(self.simulate), "performer": self.performer.value}
        return content_id(asked | ({"run": dict(self.run)} if self.performer is Performer.RUN else {}))


def _whole(key: str, value: Scalar) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unsupported(f"{key} = {value!r}: a whole number of at least 1 is needed")
    return value


def _whole_or_auto(key: str, value: Scalar) -> int | None:
    return None if value == "auto" else _whole(key, value)


def _number(key: str, value: Scalar) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Unsupported(f"{key} = {value!r}: a number above 0 is needed")
    return float(value)


def _text(key: str, value: Scalar) -> str:
    if not isinstance(value, str):
        raise Unsupported(f"{key} = {value!r}: a text is needed")
    return value


def _mesh(key: str, value: Scalar) -> tuple[int, ...]:
    parts = str(value).replace(",", "x").split("x")
    if isinstance(value, bool) or not all(re.fullmatch("[1-9][0-9]{0,8}", part) for part in parts):
        raise Unsupported(f"{key} = {value!r:.40}: write the sizes of the axes as '2x4', or one size")
    return tuple(map(int, parts))


def _texts(key: str, value: Scalar) -> tuple[str, ...]:
    return tuple(part.strip() for part in _text(key, value).split(";") if part.strip())


def _quotas(key: str, value: Scalar) -> dict[str, int]:
    quotas = {}
    for text in _texts(key, value):
        pattern, equals, number = text.rpartition("=")
        if not equals or not number.isdecimal():
            raise Unsupported(f"{key} = {value!r}: write 'PATTERN=N; PATTERN=N'")
        quotas[pattern] = int(number)
    return quotas


def _recompute(key: str, value: Scalar) -> Recompute:
    if not isinstance(value, str) or not value:
        raise Unsupported(f"{key} = {value!r}: choose from auto, none, blocks, attention, selective, or a share to keep ('60%')")
    return recompute_of(value)


def _zero(key: str, value: Scalar) -> int | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or value not in (0, 1, 2, 3):
        raise Unsupported(f"{key} = {value!r}: choose from auto, 0, 1, 2, 3")
    return int(value)


Reader = Callable[[str, Scalar], object]

PLAN_KEYS: Mapping[str, tuple[str, Reader]] = {
    "stages": ("stages", _whole_or_auto),
    "mesh": ("mesh", _mesh),
    "micro_batches": ("micro_batches", _whole_or_auto),
    "cuts": ("cuts", _texts),
    "balance": ("balance", _number),
    "pins": ("pins", _texts),
    "schedule": ("schedule", _text),
    "quotas": ("quotas", _quotas),
    "bucket_MB": ("bucket_bytes", lambda key, value: int(_number(key, value) * 1e6)),
    "recompute": ("recompute", _recompute),
    "zero": ("zero", _zero),
    "context": ("context", _text),
    "interleave": ("interleave", _whole),
    "hold": ("hold", _whole),
    "attention": ("attention", _text),
    "kernels": ("kernels", _text),
    "batch_norm": ("batch_norm", _text),
    "precision": ("precision", _text),
    "method": ("method", _text),
    "seconds": ("seconds", _number),
}
"""Key of [plan] -> (argument of regista.plan, how its value is read)."""

SIM_KEYS: Mapping[str, Reader] = {"steps": _whole, "engine": _text}
RUN_KEYS: Mapping[str, Reader] = {"steps": _whole, "rounds": _whole, "runs": _whole, "timeout_s": _number}


def plan_options(point: Point) -> dict[str, object]:
    """The arguments of regista.plan beside program and cluster.

    Raises:
        Unsupported: a value that its key cannot have.
    """
    options = {PLAN_KEYS[key][0]: PLAN_KEYS[key][1](f"plan.{key}", value) for key, value in point.plan.items()}
    mesh, pins = options.get("mesh"), options.get("pins")
    if isinstance(mesh, tuple) and isinstance(pins, tuple):
        options["pins"] = tuple(_on_mesh(pin, mesh) for pin in pins)
    return options


def _on_mesh(pin: str, mesh: tuple[int, ...]) -> str:
    """The pin with B on axes of one device, where S is no other layout; so one text of pins goes with all meshes of a sweep."""
    pattern, equals, sbp = pin.rpartition("=")
    per_axis = sbp.split(",")
    if not equals or len(per_axis) != len(mesh):
        return pin
    return f"{pattern}={','.join('B' if size == 1 else part.strip() for part, size in zip(per_axis, mesh, strict=True))}"
