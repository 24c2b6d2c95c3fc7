"""Every simulated figure from scratch, or all figures from their CSVs.

    python -m experiments.reproduce                perform all simulated experiments and draw them; an interrupted one goes on, a whole one begins anew
    python -m experiments.reproduce --figures      draw all figures from the committed CSVs, perform nothing; --out DIR draws them there
    python -m experiments.reproduce --smoke --out DIR     everything at its small size, in this process; no committed file is touched
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
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from time import perf_counter
from types import ModuleType

from rich.console import Console
from rich.table import Table

from planner.ir.text import save_text
from regista.cli import main as regista
from regista.sweep.manifest import load_manifest
from regista.sweep.point import Performer

__all__ = ["MODULES", "Done", "Experiment", "experiments", "main", "smoke"]

HERE = Path(__file__).parent
MANIFESTS = HERE / "manifests"
FOLDERS = ("results", "figures")
STATE = Path("out/reproduce/state.json")
LIMIT_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """arguments: of the module, to perform it.   small: the same at its small size; without any it is small enough.   redraw: from its CSV alone.

    module: in experiments, if not the name.   simulated: it needs no quiet machine.   performed: here at full size; otherwise a command of its
    own does that.
    """

    name: str
    module: str = ""
    arguments: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    redraw: tuple[str, ...] = ("--redraw",)
    is_manifest: bool = False
    simulated: bool = True
    performed: bool = True

    @property
    def path(self) -> str:
        """Of the module, to import it."""
        return f"experiments.{self.module or self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """state: held or done, broken, refused or failed; says: the last line of what went wrong."""

    name: str
    state: str
    seconds: float
    says: str = ""


MODULES = (
    Experiment(name="alpa_plans", small=("--smoke",)),
    Experiment(name="quotas", module="quotas.__main__", small=("--smoke",)),
    Experiment(name="zero_bubble", small=("--smoke",)),
    Experiment(name="actor_timeline", module="oneflow.actor_timeline"),
    Experiment(name="sbp_pictures", module="oneflow.sbp_pictures"),
    Experiment(name="parameter_server", module="parameter_server.__main__"),
    Experiment(name="horovod", module="network.horovod"),
    Experiment(name="nccl_fit", module="nccl_fit.__main__"),
    Experiment(name="contention", module="network.contention"),
    Experiment(name="contention_plan", module="network.contention_plan", small=("--smoke",)),
    Experiment(name="contention_engine", module="network.contention_engine", small=("--smoke",)),
    Experiment(name="expert_routing", module="expert_routing.__main__", small=("--smoke",)),
    Experiment(name="recompute_plans", module="recompute.plans", small=("--smoke",)),
    Experiment(name="wide_deep", module="oneflow.wide_deep", small=("--smoke",)),
    Experiment(name="buyer", small=("--smoke",), performed=False),
    Experiment(name="quota_boundary", module="oneflow.quota_boundary", simulated=False),
    Experiment(name="overlap", module="oneflow.overlap", simulated=False),
    Experiment(name="transparency", simulated=False),
    Experiment(name="optimality", arguments=("--limit", "60", "--minutes", "30"), simulated=False),
    Experiment(name="quotas_run", module="quotas.__main__", redraw=("--run", "--redraw"), simulated=False, performed=False),
    Experiment(name="rivals", module="rivals.__main__", simulated=False, performed=False),
    Experiment(name="eager", module="rivals.eager", simulated=False, performed=False),
    Experiment(name="compiled", module="rivals.compiled", simulated=False, performed=False),
    Experiment(name="fidelity", module="fidelity.__main__", simulated=False, performed=False),
    Experiment(name="jobs", module="fidelity.jobs.__main__", simulated=False, performed=False),
    Experiment(name="kernel", module="kernel_database.__main__", simulated=False, performed=False),
    Experiment(name="corpus", module="corpus.__main__", simulated=False, performed=False),
    Experiment(name="trust", module="trust.__main__", simulated=False, performed=False),
    Experiment(name="validation_time", simulated=False, performed=False),
    Experiment(name="search_curves", module="search_space.curves", simulated=False, performed=False),
    Experiment(name="context_parallel", simulated=False, performed=False),
    Experiment(name="recompute", module="recompute.__main__", simulated=False, performed=False),
    Experiment(name="mixed_clusters", module="mixed_clusters.__main__", simulated=False, performed=False),
    Experiment(name="slow_process", module="mixed_clusters.slow_process", simulated=False, performed=False),
)
"""The longest first, so that two jobs end together.  Not simulated: quota_boundary, overlap and transparency run real processes; optimality
proves optima for hours; 'make fidelity', 'make corpus' and the scores of the kernel database are commands of
their own, and so is buyer, which searches for long.  iopddl needs the contest's files,
and the other benches print: they are not here.  The two Gantt charts of quota_boundary show traces, which no CSV holds: only a run draws them."""


def experiments() -> tuple[Experiment, ...]:
    """The modules, then the manifests by name."""
    manifests = []
    for path in sorted(MANIFESTS.glob("*.toml")):
        performer = load_manifest(path, smoke=True).performer
        manifests.append(Experiment(name=path.stem, is_manifest=True, simulated=performer is Performer.SIM))
    return (*MODULES, *manifests)


def perform(experiment: Experiment) -> Done:
    """From scratch, in a process of its own."""
    if experiment.is_manifest:
        code = "import sys; from regista.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "sweep", str(MANIFESTS / f"{experiment.name}.toml"), "--fresh"]
    else:
        command = [sys.executable, "-m", experiment.path, *experiment.arguments]
    began = perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
        exit_code, text = done.returncode, done.stderr or done.stdout
    except subprocess.TimeoutExpired:
        exit_code, text = -1, f"not done in {LIMIT_S} s"
    return _done(experiment, exit_code, perf_counter() - began, text)


def redraw(experiment: Experiment, out: Path = HERE) -> Done:
    """From the CSV in out/results to out/figures, in this process."""
    return _in_process(experiment, experiment.redraw, out)


def smoke(folder: Path, names: Sequence[str] = (), *, run: bool = False) -> list[Done]:
    """Every simulated experiment at its small size into folder/results and folder/figures; with ``run`` also the manifests that run processes."""
    done = []
    for experiment in experiments():
        wanted = experiment.simulated or (run and experiment.is_manifest)
        if wanted and (not names or experiment.name in names):
            arguments = ("--smoke", "--fresh") if experiment.is_manifest else experiment.small
            done.append(_in_process(experiment, arguments, folder))
    return done


def _in_process(experiment: Experiment, arguments: tuple[str, ...], out: Path) -> Done:
    """Here, with results and figures in ``out``, and not in a process of its own: to import torch takes longer than most small sizes."""
    began = perf_counter()
    said = StringIO()
    try:
        with redirect_stdout(said):
            if experiment.is_manifest:
                code = regista(["sweep", str(MANIFESTS / f"{experiment.name}.toml"), *arguments, "--out", str(out)])
            else:
                module = importlib.import_module(experiment.path)
                with _arguments(list(arguments)), _elsewhere(module, out):
                    code = _ended(module.main)
    except Exception as error:
        return Done(name=experiment.name, state="failed", seconds=perf_counter() - began, says=f"{type(error).__name__}: {error}"[:160])
    return _done(experiment, code, perf_counter() - began, said.getvalue())


def _ended(main: Callable[[], object]) -> int:
    """The exit code of a module's main: what it returns, or leaves with."""
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    return code if isinstance(code, int) else int(code is not None)


