"""The device of one worker: opened before its first block, and what the trace says of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from backend.devices.device import Device
from backend.devices.libraries import CUBLAS_CONFIG, DETERMINISTIC_CONFIGS
from backend.devices.opening import open_device
from backend.placing import check_room, owned_bytes
from backend.placing.carriers import Carried, carriers
from backend.placing.graphs import Graphs
from backend.run_folder.files import Options
from backend.worker.lanes import LaunchTurns, collectives_of
from planner.ir.actors.communicators import Communicator
from planner.ir.plan import Plan

__all__ = ["about_device", "launching", "open_for", "owned_here"]


def open_for(options: Options, rank: int) -> Device | None:
    """The device of a rank; None: it is on a CPU.

    Raises:
        Unsupported: this process cannot see it.
    """
    name = options.devices[rank] if options.devices else "cpu"
    if name == "cpu":
        return None
    if options.device_options.deterministic and os.environ.get(CUBLAS_CONFIG) not in DETERMINISTIC_CONFIGS:
        os.environ[CUBLAS_CONFIG] = DETERMINISTIC_CONFIGS[0]  # cuBLAS reads it at this process's first product
    device = open_device(name)
    if device.torch_device.type == "cuda":
        torch.cuda.set_device(device.torch_device)  # of this thread; NCCL's communicators are made here
    return device


def owned_here(plan: Plan, rank: int, device: Device, options: Options, *, before_bytes: int) -> dict[str, str]:
    """Device -> what all ranks on this rank's device take there for good, by owner, and what communicators have taken already.

    Args:
        before_bytes: free before communicators were made, whose buffers no formula tells; what is left is what the rest must fit in.

    Raises:
        OutOfMemory: it has no room for them; asked before any of them has taken anything.
    """
    sharing = {other: device for other, name in enumerate(options.devices) if name == options.devices[rank]}
    owned = owned_bytes(plan, sharing, options.memory)
    check_room(owned, sharing)
    communicators = before_bytes - device.free_bytes()
    return {name: f"{bytes_of}; communicators {communicators} B" for name, bytes_of in owned.items()}


def launching(plan: Plan, rank: int, options: Options) -> tuple[Mapping[Communicator, Carried] | None, LaunchTurns | None]:
    """(what carries each communicator, the turns of this rank's launches); None: gloo on CPUs, whose threads need no order."""
    if not options.devices:
        return None, None
    carried = carriers(plan, dict(enumerate(options.devices)), has_nccl=dist.is_nccl_available())
    in_order = any(each.in_order for each in carried.values())
    return carried, LaunchTurns(collectives_of(plan, rank), options.timeout_s) if in_order else None


def about_device(
    device: Device | None, carried: Mapping[Communicator, Carried] | None, options: Options, owned: Mapping[str, str], graphs: Graphs | None
) -> dict[str, str]:
    """For the trace."""
    if carried is None:
        return {}
    kinds = dict.fromkeys(f"{each.carrier.value}{f' ({each.why})' if each.why else ''}" for each in carried.values())
    chosen = options.device_options
    about = {
        "devices": "; ".join(f"rank {rank} {name}" for rank, name in enumerate(options.devices)),
        "collectives": "; ".join(kinds) or "none",
        "numerics": f"tf32 {chosen.tf32}, deterministic {chosen.deterministic}".lower(),
    }
    about |= {f"memory of {name}": text for name, text in owned.items()}
    if graphs is not None:
        about["graphs"] = graphs.about
    return about | ({"device facts": f"{device.name}: {device.about()}"} if device is not None else {"device facts": "cpu"})
