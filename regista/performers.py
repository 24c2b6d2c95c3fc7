"""Who performs a Plan, and which options each of them has."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TypeVar

from backend.devices.device import parse_devices
from backend.devices.options import DeviceOptions, check_options
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.inductor import Kernels, check_kernels
from backend.placing.places import place_ranks
from planner.ir.errors import Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan

__all__ = ["Performer", "check_performer", "chosen", "chosen_kernels", "refuse_training"]


class Performer(Enum):
    """Who performs a Plan: real gloo processes, threads of this process, or one thread with virtual devices (the meaning of a Plan)."""

    GLOO = "gloo"
    THREADS = "threads"
    REFERENCE = "reference"


_Choice = TypeVar("_Choice", bound=Enum)


def chosen(choices: type[_Choice], value: _Choice | str, what: str) -> _Choice:
    """The member of an enumeration that a caller names, by itself or by its value.

    Raises:
        Unsupported: there is no such one; the message names those that there are.
    """
    try:
        return choices(value)
    except ValueError:
        raise Unsupported(f"{what} {value!r} is not known; choose from {', '.join(str(each.value) for each in choices)}") from None


def check_performer(
    plan: Plan, performer: Performer, device: str, options: DeviceOptions, memory: MemoryOptions, *, saves: bool, gradients: bool
) -> dict[int, str]:
    """Refuse what the performer does not do; rank -> name of its device.

    Args:
        device: as the user writes it.   saves: checkpoints are asked for.   gradients: so are a step's gradients.

    Raises:
        Unsupported: with the way out.
    """
    if plan.mode is Mode.EVAL:
        refuse_training(checkpoint=saves, gradients=gradients)
    if performer is not Performer.GLOO and saves:
        raise Unsupported(f"checkpoints are saved by real processes; performer {performer.value} has none, leave out --checkpoint")
    if performer is Performer.REFERENCE and device != "cpu":
        raise Unsupported(f"device {device!r}: performer {performer.value} runs on CPUs; use performer gloo or threads")
    if performer is Performer.REFERENCE and memory != DEFAULT_MEMORY:
        raise Unsupported("the reference performer makes new memory for every block; leave the memory options out")
    names = place_ranks(device, plan.num_ranks) if performer is Performer.GLOO else parse_devices(device, plan.num_ranks)
    check_options(options, set(names.values()), own_process=performer is Performer.THREADS)
    return names


def chosen_kernels(kernels: Kernels | str, devices: Collection[str]) -> Kernels:
    """How fragments are to be performed, once this host was found able to do it.

    Args:
        devices: names of those that are used.

    Raises:
        Unsupported: there are no such kernels, or the host lacks a compiler.
    """
    found = chosen(Kernels, kernels, "kernels")
    check_kernels(found, devices)
    return found


def refuse_training(*, checkpoint: bool, gradients: bool) -> None:
    """What an evaluation is asked to do that only a training step can.

    Raises:
        Unsupported: with the way out.
    """
    if checkpoint:
        raise Unsupported(
            "this plan is an evaluation: it updates nothing, so there is no state to save or to resume; leave --checkpoint and --resume out "
            "(--init checkpoint:DIR evaluates what a training run has saved)"
        )
    if gradients:
        raise Unsupported("this plan is an evaluation, which has no gradients; ask a training plan for them")
