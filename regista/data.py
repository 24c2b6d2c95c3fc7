"""Data for a Plan, by description: a chain of loading actors in the Plan, and the reader that serves it in a run.

plan = regista.with_data(plan, "tokens:corpus.bin?seq=128")
regista.run(plan, program, data="tokens:corpus.bin?seq=128")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from backend.data import Loader, Source, open_source, parse_source
from backend.data.feed import Feed, python_feed
from planner.frontend import Program
from planner.ir.plan import Plan
from planner.lower.data_actors.loading import with_loading
from regista.padded.asked import padded_feed, refuse_described_data

__all__ = ["Data", "batches_for", "loader", "with_data"]

Data = Source | str | Feed | Iterable[Sequence[Tensor]]
"""A description of where data lies, its text, or the user's own Python: a function of the step, or an iterable of global batches."""


def batches_for(plan: Plan, data: Data, steps: int, program: Program) -> Feed:
    """Global batches by step, for a run that ends before step ``steps``.

    Raises:
        As ``loader``.   InvalidProgram: too few samples, where the description bounds the epochs.
    """
    if not isinstance(data, Source | str):
        return padded_feed(program, python_feed(data))
    served = loader(plan, data)
    served.check_steps(steps)
    return served


def loader(plan: Plan, data: Source | str) -> Loader:
    """The reader that serves ``plan``; it is called with a step and gives the global batch.

    Args:
        data: a description of backend.data, or its text (``tokens:PATH?seq=128``, ``arrays:x.npy,y.npy``, ``images:DIR?size=64``, ``synthetic:...``).

    Raises:
        InvalidFile: the text, or the data itself, is missing or malformed.   InvalidProgram: it makes other tensors than the Plan reads.
        Unsupported: the Plan's batch is padded.
    """
    refuse_described_data(plan)
    return Loader(open_source(parse_source(data) if isinstance(data, str) else data), plan)


def with_data(plan: Plan, data: Source | str, *, load_quota: int = 2, copy: bool | None = None) -> Plan:
    """The same Plan with actors that read, prepare and copy this data (planner.lower.data_actors.loading.with_loading).

    Args:
        data: as in ``loader``.   load_quota: blocks of each Regst of the chain.   copy: with a copy to the device; None: where it is no CPU.

    Raises:
        As ``loader``.   InvalidPlan: the Plan has a chain already, or a quota below 1.   OutOfMemory: its blocks do not fit.
    """
    serves = loader(plan, data)
    extended = with_loading(plan, serves.reader.raw, load_quota=load_quota, copy=copy)
    Loader(serves.reader, extended)  # what was made fits the data
    return extended
