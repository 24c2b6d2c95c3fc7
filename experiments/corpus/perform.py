"""One model in one way: traced, planned, performed in this process, and compared; whatever happens is a row."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from time import perf_counter

import numpy as np
import torch
from torch.utils._pytree import tree_map

import regista
from experiments.corpus.case import Case, Trained
from experiments.corpus.compare import LR, MOMENTUM, STEPS, Eager, errors, train_eagerly
from experiments.corpus.ways import Way, small_cluster, ways_of
from planner.frontend import SGD, Program
from planner.ir.errors import RegistaError
from planner.ir.plan import Plan
from regista.api import Performer

__all__ = ["LIMIT", "Row", "Status", "outcomes"]

LIMIT, LIMIT_64 = 1e-4, 1e-6
SEARCH_S = 10.0


class Status(Enum):
    """EQUAL: planned, performed, and equal to one device.   WRONG: performed, and not equal.   REFUSED: an error of ours, which says why.

    BY_VALUE: refused since a value decides shapes or what is computed.   TRACEBACK: any other exception.   TIMEOUT: not done in time, or the
    process died.   UNUSABLE: the library's own model does not train so, on one device in plain PyTorch.
    """

    EQUAL = "equal"
    WRONG = "wrong"
    REFUSED = "refused"
    BY_VALUE = "refused by value"
    TRACEBACK = "traceback"
    TIMEOUT = "timeout"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """dtype: of the comparison; float64 where rounding in float32 grows beyond the limit (``float32_error``) and float64 is equal.

    worst: the largest of the errors, and where.   ops: of the logical graph.   seconds: all together.
    """

    library: str
    model: str
    way: str
    status: str
    error: str = ""
    says: str = ""
    dtype: str = "float32"
    loss_error: float = 0.0
    gradient_error: float = 0.0
    state_error: float = 0.0
    float32_error: float = 0.0
    where: str = ""
    ops: int = 0
    parameters: int = 0
    performer: str = "threads"
    seconds: float = 0.0


def outcomes(case: Case, only: Sequence[str] = (), performer: str = "threads") -> Iterator[Row]:
    """A row per way.

    Args:
        only: names of ways (none: all of the case).   performer: threads or gloo.
    """
    about = {"library": case.library, "model": case.name, "performer": performer}
    ways = [way for way in ways_of(case).values() if not only or way.name in only]
    try:
        trained = built(case)
    except Exception as error:
        for way in ways:
            yield Row(**about, way=way.name, status=Status.UNUSABLE.value, error=type(error).__name__, says=_first_line(error))
        return
    eager: dict[int, Eager] = {}
    program: Program | None = None
    for way in ways:
        began = perf_counter()
        try:
            program = program or _program(case, trained)
            row = _outcome(case, trained, program, way, performer, eager)
        except Exception as error:
            row = {"status": _status(error), "error": type(error).__name__, "says": _first_line(error)}
        yield Row(**about, way=way.name, **row, seconds=round(perf_counter() - began, 2))


def built(case: Case) -> Trained:
    """The case's module and batch, seeded: the same weights and values each time."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return case.make()


def _program(case: Case, trained: Trained) -> Program:
    return Program(trained.module, trained.batch, trained.loss, SGD(lr=LR, momentum=MOMENTUM), name=case.name)


def _outcome(case: Case, trained: Trained, program: Program, way: Way, performer: str, eager: dict[int, Eager]) -> dict[str, object]:
    counted = sum(p.numel() for p in program.module.parameters())
    if way.micro_batches not in eager:
        try:
            eager[way.micro_batches] = train_eagerly(program, way.micro_batches)
        except RegistaError:
            raise
        except Exception as error:
            return {"status": Status.UNUSABLE.value, "error": type(error).__name__, "says": _first_line(error), "parameters": counted}
    plan = _plan(case, program, way)
    told = {"ops": len(program.graph(way.micro_batches).ops), "parameters": counted}
    found = errors(_run(plan, program, performer), eager[way.micro_batches])
    if found.worst <= LIMIT:
        return told | _numbers(Status.EQUAL, found)
    wide = _widened(case, trained)
    found_64 = errors(_run(_plan(case, wide, way), wide, performer), train_eagerly(wide, way.micro_batches))
    if found_64.worst <= LIMIT_64:
        return told | _numbers(Status.EQUAL, found_64) | {"dtype": "float64", "float32_error": found.worst}
    return told | _numbers(Status.WRONG, found)


def _numbers(status: Status, found: object) -> dict[str, object]:
    numbers = asdict(found)
    where = numbers.pop("where")
    return {"status": status.value, "where": where, **{f"{what}_error": value for what, value in numbers.items()}}


def _plan(case: Case, program: Program, way: Way) -> Plan:
    return regista.plan(
        program,
        small_cluster(),
        stages=way.stages,
        micro_batches=way.micro_batches,
        pins=way.pins(case, program),
        zero=way.zero,
        recompute=way.recompute,
        seconds=SEARCH_S,
    )


def _run(plan: Plan, program: Program, performer: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more ranks than cores: only results count here
        return regista.run(plan, program, steps=STEPS, performer=Performer(performer), gradients=True, timeout_s=60.0)


def _widened(case: Case, trained: Trained) -> Program:
    def wide(value: object) -> object:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    given = Trained(copy.deepcopy(trained.module).double(), tree_map(wide, trained.batch), trained.loss)
    return _program(case, given)


_BY_VALUE = re.compile(r"lets a value decide|a value decides|asks for a value")


def _status(error: Exception) -> str:
    if not isinstance(error, RegistaError):
        return Status.TRACEBACK.value
    return (Status.BY_VALUE if _BY_VALUE.search(str(error)) else Status.REFUSED).value


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:400]
