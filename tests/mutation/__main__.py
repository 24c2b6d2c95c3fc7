"""python -m tests.mutation [--faults 200] [--seed 1] [--out out/mutation.csv]: what share of random faults do the tests catch?

    copy      the tracked files to DIRECTORY/tree, once; the faults are planted there, one at a time
    record    which test runs which line (tests.mutation.reach): every test of make test-all once, in the copy
    try       per fault the tests that run its line, quickest first, until one fails; one row per fault
              as many as take --seconds in all; with more seconds the survivors are tried with what did not fit before

A test that does not run a fault's line cannot fail from it: what survives with --seconds inf survives ``make test-all``.
Interrupted it goes on where it was; with DIRECTORY and the results removed it begins anew, on the tree as it is then.

Why no library: mutmut plants all faults of a module at once behind switches, which numba cannot compile, takes no random sample and drops
no statements; cosmic-ray starts a new interpreter on one fixed set of tests for every fault, here minutes for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutation.faults import Fault
from tests.mutation.reach import Reach, Timed, read_reach
from tests.mutation.results import read_rows, scores, write_rows
from tests.mutation.tree import ROOMS, chosen_faults, copy_tree, restore, trusted_rooms
from tests.mutation.trial import load_libraries, try_fault, within


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    work = options.work.resolve()
    tree, records, commit_file = work / "tree", work / "reach", work / "commit.txt"
    if not commit_file.exists():
        work.mkdir(parents=True, exist_ok=True)
        commit_file.write_text(copy_tree(Path.cwd(), tree))
    if not (records / "complete").exists():
        _record(tree, records, _rooms(tree, options), options)
    restore(tree)
    reach = read_reach(records, tree)
    load_libraries()
    rows = read_rows(options.out)
    for room, fault in chosen_faults(tree, _rooms(tree, options), options.faults, options.seed, trusted=options.trusted):
        if options.rooms and room not in options.rooms:
            continue
        tests = _tests_of(fault, room, reach, tree)
        fitting = within(tests, options.seconds)
        known = rows.get(fault.key)
        tried = int(known["tests"]) if known and known["of_tests"] == str(len(tests)) else 0
        if known and (known["caught_by"] or len(fitting) <= tried):
            continue
        start_s = time.perf_counter()
        caught_by = try_fault(tree, fault, fitting[tried:])
        row = {
            "commit": commit_file.read_text(),
            "room": room,
            **dict(zip(("module", "line", "column", "kind", "before", "after"), fault.key, strict=True)),
        }
        row |= {"caught_by": caught_by or "", "tests": str(len(fitting)), "of_tests": str(len(tests))}
        rows[fault.key] = row | {"seconds": f"{time.perf_counter() - start_s:.1f}"}
        write_rows(options.out, rows)
        print(f"{fault.module}:{fault.start[0]} {fault.kind}: {caught_by or f'survives {len(fitting)} of {len(tests)} tests'}", flush=True)
    print(scores(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--rooms", nargs="*", default=[], help=f"only the faults of these rooms ({', '.join(ROOMS)})")
    parser.add_argument(
        "--trusted", action="store_true", help="faults of the trusted base (tests.structure.trusted_base), by its rooms, instead"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/mutation.csv"))
    parser.add_argument("--work", type=Path, default=Path("out/mutation"), metavar="DIRECTORY")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="recorded time of the tests that a fault is tried with; inf: all of them"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that record")
    parser.add_argument("--quick", action="store_true", help="record the tests of make test only")
    parser.add_argument("--record", nargs="*", default=["tests"], metavar="PATH", help="tests to record")
    return parser


def _rooms(tree: Path, options: argparse.Namespace) -> Mapping[str, tuple[str, ...]]:
    return trusted_rooms(tree) if options.trusted else ROOMS


def _record(tree: Path, records: Path, rooms: Mapping[str, tuple[str, ...]], options: argparse.Namespace) -> None:
    measured = [f"--reach-in={part}" for parts in rooms.values() for part in parts]
    spread = ["-n", str(options.workers), "--dist", "loadfile"] if options.workers > 1 else []
    tier = "not experiments and not thorough" if options.quick else "not experiments"
    command = [sys.executable, "-m", "pytest", "-q", "-m", tier, *spread, "-p", "tests.mutation.reach", "--reach", str(records), *measured]
    path = f"{tree}{os.pathsep}{Path(__file__).parents[2]}"  # the modules from the copy; the plugin is this one where the copy has none
    code = subprocess.run([*command, *options.record], cwd=tree, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
    if code not in (0, 1):
        raise RuntimeError(f"recording ended with code {code} after {' '.join(command)}")
    (records / "complete").touch()


def _tests_of(fault: Fault, room: str, reach: Reach, tree: Path) -> list[Timed]:
    """The tests that run the fault's line, or any function of its module if none is known to.

    Most of backend/comm runs in worker processes, where no lines are recorded: there those come next that start such processes, beginning
    with the files that name the room.
    """
    tests = reach.of_lines(fault.module, fault.start[0], fault.end[0])
    if room == "backend/comm":
        names = {test: room.replace("/", ".") in (tree / test.partition("::")[0]).read_text() for test in reach.tests}
        tests = [*tests, *sorted(reach.with_processes(), key=lambda timed: not names[timed.test])]
    return list(dict.fromkeys(tests)) or reach.of_functions(fault.module)


if __name__ == "__main__":
    sys.exit(main())