@contextmanager
def _elsewhere(module: ModuleType, out: Path) -> Iterator[None]:
    """The module's paths into experiments/results and experiments/figures lead to the folders of that name in ``out`` meanwhile."""
    before = {
        name: path
        for name, path in vars(module).items()
        if isinstance(path, Path) and any(path.is_relative_to(HERE / folder) for folder in FOLDERS)
    }
    for folder in FOLDERS:
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, path in before.items():
        setattr(module, name, out / path.relative_to(HERE))
    try:
        yield
    finally:
        for name, path in before.items():
            setattr(module, name, path)


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


def _all(
    chosen: Sequence[Experiment], work: Callable[[Experiment], Done], jobs: int, outcome_of: dict[str, Done], keep: bool
) -> list[Done]:
    """In the order of ``chosen``; ``keep``: what has ended well is written down at once, whatever still goes on."""
    console = Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for ended in as_completed([pool.submit(work, experiment) for experiment in chosen if experiment.name not in outcome_of]):
                done = ended.result()
                outcome_of[done.name] = done
                console.print(f"{done.name}: {done.state}, {done.seconds:.1f} s", highlight=False)
                if keep and done.state in ("held", "done"):
                    STATE.parent.mkdir(parents=True, exist_ok=True)
                    finished = {name: asdict(d) for name, d in outcome_of.items() if d.state in ("held", "done")}
                    save_text(str(STATE), json.dumps(finished, indent=1))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # an interrupt ends what goes on, and nothing new begins
            raise
    return [outcome_of[experiment.name] for experiment in chosen]


