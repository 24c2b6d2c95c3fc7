"""How fragments are performed, and what a host must have for it."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Collection
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from planner.ir.errors import Unsupported

__all__ = ["Kernels", "NotCompiled", "cache_folder", "check_kernels", "lacking"]


class Kernels(StrEnum):
    """EAGER: op by op, by torch's kernels and ours.   COMPILED: as code that torch's inductor makes of the whole fragment."""

    EAGER = "eager"
    COMPILED = "compiled"


class NotCompiled(UserWarning):
    """Fragments that inductor cannot compile are performed op by op."""


def cache_folder() -> Path:
    """Where compiled code lies from run to run: $TORCHINDUCTOR_CACHE_DIR, or $XDG_CACHE_HOME/regista/inductor (default ~/.cache).

    Not torch's own default, which anybody who shares /tmp could make first: what lies there is run.
    """
    if own := os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""):
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "regista" / "inductor"


def lacking(devices: Collection[str]) -> list[str]:
    """What inductor needs on this host and does not find.

    Args:
        devices: names of those that are used: ``cpu``, ``cuda:0``, ``fake:0``.
    """
    on_gpu = any(name.startswith("cuda") for name in devices)
    compilers = {"C++": os.environ.get("CXX", "g++")} if not on_gpu or "cpu" in devices else {}
    if on_gpu:
        compilers["C"] = os.environ.get("CC") or next((name for name in ("gcc", "clang") if shutil.which(name)), "gcc")
    missing = [f"a {language} compiler ({name})" for language, name in compilers.items() if shutil.which(name) is None]
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        missing.append("Python's header files (Python.h)")
    if on_gpu and find_spec("triton") is None:
        missing.append("the package triton")
    return missing


def check_kernels(kernels: Kernels, devices: Collection[str]) -> None:
    """Refuse compiled kernels on a host that cannot compile.

    Args:
        devices: names of those that are used.

    Raises:
        Unsupported: naming what is missing.
    """
    if kernels is Kernels.EAGER:
        return
    if missing := lacking(devices):
        raise Unsupported(
            f"--kernels compiled: this host lacks {' and '.join(missing)}, with which torch's inductor compiles; install it, or leave --kernels "
            "out (fragments are performed op by op then)"
        )
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unsupported(
            f"--kernels compiled: compiled code is kept in {folder}, which cannot be made ({error.strerror}); set TORCHINDUCTOR_CACHE_DIR to a "
            "folder of yours"
        ) from error
