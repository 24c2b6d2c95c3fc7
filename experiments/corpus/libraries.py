"""The libraries that the models come from, made ready to be imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

__all__ = ["LIBRARIES", "absent", "current_commit", "make_ready", "versions"]

LIBRARIES = ("transformers", "torchvision", "timm")


def absent() -> list[str]:
    return [library for library in LIBRARIES if importlib.util.find_spec(library) is None]


def versions() -> dict[str, str]:
    return {library: version(library) for library in ("torch", *LIBRARIES)}


def current_commit() -> str:
    """The commit that the code is of, with a + where tracked files differ from it; empty outside of git's reach."""
    told = [
        subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short=7", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", "*.py"))
    ]
    return told[0].stdout.strip() + ("+" if told[1].stdout.strip() else "") if told[0].returncode == 0 else ""


def make_ready() -> None:
    """Nothing is fetched from a hub; and torchvision can be imported beside a torch for CPUs.

    torchvision's wheel is built for CUDA: beside such a torch its compiled operators cannot be loaded, and its import fails where it describes one
    of them.  So they are declared, without a kernel; no model of the corpus calls them (they belong to detection).
    """
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
        declared = torch.library.Library("torchvision", "DEF")
        declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _HELD.append(declared)


_HELD: list[torch.library.Library] = []  # a Library takes its operators along when it goes
