"""Every simulated figure from scratch, or all figures from their CSVs.

    python -m experiments.reproduce                perform all simulated experiments and draw them; an interrupted one goes on, a whole one begins anew
    python -m experiments.reproduce --figures      draw all figures from the committed CSVs, perform nothing
    python -m experiments.reproduce --smoke --out DIR     every manifest at its small size, in this process
    python -m experiments.reproduce --only zero --only quotas

Experiments are the manifests of experiments/manifests and the modules of MODULES.  Manifests and modules that run on this machine (performer
"run") are left out unless --run is given: their figures are measurements, which need a quiet machine.
Seconds are of this machine (``run``); with --jobs 2 two experiments share its cores.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from planner.ir.text import save_text
from regista.cli import main as regista
from regista.sweep.manifest import load_manifest
from regista.sweep.point import Performer

__all__ = ["MODULES", "Done", "Experiment", "experiments", "main", "smoke"]

HERE = Path(__file__).parent
MANIFESTS = HERE / "manifests"
STATE = Path("out/reproduce/state.json")
LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """arguments: of the module, to perform it.   simulated: it needs no quiet machine.   redraws: it can draw from its CSV alone."""

    name: str
    arguments: tuple[str, ...] = ()
    is_manifest: bool = False
    simulated: bool = True
    redraws: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """state: held, broken, refused or failed; says: the last line of what went wrong."""

    name: str
    state: str
    seconds: float
    says: str = ""


MODULES = (
    Experiment(name="actor_timeline"),
    Experiment(name="sbp_pictures"),
    Experiment(name="parameter_server"),
    Experiment(name="horovod"),
    Experiment(name="nccl_fit"),
    Experiment(name="contention"),
    Experiment(name="contention_plan"),
    Experiment(name="zero_bubble"),
    Experiment(name="quotas", arguments=("--seconds", "1")),
    Experiment(name="alpa_plans"),
    Experiment(name="quota_boundary", simulated=False),
    Experiment(name="overlap", simulated=False),
    Experiment(name="transparency", simulated=False),
    Experiment(name="optimality", arguments=("--limit", "60", "--minutes", "30"), simulated=False),
)
"""Not simulated: quota_boundary, overlap and transparency run real processes; optimality proves optima for hours.  iopddl needs the contest's
files, and the benches print: they are not here."""


def experiments() -> tuple[Experiment, ...]:
    """The modules, then the manifests by name."""
    found = []
    for path in sorted(MANIFESTS.glob("*.toml")):
        performer = load_manifest(path, smoke=True).performer
        found.append(Experiment(name=path.stem, is_manifest=True, simulated=performer is Performer.SIM))
    return (*MODULES, *found)


def perform(experiment: Experiment) -> Done:
    """From scratch, in a process of its own."""
    if experiment.is_manifest:
        code = "import sys; from regista.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "sweep", str(MANIFESTS / f"{experiment.name}.toml"), "--fresh"]
    else:
        command = [sys.executable, "-m", f"experiments.{experiment.name}", *experiment.arguments]
    began = perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
        exit_code, text = done.returncode, done.stderr or done.stdout
    except subprocess.TimeoutExpired:
        exit_code, text = -1, f"not done in {LIMIT_S} s"
    return _done(experiment, exit_code, perf_counter() - began, text)


def redraw(experiment: Experiment) -> Done:
    """From the CSV, in this process."""
    began = perf_counter()
    said = StringIO()
    try:
        with redirect_stdout(said):
            if experiment.is_manifest:
                code = regista(["sweep", str(MANIFESTS / f"{experiment.name}.toml"), "--redraw"])
            else:
                with _arguments(["--redraw"]):
                    importlib.import_module(f"experiments.{experiment.name}").main()
                code = 0
    except (Exception, SystemExit) as error:
        return Done(name=experiment.name, state="failed", seconds=perf_counter() - began, says=f"{type(error).__name__}: {error}"[:160])
    return _done(experiment, code, perf_counter() - began, said.getvalue())


def smoke(folder: Path, names: Sequence[str] = (), *, run: bool = False) -> list[Done]:
    """Every manifest at its small size into ``folder``; those that run processes only with ``run``."""
    found = []
    for experiment in experiments():
        if experiment.is_manifest and (experiment.simulated or run) and (not names or experiment.name in names):
            began = perf_counter()
            said = StringIO()
            with redirect_stdout(said):
                code = regista(["sweep", str(MANIFESTS / f"{experiment.name}.toml"), "--smoke", "--fresh", "--out", str(folder)])
            found.append(_done(experiment, code, perf_counter() - began, said.getvalue()))
    return found


def _done(experiment: Experiment, code: int, seconds: float, text: str) -> Done:
    # Exit codes of 'regista sweep'; a module that ends with another is broken Python.
    state = {0: "held" if experiment.is_manifest else "done", 1: "broken" if experiment.is_manifest else "failed", 2: "refused"}.get(
        code, "failed"
    )
    says = (
        ""
        if code == 0
        else next((line.strip() for line in reversed(text.splitlines()) if line.strip() and not line.startswith("wrote")), "")
    )
    return Done(name=experiment.name, state=state, seconds=round(seconds, 2), says=says[:160])


@contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [before[0], *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _all(chosen: Sequence[Experiment], work: Callable[[Experiment], Done], jobs: int, known: dict[str, Done], keep: bool) -> list[Done]:
    waiting = [experiment for experiment in chosen if experiment.name not in known]
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        for done in pool.map(work, waiting):
            known[done.name] = done
            console.print(f"{done.name}: {done.state}, {done.seconds:.1f} s", highlight=False)
            if keep and done.state in ("held", "done"):
                STATE.parent.mkdir(parents=True, exist_ok=True)
                finished = {name: asdict(d) for name, d in known.items() if d.state in ("held", "done")}
                save_text(str(STATE), json.dumps(finished, indent=1))
    return [known[experiment.name] for experiment in chosen]


def show(found: Sequence[Done], seconds: float) -> None:
    table = Table("experiment", "state", "seconds (run)", "says")
    for done in found:
        table.add_row(done.name, done.state, f"{done.seconds:.1f}", done.says)
    out = Console()
    if not out.is_terminal:
        out.width = 140
    out.print(table)
    bad = sum(done.state not in ("held", "done") for done in found)
    out.print(f"{len(found)} experiments, {bad} not as expected, {seconds:.0f} s in all", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything is as its manifest expects.   1: something is broken, refused or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="draw from the CSVs")
    parser.add_argument("--smoke", action="store_true", help="manifests at their small size")
    parser.add_argument("--out", type=Path, default=Path("out/smoke"), help="where --smoke writes")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--run", action="store_true", help="also what runs on this machine")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default 2)")
    args = parser.parse_args(argv)
    began = perf_counter()
    everything = experiments()
    unknown = set(args.only) - {e.name for e in everything}
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(e.name for e in everything)}")
    if args.smoke:
        found = smoke(args.out, args.only, run=args.run)
    elif args.figures:
        chosen = [e for e in everything if e.redraws and (not args.only or e.name in args.only) and _has_csv(e)]
        found = _all(chosen, redraw, 1, {}, keep=False)
    else:
        chosen = [e for e in everything if (e.simulated or args.run) and (not args.only or e.name in args.only)]
        known = {name: Done(**d) for name, d in json.loads(STATE.read_text()).items()} if STATE.exists() and not args.only else {}
        # A run that is not simulated must be alone on the machine.
        found = _all(chosen, perform, 1 if args.run else max(args.jobs, 1), known, keep=not args.only)
        if all(done.state in ("held", "done") for done in found) and not args.only:
            STATE.unlink(missing_ok=True)
    show(found, perf_counter() - began)
    return int(any(done.state not in ("held", "done") for done in found))


def _has_csv(experiment: Experiment) -> bool:
    """A manifest that runs on this machine may not have been performed yet; a module is committed with its CSV."""
    return not experiment.is_manifest or (HERE / "results" / f"{experiment.name}.csv").exists()


if __name__ == "__main__":
    sys.exit(main())
