"""Damaged files of every kind, given to the verbs that read them: each ends in a result or in one sentence; nothing else may happen.

    python -m experiments.fuzz_files [--count 1000] [--first 0] [--only KIND,...] [--keep FOLDER]
    python -m experiments.fuzz_files --csv ROWS [--total 100000] [--count 50] ...      batch after batch; goes on where the rows end

Number n of a kind is always damaged in the same way, so a finding is named by (kind, n).  Counted are fates:

    done           the verb ended with exit code 0 (or 1: a sweep whose claim does not hold)
    refused        exit code 2 and one message
    FOUND          any exception, a refusal without words, a file left behind by a refusal, or no end within DEADLINE_S of work
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import random
import shutil
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import regista
from experiments.common.plan_damage import damaged
from experiments.fuzz_plans import Endless, Finding, deadline
from planner.cost.measured import ActPrice, MeasuredCost, act_key, save_cost
from planner.ir.errors import RegistaError
from planner.ir.files import save_plan, save_trace
from planner.ir.plan import Plan
from planner.ir.traces.trace import Source
from regista.analysis.search_time import load_rows
from regista.cli import main as command_line
from regista.training.load import load_job

__all__ = ["FileKind", "fate", "file_kinds", "fuzz", "to_toml"]

DEADLINE_S = 60.0
"""Seconds of this process's own work for one file of these small kinds."""

TINY = "zoo:mlp?batch=8&width=16&hidden=16&depth=2"

_ODD_TEXTS: tuple[bytes, ...] = (
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"9" * 5000, b"1e999", b"nan", b"-1", b"0", b"", b'"', b"," * 50, b"[" * 5000, b"{" * 5000),
    *(b"a." * 3000 + b"a = 1\n", b"\n" * 100, b"x" * 200_000, b"\r", "é×µ".encode(), b"../../x", b"= [1", b"[[a]]\n", b"2**63", b"'; rm"),
)


@dataclass(frozen=True)
class FileKind:
    """A kind of file, one that is right, and the command lines that read it.

    name: of the file in its folder.
    readers: from the file and a path for results to the command lines that read it, or calls where a verb would work for seconds.
    """

    name: str
    text: bytes
    readers: Callable[[Path, Path], Sequence[Sequence[str] | Callable[[], object]]]


