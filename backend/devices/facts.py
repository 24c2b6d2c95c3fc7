"""What a number that was measured on a device needs beside it: name, memory, clocks, power, driver, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from backend.devices.device import Device

__all__ = ["device_facts"]

_QUERIED = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.limit",
    "temperature.gpu",
    "persistence_mode",
    "compute_mode",
    "mig.mode.current",
)
"""Fields of nvidia-smi --query-gpu."""

_WAIT_S = 20.0


def device_facts(device: Device, ask: Callable[[Sequence[str]], str] | None = None) -> dict[str, str]:
    """What is known, by name.

    Args:
        ask: runs a command and returns what it prints; raises OSError or SubprocessError where it cannot.   None: a process.
    """
    facts = {
        "device": device.name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
        "date": time.strftime("%Y-%m-%d"),
    }
    if not device.name.startswith("cuda"):
        return facts | {"facts": device.about()}
    cuda: Any = torch.cuda
    cudnn: Any = torch.backends.cudnn
    properties = cuda.get_device_properties(torch.device(device.name))
    facts |= {
        "gpu": properties.name,
        "gpu_memory_bytes": str(properties.total_memory),
        "gpu_processors": str(properties.multi_processor_count),
        "gpu_capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda),
        "cudnn": str(cudnn.version()),
        "tf32": "products by torch.backends.cuda.matmul.fp32_precision "
        + torch._C._get_fp32_precision_getter("cuda", "matmul")
        + ", convolutions "
        + torch._C._get_fp32_precision_getter("cuda", "conv"),
    }
    return facts | _clocks(str(getattr(properties, "uuid", "")), device.name, ask or _printed)


def _clocks(uuid: str, name: str, ask: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """From nvidia-smi, which numbers GPUs as the host does and not as this process; so the GPU is named by its identity."""
    which = f"GPU-{uuid.removeprefix('GPU-')}" if uuid else name.partition(":")[2]
    command = ("nvidia-smi", f"--id={which}", f"--query-gpu={','.join(_QUERIED)}", "--format=csv,noheader")
    try:
        values = [value.strip() for value in ask(command).strip().splitlines()[-1].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"clocks": f"not known: nvidia-smi could not be asked ({type(error).__name__})"}
    if len(values) != len(_QUERIED):
        return {"clocks": f"not known: nvidia-smi gave {len(values)} fields of {len(_QUERIED)}"}
    return {field.replace(".", "_"): value for field, value in zip(_QUERIED, values, strict=True)}


def _printed(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_WAIT_S).stdout
