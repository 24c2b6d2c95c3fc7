"""Ops without a rule: whole inputs on every device of the placement, whole results (B, ..., B -> B, ..., B).

That is right for any op that is a function of its inputs, and the front end lets no other op into a graph.  What it costs: where an op with a
rule does 1/p of its work on each of p devices, these do all of it (planner.parallelism.replicated says how much of a step that is).
"""

from __future__ import annotations

from planner.ir.errors import UnknownOp
from planner.ir.graph import Op
from planner.opset.rule import FactorRule, Types
from planner.opset.spec import Kind, OpSpec, no_flop, written_bytes

__all__ = ["how_to_add", "spec_without_rule"]


def _whole(op: Op, types: Types) -> FactorRule:
    """No dim bears a factor, so nothing is split, and nothing is linear, so nothing is partial."""
    return FactorRule(
        operands=tuple(("",) * types[value].ndim for value in op.inputs),
        results=tuple(() if name is None else ("",) * types[name].ndim for name in op.outputs),
    )


_COMPUTED = OpSpec(rule=_whole)
_CREATED = OpSpec(rule=_whole, kind=Kind.CREATION, flop=no_flop, traffic=written_bytes)


def spec_without_rule(op: Op) -> OpSpec:
    """The row that stands for an op of torch that the table lacks.

    Raises:
        UnknownOp: it is none of torch's (one of ours without a row, or of a library that workers do not load).
    """
    if not op.target.startswith("aten."):
        raise UnknownOp(how_to_add(op))
    return _COMPUTED if op.inputs else _CREATED


def how_to_add(op: Op) -> str:
    """The refusal of an op without a rule, with the lines that would add one."""
    return (
        f"{op.where()} has no SBP rule. Add one row to the TABLE of its family in planner/opset/ "
        f"(elementwise, linalg, reduce, view, norm, index, signal, layers, optimizer, creation), for instance\n"
        f"    def _rule(op: Op, types: Types) -> FactorRule:\n"
        f'        return FactorRule(operands=(("m", "k"), ("k", "n")), results=(("m", "n"),))\n'
        f'    TABLE["{op.target}"] = OpSpec(rule=_rule)\n'
        f"and a case for it in tests/cases/opset_cases; tests/planner/opset/test_opset.py checks every signature by execution"
    )
