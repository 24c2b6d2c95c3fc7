"""Why a run failed, from what its workers left behind."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from pathlib import Path

from backend.run_folder.files import Failure, FailureKind, read_failures

__all__ = ["diagnose"]


def diagnose(folder: Path, failed: Mapping[int, int], killed: Collection[int], attempt: int = 0) -> str:
    """One sentence about the first cause: a worker was killed from outside, else it raised, else it stalled, else it lost a peer.

    Args:
        failed: rank -> exit code of the workers that failed; negative: a signal.   killed: those that we killed.
    """
    failures = read_failures(folder, f"a{attempt}")
    signalled = {rank: -code for rank, code in failed.items() if code < 0 and rank not in killed}
    from_outside = {rank: number for rank, number in signalled.items() if number != signal.SIGTERM or not failures}
    if from_outside:
        rank, number = next(iter(from_outside.items()))
        return f"rank {rank} was killed by {signal.Signals(number).name}; the other ranks were ended"
    for kind in FailureKind:
        for failure in failures:
            if failure.kind is kind:
                return _described(failure, [r for r in sorted(killed) if r not in {f.rank for f in failures}])
    rank = next(iter(failed))
    return f"rank {rank} ended with exit code {failed[rank]}: {_last_error_lines(folder) or 'it left no message'}"


def _described(failure: Failure, silent: list[int]) -> str:
    where = f" in task {failure.task} (act {failure.act}, micro-batch {failure.micro_batch})" if failure.task else ""
    more = f"; ranks {silent} did not react and were killed" if silent else ""
    return f"rank {failure.rank} failed{where}: {failure.message}{more}"


def _last_error_lines(folder: Path) -> str:
    lines = [line for path in sorted(folder.glob("logs/**/*stderr.log")) for line in path.read_text(errors="replace").splitlines()]
    return "; ".join(lines[-3:])
