"""Meshes as text, and the meshes over which layouts are searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from planner.ir.errors import Unsupported

__all__ = ["MAX_AXES", "meshes", "parse_mesh"]

MAX_AXES = 3


def parse_mesh(text: str) -> tuple[int, ...]:
    """``4,8`` or ``4x8`` as devices per axis.

    Raises:
        Unsupported: the text is not whole numbers joined by commas, or there are more than MAX_AXES.

    >>> parse_mesh("2x4x8")
    (2, 4, 8)
    """
    parts = [part.strip() for part in re.split("[,xX]", text)]
    if not all(re.fullmatch(r"-?[0-9]{1,9}", part) for part in parts):
        raise Unsupported(f"mesh {text!r}: write numbers joined by commas, for example 2,2 or 2x2")
    if len(parts) > MAX_AXES:
        raise Unsupported(f"mesh {text!r} has {len(parts)} axes; at most {MAX_AXES} are supported, join some of them")
    return tuple(map(int, parts))


def meshes(num_devices: int, devices_per_node: int, max_axes: int = MAX_AXES) -> tuple[tuple[int, ...], ...]:
    """The meshes of ``num_devices`` that fit the nodes, fewest axes first, then by extents: the search space of layouts.

    If there are several axes, the innermost lies within a node, and every block of inner axes lies within a node or fills whole nodes, so
    that all lines of an axis have equal links.  No axis has one device.  Axes within a node are in descending order, because their order
    changes no cost.  If nodes have one device, or no divisor of their devices fits, the innermost axis may cross nodes.

    >>> meshes(16, 8)
    ((16,), (2, 8), (4, 4), (8, 2), (2, 4, 2), (4, 2, 2))
    >>> meshes(4, 8)
    ((4,), (2, 2))
    """
    if min(num_devices, devices_per_node, max_axes) < 1:
        raise Unsupported(f"meshes of {num_devices} devices, {devices_per_node} per node, up to {max_axes} axes: all three are at least 1")
    if num_devices == 1:
        return ((1,),)
    factorisations = [mesh for ndim in range(1, max_axes + 1) for mesh in _factorisations(num_devices, ndim)]
    local = any(num_devices % extent == 0 and devices_per_node % extent == 0 for extent in range(2, devices_per_node + 1))
    return tuple(mesh for mesh in factorisations if len(mesh) == 1 or _fits(mesh, devices_per_node, local))


def _factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered ways to write ``number`` as a product of ``parts`` factors above 1."""
    if parts == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factorisations(number // first, parts - 1))


def _fits(mesh: tuple[int, ...], devices_per_node: int, local: bool) -> bool:
    if local and devices_per_node % mesh[-1]:
        return False
    blocks = [prod(mesh[axis:]) for axis in range(1, len(mesh))]
    if any(devices_per_node % block and block % devices_per_node for block in blocks):
        return False
    inside = [extent for axis, extent in enumerate(mesh) if prod(mesh[axis:]) <= devices_per_node]
    return inside == sorted(inside, reverse=True)
