"""Horovod's scaling on 128 servers of 4 P100 with 25 Gb/s RoCE: three constants fitted on three rows, the other rows predicted.

    python -m experiments.network.horovod              fit, simulate, write results/horovod.csv, print
    python -m experiments.network.horovod --redraw     print from the CSV

A step on p GPUs is simulated as flows: the backward pass makes gradients ready, they are fused into buckets of at most 64 MB (Horovod's
default; a larger tensor goes alone), and buckets are all-reduced one after another on one ring through all GPUs, while the backward goes on:

    T(bucket n) = 2 (p-1) (alpha + n / (p beta))          step = max(end of compute, end of the last bucket)
    efficiency  = compute alone / step                    compute on many GPUs takes (1 + loss) times as long as alone

stated  images/s of one P100 at batch 64: Inception V3 142, VGG-16 154 (TensorFlow's performance guide, May 2017, synthetic data); ResNet-101
        129.4, halfway in time per image between ResNet-50 (219) and ResNet-152 (91.8), as its blocks are (16, 33, 50).
        Parameters, fp32: 23.8 M, 44.5 M, 138.36 M (fc8 4.10, fc7 16.78, fc6 102.76, convolutions 14.71 M).  Backward = 2/3 of the compute;
        gradients are ready at an even pace, but VGG's three fc layers, which the backward meets first, share its first hundredth.
fitted  beta   bytes/s that one ring gets out of a server's port, under load     on VGG-16, 128 GPUs
        alpha  seconds per hop of the ring                                        on VGG-16, 512 GPUs
        loss   what many GPUs lose by waiting for each other, whatever they send  on Inception V3, 128 GPUs
predicted  ResNet-101 on 128 GPUs; Inception V3 and ResNet-101 on 512.

The published efficiencies have two digits, so +-0.5 points are rounding.  Three of six rows are fitted: little is proven by so few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from simulator.network import Sharing, simulate_flows
from simulator.network.links import Flow, Link, Route

__all__ = ["Constants", "efficiency", "main"]

HERE = Path(__file__).parents[1]
CSV, PAPER = HERE / "results/horovod.csv", HERE / "paper_numbers/horovod_scaling.csv"
BATCH, BUCKET_BYTES, BACKWARD_SHARE, LINE_BYTES_PER_S = 64, 64 * 2**20, 2 / 3, 25e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``tensors``: (bytes, share of the backward after which it is ready), in the order of the backward; ``even_bytes`` come at an even pace."""

    images_per_s: float
    even_bytes: float
    tensors: tuple[tuple[float, float], ...] = ()


