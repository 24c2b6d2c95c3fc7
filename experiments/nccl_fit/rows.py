"""The measured rows: which table, on which interconnect, what was done, by how many, how many bytes, how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from planner.cost.nccl import Kind
from planner.ir.errors import InvalidFile

__all__ = ["IMPLAUSIBLE", "Row", "band", "measured_rows", "rows_of"]

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
LOGS = {
    "H100-80GB": "h100-nvswitch",
    "H200": "h200-nvswitch",
    "V100-PCIE-32GB": "v100-pcie",
    "A100-80GB": "a100-nvswitch",
    "B200": "b200-nvswitch",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
}
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


FILES = ("aic_nccl.csv.gz", "vtrain_nccl_allreduce_lut.csv", "nccl_tests_busbw.csv")
PLAIN = {"interconnect", "kind", "ranks", "ranks_per_node", "bytes", "time_us"}


def measured_rows() -> list[Row]:
    """All rows of the committed tables."""
    return [row for name in FILES for row in rows_of(PAPER / name)]


def rows_of(path: Path) -> list[Row]:
    """The rows of a CSV with the columns of one of the committed tables, or with plain ones: interconnect, kind, ranks, ranks_per_node, bytes,
    time_us (floating point numbers are added).

    Raises:
        InvalidFile: no such file, or other columns.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: not a readable CSV ({error})") from None
    columns = set(table.columns)
    for wanted, read in (({"gpu", "op", "ranks", "message", "latency_ms"}, _aic), ({"gpu", "n_gpus", "bytes", "time_us"}, _vtrain)):
        if wanted <= columns:
            return read(table)
    if {"system", "op", "gpu", "nodes", "n_ranks", "bytes", "time_us"} <= columns:
        return _logs(table)
    if columns >= PLAIN:
        return _plain(table, path.name)
    raise InvalidFile(
        f"{path}: columns {sorted(columns)}; a table of times has {sorted(PLAIN)}, or the columns of one of {', '.join(FILES)}"
    )


def _known(names: Mapping[str, str], gpu: str) -> str:
    if gpu not in names:
        raise InvalidFile(f"gpu {gpu!r} has no interconnect here; known are {', '.join(sorted(names))}")
    return names[gpu]


def _plain(table: pd.DataFrame, name: str) -> list[Row]:
    return [
        Row(
            table=name,
            site=name,
            interconnect=str(r.interconnect),
            kind=KINDS[str(r.kind)],
            ranks=int(r.ranks),
            per_node=int(r.ranks_per_node),
            size_bytes=int(r.bytes),
            in_switch=True,
            paper_s=1e-6 * float(r.time_us),
        )
        for r in table.itertuples()
    ]


def _aic(table: pd.DataFrame) -> list[Row]:
    return [
        Row(
            table="aic_nccl",
            site=f"{r.gpu} NCCL {r.nccl}",
            interconnect=_known(AIC, str(r.gpu)),
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


def _vtrain(table: pd.DataFrame) -> list[Row]:
    return [
        Row(
            table="vtrain_nccl_allreduce_lut",
            site=f"vTrain {r.gpu}",
            interconnect=_known(VTRAIN, str(r.gpu)),
            kind=Kind.ALL_REDUCE,
            ranks=int(r.n_gpus),
            per_node=int(r.n_gpus),
            size_bytes=int(r.bytes),
            in_switch=True,
            paper_s=1e-6 * float(r.time_us),
        )
        for r in table.itertuples()
    ]


def _logs(table: pd.DataFrame) -> list[Row]:
    return [
        Row(
            table="nccl_tests_busbw",
            site=str(r.system),
            interconnect=_known(LOGS, str(r.gpu)),
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
