"""DLPerf's tables of ResNet-50, BERT-base and InsightFace on V100, predicted kernel by kernel: OneFlow's rows, with constants of MXNet's.

    python -m experiments.fidelity.dlperf      fit the rates of convolutions, predict, write results/dlperf.csv, print the table (2 minutes)

fitted     three constants of convolutions on a V100 (planner/cost/kernels/convolutions.toml) to MXNet's three rows on one GPU: ResNet-50 in float32
           and with AMP, InsightFace.  The same library computes both systems' convolutions; OneFlow's rows are seen by no fit.
predicted  the cluster dlperf-v100 with the kernels of a V100: float32 products as measured, float16 ones scaled from the A100's
AMP        BERT: fp16-mixed.  ResNet-50: a model in float16, whose gradients are half the bytes of AMP's.
BERT       has dropout 0.1, and a head for all positions where DLPerf's has one for 20 of 128
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

import regista
from experiments.common.robust_fit import Floats, fitted
from experiments.common.unlimited import with_unlimited_memory
from planner.cost.kernels import KernelModel
from planner.cost.kernels.convolutions import convolution_rates
from planner.ir.cluster import Cluster
from planner.ir.graph import KernelKind, KernelWork
from planner.ir.plan import Fragment, Plan
from planner.ir.tensor import DType
from regista.clusters import resolve_cluster

__all__ = ["DEVICE", "Case", "cases", "cluster_of", "fit_rates", "main", "predicted_s"]

HERE = Path(__file__).parent.parent
TABLE, RESULT = HERE / "paper_numbers/oneflow_dlperf_cnn_bert_v100.csv", HERE / "results/dlperf.csv"
DEVICE = "v100-sxm"
MODELS = {
    ("ResNet50", "FP32, batch size = 128"): ("ResNet-50 fp32", 128, "zoo:resnet50?batch={batch}"),
    ("ResNet50", "AMP, batch size = 256"): ("ResNet-50 AMP", 256, "zoo:resnet50?dtype=fp16&batch={batch}"),
    ("BERT", "FP32, batch size = 32"): ("BERT-base fp32", 32, "zoo:bert?seq=128&dropout=0.1&batch={batch}"),
    ("BERT", "AMP, batch size = 64"): ("BERT-base AMP", 64, "zoo:bert?seq=128&dropout=0.1&batch={batch}"),
}
FACE_MODEL = "zoo:insightface?classes=85744&batch={batch}"
FACE_ROWS = {"data": {1: 245.0, 4: 923.23, 8: 1836.8}, "model": {1: 245.29, 4: 938.83, 8: 1854.15}}
"""Samples per second of OneFlow  [DLPerf, InsightFace report v1: Face Emore, R100, fp32, 64 per GPU]."""
SYSTEMS = {"ResNet50": "OneFlow", "BERT": "OneFlow W/O clip"}
MXNET_S = {"ResNet-50 fp32": 128 / 392.24, "ResNet-50 AMP": 256 / 1393.87, "InsightFace": 64 / 241.82}
"""Seconds per step on one GPU of NGC MXNet (ResNet-50) and MXNet (InsightFace), from the same reports."""
START, LOW, HIGH = (0.8, 0.8, 2.0), (0.3, 0.3, 1.0), (1.5, 1.5, 4.0)
"""Share of the product's rate in float32 and float16, gain of filters that move by one in float32.  4: what tiles of 4 x 4 save."""


