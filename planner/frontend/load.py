"""Where programs come from: the zoo, a Python file, an exported program, or a StableHLO module."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from zipfile import is_zipfile

import torch
from torch import Tensor

from planner.frontend.program import Program
from planner.ir.errors import InvalidFile, InvalidProgram, RegistaError
from planner.ir.text import number_or_text

__all__ = ["function_of_file", "load_program"]

_FORMS = "write zoo:NAME?key=value&..., path/to/file.py:factory, model.pt2, or model.mlir"


def load_program(model: str, zoo: Mapping[str, Callable[..., Program]]) -> Program:
    """The Program that a string names.

    Args:
        model: ``zoo:gpt?layers=2&batch=4``, ``path/to/file.py:factory`` (a function without arguments that returns a Program), or
            ``x.pt2`` (torch.export.save; its output must be the loss, its example inputs are the batch), or ``x.mlir`` (StableHLO, a step or
            a loss, as text, as bytecode or as jax.export wrote it; planner.frontend.stablehlo).
        zoo: name -> factory.

    Raises:
        InvalidFile: the file is missing or is not what its name says.
        InvalidProgram: the string, the factory or its arguments are wrong.
    """
    if model.startswith("zoo:"):
        return _from_zoo(model.removeprefix("zoo:"), zoo)
    path, colon, factory = model.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file(Path(path), factory)
    if model.endswith(".py"):
        raise InvalidProgram(f"{model!r} names no factory; write {model}:FUNCTION, a function without arguments that returns a Program")
    if model.endswith(".pt2"):
        return _from_export(Path(model))
    if model.endswith(".mlir"):
        from planner.frontend.stablehlo.files import program_of_file

        return program_of_file(Path(model))
    raise InvalidProgram(f"{model!r} is not a model; {_FORMS}")


def _from_zoo(text: str, zoo: Mapping[str, Callable[..., Program]]) -> Program:
    name, _, query = text.partition("?")
    if name not in zoo:
        raise InvalidProgram(f"the zoo has no {name!r}; it has {', '.join(sorted(zoo))}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidProgram(f"options {query!r} are not key=value pairs; {_FORMS}") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise InvalidProgram(f"options {query!r} give a key twice; keep one of them")
    return _made(lambda: zoo[name](**{key: number_or_text(value) for key, value in options.items()}), f"zoo:{text}")


def _made(factory: Callable[[], object], where: str) -> Program:
    try:
        program = factory()
    except RegistaError:
        raise
    except (Exception, SystemExit) as error:
        text = str(error).strip().split("\n")[0]
        raise InvalidProgram(f"{where} raised {type(error).__name__}: {text}; mend the options or the factory") from error
    if not isinstance(program, Program):
        raise InvalidProgram(f"{where} returned a {type(program).__name__}; it must return a planner.frontend.Program")
    return program


def _from_file(path: Path, factory: str) -> Program:
    with function_of_file(path, factory, _FORMS) as function:
        return _made(function, f"{path}:{factory}")


@contextmanager
def function_of_file(path: Path, name: str, forms: str = "") -> Iterator[Callable[..., Any]]:
    """The function ``name`` of a Python file; while it is called here its file's neighbours can be imported.

    Args:
        forms: what else could have been written, for the message.

    Raises:
        InvalidFile: there is no such file, or it cannot be imported.   InvalidProgram: it has no such function.
    """
    if not path.is_file():
        raise InvalidFile(f"{path} does not exist{f'; {forms}' if forms else ''}")
    name_of_module = f"regista_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name_of_module, loader=_Script(name_of_module, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As 'python file.py' would have it: neighbours can be imported, and classes of the file find their module by name.
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module
    try:
        try:
            spec.loader.exec_module(module)
        except RegistaError:
            raise
        except (Exception, SystemExit) as error:
            raise InvalidFile(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
        function = getattr(module, name, None)
        if not callable(function):
            functions = [key for key, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == spec.name]
            raise InvalidProgram(f"{path} has no function {name!r}; it has {', '.join(functions) or 'none'}")
        yield function
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


class _Script(SourceFileLoader):
    """Leaves nothing beside the file, as 'python file.py' does not either."""

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        """Writes no bytecode."""


def _from_export(path: Path) -> Program:
    if not path.is_file():
        raise InvalidFile(f"{path} does not exist; {_FORMS}")
    if not is_zipfile(path):
        raise InvalidFile(f"{path} is not an exported program; write it with torch.export.save(torch.export.export(module, inputs), path)")
    logger = logging.getLogger("torch.export")
    disabled, logger.disabled = logger.disabled, True  # it logs the traceback of what it then raises
    try:
        exported = torch.export.load(path)
        # the guards pin every extent to the exported batch, so no micro-batch would pass them
        module = exported.module(check_guards=False)
    except Exception as error:
        raise InvalidFile(
            f"{path} is not an exported program of this torch ({torch.__version__}, {type(error).__name__} while loading it); "
            "write it anew with torch.export.save(torch.export.export(module, inputs), path)"
        ) from error
    finally:
        logger.disabled = disabled
    if exported.example_inputs is None:
        raise InvalidFile(f"{path} holds no example inputs; export it with torch.export.export(module, example_inputs)")
    args, kwargs = exported.example_inputs
    if kwargs or not all(isinstance(value, Tensor) for value in args):
        raise InvalidProgram(f"{path} takes other inputs than positional tensors; export module(*tensors) -> loss")
    outputs = [spec.arg.name for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    values = [node.meta.get("val") for node in exported.graph.nodes if node.name in outputs]
    shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
    if len(outputs) != 1 or shapes != [()]:
        raise InvalidProgram(f"{path} returns {len(outputs)} values of shapes {shapes}; a .pt2 must return the loss, one scalar")
    return Program(module, args, name=path.stem)
