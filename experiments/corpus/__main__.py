"""Models of transformers, torchvision and timm, built from their configs with default flags (dropout as the library ships it) and shrunk in size
only, planned on 2 devices in several ways, performed, and compared with plain PyTorch on one device of the same draws.

    python -m experiments.corpus                        all that the CSV does not have yet; then the counts and the picture (make corpus)
    python -m experiments.corpus --only 'transformers/*' --way data
    python -m experiments.corpus --again refused        rows of this status once more (equal, wrong, refused, traceback, timeout ...)
    python -m experiments.corpus --redraw               the counts and the picture from results/corpus.csv

Nothing is downloaded: weights are drawn.  The libraries come with the extra ``corpus``.  Ways: searched (the default), data (parallel), pipeline
(2 stages, 2 micro-batches); for one model of each of twelve families also tensor, zero (level 3) and recompute (with 2 micro-batches).
Equal: losses of 2 steps, gradients of the last, parameters and buffers within 1e-4 of a tensor's largest value in float32.  Where rounding alone
grows beyond that, the row is compared in float64, within 1e-6, and says so.  Every way of a model is performed by threads of one process;
``--performer gloo`` takes real processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from time import monotonic

import pandas as pd

from experiments.corpus.case import Case
from experiments.corpus.figure import draw, report
from experiments.corpus.libraries import absent, current_commit, versions
from experiments.corpus.models import CASES
from experiments.corpus.ways import ways_of

__all__ = ["main"]

HERE = Path(__file__).parents[1]
CSV, PICTURE = HERE / "results/corpus.csv", HERE / "figures/corpus.png"
LIMIT_S = 300.0
CASES_PER_PROCESS = 20
KEY = ("library", "model", "way", "performer")


class Worker:
    """A process that performs cases until it dies, is late, or has done its share."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "experiments.corpus.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment)
        self._rest = b""
        self.done = 0

    def rows(self, key: str, ways: Sequence[str], performer: str, limit_s: float) -> Iterator[dict[str, object]]:
        """Rows as they come; ends early where the process dies or is late (``alive`` is False then)."""
        assert self._process.stdin is not None
        self.done += 1
        try:
            self._process.stdin.write(json.dumps([key, list(ways), performer]).encode() + b"\n")
        except BrokenPipeError:
            return self.close()
        ends = monotonic() + limit_s
        while (line := self._line(ends)) is not None:
            if not line:
                return None
            yield json.loads(line)
        return self.close()

    def _line(self, ends: float) -> bytes | None:
        stream = self._process.stdout
        assert stream is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, ends - monotonic())) or not (read := os.read(stream.fileno(), 1 << 16)):
                    return None
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(wanted: Mapping[str, Sequence[str]], performer: str, minutes: float, limit_s: float) -> None:
    """Rows of cases -> ways, written to the CSV after each case."""
    worker: Worker | None = None
    began = monotonic()
    commit = {"commit": current_commit()}  # of the code that is imported: taken before the first case, not after each
    try:
        for number, (key, ways) in enumerate(wanted.items()):
            if monotonic() - began > 60 * minutes:
                break
            if worker is None or not worker.alive or worker.done >= CASES_PER_PROCESS:
                if worker is not None:
                    worker.close()
                worker = Worker()
            rows = list(worker.rows(key, ways, performer, limit_s))
            library, _, model = key.partition("/")
            about = {"library": library, "model": model, "performer": performer}
            rows += [
                {**about, "way": way, "status": "timeout", "ops": 0, "says": f"not done in {limit_s:.0f} s, or the process died"}
                for way in ways
                if way not in {row["way"] for row in rows}
            ]
            _write(rows, commit)
            shown = ", ".join(f"{row['way']} {row['status']} ({row.get('seconds', 0):.0f} s)" for row in rows)
            print(f"[{number + 1}/{len(wanted)}] {key}: {shown}", flush=True)
    finally:
        if worker is not None:
            worker.close()


def _write(rows: Sequence[Mapping[str, object]], about: Mapping[str, str]) -> None:
    table = pd.DataFrame([{**row, "kind": "run", **versions(), **about} for row in rows])
    if CSV.exists():
        table = pd.concat([_read(), table]).drop_duplicates(list(KEY), keep="last")
    order = {case.key: number for number, case in enumerate(CASES)}
    place = [order.get(f"{row.library}/{row.model}", len(order)) for row in table.itertuples()]
    table = table.assign(_place=place).sort_values("_place", kind="stable").drop(columns="_place")
    CSV.parent.mkdir(exist_ok=True)
    table.to_csv(CSV, index=False, float_format="%.3g")


def _read() -> pd.DataFrame:
    texts = ("error", "says", "where", "dtype", "commit")
    table = pd.read_csv(CSV, dtype=dict.fromkeys(texts, str))
    return table.assign(**{text: table[text].fillna("") if text in table else "" for text in texts})


def missing(cases: Sequence[Case], ways: Sequence[str], performer: str, again: Sequence[str]) -> dict[str, list[str]]:
    """Case -> ways that the CSV has no row of, or one of a status that is measured again."""
    kept = set()
    if CSV.exists():
        kept = {tuple(getattr(row, k) for k in KEY) for row in _read().itertuples() if row.status not in again and "all" not in again}
    wanted = {
        case.key: [way for way in ways_of(case) if (not ways or way in ways) and (case.library, case.name, way, performer) not in kept]
        for case in cases
    }
    return {key: left for key, left in wanted.items() if left}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="the counts and the picture from the CSV")
    parser.add_argument("--only", nargs="*", default=("*",), help="cases LIBRARY/MODEL that one of these patterns matches")
    parser.add_argument("--way", nargs="*", default=(), help="only these ways")
    parser.add_argument("--again", nargs="*", default=(), help="measure rows of these statuses once more; all: every row")
    parser.add_argument("--performer", default="threads", choices=("threads", "gloo"), help="threads of one process, or processes")
    parser.add_argument("--minutes", type=float, default=inf, help="start nothing new after so many minutes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all ways of one model")
    args = parser.parse_args()
    if not args.redraw:
        if absent():
            print(
                f"{', '.join(absent())}: not installed; call make corpus, or pip install -c constraints.txt -e '.[corpus]'", file=sys.stderr
            )
            return 2
        cases = [case for case in CASES if any(fnmatch.fnmatch(case.key, pattern) for pattern in args.only)]
        measure(missing(cases, args.way, args.performer, args.again), args.performer, args.minutes, args.limit)
    table = _read()
    report(table)
    draw(table, PICTURE)
    print(f"-> {CSV}, {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
