"""A server under load: requests of all its verbs by 16 clients at once; none lost, none mixed up, memory flat (kind ``run``).

    python -m experiments.server.load [--requests 1000 --clients 16]     write results/server_load.csv and its summary, print

Each request is one of several variants of a verb (another model, bandwidth, job, number of steps), whose answer was asked for once by itself
before; each answer under load is compared with that of its own variant.  p50_s, p95_s: from sending to the result, waiting included, by verb;
alone_p50_s: with one client and nothing else, the second time and later, so with everything at hand.  memory_MiB: resident, of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.ir.text import content_id
from regista.cli import main as regista_main
from regista.remote import Connection
from regista.remote.asked import asked_of
from regista.wire import SERVED, Outcome
from tests.regista.server.serving import Serving, serving

__all__ = ["main", "performed"]

CSV = Path(__file__).parents[1] / "results/server_load.csv"
SUMMARY = "server_load_summary.csv"
MODEL = "zoo:mlp?batch=8"
JOB = '[model]\nfamily = "llama3-8b"\n[cluster]\nname = "dgx-h100:2"\n[layout]\ntp = {tp}\npp = 2\nglobal_batch = 128\n'
CONTEST = {
    "problem": {
        "name": "small",
        "nodes": {"intervals": [[0, 4], [3, 6], [2, 2]], "costs": [[5, 2], [0, 3, 9], [1]], "usages": [[1, 8], [4, 4, 1], [100]]},
        "edges": {"nodes": [[0, 1]], "costs": [[4, 10**18, 8, 0, 7, 6]]},
        "usage_limit": 9,
    }
}
_UNSTABLE = {"about", "seconds", "search_s", "trace_s", "price_s", "elapsed_s", "out"}
_MEASURED = _UNSTABLE | {"step_time_s", "throughput_per_s", "peak_bytes"}
"""What a run measures besides; of all other verbs these are compared to the last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    verb: str
    argv: tuple[str, ...]


@dataclass(slots=True)
class Load:
    """What a run of the load has shown."""

    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)
    memory_bytes: list[int] = field(default_factory=list)


def prepare(folder: Path) -> list[Variant]:
    """Files of the current folder, and the variants of all verbs that use them."""
    with contextlib.redirect_stdout(io.StringIO()):
        for number, batches in ((0, "1"), (1, "2")):
            assert (
                regista_main(["plan", MODEL, "--cluster", "local:2", "--stages", "2", "--micro-batches", batches, "-o", f"p{number}.json"])
                == 0
            )
            assert regista_main(["simulate", f"p{number}.json", "--steps", "3", "-o", f"s{number}.json"]) == 0
            assert regista_main(["run", f"p{number}.json", "--performer", "reference", "--steps", "4", "-o", f"r{number}.json"]) == 0
    for tp in (1, 2, 4):
        (folder / f"j{tp}.toml").write_text(JOB.format(tp=tp))
    (folder / "contest.json").write_text(json.dumps(CONTEST))
    both, out = (0, 1), ("-o", "out.json")
    rows: dict[str, list[Sequence[str]]] = {
        "plan": [[f"zoo:mlp?batch={8 * n}", "--cluster", "local:2", *out] for n in (1, 2, 3)],
        "explain": [[f"p{n}.json"] for n in both],
        "verify": [[f"p{n}.json"] for n in both],
        "diff": [["p0.json", "p1.json"], ["p1.json", "p0.json"]],
        "predict": [[f"j{tp}.toml"] for tp in (1, 2, 4)],
        "whatif": [
            [f"p{n}.json", "--set", f"cluster.links.node.bandwidth_GBps={speed}", *out] for n in both for speed in ("2.0", "3.0", "4.0")
        ],
        "sensitivity": [[f"p{n}.json", "-o", "rows.csv"] for n in both],
        "quotas": [[f"p{n}.json", "--full-throughput", *out] for n in both],
        "loading": [[f"p{n}.json", "--data", "synthetic:float32[256],int64[]:16", *out] for n in both],
        "simulate": [[f"p{n}.json", "--steps", steps, *out] for n in both for steps in ("2", "5")],
        "compare": [[f"s{n}.json", f"r{n}.json", *out] for n in both],
        "gantt": [[f"s{n}.json", "-o", "g.svg"] for n in both],
        "timeline": [[f"s{n}.json", "-o", "t.html"] for n in both],
        "report": [[f"s{n}.json", f"r{n}.json", "-o", "page.html"] for n in both],
        "export": [[f"s{n}.json", *out] for n in both],
        "ops": [["--core"], ["--model", MODEL]],
        "clusters": [[]],
        "iopddl": [["contest.json", *out]],
        "run": [[f"p{n}.json", "--performer", "reference", "--steps", "2", "--init", f"philox:{seed}"] for n in both for seed in (1, 2)],
        "advise": [[f"j{tp}.toml", "--tries", "1"] for tp in (1, 2)],
    }
    assert set(rows) == set(SERVED) - {"checkpoint"}, set(rows) ^ set(SERVED)
    return [Variant(verb=verb, argv=("--json", *argv)) for verb, variants in rows.items() for argv in variants]


