"""What was measured and published: one Point per iteration time, with the configuration that its source states.

vtrain-single, vtrain-multi   Megatron-DeepSpeed on A100-80GB nodes, full activation recomputation       [Bang et al. 2024, vTrain]
sc21                          Megatron-LM on Selene, table 1; times derived from the FLOP/s it prints     [Narayanan et al. 2021]
seqpar                        Megatron-LM on Selene, full against sequence parallel and selective         [Korthikanti et al. 2022]
dlperf                        GPT-2 on 4 nodes of 8 V100, OneFlow and Megatron                            [OneFlow DLPerf 2021]
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from experiments.fidelity.model import GPTSize

__all__ = ["SETS", "Point", "System", "points", "sample"]

PAPER = Path(__file__).parent.parent / "paper_numbers"

_MEGATRON_VOCAB, _PAD = 50_257, 128
"""GPT-2's vocabulary, which Megatron pads to a multiple of 128 times the tensor-parallel size."""


class System(Enum):
    """Who trained: what differs in the Plan stands in plans.py."""

    MEGATRON = "megatron"
    ONEFLOW = "oneflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured iteration.

    machine, nic: names in constants.py.   size: of the model.   batch: sequences per step.   micro_batch: sequences per micro-batch and replica.
    interleave: chunks per stage.   sequence_parallel: and selective recomputation instead of full.   paper_s: seconds per iteration, published.
    """

    data: str
    name: str
    machine: str
    nic: str
    system: System
    size: GPTSize
    batch: int
    micro_batch: int
    tp: int
    dp: int
    pp: int
    interleave: int
    sequence_parallel: bool
    paper_s: float

    @property
    def micro_batches(self) -> int:
        return self.batch // self.dp // self.micro_batch

    @property
    def devices(self) -> int:
        return self.tp * self.dp * self.pp


Row = Mapping[str, str]


def _rows(name: str) -> Sequence[Row]:
    with (PAPER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _size(row: Row, vocab: int) -> GPTSize:
    return GPTSize(layers=int(row["layers"]), hidden=int(row["hidden"]), heads=int(row["heads"]), seq=int(row["seq"]), vocab=vocab)


def _padded(tp: int) -> int:
    step = _PAD * tp
    return -(-_MEGATRON_VOCAB // step) * step


def _point(
    row: Row, *, data: str, name: str, machine: str, nic: str, paper_s: float, vocab: int, system: System = System.MEGATRON
) -> Point:
    return Point(
        data=data,
        name=name,
        machine=machine,
        nic=nic,
        system=system,
        size=_size(row, vocab),
        batch=int(row["global_batch"]),
        micro_batch=int(row["micro_batch"]),
        tp=int(row["tp"]),
        dp=int(row["dp"]),
        pp=int(row["pp"]),
        interleave=int(row.get("virtual_stages", 1)),
        sequence_parallel="sequence parallel" in row.get("mode", ""),
        paper_s=paper_s,
    )


def _vtrain(data: str, file: str) -> Iterator[Point]:
    seen: dict[str, int] = {}
    for row in _rows(file):
        shape = f"h{row['hidden']}-l{row['layers']}-b{row['global_batch']}-mb{row['micro_batch']}-t{row['tp']}d{row['dp']}p{row['pp']}"
        seen[shape] = seen.get(shape, 0) + 1
        name = shape if seen[shape] == 1 else f"{shape}-{seen[shape]}"
        paper_s = float(row["iter_time_ms"]) / 1e3
        yield _point(row, data=data, name=name, machine="a100", nic="vtrain", paper_s=paper_s, vocab=_padded(int(row["tp"])))


def _sc21() -> Iterator[Point]:
    for row in _rows("megatron_sc21_table1_a100"):
        paper_s = float(row["iter_time_derived_s"])
        yield _point(row, data="sc21", name=row["model"], machine="a100", nic="selene", paper_s=paper_s, vocab=int(row["vocab"]))


def _seqpar() -> Iterator[Point]:
    for row in _rows("seqpar_2205.05198_iteration_time"):
        name = f"{row['model']}, {row['mode']}"
        paper_s = float(row["iter_time_s"])
        yield _point(row, data="seqpar", name=name, machine="a100", nic="selene", paper_s=paper_s, vocab=int(row["vocab"]))


def _dlperf() -> Iterator[Point]:
    for row in _rows("oneflow_dlperf_gpt_v100"):
        for system in System:
            paper_s = int(row["global_batch"]) / float(row[f"{system.value}_seq_per_s"])
            name = f"{row['case']}, {system.value}"
            yield _point(
                row, data="dlperf", name=name, machine="v100", nic="dlperf", paper_s=paper_s, vocab=int(row["vocab"]), system=system
            )


SETS = ("vtrain-single", "vtrain-multi", "sc21", "seqpar", "dlperf")


@cache
def points(data: str) -> tuple[Point, ...]:
    """The points of one of SETS, in the order of its file."""
    if data == "vtrain-single":
        return tuple(_vtrain(data, "vtrain_measured_single_node_a100"))
    if data == "vtrain-multi":
        return tuple(_vtrain(data, "vtrain_measured_multi_node_a100"))
    return tuple({"sc21": _sc21, "seqpar": _seqpar, "dlperf": _dlperf}[data]())


def sample(candidates: Sequence[Point], most: int, seed: int) -> tuple[Point, ...]:
    """At most so many, drawn without replacement by the seed, in the order in which they stand."""
    import random

    if len(candidates) <= most:
        return tuple(candidates)
    return tuple(candidates[i] for i in sorted(random.Random(seed).sample(range(len(candidates)), most)))
