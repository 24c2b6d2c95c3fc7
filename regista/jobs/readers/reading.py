"""Files of jobs: which kind a file is, and its entries, each a job or the refusal of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.ir.errors import InvalidFile, RegistaError
from planner.ir.reading import read_csv, read_text, read_toml
from regista.jobs.job import Job
from regista.jobs.readers.bridge import COLUMNS as BRIDGE
from regista.jobs.readers.bridge import bridge_job
from regista.jobs.readers.cells import Row
from regista.jobs.readers.dgxc import COLUMNS as DGXC
from regista.jobs.readers.dgxc import dgxc_job
from regista.jobs.readers.golden import COLUMNS as GOLDEN
from regista.jobs.readers.golden import golden_job
from regista.jobs.readers.sailor import COLUMNS as SAILOR
from regista.jobs.readers.sailor import sailor_job
from regista.jobs.readers.toml_job import toml_job

__all__ = ["Entry", "read_jobs"]

_WAY_OUT = "give a TOML or a CSV of jobs"


@dataclass(frozen=True, slots=True)
class _Kind:
    """table: the published one whose columns a file has.   label: the column that names a row."""

    table: str
    columns: Sequence[str]
    label: str
    read: Callable[[Row], Job]


_KINDS = (
    _Kind("nvidia_dgxc_step_times", DGXC, "title", dgxc_job),
    _Kind("megatron_ci_golden_values", GOLDEN, "case", golden_job),
    _Kind("megatron_bridge_performance_summary", BRIDGE, "model", bridge_job),
    _Kind("sailor_validation", SAILOR, "model", sailor_job),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """file, row: where it stands (row 1 is the first behind the header; a TOML has one).   job: or the reason why there is none.

    cells: of the row, as they stand in the file.
    """

    file: str
    row: int
    name: str
    job: Job | RegistaError
    cells: Mapping[str, str]


def read_jobs(path: str | Path) -> Iterator[Entry]:
    """The entries of a file.

    Raises:
        InvalidFile: not there, not readable, or a CSV of no kind or without a row.
    """
    source = Path(path)
    if source.suffix == ".toml":
        data = read_toml(source, _WAY_OUT)
        yield _entry(source, 1, source.stem, {}, lambda _: toml_job(data, source.stem))
        return
    header, *lines = read_csv(source, _WAY_OUT, keep_damaged=True) or [[]]
    if any(map(_is_damaged, header)):
        read_text(source, _WAY_OUT)  # refuses, with the place of the byte
    missing = {kind: [column for column in kind.columns if column not in header] for kind in _KINDS}
    kind = min(_KINDS, key=lambda kind: len(missing[kind]))
    if missing[kind]:
        tables = " or of ".join(kind.table for kind in _KINDS)
        raise InvalidFile(f"{source}: columns {missing[kind]} are missing; a CSV of jobs has the columns of {tables}")
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise InvalidFile(f"{source}: columns {twice} stand there more than once; leave one of each")
    jobs = [line for line in lines if line]
    if not jobs:
        raise InvalidFile(f"{source}: a header and no row below it; write one row per job, with the columns of {kind.table}")
    for number, line in enumerate(jobs, start=1):
        cells = dict.fromkeys(header, "") | dict(zip(header, line, strict=False))
        name = cells[kind.label].encode("utf-8", errors="surrogateescape").decode("utf-8", errors="backslashreplace")
        if damaged := [f"{column!r}" for column, cell in cells.items() if _is_damaged(cell)]:
            yield _entry(source, number, name, {}, _damaged(damaged))
            continue
        fits = len(line) <= len(header)
        yield _entry(source, number, name, cells, kind.read if fits else _too_long(len(line), len(header)))


def _is_damaged(cell: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in cell)


def _damaged(columns: Sequence[str]) -> Callable[[Row], Job]:
    """Refuses a row: nobody knows what its bytes mean."""

    def refuse(row: Row) -> Job:
        raise InvalidFile(f"column {', '.join(columns)} of the row holds a byte that is no UTF-8; save the file as UTF-8")

    return refuse


def _too_long(cells: int, columns: int) -> Callable[[Row], Job]:
    """Refuses a row: nobody knows which of its cells belongs to which column."""

    def refuse(row: Row) -> Job:
        raise InvalidFile(f"the row has {cells} cells for {columns} columns; put what contains a comma in quotes")

    return refuse


def _entry(source: Path, number: int, name: str, cells: Row, read: Callable[[Row], Job]) -> Entry:
    try:
        job: Job | RegistaError = read(cells)
    except RegistaError as error:
        job = error
    except ValueError as error:
        job = InvalidFile(str(error))
    return Entry(file=str(source), row=number, name=name, job=job, cells=cells)
