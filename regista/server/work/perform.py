"""Performs one request in this process, as the command line would: the verb's own parser, its own refusals, its own files."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from planner.ir.errors import RegistaError
from regista.origin import handed
from regista.verbs import VERBS
from regista.verbs.parsing import argv_of, verb_parser
from regista.verbs.screen import finite
from regista.verbs.surroundings import Surroundings, surrounded
from regista.wire import Outcome, Request, Role, State
from regista.wire.request import with_folder
from regista.wire.roles import PROGRAMS

__all__ = ["lay_files", "perform", "sweep_programs"]

_MOST_TEXT = 4_000_000


def lay_files(request: Request, work: Path, programs: Path, stored: Mapping[str, Path]) -> dict[str, str]:
    """Put the files of a request where its arguments name them; returns exported programs by the names that Plans know, and their paths.

    Args:
        programs: where exported programs lie, one folder per content, so that a program of several requests has one path.
        stored: SHA-256 -> path in the store.
    """
    (work / "cwd").mkdir(parents=True, exist_ok=True)
    models = {}
    for name, digest in request.files.items():
        is_program = name.endswith(PROGRAMS)
        target = programs / digest / os.path.basename(name) if is_program else work / "cwd" / name
        if is_program:
            models[name] = str(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_program:
            os.utime(target.parent)  # see sweep_programs
        if not target.exists():
            neighbour = target.with_name(f".{uuid.uuid4().hex}.tmp")
            shutil.copyfile(stored[digest], neighbour)  # a copy: nothing that a verb does to its file changes the store
            os.replace(neighbour, target)
    for role, text in request.texts():
        if role is Role.OUTPUT:
            (work / "cwd" / text).parent.mkdir(parents=True, exist_ok=True)
    return models


def sweep_programs(programs: Path, used: Container[str], *, older_than_s: float) -> None:
    """Remove laid programs that no open request uses and none has used since then; the next that needs one lays it again."""
    for folder in programs.glob("*"):
        if folder.name not in used and folder.stat().st_mtime < older_than_s:
            shutil.rmtree(folder, ignore_errors=True)


def perform(request: Request, work: Path, variables: Path, models: Mapping[str, str], around: Surroundings) -> Outcome:
    """Perform the request in ``work/cwd``; what it prints goes to files beside it.   Every refusal is an outcome.

    Args:
        variables: the folder of the sets of variables that are kept between runs.
    """
    began = perf_counter()
    if request.verb in ("run", "checkpoint"):
        variables.mkdir(mode=0o700, exist_ok=True)
    request = with_folder(request, str(variables))
    result, refused, code = None, None, 0
    with _printing_to(work / "stdout", work / "stderr"), surrounded(around), handed(models), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = _show_warning
        os.chdir(work / "cwd")
        try:
            args = verb_parser(request.verb).parse_args(argv_of(request.verb, request.arguments))
            result = finite(next(verb for verb in VERBS if verb.name == request.verb).perform(args))
        except (RegistaError, OSError) as error:
            refused, code = error, 2
        except KeyboardInterrupt as stop:
            refused, code = RegistaError(str(stop) or "interrupted"), 130
        except MemoryError:
            refused, code = RegistaError(f"'{request.verb}' needed more memory than there is; ask for something smaller"), 2
        except Exception as error:  # a fault of ours ends the request, not the process
            refused, code = RegistaError(f"'{request.verb}' failed inside of regista ({type(error).__name__}: {error}); report it"), 1
        finally:
            os.chdir(work)

    def plain(text: str) -> str:
        """Without the host's folders."""
        for name, path in models.items():
            text = text.replace(path, name)
        return text.replace(f"{work / 'cwd'}{os.sep}", "").replace(f"{variables}{os.sep}", "")

    return Outcome(
        state=State.DONE if refused is None else State.FAILED,
        code=code,
        result=_texts_changed(result, plain),
        stdout=plain(_text(work / "stdout")),
        stderr=plain(_text(work / "stderr")),
        error="" if refused is None else type(refused).__name__,
        message="" if refused is None else plain(str(refused)),
        seconds=perf_counter() - began,
    )


def _texts_changed(data: object, change: Callable[[str], str]) -> object:
    match data:
        case str():
            return change(data)
        case dict():
            return {change(str(key)): _texts_changed(value, change) for key, value in data.items()}
        case list() | tuple():
            return [_texts_changed(value, change) for value in data]
    return data


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_TEXT).decode("utf-8", "replace")


@contextmanager
def _printing_to(stdout: Path, stderr: Path) -> Iterator[None]:
    """Standard output and error of this process, whoever writes to them, go to files."""
    kept = os.dup(1), os.dup(2)
    try:
        for path, number in ((stdout, 1), (stderr, 2)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(handle, number)
            os.close(handle)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, number)
            os.close(handle)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """One line, as the command line shows it."""
    if category.__module__.split(".")[0] in ("regista", "backend", "planner", "simulator", "zoo"):
        print(f"warning: {message}", file=sys.stderr)