def file_kinds(folder: Path) -> dict[str, FileKind]:
    """Right files of all kinds.

    Args:
        folder: where the files that they need beside them are written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = regista.plan(TINY, cluster="local:2", stages=2, micro_batches=2)
    plan_file, trace_file = folder / "right_plan.json", folder / "right_trace.json"
    save_plan(plan, str(plan_file))
    trace = regista.simulate(plan, steps=2)
    save_trace(plan, trace, str(trace_file))
    save_trace(plan, replace(trace, source=Source.RUN), str(folder / "right_run.json"))
    save_cost(_prices(plan), str(folder / "right_cost.json"))
    clusters = Path(regista.__file__).parents[1] / "planner" / "cost" / "clusters"

    def of_plan(path: Path, out: Path) -> Sequence[Sequence[str]]:
        verbs = [["explain", str(path)], ["simulate", str(path), "-o", str(out)], ["quotas", str(path), "--pareto", "--seconds", "2"]]
        return [*verbs, ["deploy", str(path), "--kind", "slurm", "-o", str(out)], ["diff", str(path), str(plan_file)]]

    return {
        "plan": FileKind("plan.json", plan_file.read_bytes(), of_plan),
        "trace": FileKind(
            "trace.json",
            trace_file.read_bytes(),
            lambda path, out: [
                ["gantt", str(path), "-o", f"{out}.svg"],
                ["export", str(path), "-o", str(out)],
                ["compare", str(path), str(folder / "right_run.json")],
            ],
        ),
        "cost": FileKind(
            "cost.json",
            (folder / "right_cost.json").read_bytes(),
            lambda path, out: [["simulate", str(plan_file), "--cost", str(path), "-o", str(out)]],
        ),
        "cluster": FileKind(
            "cluster.toml",
            (clusters / "dgx-a100.toml").read_bytes(),
            lambda path, out: [["plan", TINY, "--cluster", str(path), "--stages", "1", "-o", str(out)]],
        ),
        "manifest": FileKind("manifest.toml", _MANIFEST, lambda path, out: [["sweep", str(path), "--out", str(out)]]),
        "rows": FileKind("rows.csv", _ROWS, lambda path, out: [["report", str(path.parent), "-o", str(out)]]),
        "claims": FileKind("claims.toml", _CLAIMS, lambda path, out: [["report", str(path.parent), "-o", str(out)]]),
        "schedule": FileKind(
            "schedule.csv",
            b"0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n",
            lambda path, out: [
                ["plan", TINY, "--cluster", "local:2", "--stages", "2", "--micro-batches", "2", "--schedule", str(path), "-o", str(out)]
            ],
        ),
        "contest": FileKind("contest.json", _contest(), lambda path, out: [["iopddl", str(path), "--seconds", "2", "-o", str(out)]]),
        "job": FileKind("job.toml", _JOB, lambda path, out: [lambda: load_job(str(path))]),
        "search-times": FileKind("times.csv", _SEARCH_TIMES, lambda path, out: [lambda: load_rows(path)]),
    }


_MANIFEST = f"""claim = "two ranks are quicker than one"
source = "our own"
performer = "sim"
axes = ["mesh"]
expect = ["min(step_time) > 0"]
[model]
name = "{TINY.split("?")[0]}"
batch = 8
width = 16
hidden = 16
depth = 2
[cluster]
name = "local:2"
[plan]
mesh = ["1", "2"]
stages = 1
[[figure]]
kind = "line"
x = "mesh"
y = ["step_time"]
output = "figure.svg"
title = "step time"
""".encode()

_JOB = f"""[train]
model = "{TINY}"
steps = 1
cluster = "local:1"
[plan]
stages = 1
""".encode()

_CLAIMS = b"""[[table]]
section = "Figures"
headings = { command = "Command", figure = "Figure" }
[[table.claim]]
claim = "Two ranks are quicker"
command = "regista demo"
figure = "2 times"
[paragraph]
first = "Words."
"""

_ROWS = b"point,sim_step_s,run_step_s,label\n1,0.5,0.51,a\n2,0.7,0.69,b\n3,0.9,0.95,c\n"

_SEARCH_TIMES = (
    b"model,layers,cluster,mesh,method,limit_s,nodes,choices,trace_s,build_s,search_s,objective_s,lower_bound_s,outcome,kind\n"
    b"zoo:gpt,1,dgx-a100:1,8,greedy,30.0,10,20,0.1,0.1,0.1,0.5,0.4,ok,run\n"
)


def _contest() -> bytes:
    nodes = {"intervals": [[0, 3], [1, 4], [2, 5]], "costs": [[1, 5], [2, 3], [4, 1]], "usages": [[5, 1], [2, 2], [3, 6]]}
    edges = {"nodes": [[0, 1], [1, 2]], "costs": [[0, 1, 2, 3], [3, 2, 1, 0]]}
    return json.dumps({"problem": {"name": "small", "nodes": nodes, "edges": edges, "usage_limit": 12}}).encode()


def _prices(plan: Plan) -> MeasuredCost:
    price = ActPrice(task="", price_s=1e-3, min_s=1e-3, p10_s=1e-3, median_s=1e-3, samples=3)
    acts = {act_key(plan, task): price for task in plan.tasks}
    return MeasuredCost(plan_id=plan.plan_id, acts=acts, message_latency_s=1e-5, act_overhead_s=1e-6)


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged_file(kind: FileKind, number: int) -> bytes:
    """Damage number ``number``: pure, the same for the same arguments."""
    rng = random.Random(f"{kind.name} {number}")
    if rng.random() < 0.3:
        return _odd_text(kind.text, rng)
    if kind.name.endswith(".json"):
        return damaged(kind.text, number)
    if kind.name.endswith(".csv"):
        return _odd_cells(kind.text, rng)
    as_json = json.dumps(tomllib.loads(kind.text.decode())).encode()
    try:
        data = json.loads(damaged(as_json, number))
    except ValueError:
        return _odd_text(kind.text, rng)
    return to_toml(data).encode() if isinstance(data, dict) else _odd_text(kind.text, rng)


def _odd_text(text: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    match rng.randrange(4):
        case 0:
            return text[:begin]
        case 1:
            return text[:begin] + rng.choice(_ODD_TEXTS) + text[begin:]
        case 2:
            return text[:begin] + rng.choice(_ODD_TEXTS) + text[end:]
    spots = [at for at, sign in enumerate(text) if sign in b"0123456789"]
    at = rng.choice(spots) if spots else begin
    return text[:at] + rng.choice(_ODD_TEXTS) + text[at + 1 :]


def _odd_cells(text: bytes, rng: random.Random) -> bytes:
    lines = [line.split(b",") for line in text.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 5))):
        line = rng.choice(lines)
        match rng.randrange(4):
            case 0:
                line[rng.randrange(len(line))] = rng.choice(_ODD_TEXTS)
            case 1:
                line[rng.randrange(len(line))] = rng.choice(rng.choice(lines))
            case 2 if len(line) > 1:
                del line[rng.randrange(len(line))]
            case _:
                line.append(rng.choice(line))
    return b"\n".join(b",".join(line) for line in lines) + b"\n"


def to_toml(data: Mapping[str, object]) -> str:
    """JSON's data as TOML: one key per line, tables and lists inline; null, which TOML does not have, is left out."""
    return "".join(f"{json.dumps(key)} = {_value(item)}\n" for key, item in data.items() if item is not None)


