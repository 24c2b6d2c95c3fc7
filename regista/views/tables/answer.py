"""The screen of ``regista plan``.  All actors and registers: ``explain --actors``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from planner.ir.plan import Plan
from planner.ir.units import show_bytes, show_s
from regista.analysis.answer import Answer
from regista.padded import batch_norm_text, padding_text
from regista.schedules.compared import schedules_text
from regista.trust.interval import Interval
from regista.views.tables.explanation import gap_text
from regista.views.tables.show import batch_dims_text, computed_again_text, evaluation_text

__all__ = ["answer_json", "show_answer", "show_facts"]

_MUCH_MOVING, _LARGE_GAP = 0.2, 0.02
"""Shares: of communication, of what a search may have left, from which on they are the next thing to look at."""
_MOST_PATTERNS, _MOST_PARTS, _MOST_USES, _MOST_WORDS, _MOST_STAGES = 8, 3, 4, 230, 3


def show_answer(found: Answer, interval: Interval, file: str | None, lead: str = "") -> RenderableType:
    """Step, memory, proof, split, what limits it, the largest parameters, and what to do next.

    Args:
        file: where the plan lies, for what to do next; None: nowhere, so that is left out.
        lead: over the next shape that the search worked out; empty: there is none.
    """
    return Group(show_facts(found, interval, lead), _patterns(found), *([] if file is None else _next(found, file)))


def show_facts(found: Answer, interval: Interval, lead: str = "", *, details: bool = True) -> Table:
    """The table of the screen without parameters and commands; without ``details`` only the step, the split and what proves and limits it."""
    plan = found.plan
    title = f"{plan.model}, plan {plan.plan_id}: {plan.num_ranks:,} of {plan.cluster.num_devices:,} x {plan.cluster.device.kind} of {plan.cluster.name}"
    table = Table(title=escape(_cut(title, 150)), title_justify="left", show_header=False)
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", overflow="fold")
    tokens = f", {found.tokens_per_s:,.0f} tokens/s" if found.tokens_per_s else ""
    at = "pessimistic" if "robust" in plan.options else "search's"
    table.add_row("step time", f"{show_s(plan.search.objective_s)} (theory, at the {at} prices); {_interval(interval)}")
    if details:
        used = f", {found.utilisation[0]} {found.utilisation[1]:.1%}" if found.utilisation else ""
        table.add_row("throughput", f"{found.samples_per_s:,.1f} samples/s{tokens}{used}")
        table.add_row("memory", _memory(found))
    table.add_row("split", escape(f"{found.split_text}; {padding_text(plan) or _micro_batches(plan)}"))
    table.add_row("limiter", escape(_limiter(found)))
    table.add_row("proof", escape(_cut(gap_text(plan), 2 * _MOST_WORDS)))
    if compared := schedules_text(plan):
        table.add_row("schedules", escape(_cut(compared, 2 * _MOST_WORDS)))
    for quantity, words in (("lead", lead), *_remarks(plan)) if details else (("kind of step", evaluation_text(plan)),):
        if words:
            table.add_row(quantity, escape(_cut(words, _MOST_WORDS)))
    return table


def _interval(interval: Interval) -> str:
    if interval.low_s is None or interval.high_s is None:
        return interval.why_not
    return f"90 % interval {show_s(interval.low_s)} to {show_s(interval.high_s)}"


def _micro_batches(plan: Plan) -> str:
    return (
        f"{plan.micro_batches} micro-batches of a batch of {plan.batch_size:,}"
        if plan.micro_batches > 1
        else f"batch of {plan.batch_size:,}"
    )


def _memory(found: Answer) -> str:
    largest = sorted(found.uses.items(), key=lambda entry: -entry[1])[:_MOST_USES]
    where = f"the fullest devices ({found.fullest})" if len(found.plan.placements) > 1 else "each device"
    held = f"{show_bytes(found.live_bytes)} of {show_bytes(found.device_bytes)} ({found.live_bytes / found.device_bytes:.0%})"
    blocks = "" if found.live_bytes == found.total_bytes else f" at once, of {show_bytes(found.total_bytes)} in all registers"
    uses = ", ".join(f"{use.value} {show_bytes(size)}" for use, size in largest if size)
    return escape(f"{'fits' if found.fits else 'does not fit'}; {where}: {held}{blocks}; {uses}")


def _limiter(found: Answer) -> str:
    parts = found.limiter.parts
    shown = ", ".join(f"{what} {share:.0%}" for what, share in parts[:_MOST_PARTS])
    where = f" of the busiest stage ({found.limiter.placement})" if len(found.plan.placements) > 1 else ""
    moving = found.limiter.moving
    verdict = (
        "computing" if moving < _MUCH_MOVING else "communication" if moving > 0.5 else f"computing, and communication for {moving:.0%}"
    )
    return f"{verdict}: {shown} of the time{where}, added up as if nothing overlapped" if parts else "nothing takes time"


def _remarks(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What a reader must know before the numbers are used."""
    return (
        ("kind of step", evaluation_text(plan)),
        ("batch dims", batch_dims_text(plan)),
        ("batch norm", batch_norm_text(plan)),
        ("computed again", computed_again_text(plan)),
    )


