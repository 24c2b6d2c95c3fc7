"""The libraries that the models come from, made ready to be imported."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import version

import torch

__all__ = ["LIBRARIES", "absent", "make_ready", "versions"]

LIBRARIES = ("transformers", "torchvision", "timm")


def absent() -> list[str]:
    return [library for library in LIBRARIES if importlib.util.find_spec(library) is None]


def versions() -> dict[str, str]:
    return {library: version(library) for library in ("torch", *LIBRARIES)}


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
