"""How long it takes from a module to a Plan where the trace is long: tracing, search and lowering, wall and CPU seconds (kind ``run``).

    python -m experiments.benchmarks.planning [NAME ...] [--rounds N] [--devices N] [--csv FILE]

Each round traces and plans a new Program, so that nothing is left of the round before but what any process keeps (loaded libraries, compiled
loops); the first round pays for these and stands in a row of its own.  On a machine that is shared the CPU seconds say more than the wall's.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regista
from planner.frontend import Program
from regista.api import program_of

__all__ = ["CASES", "main"]


class DenseNet(nn.Module):
    """DenseNet-121 for small images [Huang et al. 2017, table 1]: blocks of 6, 12, 24 and 16 layers, growth 32."""

    def __init__(self, blocks: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32, width: int = 64, classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for number, layers in enumerate(blocks):
            self.blocks.append(nn.ModuleList(_dense_layer(width + growth * k, growth) for k in range(layers)))
            width += growth * layers
            if number + 1 < len(blocks):
                self.transitions.append(
                    nn.Sequential(
                        nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)
                    )
                )
                width //= 2
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            features = [x]
            assert isinstance(block, nn.ModuleList)
            for layer in block:
                features.append(layer(torch.cat(features, 1)))
            x = torch.cat(features, 1)
            if number < len(self.transitions):
                x = self.transitions[number](x)
        out: Tensor = self.head(F.relu(self.norm(x)).mean((2, 3)))
        return out


def _dense_layer(width: int, growth: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 4 * growth, 1, bias=False),
        nn.BatchNorm2d(4 * growth),
        nn.ReLU(inplace=True),
        nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
    )


class _Standardised(nn.Conv2d):
    """A convolution with standardised filters [Qiao et al. 2019]."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class _Bottleneck(nn.Module):
    """norm, relu and convolution in this order, three times [He et al. 2016, "Identity mappings in deep residual networks"]."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        inner = out // 4
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for channels in (width, inner, inner))
        self.convs = nn.ModuleList(
            (
                _Standardised(width, inner, 1, bias=False),
                _Standardised(inner, inner, 3, stride, 1, bias=False),
                _Standardised(inner, out, 1, bias=False),
            )
        )
        self.shortcut = _Standardised(width, out, 1, stride, bias=False) if (width, stride) != (out, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.convs[0](y)
        for norm, conv in zip(self.norms[1:], self.convs[1:], strict=True):
            y = conv(F.relu(norm(y)))
        out: Tensor = y + shortcut
        return out


class ResNetV2(nn.Module):
    """ResNetV2-50 with group norm and standardised filters, as in Big Transfer [Kolesnikov et al. 2020]."""

    def __init__(self, layers: tuple[int, ...] = (3, 4, 6, 3), classes: int = 100) -> None:
        super().__init__()
        self.stem, width = _Standardised(3, 64, 7, 2, 3, bias=False), 64
        blocks: list[nn.Module] = []
        for number, count in enumerate(layers):
            out = 256 << number
            for k in range(count):
                blocks.append(_Bottleneck(width, out, 2 if k == 0 and number else 1))
                width = out
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.GroupNorm(32, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        out: Tensor = self.head(F.relu(self.norm(self.blocks(x))).mean((2, 3)))
        return out


class Recurrent(nn.Module):
    """A recurrent layer of torch and a head."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0])
        return out


class Unrolled(nn.Module):
    """A recurrence that its user wrote out: one cell per time step, and a gate of its own."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inner, self.outer, self.gate = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            fresh = torch.tanh(self.inner(x[:, t]) + self.outer(state))
            share = torch.sigmoid(self.gate(torch.cat([fresh, state], -1)))
            state = share * fresh + (1 - share) * state
            outputs.append(state)
        out: Tensor = self.head(torch.stack(outputs, 1))
        return out


def _program(module: nn.Module, *shape: int) -> Program:
    x = torch.randn(shape)
    target = torch.zeros(shape[0], dtype=torch.int64) if len(shape) == 4 else torch.zeros(*shape[:2], 8)
    return Program(module, (x, target), F.cross_entropy if len(shape) == 4 else F.mse_loss, name=type(module).__name__.lower())


CASES: dict[str, Callable[[], Program]] = {
    "lstm": lambda: _program(Recurrent(nn.LSTM(64, 128, batch_first=True), 128), 32, 128, 64),
    "lstm-both-ways": lambda: _program(Recurrent(nn.LSTM(64, 128, bidirectional=True, batch_first=True), 256), 32, 16, 64),
    "gru": lambda: _program(Recurrent(nn.GRU(64, 128, 2, batch_first=True), 128), 32, 32, 64),
    "unrolled": lambda: _program(Unrolled(), 32, 128, 64),
    "densenet121": lambda: _program(DenseNet(), 8, 3, 64, 64),
    "resnetv2": lambda: _program(ResNetV2(), 8, 3, 64, 64),
    "gpt2": lambda: program_of("zoo:gpt2?layers=12&seq=64&batch=8"),
}
"""Name -> a new Program each time."""


def _timed(name: str, devices: int) -> dict[str, object]:
    began, began_cpu = time.perf_counter(), time.process_time()
    program = CASES[name]()
    graph = program.graph()
    traced, traced_cpu = time.perf_counter(), time.process_time()
    plan = regista.plan(program, f"local:{devices}", mesh=(devices,), seconds=inf)
    ended, ended_cpu = time.perf_counter(), time.process_time()
    return {
        "case": name,
        "kind": "run",
        "ops": len(graph.ops),
        "trace_s": traced - began,
        "trace_cpu_s": traced_cpu - began_cpu,
        "plan_s": ended - traced,
        "plan_cpu_s": ended_cpu - traced_cpu,
        "total_s": ended - began,
        "total_cpu_s": ended_cpu - began_cpu,
        "step_s": plan.search.objective_s,
        "bound_s": plan.search.lower_bound_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--csv", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for name in args.names or CASES:
        for number in range(args.rounds + 1):
            rows.append({"round": number, **_timed(name, args.devices)})
        later = [row for row in rows if row["case"] == name and row["round"]] or rows[-1:]
        ops, first = later[0]["ops"], next(row for row in rows if row["case"] == name)
        print(f"{name:15} {ops:>6} ops   first {first['total_s']:.2f} s", end="")
        for key in ("trace_s", "plan_s", "total_s", "total_cpu_s"):
            values = sorted(float(str(row[key])) for row in later)
            print(f"   {key} {statistics.median(values):.2f} ({values[0]:.2f} .. {values[-1]:.2f})", end="")
        print(flush=True)
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
