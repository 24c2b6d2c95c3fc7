"""torchtitan's configurations in Python, read without being executed: calls with names, literals, and assignments to their fields.

def llama3_8b() -> Trainer.Config:                    model.flavor = "8B"
    return Trainer.Config(                            training.seq_len = 8192
        model_spec=model_registry("8B"),       ->     activation_checkpoint.mode = "selective"
        training=TrainingConfig(seq_len=8192),
        activation_checkpoint=SelectiveAC.Config(),
    )
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from planner.ir.errors import InvalidFile
from planner.ir.reading import read_text

__all__ = ["python_flags"]

_MOST_BYTES, _DEEPEST = 2**20, 8
_CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
}
_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
_WHOLE = ("loss", "override")
"""Settings of which the class alone is told."""


def python_flags(path: Path, name: str | None, way_out: str) -> dict[str, object]:
    """The settings of a configuration.

    Args:
        name: of the function or variable; None: the only one of the file.   way_out: the end of messages.

    Raises:
        InvalidFile: no Python, no such configuration, or several and no name.
    """
    text = read_text(path, way_out, max_bytes=_MOST_BYTES)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidFile(f"{path}: not readable as Python ({str(error)[:100]}); {way_out}") from None
    makers = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.args.args}
    values = {t.id: node.value for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}
    known = [*makers, *(key for key, value in values.items() if isinstance(value, ast.Call) and _called(value) == "JobConfig")]
    if name is None and len(known) == 1:
        (name,) = known
    if name not in known:
        asked = "no name is given" if name is None else f"it has no {name!r}"
        raise InvalidFile(f"{path}: {asked}; it has {', '.join(known[:12]) or 'no configuration'}: write {path}:NAME")
    flags = _made(name, makers, values, 0)
    if not flags:
        raise InvalidFile(f"{path}: {name} makes no Trainer.Config or JobConfig that can be read without executing it; {way_out}")
    return {"model.name": path.resolve().parent.name, **flags}


def _called(call: ast.Call) -> str:
    """The last name of what is called, without ``.Config``."""
    words = ast.unparse(call.func).split(".")
    return words[-2] if words[-1] == "Config" and len(words) > 1 else words[-1]


def _made(name: str, makers: Mapping[str, ast.FunctionDef], values: Mapping[str, ast.expr], depth: int) -> dict[str, object]:
    """What a function or a variable of the module is, as settings."""
    if name not in makers:
        value = values.get(name)
        return _settings(value, {}, "") if isinstance(value, ast.Call) else {}
    local: dict[str, ast.expr] = {}
    states: dict[str, dict[str, object]] = {}
    for node in makers[name].body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=maker), args=[])) if maker in makers:
                states[target] = _made(maker, makers, values, depth + 1) if depth < _DEEPEST else {}
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                local[target] = value
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                owner, _, field = ast.unparse(target).partition(".")
                if owner in states:
                    states[owner] |= _of_field(field, value, local, "")
            case ast.Return(value=ast.Name(id=target)):
                return states.get(target) or (_settings(local[target], local, "") if isinstance(local.get(target), ast.Call) else {})
            case ast.Return(value=ast.Call() as value):
                return _settings(value, local, "")
    return {}


def _settings(call: ast.expr, local: Mapping[str, ast.expr], prefix: str) -> dict[str, object]:
    """Names of a call's arguments -> values."""
    made: dict[str, object] = {}
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg is not None:
            made |= _of_field(keyword.arg, keyword.value, local, prefix)
    return made


def _of_field(field: str, value: ast.expr, local: Mapping[str, ast.expr], prefix: str) -> dict[str, object]:
    value = local.get(value.id, value) if isinstance(value, ast.Name) else value
    name = f"{prefix}{field}"
    if isinstance(value, ast.Call):
        kind = _called(value)
        if name == "model_spec":
            return _model(value, local)
        if name == "activation_checkpoint" and kind in _CHECKPOINTS:
            return {f"{name}.mode": _CHECKPOINTS[kind], **_settings(value, local, f"{name}.")}
        return {name: kind} if name in _WHOLE else _settings(value, local, f"{name}.")
    try:
        return {name: ast.literal_eval(value)}
    except (ValueError, TypeError, RecursionError):
        return {name: ast.unparse(value)}


def _model(call: ast.Call, local: Mapping[str, ast.expr]) -> dict[str, object]:
    """``model_registry("8B", converters=[...])``."""
    flavor = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "flavor"), None)
    made: dict[str, object] = {"model.flavor": flavor.value} if isinstance(flavor, ast.Constant) else {}
    for keyword in call.keywords:
        if keyword.arg == "converters" and isinstance(keyword.value, ast.List):
            calls = [item for item in keyword.value.elts if isinstance(item, ast.Call)]
            made["model.converters"] = [_CONVERTERS.get(_called(item), _called(item)) for item in calls]
            for item in calls:
                recipe = _settings(item, local, "").get("recipe_name")
                made |= {f"{_CONVERTERS[_called(item)]}.recipe_name": recipe} if recipe and _called(item) in _CONVERTERS else {}
        elif keyword.arg == "attn_backend" and isinstance(keyword.value, ast.Constant):
            made["model.attn_type"] = keyword.value.value
    return made
