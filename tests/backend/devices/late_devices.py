"""Runs of hand-made plans on devices without hardware, whose lanes are threads that start late at random."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import handmade
from inprocess_cases import HANDMADE
from matrix import STEPS

from backend.devices.device import Device
from backend.devices.fake import FakeStreamDevice
from backend.devices.options import DEFAULT_DEVICE_OPTIONS, DeviceOptions
from backend.inprocess import run
from backend.reference import perform
from backend.run_folder.outcome import Outcome
from planner.ir.plan import Plan


@contextmanager
def fakes(plan: Plan, ranks: str = "all", *, delay_s: float = 0.001, seed: int = 0) -> Iterator[Mapping[int, Device]]:
    """Fake devices for all ranks, or for the odd ones beside CPUs."""
    rng = random.Random(seed)
    made = {
        rank: FakeStreamDevice(f"fake:{rank}", delay_s=delay_s, rng=random.Random(rng.random()))
        for rank in range(plan.num_ranks)
        if ranks == "all" or rank % 2
    }
    try:
        yield made
    finally:
        for device in made.values():
            device.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fake lane")]


def reference(name: str) -> Outcome:
    plan, micro_batches = HANDMADE[name]
    return perform(plan, handmade.start(), handmade.batches(micro_batches), STEPS, gradients=True)


def on_fakes(name: str, ranks: str, *, ahead: int = 8, seed: int = 0) -> Outcome:
    plan, micro_batches = HANDMADE[name]
    with fakes(plan, ranks, seed=seed) as devices:
        return run(
            plan,
            handmade.start(),
            handmade.batches(micro_batches),
            STEPS,
            gradients=True,
            devices=devices,
            options=DeviceOptions(ahead=ahead) if devices else DEFAULT_DEVICE_OPTIONS,
            timeout_s=20,
        )