def cluster_of(gpus: int) -> Cluster:
    """DLPerf's nodes with so many GPUs in all.  What does not fit 16 GB in our format is priced all the same: the published runs did fit."""
    nodes = max(1, gpus // 8)
    return with_unlimited_memory(replace(resolve_cluster(f"dlperf-v100:{nodes}"), devices_per_node=gpus // nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """table: what is trained.   paper_s: seconds per step."""

    table: str
    gpus: int
    model: str
    pins: tuple[str, ...]
    paper_s: float

    def plan(self) -> Plan:
        """Batch norm takes each device's own statistics, as OneFlow's does."""
        return regista.plan(
            self.model,
            cluster_of(self.gpus),
            stages=1,
            mesh=(self.gpus,),
            micro_batches=1,
            zero=0,
            recompute=False,
            pins=self.pins,
            batch_norm="local" if "bert" not in self.model and self.gpus > 1 else "global",
            precision="fp16-mixed" if self.table == "BERT-base AMP" else None,
        )


def cases() -> Iterator[Case]:
    """OneFlow's rows."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kind = row["model_metric"].split()[0].removesuffix("-Base")
            known = MODELS.get((kind, row["setting"]))
            if known is not None and row["framework"] == SYSTEMS[kind]:
                name, each, model = known
                gpus = int(row["gpus"])
                seconds = gpus * each / float(row["throughput"])
                yield Case(table=name, gpus=gpus, model=model.format(batch=gpus * each), pins=("input.*=S(0)",), paper_s=seconds)
    for way, rates in FACE_ROWS.items():
        for gpus, rate in rates.items():
            pins = ("input.*=S(0)", f"persons={'B' if way == 'data' else 'S(0)'}")
            yield Case(table=f"InsightFace {way}", gpus=gpus, model=FACE_MODEL.format(batch=64 * gpus), pins=pins, paper_s=64 * gpus / rate)


def _kernels(plan: Plan) -> list[KernelWork]:
    return [work for task in plan.tasks if isinstance(task.body, Fragment) for work in task.body.kernels]


def fit_rates(plans: Mapping[str, Plan]) -> tuple[float, float, float]:
    """Shares in float32 and float16 and the gain, from plans on one GPU: table -> plan."""
    model, rates = KernelModel.for_device(DEVICE), convolution_rates(DEVICE)
    parts = []
    for name in MXNET_S:
        plain = np.zeros(3)  # seconds of products that convolutions are: float32, float32 by one, float16; and of everything else
        rest = 0.0
        for work in _kernels(plans[name]):
            if work.kind is not KernelKind.CONVOLUTION:
                rest += work.times * model.work_s(work)
                continue
            *shape, by_one = work.shape
            product_s = model.gemm_s(*shape[1:], model.precision_of(work), batch=shape[0])
            plain[2 if work.dtype is DType.FLOAT16 else int(by_one)] += work.times * product_s
        parts.append((plain, rest))
    paper_s = np.array(list(MXNET_S.values()))
    assert rates.winograd >= 1.0

    def errors(x: Floats) -> Floats:
        share, half, gain = np.exp(x)
        at = np.array([share, share * gain, half])
        return np.log([float(np.sum(plain / at)) + rest for plain, rest in parts] / paper_s)

    found = fitted(errors, np.log(START), np.log(LOW), np.log(HIGH)).x
    share, half, gain = np.exp(found).tolist()
    return share, half, gain


def predicted_s(plan: Plan) -> float:
    """Simulated seconds of a step."""
    return float(regista.simulate(plan).settled_step_s(plan))


def main() -> None:
    rows, ones = [], {}
    for case in cases():
        plan = case.plan()
        if case.gpus == 1:
            ones[case.table.removesuffix(" data")] = plan
        sim_s = predicted_s(plan)
        name = f"{case.table}, {case.gpus} GPUs"
        rows.append(
            {
                "point": name,
                "table": case.table,
                "gpus": case.gpus,
                "paper_s": case.paper_s,
                "sim_s": sim_s,
                "error": sim_s / case.paper_s - 1,
            }
        )
    share, half, gain = fit_rates(ones)
    table = pd.DataFrame(rows)
    table.to_csv(RESULT, index=False, float_format="%.5g")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    size = table["error"].abs().groupby(table["table"].str.startswith("Insight")).mean()
    print(f"mean: ResNet-50 and BERT-base {size[False]:.1%}, InsightFace {size[True]:.1%}")
    print(
        f"fitted to MXNet's rows: float32 = {share:.4g}, float16 = {half:.4g}, winograd = {gain:.4g}   (convolutions.toml has what was used)"
    )

    from experiments.trust import record

    record()


if __name__ == "__main__":
    main()
