"""Every signature and local form that a rule gives is one that was looked at: of all cases, by digest; and however the arguments are given.

That each is right is proven by execution (test_opset.py, every rule in make test-all).  Here nothing is run, so a rule that gives others is noticed
at once.  After a change that means to: ``python -m tests.planner.opset.test_signatures`` writes signatures.csv anew.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from planner.ir.graph import Arg, Dt, Op
from planner.ir.tensor import DType
from planner.opset import local_types, localize, signatures
from tests.cases.opset_cases import CASES, cases
from tests.oracles.sbp_check import Case

FILE = Path(__file__).with_name("signatures.csv")


def shown(op: Op, case: Case, parts: int) -> Iterator[str]:
    """One line per signature, with what it makes of the op."""
    for signature in signatures(op, case.types, parts):
        local = localize(op, signature, case.types, parts)
        yield f"{parts}: {signature}; {local.args} {local.kwargs}; {sorted(map(str, local_types(op, signature, case.types, parts).values()))}"


def digest(target: str) -> str:
    lines = [line for case in cases(target, 0) for parts in (2, 3) for line in shown(case.op, case, parts)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def test_signatures_and_local_forms_are_those_that_were_looked_at() -> None:
    with FILE.open(newline="") as file:
        committed = {row["target"]: row["digest"] for row in csv.DictReader(file)}
    assert {target: digest(target) for target in CASES} == committed


def variants(case: Case) -> Iterator[Op]:
    """The op with its last argument given by keyword, or left out where it is the default, or with defaults behind the last."""
    namespace, _, name = case.op.target.partition(".")
    overload = getattr(torch.ops, namespace, None)
    for part in name.split("."):
        overload = getattr(overload, part, None)
    if not isinstance(overload, torch._ops.OpOverload) or len(case.op.args) > len(overload._schema.arguments):
        return
    op, arguments = case.op, overload._schema.arguments
    for argument in arguments[len(op.args) :]:
        if argument.kwarg_only or not argument.has_default_value() or op.kwargs:
            break
        op = replace(op, args=(*op.args, as_argument(argument.default_value)))
        yield op
    op = case.op
    while op.args and arguments[len(op.args) - 1].has_default_value():
        argument = arguments[len(op.args) - 1]
        last, rest = op.args[-1], replace(op, args=op.args[:-1])
        yield replace(rest, kwargs=(*rest.kwargs, (argument.name, last)))
        if as_argument(argument.default_value) != last:
            return
        yield rest
        op = rest


def as_argument(value: object) -> Arg:
    if isinstance(value, list):
        return tuple(as_argument(item) for item in value)
    if isinstance(value, torch.dtype):
        return Dt(DType.parse(str(value)))
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def test_an_argument_by_keyword_or_left_out_is_that_by_position() -> None:
    tried = 0
    for target in CASES:
        for case in cases(target, 0):
            wanted = signatures(case.op, case.types, 2)
            for op in variants(case):
                assert signatures(op, case.types, 2) == wanted, (target, op.args, op.kwargs)
                tried += 1
    assert tried > 400


if __name__ == "__main__":
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["target", "digest"])
        writer.writerows((target, digest(target)) for target in CASES)
