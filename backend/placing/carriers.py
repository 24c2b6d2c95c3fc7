"""What carries the bytes of each communicator, decided before anything starts, and said where it is not what one would expect.

all ranks on CPUs                          gloo
a GPU each                                 NCCL
GPUs, some of which ranks share            gloo, through the host's memory: NCCL refuses two ranks of one device
GPUs of a torch without NCCL               gloo, through the host's memory
devices without hardware                   gloo, with NCCL's rule of launches (SEMANTICS 3.12)
CPUs and GPUs in one communicator          refused
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planner.ir.actors.communicators import Communicator, communicators
from planner.ir.errors import Unsupported
from planner.ir.plan import Plan

__all__ = ["Carried", "Carrier", "carriers"]


class Carrier(StrEnum):
    GLOO = "gloo"
    NCCL = "nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """carrier: of a communicator.   why: it is not NCCL although its ranks are on devices; empty: it is, or they are on CPUs.
    in_order: ranks launch all such communicators' collectives in one order (SEMANTICS 3.12)."""

    carrier: Carrier
    why: str = ""
    in_order: bool = False


def carriers(plan: Plan, devices: Mapping[int, str], *, has_nccl: bool) -> dict[Communicator, Carried]:
    """What carries each communicator of collectives.

    Args:
        devices: rank -> name of its device.   has_nccl: torch was built with it.

    Raises:
        Unsupported: ranks on different kinds of device meet in a collective.
    """
    return {each: _carried(each, devices, has_nccl=has_nccl) for each in communicators(plan) if each.axis is not None}


def _carried(communicator: Communicator, devices: Mapping[int, str], *, has_nccl: bool) -> Carried:
    names = [devices[rank] for rank in communicator.ranks]
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1:
        shown = ", ".join(f"{rank} on {devices[rank]}" for rank in communicator.ranks[:8])
        raise Unsupported(
            f"ranks {shown} meet in collectives of stream {communicator.stream}, and no library carries between these kinds of device; put "
            "all of them on one kind (stages may differ), or use --performer threads"
        )
    match kinds.pop():
        case "cpu":
            return Carried(carrier=Carrier.GLOO)
        case "fake":
            return Carried(carrier=Carrier.GLOO, why="devices without hardware have no NCCL", in_order=True)
    if len(set(names)) < len(names):
        shared = next(name for name in names if names.count(name) > 1)
        ranks = [rank for rank in communicator.ranks if devices[rank] == shared]
        return Carried(carrier=Carrier.GLOO, why=f"ranks {ranks} share {shared}, and NCCL refuses two ranks of one device")
    if not has_nccl:
        return Carried(carrier=Carrier.GLOO, why="this torch has no NCCL")
    return Carried(carrier=Carrier.NCCL, in_order=True)