MODELS: Mapping[str, Model] = {
    "Inception V3": Model(images_per_s=142.0, even_bytes=4 * 23.8e6),
    "ResNet-101": Model(images_per_s=2 / (1 / 219 + 1 / 91.8), even_bytes=4 * 44.5e6),
    "VGG-16": Model(
        images_per_s=154.0,
        even_bytes=4 * 14.71e6,
        tensors=((4 * 4.10e6, 0.0003), (4 * 16.78e6, 0.0016), (4 * 102.76e6, 0.01)),
    ),
}
FITTED = {("VGG-16", 128): "beta", ("VGG-16", 512): "alpha", ("Inception V3", 128): "loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    ring_bytes_per_s: float
    hop_s: float
    loss: float


def buckets(model: Model) -> list[tuple[float, float]]:
    """(bytes, share of the backward after which all of it is ready)."""
    parts = list(model.tensors)
    begin, left = parts[-1][1] if parts else 0.0, model.even_bytes
    while left > 0:
        part = min(left, BUCKET_BYTES)
        left -= part
        parts.append((part, begin + (1 - begin) * (1 - left / model.even_bytes)))
    return parts


def efficiency(model: Model, gpus: int, constants: Constants) -> float:
    """Simulated throughput per GPU over that of a GPU alone."""
    alone_s = BATCH / model.images_per_s
    compute_s = alone_s * (1 + constants.loss)
    hops = 2 * (gpus - 1)
    route = Route(links=("ring",), latency_s=hops * constants.hop_s)
    flows: list[Flow] = []
    for number, (size_bytes, ready) in enumerate(buckets(model)):
        ready_s = compute_s * (1 - BACKWARD_SHARE * (1 - ready))
        after = (f"bucket{number - 1}",) if number else ()
        flows.append(Flow(name=f"bucket{number}", route=route, size_bytes=hops / gpus * size_bytes, after=after, not_before_s=ready_s))
    ring = Link(name="ring", bandwidth_bytes_per_s=constants.ring_bytes_per_s)
    return alone_s / max(compute_s, simulate_flows(flows, [ring], Sharing.FIFO).end_s)


def bisect(too_fast: Callable[[float], bool], low: float, high: float) -> float:
    """The slowest-making value in [low, high] at which ``too_fast`` turns false; it is true below."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_fast(middle) else (low, middle)
    return (low + high) / 2


def fit(paper: Mapping[tuple[str, int], float]) -> Constants:
    """One constant per fitted row, in turn, until they no longer move."""
    constants = Constants(ring_bytes_per_s=LINE_BYTES_PER_S, hop_s=1e-5, loss=0.05)
    targets = {name: (model, gpus, paper[model, gpus]) for (model, gpus), name in FITTED.items()}

    def slower(name: str, change: Callable[[float], Constants]) -> Callable[[float], bool]:
        model, gpus, wanted = targets[name]
        return lambda value: efficiency(MODELS[model], gpus, change(value)) > wanted

    for _ in range(60):
        now = constants
        constants = replace(constants, loss=bisect(slower("loss", lambda v, now=now: replace(now, loss=v)), 0.0, 1.0))
        now = constants
        inverse = bisect(slower("beta", lambda v, now=now: replace(now, ring_bytes_per_s=1 / v)), 1e-11, 1e-8)
        constants = replace(constants, ring_bytes_per_s=1 / inverse)
        now = constants
        constants = replace(constants, hop_s=bisect(slower("alpha", lambda v, now=now: replace(now, hop_s=v)), 0.0, 1e-3))
    return constants


def measure() -> None:
    table = pd.read_csv(PAPER)
    table = table[(table.system == "Horovod") & table.model.isin(list(MODELS)) & table.scaling_efficiency.notna()]
    paper = {(str(row.model), int(row.gpus)): float(row.scaling_efficiency) for row in table.itertuples()}
    constants = fit(paper)
    rows = [
        {
            "model": model,
            "gpus": gpus,
            "role": f"fitted ({FITTED[model, gpus]})" if (model, gpus) in FITTED else "predicted",
            "paper_efficiency": wanted,
            "sim_efficiency": efficiency(MODELS[model], gpus, constants),
            "fitted_ring_bytes_per_s": constants.ring_bytes_per_s,
            "fitted_hop_s": constants.hop_s,
            "fitted_loss": constants.loss,
        }
        for (model, gpus), wanted in sorted(paper.items(), key=lambda entry: (entry[0][1], entry[0][0]))
    ]
    CSV.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(CSV, index=False, float_format="%.6g")


def show() -> None:
    table = pd.read_csv(CSV)
    report = Table("model", "GPUs", "role", "paper", "sim", "sim - paper, points")
    for row in table.itertuples():
        points = 100 * (row.sim_efficiency - row.paper_efficiency)
        report.add_row(row.model, str(row.gpus), row.role, f"{row.paper_efficiency:.0%}", f"{row.sim_efficiency:.1%}", f"{points:+.1f}")
    Console().print(report)
    first = table.iloc[0]
    Console().print(
        f"fitted: beta {first.fitted_ring_bytes_per_s / 1e9:.2f} GB/s ({first.fitted_ring_bytes_per_s / LINE_BYTES_PER_S:.0%} of 25 Gb/s), "
        f"alpha {first.fitted_hop_s * 1e6:.1f} us per hop, loss {first.fitted_loss:.1%} -> {CSV}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="print from the CSV")
    if not parser.parse_args().redraw:
        measure()
    show()


if __name__ == "__main__":
    main()
