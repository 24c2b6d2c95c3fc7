"""Which device each rank of a run is on, one process per rank: from what the user writes to the name of a device per rank.

cuda                    rank r on cuda:r; as many ranks as GPUs at most, since two processes on one GPU are asked for by name
cuda:1                  all ranks on it
0=cuda:0,1=cuda:0       rank by rank
fake                    lanes without hardware (backend.devices.fake), of which a host has FAKE_DEVICES
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from backend.devices.device import parse_devices
from planner.ir.errors import Unsupported

__all__ = ["FAKE_DEVICES", "devices_here", "place_ranks"]

FAKE_DEVICES = 8


def devices_here() -> dict[str, int]:
    """Kind of device -> how many this host has, as torch sees it."""
    return {"cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0, "fake": FAKE_DEVICES}


def place_ranks(text: str, num_ranks: int, here: Mapping[str, int] | None = None) -> dict[int, str]:
    """Rank -> name of its device.

    Args:
        here: kind -> how many there are; None: ``devices_here``.

    Raises:
        Unsupported: more ranks than devices; a device that this host does not have; a form that is not understood.
    """
    if text.strip() == "cpu":
        return dict.fromkeys(range(num_ranks), "cpu")
    counts = devices_here() if here is None else here
    kind = text.strip()
    if kind in counts:
        if num_ranks > counts[kind]:
            shared = ",".join(f"{rank}={kind}:{rank % max(counts[kind], 1)}" for rank in range(min(num_ranks, 3)))
            way_out = (
                f"name each rank's to let some share one, as in {shared}{',...' if num_ranks > 3 else ''}, or " if counts[kind] else ""
            )
            raise Unsupported(
                f"device {kind}: the plan has {num_ranks} ranks, and this host {counts[kind]} {kind} devices; {way_out}plan for as many, "
                "or use --device cpu"
            )
        return {rank: f"{kind}:{rank}" for rank in range(num_ranks)}
    names = parse_devices(text, num_ranks)
    for rank, name in names.items():
        kind, _, index = name.partition(":")
        if index and int(index) >= counts[kind]:
            raise Unsupported(
                f"device {name} of rank {rank}: this host has {counts[kind]} {kind} devices, numbered from 0; use --device cpu"
            )
    return names
