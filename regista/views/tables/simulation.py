"""The screen of ``regista simulate``, and the same figures as JSON."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from planner.cost import full_rate
from planner.ir.tensor import DType
from planner.ir.units import show_bytes, show_s
from regista.analysis.outlook import Devices, Outlook, Pace
from regista.trust import LEVEL
from regista.trust.interval import Interval
from simulator.routed import RoutedSteps

__all__ = ["outlook_json", "routed_json", "routed_text", "show_outlook"]

_MOST_CATEGORIES = 3
_MOST_WORDS = 360
_INTERVAL = 0.9


def show_outlook(look: Outlook) -> RenderableType:
    """Speed, shares, memory by category and the critical cycle."""
    return Group(_head(look), _memory(look), _pace(look.pace, look.forecast.step_s))


def _head(look: Outlook) -> Table:
    plan, forecast = look.plan, look.forecast
    table = Table(
        title=escape(
            _cut(
                f"{plan.model}, plan {plan.plan_id}: {plan.num_ranks:,} x {plan.cluster.device.kind} of {plan.cluster.name}, predicted (sim)",
                135,
            )
        ),
        title_justify="left",
        show_header=False,
    )
    for name in ("quantity", "predicted (sim)", "which is"):
        table.add_column(name, overflow="fold", no_wrap=name == "quantity")
    settled = "settled" if forecast.is_settled else "not settled yet: more --steps say more"
    which = f"of {look.steps} steps, without the first and the last" if look.steps > 2 else f"last of {look.steps} steps"
    table.add_row("step time", show_s(forecast.step_s), f"{which}, {settled}")
    ends = (look.interval.low_s, look.interval.high_s)
    shown = "-" if None in ends else " to ".join(show_s(end) for end in ends if end is not None)
    table.add_row("interval", shown, _points(look.interval))
    batch = f"batch of {plan.batch_size:,} in {plan.micro_batches} micro-batches"
    table.add_row("throughput", f"{look.samples_per_s:,.1f} samples/s", batch)
    if look.tokens_per_s is not None:
        table.add_row("", f"{look.tokens_per_s:,.0f} tokens/s", "")
    if look.flop:
        twice = ", recomputed work counted" if look.is_recomputed else ""
        whose = "data sheet" if look.plan.cluster.device.kernels else "cluster file"
        done = f"{sum(look.flop.values()):.3g} flop on all devices{twice}; peak of the {whose}: {_rates(look)}"
        table.add_row("HFU" if look.is_recomputed else "MFU", f"{look.mfu:.1%}", done)
    shares = [group.bubble for group in forecast.rank_groups]
    table.add_row(
        "bubble", f"{forecast.mean('bubble'):.1%}", f"of a step no compute; mean of devices, {min(shares):.1%} .. {max(shares):.1%}"
    )
    exposed = f"of a step collectives or sends; {forecast.mean('exposed'):.1%} with no compute beside them"
    table.add_row("communication", f"{forecast.mean('communication'):.1%}", exposed)
    if look.noisy is not None and look.noise is not None:
        low, middle, high = look.noisy.interval_s(_INTERVAL)
        runs = f"{_INTERVAL:.0%} of {len(look.noisy.step_s)} runs, median {show_s(middle)}"
        how = f"{runs}; jitter {look.noise.jitter:g}, seed {look.noise.seed}"
        table.add_row("with noise", f"{show_s(low)} .. {show_s(high)}", how)
    played = f"{forecast.num_firings:,} firings for {forecast.num_acts:,} acts; prices {look.cost_id}"
    table.add_row("engine", escape(forecast.engine), escape(_cut(played, 80)))
    if forecast.contention:
        table.add_row("", "contention", escape(_cut(forecast.contention, 80)))
    if forecast.not_compiled:
        table.add_row("", "not compiled", escape(_cut(forecast.not_compiled, 80)))
    return table


def _rates(look: Outlook) -> str:
    """The rates of the dtypes that matter: a thousandth of the flop or more."""
    device, total = look.plan.cluster.device, sum(look.flop.values())
    if look.plan.cluster.parts:
        return "of each kind's own devices"
    rates = {dtype: full_rate(device, dtype) for dtype, count in look.flop.items() if count >= 1e-3 * total}
    return ", ".join(f"{_dtype(dtype)} {_rate(rate)}" for dtype, rate in rates.items())


def _rate(flop_per_s: float) -> str:
    return f"{flop_per_s / 1e12:.4g} Tflop/s" if flop_per_s >= 1e12 else f"{flop_per_s / 1e9:.4g} Gflop/s"


def _dtype(dtype: DType | None) -> str:
    return "in general" if dtype is None else dtype.value


def _points(interval: Interval) -> str:
    return interval.why_not or f"{LEVEL:.0%} of the {interval.points} nearest measured points lay so close"


def _memory(look: Outlook) -> Table:
    limit = look.plan.cluster.device.memory_bytes
    table = Table(title=f"peak memory per device (sim), of {show_bytes(limit)}", title_justify="left")
    table.add_column("devices", no_wrap=True)
    for name in ("alike", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("most of it")
    for row in look.devices:
        peak = f"{show_bytes(row.peak_bytes)} {row.peak_bytes / limit:.0%}"
        table.add_row(escape(_where(row)), f"{len(row.ranks):,}", peak, _largest(row))
    return table


def _largest(row: Devices) -> str:
    """The categories that fill most of a device, the largest first."""
    if row.categories_bytes is None:
        return "?"
    largest = sorted(row.categories_bytes.items(), key=lambda entry: -entry[1])[:_MOST_CATEGORIES]
    return ", ".join(f"{category.value} {show_bytes(size)}" for category, size in largest if size)


def _where(row: Devices) -> str:
    ranks = f"{row.ranks[0]} .. {row.ranks[-1]}" if len(row.ranks) > 1 else str(row.ranks[0])
    return _cut(f"{'+'.join(row.placements)}: {ranks}", 20)


def _pace(pace: Pace, step_s: float) -> Text:
    if pace.period_s is None:
        return Text(_cut(f"critical cycle: left out, {pace.missing}", _MOST_WORDS), overflow="fold")
    text = Text(f"critical cycle (theory): {show_s(pace.period_s)} per step, {pace.waits:,} waits; {_scope(pace, step_s)}\n")
    if pace.left_out:
        text.append(f"{pace.left_out}\n")
    text.append("its time: " + ", ".join(f"{what} {share:.1%}" for what, share, _ in pace.parts) + "\n")
    text.append(_cut(pace.text, _MOST_WORDS))
    return text


def _scope(pace: Pace, step_s: float) -> str:
    assert pace.period_s is not None
    folded = "one rank per placement stands for all" if "one rank per placement" in pace.about else "every rank by itself"
    same = abs(pace.period_s - step_s) <= 1e-6 * max(pace.period_s, step_s)
    return f"{folded}; {'as simulated' if same else f'simulated step {show_s(step_s)}'}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 12].rstrip() + " ... (--json)"


def outlook_json(look: Outlook) -> dict[str, object]:
    """The same figures and their details; units in names, shares 0 to 1, kind ``sim`` but for the critical cycle (``theory``)."""
    plan, forecast = look.plan, look.forecast
    device = plan.cluster.device
    ranks = sorted((rank, group.peak_bytes) for group in forecast.rank_groups for rank in group.ranks)
    return {
        "plan_id": plan.plan_id,
        "source": "sim",
        "performer": "simulator",
        "steps": look.steps,
        "step_time_s": forecast.step_s,
        "interval": look.interval.to_json(),
        "settled": forecast.is_settled,
        "throughput_per_s": look.samples_per_s,
        "tokens_per_s": look.tokens_per_s,
        "mfu": look.mfu if look.flop else None,
        "mfu_counts_recomputed": look.is_recomputed,
        "step_flop": {_dtype(dtype): count for dtype, count in look.flop.items()},
        "rate_flop_per_s": {_dtype(dtype): full_rate(device, dtype) for dtype in look.flop},
        "num_devices": plan.num_ranks,
        "bubble_share": forecast.mean("bubble"),
        "communication_share": forecast.mean("communication"),
        "exposed_communication_share": forecast.mean("exposed"),
        "device_memory_bytes": device.memory_bytes,
        "peak_bytes": {str(rank): peak for rank, peak in ranks},
        "devices": [_devices_json(row) for row in look.devices],
        "critical_cycle": _pace_json(look.pace),
        "noise": _noise_json(look),
        "about": {
            "cost_model": look.cost_id,
            "engine": forecast.engine,
            "simulated_ranks": f"{plan.num_ranks if forecast.num_firings == forecast.num_acts else len(forecast.rank_groups)} of {plan.num_ranks}",
            "acts": str(forecast.num_acts),
            "firings": str(forecast.num_firings),
        }
        | ({"contention": forecast.contention} if forecast.contention else {})
        | ({"not_compiled": forecast.not_compiled} if forecast.not_compiled else {}),
    }


def _devices_json(row: Devices) -> dict[str, object]:
    parts = None if row.categories_bytes is None else {category.value: size for category, size in row.categories_bytes.items()}
    return {
        "placements": list(row.placements),
        "ranks": list(row.ranks),
        "peak_bytes": row.peak_bytes,
        "register_bytes": row.register_bytes,
        "categories_bytes": parts,
    }


def _pace_json(pace: Pace) -> dict[str, object]:
    if pace.period_s is None:
        return {"kind": "theory", "missing": pace.missing}
    parts = [{"what": what, "share": share, "waits": waits} for what, share, waits in pace.parts]
    return {
        "kind": "theory",
        "period_s": pace.period_s,
        "waits": pace.waits,
        "text": pace.text,
        "largest_parts": parts,
        "about": pace.about,
        "left_out": pace.left_out,
    }


def _noise_json(look: Outlook) -> dict[str, object] | None:
    if look.noisy is None or look.noise is None:
        return None
    low, middle, high = look.noisy.interval_s(_INTERVAL)
    return {
        "jitter": look.noise.jitter,
        "seed": look.noise.seed,
        "runs": len(look.noisy.step_s),
        "share_of_runs": _INTERVAL,
        "low_s": low,
        "median_s": middle,
        "high_s": high,
        "engine": look.noisy.engine,
    }


def routed_text(routed: RoutedSteps) -> str:
    """With drawn loads of experts: the quantile of the step, beside its median and the step with even loads, and what is dropped."""
    load, steps = routed.load, routed.steps
    even_s = float(steps.quiet_s[1:].mean() if len(steps.quiet_s) > 1 else steps.quiet_s[0])
    dropped = "" if load.capacity_factor is None else f"; {routed.dropped_share:.1%} of the tokens' choices dropped"
    return (
        f"experts, {load}: {load.quantile:.0%} of {len(steps.step_s)} runs take at most {show_s(routed.quantile_s)} per step (sim), median "
        f"{show_s(routed.median_s)}, even loads {show_s(even_s)}{dropped}; seed {load.seed}"
    )


def routed_json(routed: RoutedSteps) -> dict[str, object]:
    """Steps with drawn loads: seconds per step, shares 0 to 1."""
    load = routed.load
    return {
        **load.as_text(),
        "kind": "sim",
        "seed": load.seed,
        "runs": len(routed.steps.step_s),
        "quantile_s": routed.quantile_s,
        "median_s": routed.median_s,
        "step_s": routed.steps.means_s.tolist(),
        "dropped_share": routed.dropped_share,
    }
