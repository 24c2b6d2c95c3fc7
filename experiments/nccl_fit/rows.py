"""The measured rows: which table, on which interconnect, what was done, by how many, how many bytes, how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from planner.cost.nccl import Kind

__all__ = ["IMPLAUSIBLE", "Row", "band", "measured_rows"]

PAPER = Path(__file__).parent.parent / "paper_numbers"
AIC = {
    "a100_sxm": "a100-nvswitch",
    "h100_sxm": "h100-nvswitch",
    "h200_sxm": "h200-nvswitch",
    "b200_sxm": "b200-nvswitch",
    "b300_sxm": "b300-nvswitch",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s-pcie",
    "rtx_pro_6000_server": "rtxpro6000-pcie",
}
"""Names of the kernel database -> ours."""
VTRAIN = {"a100": "a100-nvswitch-2022", "v100": "v100-nvlink"}
LOGS = {"H100-80GB": "h100-nvswitch", "H200": "h200-nvswitch", "V100-PCIE-32GB": "v100-pcie"}
IMPLAUSIBLE = "l40s-pcie"
"""Eight L40S reach 1 GB/s in the kernel database, 12 with two: such a bus does not exist, so these rows are neither fitted nor scored."""
KINDS = {"alltoall": Kind.ALL_TO_ALL} | {kind.value: kind for kind in Kind}
BANDS = ((2**15, "< 32 KiB"), (2**20, "32 KiB to 1 MiB"), (2**25, "1 to 32 MiB"), (float("inf"), ">= 32 MiB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured time.  in_switch: the dtype can be added in a switch.   sound: not known to be wrong.   site: whose cluster it was."""

    table: str
    site: str
    interconnect: str
    kind: Kind
    ranks: int
    per_node: int
    size_bytes: int
    in_switch: bool
    paper_s: float
    sound: bool = True

    @property
    def group(self) -> str:
        return f"{self.ranks // self.per_node} x {self.per_node}"

    @property
    def point(self) -> tuple[object, ...]:
        """What rows of repeated measurements have in common."""
        return (self.table, self.interconnect, self.kind, self.ranks, self.per_node, self.size_bytes, self.in_switch)


def band(size_bytes: float) -> str:
    """The size band of the tables of errors."""
    return next(name for end, name in BANDS if size_bytes < end)


def measured_rows(tables: Sequence[str] = ("aic_nccl", "vtrain_nccl_allreduce_lut", "nccl_tests_busbw")) -> list[Row]:
    """All rows of the committed tables."""
    readers = {"aic_nccl": _aic, "vtrain_nccl_allreduce_lut": _vtrain, "nccl_tests_busbw": _logs}
    return [row for table in tables for row in readers[table]()]


def _aic() -> list[Row]:
    table = pd.read_csv(PAPER / "aic_nccl.csv.gz")
    return [
        Row(
            table="aic_nccl",
            site=f"{r.gpu} NCCL {r.nccl}",
            interconnect=AIC[str(r.gpu)],
            kind=KINDS[str(r.op)],
            ranks=int(r.ranks),
            per_node=int(r.ranks),
            size_bytes=int(r.message) * (2 if r.dtype == "half" else 1),
            in_switch=r.dtype == "half",
            paper_s=1e-3 * float(r.latency_ms),
            sound=not (AIC[str(r.gpu)] == IMPLAUSIBLE and r.ranks == 8),
        )
        for r in table.itertuples()
    ]


def _vtrain() -> list[Row]:
    table = pd.read_csv(PAPER / "vtrain_nccl_allreduce_lut.csv")
    return [
        Row(
            table="vtrain_nccl_allreduce_lut",
            site=f"vTrain {r.gpu}",
            interconnect=VTRAIN[str(r.gpu)],
            kind=Kind.ALL_REDUCE,
            ranks=int(r.n_gpus),
            per_node=int(r.n_gpus),
            size_bytes=int(r.bytes),
            in_switch=True,
            paper_s=1e-6 * float(r.time_us),
        )
        for r in table.itertuples()
    ]


def _logs() -> list[Row]:
    table = pd.read_csv(PAPER / "nccl_tests_busbw.csv")
    return [
        Row(
            table="nccl_tests_busbw",
            site=str(r.system),
            interconnect=LOGS[str(r.gpu)],
            kind=KINDS[str(r.op)],
            ranks=int(r.n_ranks),
            per_node=int(r.n_ranks) // int(r.nodes),
            size_bytes=int(r.bytes),
            in_switch=True,
            paper_s=1e-6 * float(r.time_us),
            sound="under-performing" not in str(r.system),
        )
        for r in table.itertuples()
    ]