def ask(far: Connection, variant: Variant) -> tuple[Outcome, float]:
    """The outcome, and the seconds from sending to having it."""
    began = time.perf_counter()
    outcome = far.wait(far.submit(asked_of(variant.verb, variant.argv)))
    return outcome, time.perf_counter() - began


def identity(verb: str, outcome: Outcome) -> str:
    """What has to be the same of two answers to one request: everything but seconds of work, and pages, which hold random ids."""
    files = {name: digest for name, digest in outcome.files.items() if not name.endswith((".html", ".svg"))}
    return content_id(
        [
            outcome.state.value,
            outcome.code,
            _stable(outcome.result, _MEASURED if verb == "run" else _UNSTABLE),
            files,
            sorted(outcome.files),
            outcome.message,
        ]
    )


def _stable(data: object, without: set[str]) -> object:
    match data:
        case dict():
            return {key: _stable(value, without) for key, value in data.items() if key not in without}
        case list():
            return [_stable(value, without) for value in data]
    return data


def performed(server: Serving, variants: Sequence[Variant], wanted: dict[Variant, str], requests: int, clients: int) -> Load:
    """So many requests by so many clients at once, every verb in turn, variants and order by chance of a fixed seed."""
    by_verb: dict[str, list[Variant]] = {}
    for variant in variants:
        by_verb.setdefault(variant.verb, []).append(variant)
    rng, verbs = random.Random(23), list(by_verb)
    work = [rng.choice(by_verb[verbs[number % len(verbs)]]) for number in range(requests)]
    rng.shuffle(work)
    load, lock, turns = Load(), threading.Lock(), iter(work)

    def client() -> None:
        far = server.connect()
        while True:
            with lock:
                variant = next(turns, None)
            if variant is None:
                return
            name = f"{variant.verb} {' '.join(variant.argv)}"
            try:
                outcome, seconds = ask(far, variant)
            except Exception as error:
                with lock:
                    load.lost.append(f"{name}: {error}")
                continue
            with lock:
                load.latencies.setdefault(variant.verb, []).append(seconds)
                load.memory_bytes.append(server.resident_bytes())
                if identity(variant.verb, outcome) != wanted[variant] or str(server.folder) in outcome.stdout + json.dumps(outcome.result):
                    load.mixed.append(f"{name}: {outcome.message or outcome.state.value}")

    began = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds = time.perf_counter() - began
    return load


def rows_of(load: Load, alone: dict[str, list[float]]) -> Iterator[dict[str, object]]:
    for verb, seconds in sorted(load.latencies.items()):
        yield {
            "kind": "run",
            "verb": verb,
            "requests": len(seconds),
            "alone_p50_s": f"{statistics.median(alone[verb]):.3f}",
            "p50_s": f"{statistics.median(seconds):.3f}",
            "p95_s": f"{statistics.quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]:.3f}",
        }


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--alone", type=int, default=5, help="how often each variant is asked for by itself")
    parser.add_argument("--out", type=Path, default=CSV)
    args = parser.parse_args(argv)
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="regista-load-"))
    os.chdir(folder)
    try:
        variants = prepare(folder)
        with serving(folder / "server") as server:
            far = server.connect()
            wanted: dict[Variant, str] = {}
            alone: dict[str, list[float]] = {}
            for variant in variants:
                for number in range(args.alone + 1):
                    outcome, seconds = ask(far, variant)
                    assert outcome.code == 0, (variant, outcome.message, outcome.stderr)
                    same = identity(variant.verb, outcome)
                    assert wanted.setdefault(variant, same) == same, variant
                    if number or not args.alone:
                        alone.setdefault(variant.verb, []).append(seconds)
            load = performed(server, variants, wanted, args.requests, args.clients)
            kept = len(far.requests())
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)
    write_rows(args.out, list(rows_of(load, alone)))
    half = load.memory_bytes[len(load.memory_bytes) // 2 :]
    said = {
        "requests": args.requests,
        "clients": args.clients,
        "lost": len(load.lost),
        "mixed": len(load.mixed),
        "seconds": round(load.seconds, 1),
        "whatif_alone_p50_s": statistics.median(alone["whatif"]),
        "predict_alone_p50_s": statistics.median(alone["predict"]),
        "memory_MiB": [round(size / 2**20, 1) for size in (load.memory_bytes[0], half[0], half[-1])],
        "listed": kept,
    }
    first, middle, last = said["memory_MiB"]
    shown = {key: f"{value:.3f}" if key.endswith("p50_s") else value for key, value in said.items() if key not in ("memory_MiB", "listed")}
    memory = {"memory_first_MiB": first, "memory_half_MiB": middle, "memory_last_MiB": last, "growth_MiB": round(last - first, 1)}
    write_rows(args.out.parent / SUMMARY, [{"kind": "run", **shown, **memory}])
    print(json.dumps(said, indent=1))
    for line in [*load.lost[:5], *load.mixed[:5]]:
        print(line)
    return said


if __name__ == "__main__":
    main()
