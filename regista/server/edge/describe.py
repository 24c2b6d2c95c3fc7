"""The description of a server as OpenAPI 3.1, made from the parsers of its verbs."""

from __future__ import annotations

import argparse
from typing import Any

from regista.verbs import VERBS
from regista.verbs.parsing import arguments_of, verb_parser
from regista.wire import SERVED, WIRE_VERSION, Role, State

__all__ = ["openapi"]

Json = dict[str, Any]


def openapi() -> Json:
    """The description as plain data."""
    text = {"type": "string"}
    digest = {"name": "digest", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
    request_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}
    helps = {verb.name: verb.help for verb in VERBS}
    schemas: Json = {
        "Error": {"type": "object", "properties": {"error": {"type": "object", "properties": {"type": text, "message": text}}}},
        "State": {"type": "string", "enum": [state.value for state in State]},
        "Submitted": {"type": "object", "properties": {"id": text, "state": _ref("State")}},
        "Outcome": {
            "type": "object",
            "properties": {
                "state": _ref("State"),
                "code": {"type": "integer", "description": "exit code of the command line"},
                "result": {"description": "what --json prints"},
                "stdout": text,
                "stderr": text,
                "files": {"type": "object", "additionalProperties": text, "description": "name -> SHA-256"},
                "seconds": {"type": "number"},
                "attempts": {"type": "integer"},
            },
        },
        "Request": {"oneOf": [_ref(f"Request-{verb}") for verb in SERVED], "discriminator": {"propertyName": "verb"}},
    }
    for verb in SERVED:
        schemas[f"Request-{verb}"] = _request(verb, helps[verb])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "regista serve",
            "version": str(WIRE_VERSION),
            "description": "Plans of distributed training: search, predict, compare.",
        },
        "security": [{}, {"bearer": []}],
        "paths": {
            "/v1/server": {"get": _operation("version, limits and counts", {"type": "object"})},
            "/v1/files": {
                "post": _operation("send a small file; the answer has its SHA-256", {"type": "object"}, 201)
                | {"requestBody": _body("application/octet-stream", text)}
            },
            "/v1/files/{digest}": {
                "parameters": [digest],
                "put": _operation("send the content of a file", {"type": "object"}, 201)
                | {"requestBody": _body("application/octet-stream", text)},
                "get": _operation("fetch the content of a file", text),
            },
            "/v1/requests": {
                "post": _operation("begin a request", _ref("Submitted"), 202) | {"requestBody": _body("application/json", _ref("Request"))},
                "get": _operation("the newest requests", {"type": "object"}),
            },
            "/v1/requests/{id}": {"parameters": [request_id], "get": _operation("where it stands, and what it left", _ref("Outcome"))},
            "/v1/requests/{id}/events": {
                "parameters": [request_id],
                "get": _operation("Server-Sent Events: state; progress with best_s, bound_s, gap, shape, seconds", text),
            },
            "/v1/requests/{id}/cancel": {
                "parameters": [request_id],
                "post": _operation("end it; with keep_best it leaves the best plan so far", _ref("Submitted"))
                | {"requestBody": _body("application/json", {"type": "object", "properties": {"keep_best": {"type": "boolean"}}})},
            },
        },
        "components": {"schemas": schemas, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(kind: str, schema: Json) -> Json:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _operation(summary: str, schema: Json, status: int = 200) -> Json:
    refused = {"description": "refused: one message with the way out", "content": {"application/json": {"schema": _ref("Error")}}}
    return {
        "summary": summary,
        "responses": {str(status): {"description": summary, "content": {"application/json": {"schema": schema}}}, "4XX": refused},
    }


def _request(verb: str, summary: str) -> Json:
    arguments, needed = {}, []
    for action in arguments_of(verb_parser(verb)):
        role = SERVED[verb].get(action.dest, Role.REFUSED)
        if role is Role.REFUSED:
            continue
        arguments[action.dest] = _argument(action, role)
        if action.required:
            needed.append(action.dest)
    return {
        "type": "object",
        "description": summary,
        "required": ["wire", "verb", "arguments"],
        "properties": {
            "wire": {"const": WIRE_VERSION},
            "verb": {"const": verb},
            "arguments": {"type": "object", "properties": arguments, "required": needed, "additionalProperties": False},
            "files": {"type": "object", "additionalProperties": {"type": "string"}, "description": "name in the arguments -> SHA-256"},
            "columns": {"type": ["integer", "null"]},
            "id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        "additionalProperties": False,
    }


def _argument(action: argparse.Action, role: Role) -> Json:
    one: Json = {"type": "string"} if action.nargs != 0 else {"type": "boolean"}
    if isinstance(action, argparse._SubParsersAction):
        return {"type": "string", "enum": list(action.choices)}
    if action.choices is not None:
        one["enum"] = [str(choice) for choice in action.choices]
    several = action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)
    schema: Json = {"type": "array", "items": one} if several else one
    return schema | {"description": (action.help or "").replace("%%", "%"), "x-role": role.value}