def _value(item: object) -> str:
    match item:
        case bool():
            return "true" if item else "false"
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in item.items() if inner is not None) + " }"
        case list():
            return "[" + ", ".join(_value(inner) for inner in item if inner is not None) + "]"
        case str():
            return json.dumps(item)
    return str(item)


# --- fates ------------------------------------------------------------------------------------------------------------


def fate(kind: FileKind, text: bytes, folder: Path) -> str:
    """What becomes of a file in all its readers: 'done' or 'refused'.

    Raises:
        AssertionError: a refusal without words, or one that left a file behind.   Exception: anything that is not ours.
    """
    place = folder / "given"
    place.mkdir(exist_ok=True)
    path = place / kind.name
    path.write_bytes(text)
    met = "done"
    for reader in kind.readers(path, folder / "out"):
        before = {file for file in folder.rglob("*") if file.is_file()}
        if callable(reader):
            try:
                reader()
            except RegistaError as error:
                _check_words(str(error))
                met = "refused"
            continue
        shown, words = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(words):
            code = command_line(list(reader))
        if code not in (0, 1, 2):
            raise AssertionError(f"{reader[0]}: exit code {code}")
        if code == 2:
            met = "refused"
            _check_words(words.getvalue())
            left = {file for file in folder.rglob("*") if file.is_file()} - before
            if left and reader[0] not in _KEEPS_ROWS:
                raise AssertionError(f"{reader[0]}: refused, and left {sorted(file.name for file in left)}")
        _remove(folder / "out")
    path.unlink()
    return met


_KEEPS_ROWS = ("sweep", "report")
"""Verbs that write one file after the other: what was right before the refusal stays."""


def _check_words(message: str) -> None:
    if len(message) < 20:
        raise AssertionError(f"a refusal without words: {message!r}")


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()


def fuzz(kinds: Mapping[str, FileKind], numbers: range, keep: Path | None = None) -> tuple[Counter[str], list[Finding]]:
    """The fates of damages ``numbers`` of each kind, as "kind fate", and the findings.

    Args:
        keep: a folder for the files of findings.
    """
    fates: Counter[str] = Counter()
    findings = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in kinds.items():
            for number in numbers:
                text = damaged_file(kind, number)
                try:
                    with deadline(DEADLINE_S):
                        met = fate(kind, text, Path(folder))
                except (Exception, Endless) as error:
                    met = "FOUND"
                    frame = traceback.extract_tb(error.__traceback__)[-1]
                    findings.append(
                        Finding(name, number, f"{type(error).__name__}: {str(error)[:200]} ({Path(frame.filename).name}:{frame.lineno})")
                    )
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{name}-{number}-{kind.name}").write_bytes(text)
                    _remove(Path(folder) / "out")
                fates[f"{name} {met}"] += 1
    return fates, findings


def in_batches(kinds: Mapping[str, FileKind], rows: Path, total: int, count: int, keep: Path | None) -> list[Finding]:
    """Damage ``count`` files of each kind after the other until ``total`` are tried; a row per kind and batch."""
    names = ("kind", "first", "files", "done", "refused", "found", "seconds")
    known = list(csv.DictReader(rows.read_text().splitlines())) if rows.exists() else []
    first, tried = max((int(row["first"]) + int(row["files"]) for row in known), default=0), sum(int(row["files"]) for row in known)
    found: list[Finding] = []
    while tried < total:
        for name, kind in kinds.items():
            begin_s = time.process_time()
            fates, findings = fuzz({name: kind}, range(first, first + count), keep)
            row = (
                name,
                first,
                count,
                *(fates[f"{name} {met}"] for met in ("done", "refused", "FOUND")),
                f"{time.process_time() - begin_s:.1f}",
            )
            with rows.open("a", newline="") as file:
                if file.tell() == 0:
                    csv.writer(file).writerow(names)
                csv.writer(file).writerow(row)
            found += findings
            tried += count
            for finding in findings:
                print(f"  {finding.base} {finding.number}: {finding.what}", flush=True)
        first += count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="damages of each kind, with --csv in one batch")
    parser.add_argument("--csv", type=Path, help="a row per kind and batch; goes on where they end")
    parser.add_argument("--total", type=int, default=100_000, help="files in all, with --csv (default 100000)")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--keep", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = file_kinds(Path(folder))
        wanted = asked.only.split(",") if asked.only else list(kinds)
        if asked.csv is not None:
            raise SystemExit(bool(in_batches({name: kinds[name] for name in wanted}, asked.csv, asked.total, asked.count, asked.keep)))
        fates, findings = fuzz({name: kinds[name] for name in wanted}, range(asked.first, asked.first + asked.count), asked.keep)
    for met, times in sorted(fates.items()):
        print(f"{times:>7}  {met}")
    print(f"{sum(fates.values())} files, {len(findings)} findings")
    for finding in findings[:200]:
        print(f"  {finding.base} {finding.number}: {finding.what}")
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
