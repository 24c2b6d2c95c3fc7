"""The verb 'doctor': is this machine fit?  Each check says what it sees and, where that is not good, what to do."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from dataclasses import dataclass

from regista.verbs.screen import Json, show

__all__ = ["Check", "add_arguments", "examine", "perform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    what: str
    observed: str
    good: bool
    way_out: str = ""

    @property
    def advice(self) -> str:
        return "" if self.good else f" -> {self.way_out}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def perform(args: argparse.Namespace) -> Json:
    checks = examine()
    show(args, *(f"{'ok  ' if check.good else 'LOOK'}  {check.what}: {check.observed}{check.advice}" for check in checks))
    return {
        "good": all(check.good for check in checks),
        "checks": [{"what": check.what, "found": check.observed, "good": check.good} for check in checks],
    }


def examine() -> tuple[Check, ...]:
    """Look at versions, cores, memory, solver, gloo, devices and compilers."""
    return (_python(), _torch(), _gloo(), _solver(), _cores(), _memory(), _threads(), _disk(), _cuda(), _compiler())


def _python() -> Check:
    version = platform.python_version()
    return Check(what="python", observed=version, good=sys.version_info >= (3, 11), way_out="use Python 3.11 or newer")


def _torch() -> Check:
    import torch

    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return Check(what="torch", observed=torch.__version__, good=(major, minor) >= (2, 11), way_out="install torch 2.11 or newer")


def _gloo() -> Check:
    import torch.distributed as dist

    good = dist.is_available() and dist.is_gloo_available()
    return Check(what="gloo", observed="available" if good else "missing", good=good, way_out="install a torch built with gloo")


def _solver() -> Check:
    import numpy as np

    from planner.ir.errors import RegistaError
    from planner.solve import Edge, Problem
    from planner.solve.ilp import solve_ilp

    problem = Problem(("a", "b"), (np.array([2.0, 1.0]), np.array([1.0, 1.5])), (Edge(0, 1, np.array([[0.0, 1.0], [1.0, 0.0]])),))
    try:
        _, objective, _ = solve_ilp(problem)
        good, observed = abs(objective - 2.5) < 1e-9, f"HiGHS, objective {objective:g} of a two-node problem (2.5)"
    except RegistaError as error:
        good, observed = False, str(error)
    return Check(what="solver", observed=observed, good=good, way_out="pip install highspy")


def _cores() -> Check:
    cores = os.cpu_count() or 1
    return Check(
        what="cores", observed=f"{cores} (local:N predicts well up to N = {cores})", good=cores >= 2, way_out="use a machine with 2 cores"
    )


def _memory() -> Check:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Check(what="memory", observed=f"{size:.1f} GiB", good=size >= 4, way_out="the demo wants 4 GiB")


def _threads() -> Check:
    import torch

    threads = torch.get_num_threads()
    return Check(what="threads of this process", observed=f"{threads} (workers use 1 each)", good=True)


def _disk() -> Check:
    free = shutil.disk_usage(".").free / 2**30
    return Check(what="disk", observed=f"{free:.1f} GiB free", good=free >= 1, way_out="free 1 GiB for traces and temporary state")


def _cuda() -> Check:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Check(what="CUDA devices", observed=str(count) if count else "none (CPU processes over gloo are used)", good=True)


def _compiler() -> Check:
    from backend.ops.inductor import lacking

    missing = lacking({"cpu"})
    observed = f"not without {' and '.join(missing)}; fragments are performed op by op" if missing else "run --kernels compiled can compile"
    return Check(what="inductor", observed=observed, good=True)
