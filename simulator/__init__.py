"""Floor 2: a discrete-event simulator of Plans.  It steps the same actors as the backend, with a cost table for a clock."""

from simulator.engine import Engine, simulate
from simulator.live_bytes import dry_run
from simulator.theory import bubble_fraction, chain_period_s, ring_all_reduce_s

__all__ = ["Engine", "bubble_fraction", "chain_period_s", "dry_run", "ring_all_reduce_s", "simulate"]
