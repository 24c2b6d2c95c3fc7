"""The messages of Chakra's schema (et_def.proto of MLCommons, version 0.0.4), as classes of protobuf, which is an optional extra.

    GlobalMetadata    version = 1, attr = 2
    Node              id = 1, name, type, ctrl_deps, data_deps, start_time_micros, duration_micros, inputs, outputs, attr = 10
    IOInfo            values = 1, shapes, types
    AttributeProto    name = 1, doc_string = 2, and one value: fields 3, 4 a double and a list of them, 5, 6 float, ... 31, 32 bytes

Fields that later versions add (storage = 11) are skipped, as protobuf does with what it does not know.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.ir.errors import RegistaError

__all__ = ["SCALARS", "messages"]

_PACKAGE = "ChakraProtoMsg"
SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Types of an attribute's value, in the order of their fields."""

_Field = tuple[int, str, str]
"""(number, name, type; ``*`` in front: repeated; with a capital: a message)"""

_MESSAGES: dict[str, tuple[_Field, ...]] = {
    "AttributeProto": (
        (1, "name", "string"),
        (2, "doc_string", "string"),
        *((3 + 2 * n, f"{kind}_val", kind) for n, kind in enumerate(SCALARS)),
        *((4 + 2 * n, f"{kind}_list", f"{kind.capitalize()}List") for n, kind in enumerate(SCALARS)),
    ),
    **{f"{kind.capitalize()}List": ((1, "values", f"*{kind}"),) for kind in SCALARS},
    "GlobalMetadata": ((1, "version", "string"), (2, "attr", "*AttributeProto")),
    "IOInfo": ((1, "values", "string"), (2, "shapes", "string"), (3, "types", "string")),
    "Node": (
        (1, "id", "uint64"),
        (2, "name", "string"),
        (3, "type", "int32"),  # an enum on the wire
        (4, "ctrl_deps", "*uint64"),
        (5, "data_deps", "*uint64"),
        (6, "start_time_micros", "uint64"),
        (7, "duration_micros", "uint64"),
        (8, "inputs", "IOInfo"),
        (9, "outputs", "IOInfo"),
        (10, "attr", "*AttributeProto"),
    ),
}


@cache
def messages() -> dict[str, Any]:
    """Name -> class.

    Raises:
        RegistaError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise RegistaError("files of Chakra need the package 'protobuf', which is not installed; pip install 'regista[chakra]'") from None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="regista/chakra.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for number, field_name, told in fields:
            kind = told.removeprefix("*")
            is_message = kind[0].isupper()
            field = message.field.add(
                name=field_name,
                number=number,
                label=kinds.LABEL_REPEATED if told.startswith("*") else kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_MESSAGE if is_message else getattr(kinds, f"TYPE_{kind.upper()}"),
            )
            if is_message:
                field.type_name = f".{_PACKAGE}.{kind}"
            if name == "AttributeProto" and number > 2:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}
