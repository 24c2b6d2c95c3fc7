"""Machine constants, measured on all ranks at once: what the cost model and a cluster file are made from.

alpha-beta   t(n) = alpha + n / beta      least squares weighted by 1/t, so that small messages count as much as large ones   -> fit()
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend.launch.attempts import run_workers
from backend.launch.processes import run_folder
from backend.run_folder.files import Options, save_options
from backend.run_folder.merge import hardware
from planner.ir.errors import Unsupported

__all__ = ["fit", "microbench"]

SIZES_BYTES = tuple(1024 * 4**power for power in range(8))
"""1 KB to 16 MB."""

Constants = dict[str, Any]


def fit(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> tuple[float, float]:
    """(alpha in seconds, beta in bytes/s) of t = alpha + n / beta.

    Raises:
        Unsupported: fewer than two different sizes.

    >>> alpha, beta = fit([0, 1000], [1e-3, 2e-3])
    >>> round(alpha, 6), round(beta)
    (0.001, 1000000)
    """
    if len(set(sizes_bytes)) < 2:
        raise Unsupported("a line needs at least two different sizes")
    weights = [1.0 / max(time, 1e-12) ** 2 for time in times_s]
    total = sum(weights)
    mean_n = sum(w * n for w, n in zip(weights, sizes_bytes, strict=True)) / total
    mean_t = sum(w * t for w, t in zip(weights, times_s, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, n in zip(weights, sizes_bytes, strict=True))
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, n, t in zip(weights, sizes_bytes, times_s, strict=True)) / spread
    slope = max(slope, 1e-15)  # noise can tilt the line downwards when bandwidth is not the limit
    return max(mean_t - slope * mean_n, 0.0), 1.0 / slope


def microbench(
    ranks: int = 2, *, rounds: int = 15, sizes_bytes: Sequence[int] = SIZES_BYTES, workdir: str | Path | None = None
) -> Constants:
    """Measure ``ranks`` processes of this host.

    Returns:
        flop_per_s (float32 mm) and memory_bytes_per_s (bytes read plus written by a copy) per core while the peers work as well;
        ``collectives``: name -> {alpha_s, beta_bytes_per_s, points}, by what carries them in a run;
        ``transfer``: the same for the socket path of TRANSFER tasks; message_s: one-way latency of an acknowledgement between ranks.
        Times are the 10th percentile of ``rounds``; sizes are the logical bytes T of SEMANTICS 2.

    Raises:
        WorkerFailed: a worker died.
    """
    options = Options(run_id=uuid.uuid4().hex[:12], steps=1, timeout_s=60.0, isolated_rounds=rounds)
    with run_folder(workdir, options.run_id) as folder:
        save_options(folder, options)
        (folder / "sizes.json").write_text(json.dumps(list(sizes_bytes)))
        run_workers(folder, "backend.measure.bench_worker", ranks, options)
        measured = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    first = measured[0]
    return {
        "ranks": ranks,
        "flop_per_s": min(m["flop_per_s"] for m in measured),
        "memory_bytes_per_s": min(m["memory_bytes_per_s"] for m in measured),
        "collectives": {name: _line(points) for name, points in first["collectives"].items()},
        "transfer": _line(first["transfer"]) if first["transfer"] else None,
        "message_s": first["message_s"],
        "about": hardware(ranks),
    }


def _line(points: Mapping[str, float]) -> Constants:
    sizes = [float(size) for size in points]
    alpha, beta = fit(sizes, list(points.values()))
    return {"alpha_s": alpha, "beta_bytes_per_s": beta, "points": {int(size): time for size, time in points.items()}}
