"""Where a part measures, how large, and the rows that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch

from backend.acts.act import Batches
from backend.devices.device import CpuDevice, Device
from backend.devices.fake import FakeStreamDevice
from backend.devices.opening import open_device
from experiments.gpu.alone import Predicted
from planner.frontend import Program
from planner.ir.files import save_trace
from planner.ir.plan import Plan
from zoo import ZOO

__all__ = ["BESIDE_CPU", "LARGE", "SMALL", "Bench", "Fed", "Row", "Scale", "gpt_of", "gpt_program", "row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the models are: on a GPU large enough that acts take milliseconds, in tests as small as possible."""

    width: int
    products: int
    steps: int
    batch: int
    layers: int
    dim: int
    heads: int
    length: int
    vocabulary: int
    is_large: bool = True


LARGE = Scale(width=4096, products=3, steps=20, batch=8, layers=4, dim=768, heads=12, length=512, vocabulary=8192)
BESIDE_CPU = Scale(width=0, products=0, steps=20, batch=8, layers=4, dim=256, heads=8, length=128, vocabulary=2048)
"""A stage on one core computes about 0.1 TFLOP/s, so it gets little to do."""
SMALL = Scale(width=32, products=2, steps=4, batch=4, layers=2, dim=16, heads=2, length=8, vocabulary=32, is_large=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """sim: predicted before the run, from acts that ran alone.   run, run_low, run_high: median and quartiles of the measurement."""

    part: str
    setting: str
    quantity: str
    unit: str
    sim: float | None = None
    run: float | None = None
    run_low: float | None = None
    run_high: float | None = None
    rounds: int = 0


class Bench:
    """Where a part measures and what it leaves behind.

    Args:
        device: ``cuda:0``, ``cpu``, or ``fake`` (lanes without hardware).   out: folder for traces; it exists.
    """

    def __init__(self, device: str, scale: Scale, out: Path) -> None:
        self.name, self.scale, self.out = device, scale, out

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")

    @contextmanager
    def devices(self, ranks: Mapping[int, str]) -> Iterator[dict[int, Device]]:
        """Rank -> its device: ``host`` is the CPU, ``device`` the one that is measured."""
        names = {rank: "cpu" if what == "host" else self.name for rank, what in ranks.items()}
        opened: dict[int, Device]
        if self.name != "fake":
            opened = {rank: open_device(name) for rank, name in names.items()}
        else:
            opened = {rank: CpuDevice() if name == "cpu" else FakeStreamDevice(f"fake:{rank}") for rank, name in names.items()}
        try:
            yield opened
        finally:
            for device in opened.values():
                device.close()

    def save(self, part: str, setting: str, plan: Plan, predicted: Predicted) -> None:
        """Both traces, each with its Plan."""
        stem = f"{part}-{setting}".replace(" ", "_")
        save_trace(plan, predicted.sim, str(self.out / f"{stem}.sim.json"))
        save_trace(plan, predicted.outcome.trace, str(self.out / f"{stem}.run.json"))


def row(part: str, setting: str, quantity: str, unit: str, sim: float | None, values: tuple[float, ...]) -> Row:
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Row(
        part=part,
        setting=setting,
        quantity=quantity,
        unit=unit,
        sim=sim,
        run=median(values),
        run_low=low,
        run_high=high,
        rounds=len(values),
    )


@dataclass(frozen=True, slots=True)
class Fed:
    """What a Plan is performed on."""

    state: Mapping[str, torch.Tensor]
    batches: Batches

    @classmethod
    def of(cls, source: Program, micro_batches: int) -> Fed:
        """One batch again and again."""
        one = source.batch(0)
        return cls(source.initial_state(micro_batches), lambda step: one)


def gpt_of(bench: Bench, micro_batches: int) -> tuple[Program, Fed]:
    """A GPT with AdamW."""
    source = gpt_program(bench)
    return source, Fed.of(source, micro_batches)


def gpt_program(bench: Bench, *, dropout: float = 0.0, precision: str = "fp32") -> Program:
    """The same without its data."""
    size = bench.scale
    source = ZOO["gpt"](
        layers=size.layers,
        width=size.dim,
        heads=size.heads,
        vocab=size.vocabulary,
        batch=size.batch,
        seq=size.length,
        dropout=dropout,
        attention="eager" if dropout else "fused",
    )
    return source if precision == "fp32" else source.in_formats(precision, None)
