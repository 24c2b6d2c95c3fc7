"""How many micro-batches: the closed-form step time of each schedule, and an exact choice by enumeration.

p stages (or p v chunks), m micro-batches, f_i, b_i seconds of one micro-batch, t_i = f_i + b_i, c_i link seconds after stage i, there and back.

    1F1B          T = sum (t_i + c_i) + (m - 1) max t_i                                       (1) -> one_f_one_b_s()
    GPipe         T = sum (t_i + c_i) + (m - 1) (max f_i + max b_i)                           (2) -> gpipe_s()
    interleaved   T = sum (t_j + c_j) / v + (m v - 1) max t_j     over the p v chunks         (3) -> interleaved_s()

With equal stages and free links all three are exact, m t (1 + (p-1) / (v m)): pipeline_step_s() of simulator.theory for v = 1, and a bubble of
(p-1) / v times a device's time per micro-batch.  With unequal stages and free links (2) stays exact (a flow shop of identical jobs); (1) never
promises less than the schedule takes where backward is the same multiple of forward on every stage; (3), which gives every device v times
its slowest chunk, and (1) otherwise are estimates.  Links count once at both ends: where they are slow, 1F1B needs more in flight to hide
them (SEMANTICS 3.8), which only the simulator shows.

Micro-batches in flight: 1F1B min(m, p - i), GPipe m, interleaved -> interleaved_in_flight().
Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (Megatron-LM) section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.ir.errors import Unsupported

__all__ = [
    "Chosen",
    "MicroBatches",
    "choose_micro_batches",
    "gpipe_s",
    "interleaved_in_flight",
    "interleaved_s",
    "micro_batch_choices",
    "one_f_one_b_s",
]


@dataclass(frozen=True, slots=True, order=True)
class MicroBatches:
    """count x samples = the step's batch."""

    count: int
    samples: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best choice.  priced: for how many of the choices the exact price was asked;  the rest could not be better, or not fit."""

    micro: MicroBatches
    step_s: float
    priced: int
    choices: int


def micro_batch_choices(batch_size: int, stages: int = 1, batch_multiple: int = 1, virtual: int = 1) -> tuple[MicroBatches, ...]:
    """Every legal way to slice the batch evenly, fewest micro-batches first.

    Args:
        batch_size: samples per step.
        stages: p; only interleaving cares, since it feeds micro-batches in groups of p.
        batch_multiple: a micro-batch must be a multiple of so many samples (the devices that split the batch dim).
        virtual: v, chunks per device; 1 without interleaving.

    Raises:
        Unsupported: a count < 1, or a batch that cannot be sliced so.

    >>> [(c.count, c.samples) for c in micro_batch_choices(12, batch_multiple=2)]
    [(1, 12), (2, 6), (3, 4), (6, 2)]
    """
    if min(batch_size, stages, batch_multiple, virtual) < 1:
        raise Unsupported(
            f"batch {batch_size}, {stages} stages, multiple {batch_multiple}, {virtual} chunks per device; each is at least 1"
        )
    counts = [m for m in range(1, batch_size + 1) if batch_size % m == 0 and batch_size // m % batch_multiple == 0]
    found = tuple(MicroBatches(m, batch_size // m) for m in counts if virtual == 1 or m % stages == 0)
    if not found:
        need = batch_multiple if virtual == 1 else batch_multiple * stages
        raise Unsupported(f"a batch of {batch_size} samples cannot be sliced evenly; use a multiple of {need}")
    return found


def one_f_one_b_s(times_s: Sequence[float], micro_batches: int, links_s: Sequence[float] = ()) -> float:
    """(1), in seconds.

    Args:
        times_s: t_i, forward and backward of one micro-batch on each stage.
        links_s: c_i after each stage but the last; empty for free links.

    Raises:
        ValueError: no stage, or a count < 1.
    """
    _check(times_s, micro_batches)
    return sum(times_s) + sum(links_s) + (micro_batches - 1) * max(times_s)


def gpipe_s(forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int, links_s: Sequence[float] = ()) -> float:
    """(2), in seconds.  Args and Raises as one_f_one_b_s(), with f_i and b_i apart."""
    _check(forward_s, micro_batches)
    return sum(forward_s) + sum(backward_s) + sum(links_s) + (micro_batches - 1) * (max(forward_s) + max(backward_s))


def interleaved_s(times_s: Sequence[float], virtual: int, micro_batches: int, links_s: Sequence[float] = ()) -> float:
    """(3), in seconds.

    Args:
        times_s: t_j of the p v chunks in the order of the layers; chunk j lies on device j mod p.

    Raises:
        ValueError: no chunk, a count < 1, chunks that are no multiple of v, or micro-batches that are no multiple of p.
    """
    _check(times_s, micro_batches)
    if virtual < 1 or len(times_s) % virtual or (virtual > 1 and micro_batches * virtual % len(times_s)):
        raise ValueError(
            f"{len(times_s)} chunks, {virtual} per device, {micro_batches} micro-batches; chunks must be a multiple of v and, when "
            "interleaved, micro-batches a multiple of the devices"
        )
    return (sum(times_s) + sum(links_s)) / virtual + (micro_batches * virtual - 1) * max(times_s)


def interleaved_in_flight(stages: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    """Most micro-batches whose activations each chunk holds at once (p v numbers, chunk j on device j mod p).

    Read off the order itself: device i runs W = 2 (p-1-i) + (v-1) p forward acts, then one forward and one backward in turn; forward acts
    visit its chunks in rounds of p micro-batches, backward acts in the mirrored order.

    >>> interleaved_in_flight(2, 2, 4)
    (4, 3, 2, 1)

    Source: Narayanan et al. 2021, section 2.2.2.
    """
    peaks = [0] * (stages * virtual)
    acts = micro_batches * virtual
    for device in range(stages):
        held = [0] * virtual
        warm = min(acts, 2 * (stages - 1 - device) + (virtual - 1) * stages)
        for n in range(acts + warm):
            if n < acts:
                chunk = n // stages % virtual
                held[chunk] += 1
                place = chunk * stages + device
                peaks[place] = max(peaks[place], held[chunk])
            if n >= warm:
                held[virtual - 1 - (n - warm) // stages % virtual] -= 1
    return tuple(peaks)


def choose_micro_batches(
    choices: Sequence[MicroBatches],
    price_s: Callable[[MicroBatches], float | None],
    bound_s: Callable[[MicroBatches], float] = lambda _: 0.0,
) -> Chosen:
    """The choice of least step time, exact if ``bound_s`` never exceeds ``price_s``.

    Choices are priced in ascending order of their bound, until the bound reaches the best price; and since a larger micro-batch needs no
    less memory (min(m, p) of them are alive), none is priced that is larger than one that did not fit.

    Args:
        price_s: exact step time, None where it does not fit in memory.
        bound_s: a cheap lower bound, for instance m t (1 + (p-1)/m) with t the mean stage's compute at full rate.

    Raises:
        Unsupported: no choice, or none fits.
    """
    best: tuple[float, MicroBatches] | None = None
    largest = max((c.samples for c in choices), default=0) + 1
    priced = 0
    for bound, choice in sorted((bound_s(c), c) for c in choices):
        if best is not None and bound >= best[0]:
            break
        if choice.samples >= largest:
            continue
        priced += 1
        seconds = price_s(choice)
        if seconds is None:
            largest = choice.samples
        elif best is None or seconds < best[0]:
            best = seconds, choice
    if best is None:
        smallest = min((c.samples for c in choices), default=0)
        raise Unsupported(
            f"none of {len(choices)} micro-batch sizes fits in memory, not even {smallest} samples; use more devices or recompute"
        )
    return Chosen(best[1], best[0], priced, len(choices))


def _check(times_s: Sequence[float], micro_batches: int) -> None:
    if not times_s or micro_batches < 1:
        raise ValueError(f"{len(times_s)} stages, {micro_batches} micro-batches; both are at least 1")