def _patterns(found: Answer) -> Table:
    table = Table(title="parameters, the largest in sum first", title_justify="left")
    has_stages = len(found.plan.placements) > 1
    for column in ("name", "count", "shape", "split", "per device", *(["stages"] if has_stages else [])):
        # On a narrow terminal names and words take a second line; numbers stay whole.
        words = column in ("name", "shape", "split")
        table.add_column(column, no_wrap=not words, overflow="fold", justify="right" if column in ("count", "per device") else "left")
    for row in found.patterns[:_MOST_PATTERNS]:
        shape = " x ".join(map(str, row.shape)) or "scalar"
        stages = [escape(_stages(row.stages))] if has_stages else []
        table.add_row(escape(row.name), f"{row.count:,}", shape, row.layout, show_bytes(row.part_bytes), *stages)
    if left := found.patterns[_MOST_PATTERNS:]:
        table.add_row(f"{len(left)} more kinds", f"{sum(row.count for row in left):,}")
    return table


def _stages(stages: tuple[str, ...]) -> str:
    return ", ".join(stages) if len(stages) <= _MOST_STAGES else f"{stages[0]} .. {stages[-1]} ({len(stages)})"


def _next(found: Answer, file: str) -> tuple[str, ...]:
    """The two commands that are of use now, and why."""
    plan = found.plan
    search, stages = plan.search, len(plan.placements)
    gap = 1 - search.lower_bound_s / search.objective_s if search.objective_s > 0 else 0.0
    play = (
        f"regista simulate {file}",
        f"play it: bubble of the {stages} stages, peak memory" if stages > 1 else "play it: peak memory, what is critical",
    )
    if gap > _LARGE_GAP:
        limit = "no bound says how much is left" if search.lower_bound_s <= 0 else f"up to {gap:.0%} may be left"
        rows = (play, ("the same with --method exact, or more --seconds", limit))
    elif plan.cluster.name.startswith("local"):
        measure = (f"regista calibrate {file} -o cost.json", "measure its acts, for --cost")
        rows = (measure, (f"regista run {file} --steps 20", "perform it; predicted beside measured"))
    elif found.limiter.moving >= _MUCH_MOVING:
        rows = (play, (f"regista explain {file}", "which layouts and links communication comes from"))
    else:
        rows = (play, (f"regista explain {file}", "costs of other layouts; --actors: all actors"))
    return ("next:", *(escape(f"  {command}   # {why}") for command, why in rows))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 12].rstrip() + " ... (--json)"


def answer_json(found: Answer) -> dict[str, object]:
    """The same facts, kind ``theory``; units in names, shares 0 to 1."""
    return {
        "kind": "theory",
        "samples_per_s": found.samples_per_s,
        "tokens_per_s": found.tokens_per_s,
        "utilisation": None if found.utilisation is None else {"what": found.utilisation[0], "share": found.utilisation[1]},
        "fits": found.fits,
        "fullest": {
            "placement": found.fullest,
            "bytes": found.live_bytes,
            "blocks_bytes": found.total_bytes,
            "device_bytes": found.device_bytes,
            "uses_bytes": {use.value: size for use, size in found.uses.items()},
        },
        "split": found.split_text,
        "axes": {placement: [role.value for role in roles] for placement, roles in found.roles.items()},
        "zero": found.zero,
        "limiter": {"placement": found.limiter.placement, "moving_share": found.limiter.moving, "shares": dict(found.limiter.parts)},
        "parameters": [
            {"name": row.name, "number": row.count, "shape": list(row.shape), "layout": row.layout}
            | {"part_bytes": row.part_bytes, "stages": list(row.stages)}
            for row in found.patterns
        ],
    }
