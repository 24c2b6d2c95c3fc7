"""The table of a sensitivity study, its CSV and its JSON."""

from __future__ import annotations

import csv
import io

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.units import show_s
from regista.analysis.sensitivity.study import Choice, Effect, Sensitivity

__all__ = ["sensitivity_csv", "sensitivity_json", "show_sensitivity"]


def show_sensitivity(study: Sensitivity) -> RenderableType:
    """One row per constant, the largest swing first; then which constants change the choice, if it was searched."""
    plan, replanned = study.plan, any(effect.low_choice is not None for effect in study.effects)
    table = Table(
        title=escape(
            f"{plan.model}, plan {plan.plan_id} on {plan.cluster.name}: step of {show_s(study.step_s)} (sim), one constant at a time"
        ),
        title_justify="left",
    )
    table.add_column("constant", no_wrap=True)
    for column in ("value and spread", "step at low .. high end", "swing"):
        table.add_column(column, justify="right")
    for column in ("spread is", *(["a new search, low end", "high end"] if replanned else [])):
        table.add_column(column)
    for effect in study.effects:
        c = effect.constant
        low, high = (
            show_s(s) + ("" if fits else ", does not fit")
            for s, fits in ((effect.low_s, effect.low_fits), (effect.high_s, effect.high_fits))
        )
        value = f"{c.value:.5g} {c.unit}".removesuffix(" 1")
        cells = [c.key, f"{value} \N{PLUS-MINUS SIGN} {c.spread:.0%}", f"{low} .. {high}", f"{study.swing(effect):.2%}", c.origin]
        if replanned:
            cells += [_choice(effect.low_choice), _choice(effect.high_choice)]
        table.add_row(*map(escape, cells))
    return Group(table, escape(_summary(study, replanned)))


def _choice(choice: Choice | None) -> str:
    if choice is None:
        return "-"
    if choice.why_not:
        return f"refused ({choice.why_not.partition(':')[0]})"
    if choice.same:
        return "the same plan"
    return "another plan" if choice.gained is None else f"another plan, {choice.gained:.2%} quicker than this one there"


def _summary(study: Sensitivity, replanned: bool) -> str:
    still = [effect.constant.key for effect in study.effects if study.swing(effect) == 0]
    moved = [
        effect.constant.key
        for effect in study.effects
        if any(choice is not None and not choice.same for choice in (effect.low_choice, effect.high_choice))
    ]
    lines = []
    if still:
        lines.append(f"no effect on the step: {', '.join(still)}")
    if replanned:
        lines.append(
            f"the choice of plan depends on: {', '.join(moved)}" if moved else "no constant changes the choice of plan within its spread"
        )
    return "; ".join(lines)


def sensitivity_json(study: Sensitivity) -> dict[str, object]:
    """Times in seconds (kind ``sim``), constants in the units of a cluster's file, shares 0 to 1."""
    return {
        "plan_id": study.plan.plan_id,
        "cluster": study.plan.cluster.name,
        "step_s": study.step_s,
        "source": "sim",
        "effects": [_row(study, effect) | {"choices": _choices(effect)} for effect in study.effects],
    }


def _choices(effect: Effect) -> list[dict[str, object]] | None:
    made = [choice for choice in (effect.low_choice, effect.high_choice) if choice is not None]
    return [{"same": choice.same, "gained": choice.gained, "why_not": choice.why_not} for choice in made] or None


def sensitivity_csv(study: Sensitivity) -> str:
    """One row per constant."""
    rows = [
        _row(study, effect) | {"low_choice": _choice(effect.low_choice), "high_choice": _choice(effect.high_choice)}
        for effect in study.effects
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["constant"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(study: Sensitivity, effect: Effect) -> dict[str, object]:
    c = effect.constant
    return {
        "constant": c.key,
        "unit": c.unit,
        "value": c.value,
        "spread": c.spread,
        "spread_is": c.origin,
        "low": c.ends[0],
        "high": c.ends[1],
        "sim_step_s": study.step_s,
        "sim_low_s": effect.low_s,
        "sim_high_s": effect.high_s,
        "swing": study.swing(effect),
        "low_fits": effect.low_fits,
        "high_fits": effect.high_fits,
    }