def show(outcomes: Sequence[Done], seconds: float) -> None:
    table = Table("experiment", "state", "seconds (run)", "says")
    for done in outcomes:
        table.add_row(done.name, done.state, f"{done.seconds:.1f}", done.says)
    out = Console()
    if not out.is_terminal:
        out.width = 140
    out.print(table)
    bad = sum(done.state not in ("held", "done") for done in outcomes)
    out.print(f"{len(outcomes)} experiments, {bad} not as expected, {seconds:.0f} s in all", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything is as its manifest expects.   1: something is broken, refused or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="draw from the CSVs")
    parser.add_argument("--smoke", action="store_true", help="everything at its small size")
    parser.add_argument("--out", type=Path, help="where --smoke (default out/smoke) and --figures (default experiments) write")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--run", action="store_true", help="also what runs on this machine")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (default 2)")
    args = parser.parse_args(argv)
    if args.out is not None and not (args.smoke or args.figures):
        parser.error("--out is for --smoke and --figures; a reproduction writes to experiments/results and experiments/figures")
    if args.smoke and args.out is not None and args.out.resolve() == HERE.resolve():
        parser.error(f"--smoke --out {args.out} would write over the committed rows; give another folder")
    began = perf_counter()
    everything = experiments()
    unknown = set(args.only) - {e.name for e in everything}
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(e.name for e in everything)}")
    if args.smoke:
        outcomes = smoke((args.out or Path("out/smoke")).absolute(), args.only, run=args.run)
    elif args.figures:
        chosen = [e for e in everything if (not args.only or e.name in args.only) and _has_csv(e)]
        if args.out is not None:
            shutil.copytree(HERE / "results", args.out / "results", dirs_exist_ok=True)
        outcomes = _all(chosen, partial(redraw, out=(args.out or HERE).absolute()), 1, {}, keep=False)
    else:
        own = {e.name for e in everything if not e.performed} & set(args.only)
        if own:
            parser.error(
                f"{', '.join(sorted(own))}: performed by a command of its own (experiments/README.md), here only redrawn with --figures"
            )
        chosen = [e for e in everything if e.performed and (e.simulated or args.run) and (not args.only or e.name in args.only)]
        outcome_of = {name: Done(**d) for name, d in json.loads(STATE.read_text()).items()} if STATE.exists() and not args.only else {}
        # A run that is not simulated must be alone on the machine.
        outcomes = _all(chosen, perform, 1 if args.run else max(args.jobs, 1), outcome_of, keep=not args.only)
        if all(done.state in ("held", "done") for done in outcomes) and not args.only:
            STATE.unlink(missing_ok=True)
    show(outcomes, perf_counter() - began)
    return int(any(done.state not in ("held", "done") for done in outcomes))


def _has_csv(experiment: Experiment) -> bool:
    """What takes long or needs a quiet machine may not have been performed yet.  A module may have several CSVs: NAME_of_what.csv."""
    return any((HERE / "results").glob(f"{experiment.name}.csv" if experiment.is_manifest else f"{experiment.name}*.csv"))


if __name__ == "__main__":
    sys.exit(main())
