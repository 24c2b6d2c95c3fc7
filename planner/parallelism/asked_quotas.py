"""The quotas that a user asks for, by pattern, as a Plan records them among its options: ``PATTERN=BLOCKS;PATTERN=BLOCKS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from glob import escape

from planner.ir.plan import Plan, RegstKind

__all__ = ["quotas_of_text", "text_of_quotas", "with_quotas_asked"]


def text_of_quotas(quotas: Mapping[str, int]) -> str:
    """The record of the quotas that were asked for, in their order: a later one goes over an earlier one."""
    return ";".join(f"{pattern}={blocks}" for pattern, blocks in quotas.items())


def quotas_of_text(text: str) -> dict[str, int]:
    """What ``text_of_quotas`` wrote; a pattern may hold an equals sign."""
    pairs = (pair.rpartition("=") for pair in text.split(";") if pair)
    return {pattern: int(blocks) for pattern, _, blocks in pairs}


def with_quotas_asked(plan: Plan, before: Plan) -> Plan:
    """``plan`` as if its data Regsts' quotas that differ from those of ``before`` had been asked for.

    So what plans again from the options (what-if, explain) asks for these quotas too.  Quotas asked for by pattern stay; an id stands for itself, with
    the signs of patterns escaped.  Quotas of control Regsts are never asked for, and left out.
    """
    quotas = quotas_of_text(plan.options.get("quotas", ""))
    for regst, old in zip(plan.regsts, before.regsts, strict=True):
        if regst.kind is RegstKind.DATA and regst.quota != old.quota:
            pattern = escape(regst.id)
            quotas.pop(pattern, None)
            quotas[pattern] = regst.quota
    return replace(plan, options={**plan.options, "quotas": text_of_quotas(quotas)}) if quotas else plan
