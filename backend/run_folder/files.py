"""The files of one run: what the parent hands to the workers and what they leave behind.

plan.json  state.pt (or values.json: where state comes from)  batches.pt (or data.json: where data lies)  numbers.json  options.json  by the parent
store.a0.json (address and key of the store)  alive (signs of life)     by the parent, for each attempt
rank0.a0.pid  rank0.pt (acts, losses, gradients)  state/ (backend.checkpoint.leaving)  rank0.a0.error.json  progress     by the workers; a0: the attempt
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor

from backend.acts.act import Batches
from backend.acts.step_inputs import StepNumbers, no_numbers
from backend.checkpoint.handover import compact, hand_over
from backend.checkpoint.owner import NOBODY, Owner
from backend.data.loader import Loader
from backend.devices.cores import Waiting
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.initial.values import Values
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions
from backend.ops.inductor import Kernels
from planner.ir.errors import InvalidFile
from planner.ir.files import PLAN_VERSION, save_plan
from planner.ir.plan import Plan
from planner.ir.text import decode, encode, load_json, save_text
from planner.ir.traces.held import StepSelection

__all__ = [
    "BATCHES",
    "Failure",
    "FailureKind",
    "Options",
    "attempt",
    "load_options",
    "prepare",
    "read_batches",
    "read_failures",
    "read_numbers",
    "read_plan",
    "reads_data",
    "save_options",
    "store_file",
    "write_failure",
]


BATCHES, NUMBERS = "batches.pt", "numbers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``live``: a session allows steps one by one.   ``allow_nan``: a loss that is no finite number does not end the run.

    address, inputs: with several hosts, this one's address and a digest of what all start from.
    isolated_rounds: after the run, time each task alone so often (0: not at all); ``warmup`` rounds come first and do not count.
    trace_steps: whose acts the trace holds (planner.ir.traces.held); empty: all.
    owner: this run, as others learn of it that would save into its folder of checkpoints.
    resumes: the first attempt, too, begins where the newest checkpoint ends (of a run on several hosts; else the launcher has looked).
    begins_once: no other attempt will begin with the values that were handed over.
    keeps_state: the last state leaves the run (a checkpoint has it in any case).
    state_memory: path of memory of the launcher's in which workers hold their state (backend.checkpoint.leaving); empty: there is none.
    devices: name of each rank's device; empty: all on CPUs.
    waiting: how workers of one host wait for each other.
    kernels: how fragments are performed.
    """

    run_id: str
    steps: int
    gradients: bool = False
    timeout_s: float = 30.0
    one_host: bool = True
    address: str = ""
    inputs: str = ""
    isolated_rounds: int = 0
    warmup: int = 0
    live: bool = False
    first_step: int = 0
    checkpoint: str = ""
    owner: Owner = NOBODY
    save_every: int = 0
    keep: int = 0
    saves_when_interrupted: bool = False
    resumes: bool = False
    allow_nan: bool = False
    memory: MemoryOptions = DEFAULT_MEMORY
    trace_steps: str = ""
    begins_once: bool = False
    keeps_state: bool = True
    state_memory: str = ""
    devices: tuple[str, ...] = ()
    device_options: DeviceOptions = DEFAULT_DEVICE_OPTIONS
    waiting: Waiting = Waiting.AUTO
    kernels: Kernels = Kernels.EAGER

    def held_steps(self, steps: int) -> tuple[tuple[int, int], ...]:
        """(first, end) of the steps of an attempt of so many whose acts the trace holds; none: all."""
        return StepSelection.parse(self.trace_steps).ranges(steps) if self.trace_steps else ()


class FailureKind(StrEnum):
    """In the order in which they explain a run's end: an act raised, nothing moved for too long, a peer went away."""

    RAISED = "raised"
    STALLED = "stalled"
    PEER_LOST = "peer_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker ended."""

    rank: int
    kind: FailureKind
    message: str
    task: str = ""
    act: int = -1
    micro_batch: int = -1
    traceback: str = ""
    time_ns: int = 0


