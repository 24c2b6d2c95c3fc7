"""Files of Chakra: per rank ``trace.RANK.et``, length-prefixed messages of protobuf, the first of them about the file; and the process groups."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_bytes
from planner.ir.text import save_text
from planner.ir.units import US
from regista.chakra.node import ChakraTrace, Node, NodeKind, Value
from regista.chakra.schema import SCALARS, messages
from regista.chakra.types import shapes_text, tensor_types_of_texts, types_text
from regista.targets import save_bytes

__all__ = ["GROUPS", "VERSION", "read_chakra", "save_chakra"]

VERSION = "0.0.4"
GROUPS = "comm_groups.json"
_FIELDS = {"comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val", "tensor_size": "uint64_val"}
"""Attributes that readers of 0.0.4 look for in another field than int64_val."""
_WAY_OUT = "give one rank's trace in Chakra's protobuf form (.et)"


def save_chakra(trace: ChakraTrace, folder: str | Path) -> tuple[Path, ...]:
    """Write ``trace.RANK.et`` for every rank and ``comm_groups.json`` into a folder, which is made if it is not there.

    Raises:
        RegistaError: protobuf is not installed; nothing is written.   InvalidFile: the folder cannot be made or written.
    """
    kinds, where = messages(), Path(folder)
    try:
        where.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"cannot make the folder {folder}: {error.strerror}; one file per rank is written into it") from error
    written = []
    for rank, nodes in trace.nodes.items():
        path = where / f"trace.{rank}.et"
        save_bytes(path, _encoded(kinds, {**trace.about, "rank": rank}, nodes))
        written.append(path)
    save_text(where / GROUPS, json.dumps({name: list(ranks) for name, ranks in trace.groups.items()}) + "\n")
    return (*written, where / GROUPS)


def read_chakra(path: str | Path) -> tuple[Mapping[str, Value], tuple[Node, ...]]:
    """(what the file says of itself, its nodes); attributes that are lists are left out.

    Raises:
        RegistaError: protobuf is not installed.   InvalidFile: the file cannot be read, is truncated, or is no trace of Chakra.
    """
    kinds, data = messages(), io.BytesIO(read_bytes(path, _WAY_OUT))
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    nodes: list[Node] = []
    try:
        about = parse_length_prefixed(kinds["GlobalMetadata"], data)
        if about is None:
            raise InvalidFile(f"{path}: it is empty; {_WAY_OUT}")
        while (message := parse_length_prefixed(kinds["Node"], data)) is not None:
            nodes.append(_node(message))
    except (DecodeError, ValueError, IndexError) as error:
        if isinstance(error, InvalidFile):
            raise
        raise InvalidFile(
            f"{path}: node {len(nodes)} cannot be read ({error}); the file is truncated, or no execution trace of Chakra: {_WAY_OUT}"
        ) from None
    return {"version": about.version, **_attributes(about.attr)}, tuple(nodes)


def _encoded(kinds: Mapping[str, Any], about: Mapping[str, Value], nodes: Iterable[Node]) -> bytes:
    from google.protobuf.proto import serialize_length_prefixed

    out = io.BytesIO()
    head = kinds["GlobalMetadata"](version=VERSION)
    _put(head.attr, about)
    serialize_length_prefixed(head, out)
    for node in nodes:
        message = kinds["Node"](
            id=node.id,
            name=node.name,
            type=node.kind.value,
            ctrl_deps=node.ctrl_deps,
            data_deps=node.data_deps,
            start_time_micros=round(node.start_s / US),
            duration_micros=round(node.duration_s / US),
        )
        for side, tensors in ((message.inputs, node.reads), (message.outputs, node.writes)):
            side.values, side.shapes, side.types = "[]", shapes_text(tensors), types_text(tensors)
        _put(message.attr, {**node.attributes, "duration_s": node.duration_s})
        serialize_length_prefixed(message, out)
    return out.getvalue()


def _put(attributes: Any, values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        kind = {bool: "bool_val", float: "double_val", str: "string_val", int: _FIELDS.get(name, "int64_val")}[type(value)]
        attributes.add(name=name, **{kind: value})


def _node(message: Any) -> Node:
    attributes = _attributes(message.attr)
    exact_s = attributes.get("duration_s")
    try:
        kind = NodeKind(message.type)
    except ValueError:
        raise ValueError(f"node {message.name!r} is of type {message.type}, which the schema does not have") from None
    return Node(
        id=message.id,
        name=message.name,
        kind=kind,
        start_s=message.start_time_micros * US,
        duration_s=exact_s if isinstance(exact_s, float) else message.duration_micros * US,
        data_deps=tuple(message.data_deps),
        ctrl_deps=tuple(message.ctrl_deps),
        reads=tensor_types_of_texts(message.inputs.shapes, message.inputs.types),
        writes=tensor_types_of_texts(message.outputs.shapes, message.outputs.types),
        attributes=attributes,
    )


def _attributes(attributes: Any) -> dict[str, Value]:
    known = {f"{kind}_val" for kind in SCALARS if kind != "bytes"}
    return {one.name: getattr(one, field) for one in attributes if (field := one.WhichOneof("value")) in known}