def prepare(
    folder: Path,
    plan: Plan,
    state: Mapping[str, Tensor] | Values,
    batches: Batches,
    options: Options,
    numbers: StepNumbers = no_numbers,
) -> None:
    """Write the parent's files; a batch that is the same object at several steps is stored once."""
    save_plan(plan, str(folder / "plan.json"))
    names = {entry.given_as for entry in plan.states}
    hand_over(folder, state, names)
    save_options(folder, options)
    steps = range(options.first_step, options.first_step + options.steps)
    save_text(folder / NUMBERS, json.dumps({"first_step": options.first_step, "numbers": [dict(numbers(step)) for step in steps]}))
    if isinstance(batches, Loader):  # the workers open the data themselves
        batches.check_steps(options.first_step + options.steps)
        save_text(folder / "data.json", json.dumps(batches.to_json()))
        return
    distinct: list[tuple[Tensor, ...]] = []
    index: list[int] = []
    places: dict[tuple[int, ...], int] = {}
    for step in steps:
        batch = tuple(batches(step))
        key = tuple(id(tensor) for tensor in batch)
        if key not in places:
            places[key] = len(distinct)
            distinct.append(batch)  # holding the batch keeps its ids from being used again
        index.append(places[key])
    torch.save(
        {"first_step": options.first_step, "index": index, "batches": [[compact(t) for t in batch] for batch in distinct]},
        folder / BATCHES,
    )


def save_options(folder: Path, options: Options) -> None:
    save_text(folder / "options.json", json.dumps(encode(options)))


def load_options(folder: Path) -> Options:
    options = decode(Options, json.loads((folder / "options.json").read_text()), "options")
    assert isinstance(options, Options)
    return options


def read_plan(folder: Path) -> Plan:
    """The Plan, without verifying it again: the parent did.

    Raises:
        InvalidFile: its content is not what its id says.
    """
    data = load_json(folder / "plan.json", "plan", PLAN_VERSION)
    plan = decode(Plan, data.get("plan"), "plan")
    assert isinstance(plan, Plan)
    if plan.plan_id != data.get("plan_id"):
        raise InvalidFile(f"{folder / 'plan.json'}: holds plan {plan.plan_id} under the id {data.get('plan_id')}")
    return plan


def reads_data(folder: Path) -> bool:
    """Whether the workers read training data themselves."""
    return (folder / "data.json").exists()


def read_batches(folder: Path, plan: Plan) -> Batches:
    """The batches that the parent wrote, mapped into memory, or a reader of the worker's own; either way a rank reads only its own part."""
    if reads_data(folder):
        return Loader.open(plan, json.loads((folder / "data.json").read_text()))
    data = torch.load(folder / BATCHES, mmap=True, weights_only=True)
    index: Sequence[int] = data["index"]
    first_step: int = data["first_step"]
    return lambda step: tuple(data["batches"][index[step - first_step]])


def read_numbers(folder: Path) -> StepNumbers:
    """Step -> the numbers that the parent wrote."""
    data = json.loads((folder / NUMBERS).read_text())
    numbers: Sequence[Mapping[str, float]] = data["numbers"]
    first_step: int = data["first_step"]
    return lambda step: numbers[step - first_step]


def write_failure(folder: Path, failure: Failure) -> None:
    dated = replace(failure, time_ns=time.monotonic_ns())
    path = folder / f"rank{failure.rank}.{attempt()}.error.json"
    neighbour = path.with_suffix(".tmp")
    neighbour.write_text(json.dumps(encode(dated)))
    os.replace(neighbour, path)


def attempt() -> str:
    """The attempt's name: ``a0``, and ``a1`` after the first restart.  The launcher tells a worker as torchrun would."""
    return f"a{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def store_file(folder: Path, name: str | None = None) -> Path:
    """Where the workers of an attempt (this process's own, if none is named) find the address and the key of the run's store."""
    return folder / f"store.{name or attempt()}.json"


def read_failures(folder: Path, name: str = "a0") -> list[Failure]:
    """The failures of an attempt, in the order in which they happened."""
    failures = [decode(Failure, json.loads(path.read_text()), "failure") for path in folder.glob(f"rank*.{name}.error.json")]
    return sorted(failures, key=lambda failure: failure.time_ns)
